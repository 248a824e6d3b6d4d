"""On a GPU the fused kernels equal the plain formula, padded or packed.

Lengths run from where a bias is held as a tensor to where our own kernels take over. What these
tests compile takes minutes the first time; `-k` with an encoding's name runs a part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import DTYPES, POSITIONS, TOLERANCE, all_apart, apart, perturb, tiny
from torch import Tensor

from heed.models import build
from heed.nn.attention import attend
from heed.nn.kernels import dispatch
from heed.nn.kernels.flex_attention import ScoreMod
from heed.nn.kernels.heads import rotate
from heed.nn.kernels.position_bias import PositionBias
from heed.nn.kernels.position_forms import FORMS, PositionForm, form_of
from heed.nn.masks import Mask, count_positions, restart_positions
from heed.nn.positions import T5, Alibi, Position, Rope, build_position
from heed.nn.tokens import Tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]

# torch.compile warns about functions it uses itself and about faster, less exact settings.
COMPILES = pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning")
B, HEADS, GROUPS, WIDTH, TOKENS = 2, 4, 2, 32, 600
SCALE = 0.2
MARGIN = 1.5
"""Two ways with the same rounding points add in another order, so single roundings differ."""
LENGTHS = [64, 512, 1024]
SCENES = ["causal", "causal-packed", "padded"]
RELATIVE = ["shaw", "t5", "alibi", "none"]


@dataclass
class Scene:
    """A mask, and the positions of queries and keys."""

    mask: Mask
    q_positions: Tensor
    k_positions: Tensor


def scene(kind: str, n: int, m: int | None = None) -> Scene:
    """`causal`, `causal-packed` (left padding too, so that some queries see nothing), `padded`."""
    m = m or n
    generator = torch.Generator().manual_seed(n)
    cuda = torch.device("cuda")
    if kind == "causal":
        positions = torch.arange(m, device=cuda)[None]
        return Scene(Mask(n, m, cuda, causal=True), positions[:, m - n :], positions)
    real = torch.arange(m)[None] < torch.tensor([[m - m // 3], [m]])
    if kind == "padded":
        real = real.to(cuda)
        positions = count_positions(real)
        return Scene(Mask(n, m, cuda, real_bm=real), positions[:, m - n :], positions)
    real = real.flip(1).to(cuda)
    segments = torch.randint(5, (B, m), generator=generator).sort(dim=1).values.to(cuda)
    positions = restart_positions(segments, real)
    own = segments[:, m - n :]
    mask = Mask(n, m, cuda, causal=True, real_bm=real, q_segments_bn=own, k_segments_bm=segments)
    return Scene(mask, positions[:, m - n :], positions)


def heads(n: int, count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Heads as one linear layer returns them: each token's heads are adjacent in memory."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, n, count, WIDTH, generator=generator).to("cuda", dtype)
    return x.transpose(1, 2).requires_grad_()


def encoding(name: str, causal: bool) -> Position:
    torch.manual_seed(0)  # Errors depend on the size of the biases, which must not vary by run.
    config = tiny(position=name, head_width=WIDTH, shaw_clip=16, t5_buckets=32, t5_distance=128)
    position = build_position(config, causal=causal)
    perturb(position)
    return position.to("cuda")


def gradients(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a random mix of `out`; zeros for inputs it does not depend on."""
    mix = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    found = torch.autograd.grad(out, list(inputs), mix, allow_unused=True)
    pairs = zip(inputs, found, strict=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in pairs]


class EmulatedFlash(torch.autograd.Function):
    """FlashAttention's rounding points in plain torch, with sums in float32.

    Weights (before they are normalized), output and gradients of scores are rounded to `dtype`.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, visible: Tensor, dtype: torch.dtype
    ) -> Tensor:
        scores = (q @ k.mT * SCALE + bias).masked_fill(~visible, -1e38)
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp() * visible
        total = weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        out = (weights.to(dtype).float() @ v / total).to(dtype).float()
        ctx.save_for_backward(q, k, v, weights / total, out)
        ctx.dtype, ctx.bias_shape = dtype, bias.shape
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, out = ctx.saved_tensors
        delta = (out * d_out).sum(dim=-1, keepdim=True)
        d_scores = (weights * (d_out @ v.mT - delta)).to(ctx.dtype).float()
        dv = weights.to(ctx.dtype).float().mT @ d_out
        d_bias = d_scores.sum_to_size(ctx.bias_shape)
        return d_scores @ k * SCALE, d_scores.mT @ q * SCALE, dv, d_bias, None, None


def balance_farthest(table_kh: Tensor, position: T5) -> Tensor:
    """The gradient of T5's table as the kernel has it: the farthest bucket balances the others.

    The gradients of a row's scores sum to zero, so the kernel need not visit far tiles. In 16 bits
    the rounding errors of all other buckets add up in that one.
    """
    farthest = int(position.bucket(torch.tensor([-position.distance])))
    balanced_kh = table_kh.clone()
    balanced_kh[farthest] -= table_kh.sum(dim=0)
    return balanced_kh


def compare(position: Position, case: Scene, dtype: torch.dtype) -> None:
    """Fused in `dtype` against plain in float64: outputs, gradients of inputs and parameters.

    Where an emulated FlashAttention is less exact than the tolerance, it is the bar. Here T5's
    biases reach 50: in 16 bits a rounded bias moves its weight by some percent, and buckets'
    gradients are differences of much larger numbers.
    """
    n, m = case.mask.queries, case.mask.keys
    inputs = [heads(n, HEADS, dtype, 0), heads(m, GROUPS, dtype, 1), heads(m, GROUPS, dtype, 2)]
    positions = case.q_positions, case.k_positions

    def run(way: str) -> tuple[Tensor, list[Tensor]]:
        wide = {"exact": torch.float64, "emulated": torch.float32}.get(way, dtype)
        q, k, v = (x.to(wide) for x in inputs)
        bias = PositionBias(position, *positions, q_bhnd=q, scale=SCALE)
        if way == "exact":
            out, _ = attend(q, k, v, mask=case.mask.dense(), bias=bias.dense(), scale=SCALE)
        elif way == "emulated":
            out = emulate(q, k, v, bias.dense())
        else:
            out = dispatch.attention(q, k, v, mask=case.mask, bias=bias, scale=SCALE)
        return out, gradients(out, [*inputs, *position.parameters()])

    def emulate(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        long = dispatch.LONG_BY_QUERY if position.bias_uses_query else dispatch.LONG
        bias = q.new_zeros(1, 1, 1, 1) if bias is None else bias
        if min(n, m) < long:  # SDPA takes a bias in the dtype of queries.
            bias = bias.to(dtype).float()
        k, v = (x.repeat_interleave(HEADS // GROUPS, dim=1) for x in (k, v))
        visible = case.mask.dense()
        visible = torch.ones(1, 1, n, m).bool().cuda() if visible is None else visible
        attend_flash: Any = EmulatedFlash.apply
        return attend_flash(q, k, v, bias, visible, dtype)

    (out, found), (expected, exact) = run("fused"), run("exact")
    exact = [x.to(y.dtype) for x, y in zip(exact, found, strict=True)]
    limits = [TOLERANCE[dtype]] * 2
    if dtype != torch.float32:
        emulated, emulated_grads = run("emulated")
        if isinstance(position, T5) and min(n, m) >= dispatch.LONG:
            emulated_grads[-1] = balance_farthest(emulated_grads[-1], position)
        errors = apart(emulated, expected), all_apart(emulated_grads, exact)
        limits = [max(TOLERANCE[dtype], MARGIN * error) for error in errors]
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(grad.isfinite().all() for grad in found)
    assert apart(out, expected) <= limits[0]
    assert all_apart(found, exact) <= limits[1]
    visible = case.mask.dense()
    if visible is not None:
        blind = ~visible.any(dim=-1).expand(B, HEADS, n)
        assert (out[blind] == 0).all()
        assert (found[0][blind] == 0).all()


@pytest.mark.parametrize("kind", SCENES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RELATIVE)
def test_fused_equals_plain(name: str, dtype: torch.dtype, kind: str) -> None:
    for n in LENGTHS:
        compare(encoding(name, kind.startswith("causal")), scene(kind, n), dtype)


@pytest.mark.parametrize("kind", SCENES)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_without_gradients_fused_equals_plain(dtype: torch.dtype, kind: str) -> None:
    """Other kernels serve then: of SDPA's, without cuDNN up to 512 tokens."""
    for n in (1, 64, 75, 512, 531):
        case = scene(kind, n)
        q, k, v = (heads(n, HEADS, dtype, seed) for seed in range(3))
        out = dispatch.attention(q, k, v, mask=case.mask, scale=SCALE)
        visible = case.mask.dense()
        expected, _ = attend(q.double(), k.double(), v.double(), mask=visible, scale=SCALE)
        assert apart(out, expected) <= TOLERANCE[dtype]
        if visible is not None:
            assert (out[~visible.any(dim=-1).expand(B, HEADS, n)] == 0).all()


@pytest.mark.parametrize("name", RELATIVE)
def test_lengths_that_fill_no_tile_and_queries_that_follow_a_cache(name: str) -> None:
    for n, m in ((531, 531), (550, 833)):
        compare(encoding(name, True), scene("causal", n, m), torch.bfloat16)


@pytest.mark.parametrize("name", ["shaw", "t5"])
def test_any_positions_at_all(name: str) -> None:
    """Positions given by a caller need not increase."""
    case = scene("padded", 512)
    generator = torch.Generator().manual_seed(5)
    for side in ("q_positions", "k_positions"):
        drawn = torch.randint(600, (B, 512), generator=generator)
        setattr(case, side, drawn.to("cuda"))
    compare(encoding(name, False), case, torch.float32)


@COMPILES
def test_an_encoding_that_knows_only_scores_goes_through_flex_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unruly(Position):
        """Like ALiBi, but its registered form is a `score_mod` alone."""

        def __init__(self) -> None:
            super().__init__()
            self.alibi = Alibi(tiny(head_width=WIDTH))

        def bias(self, *args: Any) -> Tensor:
            return self.alibi.bias(*args)

    class UnrulyForm(PositionForm):
        def score_mod(self, position: Unruly, *args: Any) -> ScoreMod | None:
            return form_of(position.alibi).score_mod(position.alibi, *args)

    monkeypatch.setitem(FORMS, Unruly, UnrulyForm())
    compare(Unruly().to("cuda"), scene("causal-packed", 512), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_on_a_gpu_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    rope, on_gpu = Rope(tiny(head_width=WIDTH)), Rope(tiny(head_width=WIDTH)).to("cuda")
    x = heads(200, HEADS, dtype, 0)
    positions = torch.randint(1000, (B, 200), generator=torch.Generator().manual_seed(1))
    for at in (positions, positions[:1]):
        rotated, _ = rotate(on_gpu, x, x[:, :0], at.to("cuda"), at.to("cuda"))
        cpu = x.detach().cpu().double().requires_grad_()
        expected, _ = rope.rotate(cpu, cpu[:, :0], at, at)
        # Angles are float32 on both sides: at position 1,000 they are right to about 1e-4.
        tolerance = max(TOLERANCE[dtype], 1e-4)
        assert apart(rotated.cpu(), expected) <= tolerance
        (found,), (exact,) = gradients(rotated, [x]), gradients(expected, [cpu])
        assert apart(found.cpu(), exact) <= tolerance


@pytest.mark.parametrize("name", ["shaw", "t5"])
def test_gradients_are_deterministic(name: str) -> None:
    position, case = encoding(name, True), scene("causal", 512)
    q, k, v = (heads(512, c, torch.bfloat16, s) for s, c in enumerate((HEADS, GROUPS, GROUPS)))

    def run() -> list[Tensor]:
        bias = PositionBias(position, case.q_positions, case.k_positions, q_bhnd=q, scale=0.2)
        out = dispatch.attention(q, k, v, mask=case.mask, bias=bias, scale=0.2)
        return list(torch.autograd.grad(out.square().sum(), [q, k, v, *position.parameters()]))

    first, second = run(), run()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", RELATIVE)
def test_memory_is_linear_in_length(name: str) -> None:
    """Twice the length takes about twice the memory, far below one number per cell."""
    peaks = []
    for n in (4096, 8192):
        position, case = encoding(name, True), scene("causal-packed", n)
        case.mask.real_bm = None
        inputs = [heads(n, c, torch.bfloat16, s) for s, c in enumerate((HEADS, GROUPS, GROUPS))]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        bias = PositionBias(position, *(case.q_positions, case.k_positions), q_bhnd=inputs[0])
        dispatch.attention(*inputs, mask=case.mask, bias=bias).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 2.5 * peaks[0]
    assert peaks[1] < HEADS * 8192**2


@pytest.mark.parametrize("name", POSITIONS)
def test_a_model_trains_as_the_plain_path_would(name: str) -> None:
    model = language_model(name)
    ids, mask, segments = batch()
    fast = model(ids, Tokens.of(ids, mask=mask, segments=segments))
    assert models_apart(model, fast, plainly(model, ids, mask, segments)) <= 1e-4


@COMPILES
@pytest.mark.parametrize("name", ["shaw", "t5"])
def test_a_block_compiled_without_a_graph_break_is_the_same(name: str) -> None:
    model = language_model(name)
    ids, mask, segments = batch()
    tokens = Tokens.of(ids, mask=mask, segments=segments)
    eager = model(ids, tokens)
    blocks: Any = model.stack.blocks
    for block in blocks:
        block.compile(fullgraph=True, dynamic=False)
    assert models_apart(model, model(ids, tokens), eager) <= 1e-4


def language_model(name: str) -> Any:
    torch.manual_seed(0)
    config = tiny(position=name, width=128, max_positions=TOKENS)
    model = build("generate", config, vocab=50)
    perturb(model, by=0.05)
    return model.to("cuda")


def batch() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.randint(50, (B, TOKENS), generator=torch.Generator().manual_seed(0))
    real = torch.arange(TOKENS)[None] >= torch.tensor([[0], [70]])
    segments = (torch.arange(TOKENS)[None] >= torch.tensor([[310], [400]])).long()
    return ids.to("cuda"), real.to("cuda"), segments.to("cuda")


def plainly(model: Any, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
    """The logits by the plain path, which returns its weights."""
    out = model.states(ids, Tokens.of(ids, mask=mask, segments=segments), weights=True)
    return model.head(out.x_bnw)


def models_apart(model: Any, found: Tensor, expected: Tensor) -> float:
    """The largest relative difference of two outputs and of all parameters' gradients."""
    wanted = list(model.parameters())
    return max(
        apart(found, expected), all_apart(gradients(found, wanted), gradients(expected, wanted))
    )
