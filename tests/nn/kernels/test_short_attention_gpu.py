"""Short attention, one program per head, equals the plain formula.

These tests run on a GPU, or without one in Triton's interpreter: `TRITON_INTERPRET=1 pytest …`. The
interpreter has no bfloat16; float16 takes its place there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from support import TOLERANCE, all_apart, apart, perturb, tiny
from torch import Tensor

from heed.models import build
from heed.nn.attention import attend
from heed.nn.kernels import dispatch, qkv_layout
from heed.nn.kernels.heads import PendingRotation, rotate
from heed.nn.kernels.position_bias import ROW_MULTIPLE
from heed.nn.kernels.short_attention import attend_short
from heed.nn.masks import Mask
from heed.nn.positions import Rope
from heed.nn.tokens import Tokens

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
# torch.compile warns about functions it uses itself and about faster, less exact settings.
COMPILES = pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning")
HALF = torch.bfloat16 if CUDA else torch.float16
MASKS = ("none", "causal", "padding", "segments", "all")
B = 3


@dataclass
class Call:
    """One call of attention, on views of the outputs of linear layers."""

    packed: list[Tensor]
    """[b, n, (h + 2g) · d], or for cross-attention [b, n, h · d] and [b, m, 2g · d]."""
    counts: tuple[int, int, int]
    width: int
    mask: Mask
    rope: Rope | None
    places: tuple[Tensor, Tensor]
    bias: Tensor | None
    """[1, h, n, m], shared by all sequences."""

    @property
    def inputs(self) -> list[Tensor]:
        """What has a gradient."""
        return self.packed if self.bias is None else [*self.packed, self.bias]

    def parts(self, packed: list[Tensor]) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        if len(packed) == 1:
            return qkv_layout.split_heads_autograd(packed[0], self.counts, self.width)
        h, g, _ = self.counts
        q = qkv_layout.split_heads_autograd(packed[0], (h,), self.width)
        return *q, *qkv_layout.split_heads_autograd(packed[1], (g, g), self.width)

    def short(self) -> Tensor:
        """By the kernel."""
        rotation = None if self.rope is None else PendingRotation(self.rope, *self.places)
        return attend_short(
            *self.parts(self.packed), mask=self.mask, bias=self.bias, rotation=rotation, scale=0.2
        )

    def exact(self) -> tuple[Tensor, list[Tensor]]:
        """By the plain formula in float64, with the gradients."""
        inputs = [x.detach().double().requires_grad_() for x in self.inputs]
        q, k, v = self.parts(inputs[: len(self.packed)])
        bias = None if self.bias is None else inputs[-1]
        if self.rope is not None:
            q, k = (
                plain_rotate(x, self.rope, at) for x, at in zip((q, k), self.places, strict=True)
            )
        out, _ = attend(q, k, v, mask=self.mask.dense(), bias=bias, scale=0.2)
        return out, gradients(out, inputs)


def plain_rotate(x: Tensor, rope: Rope, places: Tensor) -> Tensor:
    """RoPE's formula."""
    angles = (places[..., None].float() * rope.frequency_bits.view(torch.float32))[:, None]
    low, high = x.chunk(2, dim=-1)
    cos, sin = angles.cos().double(), angles.sin().double()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a random mix of `out`."""
    mix = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    return list(torch.autograd.grad(out, inputs, mix, retain_graph=True))


def make_call(
    n: int,
    m: int | None = None,
    *,
    groups: int = 2,
    share: int = 1,
    width: int = 16,
    mask: str = "none",
    rotates: bool = False,
    biased: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Call:
    """With `m`, cross-attention."""
    generator = torch.Generator().manual_seed(seed)
    counts = (groups * share, groups, groups)
    shapes = [(n, sum(counts))] if m is None else [(n, counts[0]), (m, 2 * groups)]
    packed = [
        torch.randn(B, tokens, count * width, generator=generator).to(DEVICE, dtype)
        for tokens, count in shapes
    ]
    keys = n if m is None else m
    places = [torch.randint(200, (B, size), generator=generator).to(DEVICE) for size in (n, keys)]
    bias = 2 * torch.randn(1, counts[0], n, keys, generator=generator).to(DEVICE)
    return Call(
        [x.requires_grad_() for x in packed],
        counts,
        width,
        make_mask(mask, n, keys, generator),
        Rope(tiny(head_width=width)).to(DEVICE) if rotates else None,
        (places[0], places[0] if m is None else places[1]),
        bias.requires_grad_() if biased else None,
    )


def make_mask(kind: str, n: int, m: int, generator: torch.Generator) -> Mask:
    """Random padding and segments: with them some queries see nothing."""
    mask = Mask(n, m, DEVICE, causal=kind in ("causal", "all"))
    if kind in ("padding", "all"):
        mask.real_bm = (torch.rand(B, m, generator=generator) < 0.6).to(DEVICE)
        mask.real_bm[0] = False
    if kind in ("segments", "all"):
        q_segments, k_segments = (
            torch.randint(4, (B, size), generator=generator).sort(dim=1).values.to(DEVICE)
            for size in (n, m)
        )
        mask.q_segments_bn = k_segments if n == m else q_segments
        mask.k_segments_bm = k_segments
    return mask


def compare(call: Call) -> None:
    """The kernel against float64: output, gradients, and zeros where nothing is seen."""
    dtype = call.packed[0].dtype
    out, (expected, exact) = call.short(), call.exact()
    found = gradients(out, call.inputs)
    tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert apart(out, expected) <= tolerance
    assert all(x.isfinite().all() for x in found)
    exact = [x.to(y.dtype) for x, y in zip(exact, found, strict=True)]
    assert all_apart(found, exact) <= tolerance
    visible = call.mask.dense()
    if visible is not None:
        blind = ~visible.any(dim=-1).expand(B, call.counts[0], -1)
        (dq,) = torch.autograd.grad(out, call.packed[:1], torch.ones_like(out), retain_graph=True)
        assert (out[blind] == 0).all()
        dq = dq.unflatten(2, (-1, call.width))[:, :, : call.counts[0]].transpose(1, 2)
        assert (dq[blind] == 0).all()


# ------------------------------------------------------------------------------ the plain formula


@pytest.mark.parametrize("extra", ["plain", "rotates", "biased"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["float32", "half"])
def test_short_equals_plain(dtype: torch.dtype, mask: str, extra: str) -> None:
    for n, m in ((32, None), (20, 45)):
        given = {} if extra == "plain" else {extra: True}
        compare(make_call(n, m, mask=mask, dtype=dtype, **given))


@pytest.mark.parametrize("seed", range(12 if CUDA else 4))
def test_any_lengths_widths_and_groups(seed: int) -> None:
    dice = random.Random(seed)
    compare(
        make_call(
            dice.randint(1, 128),
            dice.choice([None, dice.randint(1, 128)]),
            groups=dice.randint(1, 3),
            share=dice.randint(1, 3),
            width=dice.choice([6, 16, 24, 32, 64, 80, 128] if CUDA else [6, 16, 32]),
            mask=dice.choice(MASKS),
            rotates=dice.random() < 0.5,
            dtype=dice.choice([torch.float32, HALF]),
            biased=dice.random() < 0.5,
            seed=seed,
        )
    )


@needs_gpu
@pytest.mark.parametrize("n", [16, 32, 64, 128])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("rotates", [False, True], ids=["plain", "rotary"])
def test_short_is_as_exact_as_sdpa(n: int, width: int, rotates: bool) -> None:
    call = make_call(n, width=width, mask="causal", rotates=rotates, dtype=torch.bfloat16)
    expected, exact = call.exact()
    q, k, v = call.parts(call.packed)
    if call.rope is not None:
        q, k = rotate(call.rope, q, k, *call.places)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
    ours = call.short()
    assert apart(ours, expected) <= 1.1 * apart(theirs, expected)
    found = apart(gradients(ours, call.packed)[0], exact[0])
    assert found <= 1.1 * apart(gradients(theirs, call.packed)[0], exact[0])


@pytest.mark.parametrize("n", [16, 64])
def test_short_rounds_weights_as_flash_attention_does(n: int) -> None:
    """They are rounded to 16 bits before they are normalized: after it, the error is 1.3 times."""
    call = make_call(n, width=64, mask="causal", dtype=HALF)
    expected, _ = call.exact()
    q, k, v = (x.detach().float() for x in call.parts(call.packed))
    scores = (q @ k.mT * 0.2).masked_fill(
        ~torch.ones(n, n, device=DEVICE).bool().tril(), -torch.inf
    )
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    emulated = (weights.to(HALF).float() @ v / weights.sum(dim=-1, keepdim=True)).to(HALF)
    assert apart(call.short(), expected) <= 1.05 * apart(emulated, expected)


def test_huge_scores_stay_finite() -> None:
    call = make_call(20, mask="causal")
    q, k, v = call.parts(call.packed)
    out = attend_short(1e3 * q, k, v, mask=call.mask)
    expected, _ = attend(1e3 * q, k, v, mask=call.mask.dense())
    assert apart(out, expected) <= 1e-4


# ------------------------------------------------------------------------------------------- bias


@pytest.mark.parametrize("m", [5, 17, 32, 45])
def test_rows_of_a_bias_may_be_padded(m: int) -> None:
    """Whatever the padding has: it changes no bit, and its gradient is zero.

    Other strides are another compiled kernel, which may round differently.
    """
    call, padding = make_call(20, m, mask="padding", biased=True), -m % ROW_MULTIPLE
    assert call.bias is not None
    plain, bias = call.short(), call.bias.detach()
    exact = gradients(plain, call.inputs)
    outputs = []
    for value in (0.0, float("nan")):
        call.bias = F.pad(bias, (0, padding), value=value).requires_grad_()
        outputs.append(call.short())
        *others, d_bias = gradients(outputs[-1], call.inputs)
        assert apart(outputs[-1], plain) <= 1e-6
        assert all_apart([*others, d_bias[..., :m]], exact) <= 1e-6
        assert (d_bias[..., m:] == 0).all()
    assert torch.equal(*outputs)


def test_one_bias_may_serve_all_heads() -> None:
    call = make_call(20, 30, share=2, mask="causal", biased=True)
    assert call.bias is not None
    shared = call.bias.detach()[:, :1].requires_grad_()
    call.bias = shared.expand(-1, 4, -1, -1)
    exact = torch.autograd.grad(call.short().square().sum(), shared)
    call.bias = shared
    found = torch.autograd.grad(call.short().square().sum(), shared)
    assert all_apart(found, exact) <= 1e-6


def test_a_bias_is_not_rounded_to_16_bits() -> None:
    """A large one would move its weight by some percent."""
    call = make_call(32, biased=True, dtype=HALF)
    assert call.bias is not None
    call.bias = (30 * call.bias).detach().requires_grad_()
    compare(call)


def test_a_bias_is_added_up_in_float32_and_in_a_fixed_order() -> None:
    call = make_call(33, share=2, mask="all", biased=True, dtype=HALF)
    first, second = (gradients(call.short(), call.inputs)[-1] for _ in range(2))
    assert first.dtype == torch.float32
    assert torch.equal(first, second)


@pytest.mark.parametrize("learns", [False, True])
def test_gradients_of_scores_are_stored_only_for_a_bias_that_learns(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heed.nn.kernels.triton import short_attention

    stored: list[Tensor | None] = []
    backward = short_attention.backward

    def note(call: Any, d_out: Tensor, grads: list[Tensor], *more: Any) -> None:
        stored.append(more[0])
        backward(call, d_out, grads, *more)

    monkeypatch.setattr(short_attention, "backward", note)
    call = make_call(20, 30, mask="all", biased=True)
    assert call.bias is not None
    call.bias.requires_grad_(learns)
    found = gradients(call.short(), call.packed)
    call.bias.requires_grad_()
    _, exact = call.exact()
    assert all_apart(found, [x.float() for x in exact[:-1]]) <= 1e-5
    assert [x is not None for x in stored] == [learns]


@COMPILES
@pytest.mark.parametrize("learns", [False, True])
def test_a_compiled_call_is_the_eager_one(learns: bool) -> None:
    call = make_call(20, 33, mask="causal", biased=True)
    assert call.bias is not None
    call.bias.requires_grad_(learns)
    wanted = call.inputs if learns else call.packed
    parts = call.parts(call.packed)

    def attend_causally(*inputs: Tensor) -> Tensor:
        return attend_short(*inputs, mask=call.mask, bias=call.bias)

    compiled = torch.compile(attend_causally, backend="aot_eager", fullgraph=True)
    found, expected = compiled(*parts), attend_causally(*parts)
    assert torch.equal(found, expected)
    assert all(map(torch.equal, gradients(found, wanted), gradients(expected, wanted)))


# ----------------------------------------------------------------------------------------- memory


def test_gradients_have_the_layout_of_the_linear_layer() -> None:
    """One tensor for q, k and v of one layer; in the output a token's heads are adjacent."""
    call = make_call(20, share=2, rotates=True)
    q, k, v = call.parts(call.packed)
    rotation = None if call.rope is None else PendingRotation(call.rope, *call.places)
    out = attend_short(q, k, v, mask=call.mask, rotation=rotation)
    assert out.transpose(1, 2).is_contiguous()
    parts = torch.autograd.grad(out.sum(), [q, k, v])
    joined = qkv_layout.find_packed(parts)
    assert joined is not None
    assert joined.shape == call.packed[0].shape
    assert joined.is_contiguous()
    call = make_call(20, 30)
    q, k, v = call.parts(call.packed)
    dq, dk, dv = torch.autograd.grad(attend_short(q, k, v, mask=call.mask).sum(), [q, k, v])
    assert qkv_layout.find_packed([dq]) is not None
    assert qkv_layout.find_packed([dk, dv]) is not None
    assert qkv_layout.find_packed([dq, dk, dv]) is None


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_heads_of_any_strides(order: tuple[int, ...]) -> None:
    """Views of tensors whose axes have any order in memory; the last need not be contiguous."""
    call = make_call(20, width=16, mask="all")
    back = sorted(range(4), key=order.__getitem__)
    parts = [
        x.detach().permute(order).contiguous().permute(back).requires_grad_()
        for x in call.parts(call.packed)
    ]
    out = attend_short(*parts, mask=call.mask, scale=0.2)
    expected, _ = attend(*parts, mask=call.mask.dense(), scale=0.2)
    assert apart(out, expected) <= 1e-5
    assert all_apart(gradients(out, parts), gradients(expected, parts)) <= 1e-5


def test_what_needs_no_gradient_gets_none() -> None:
    call = make_call(20)
    q, k, v = (x.detach() for x in call.parts(call.packed))
    out = attend_short(q, k.requires_grad_(), v, mask=call.mask)
    expected, _ = attend(q, k, v)
    assert all_apart(gradients(out, [k]), gradients(expected, [k])) <= 1e-5
    with torch.inference_mode():
        assert not attend_short(q, k, v, mask=call.mask).requires_grad


def test_gradients_are_deterministic() -> None:
    call = make_call(64, share=2, mask="all", rotates=True, dtype=HALF)
    first, second = (gradients(call.short(), call.packed)[0] for _ in range(2))
    assert torch.equal(first, second)


# ---------------------------------------------------------------------------------- packing heads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 5, (3,), 8), (2, 70, (6, 2, 2), 16), (1, 3, (5, 5), 12)])
def test_packing_concatenates_heads(shape: Any, dtype: torch.dtype) -> None:
    b, n, counts, d = shape
    parts = [torch.randn(b, count, n, d).to(DEVICE, dtype) for count in counts]
    parts[0] = parts[0].transpose(1, 3).contiguous().transpose(1, 3)
    parts[-1] = parts[-1].transpose(0, 2).contiguous().transpose(0, 2)
    joined = qkv_layout.pack_heads(parts)
    expected = torch.cat([x.transpose(1, 2).flatten(2) for x in parts], dim=2)
    assert torch.equal(joined, expected)
    again = qkv_layout.pack_heads(qkv_layout.split_heads(joined, counts, d))
    assert again.data_ptr() == joined.data_ptr()
    assert torch.equal(again, expected)


def test_unused_parts_have_gradients_of_zero() -> None:
    packed = torch.randn(2, 20, 4 * 16, device=DEVICE, requires_grad=True)
    found, expected = (
        torch.autograd.grad(q.square().sum() + k.sum(), packed)
        for q, k, _ in (
            split(packed, (2, 1, 1), 16)
            for split in (qkv_layout.split_heads_autograd, qkv_layout.split_heads)
        )
    )
    assert torch.equal(found[0], expected[0])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_longer_sequences_are_packed_too(dtype: torch.dtype) -> None:
    """SDPA returns adjacent heads, and its gradients are packed."""
    packed = torch.randn(2, 256, 6 * 64, device=DEVICE, dtype=dtype, requires_grad=True)
    mask = Mask(256, 256, DEVICE, causal=True)
    outs = [
        dispatch.attention(*split(packed, (2, 2, 2), 64), mask=mask)
        for split in (dispatch.split_heads, qkv_layout.split_heads)
    ]
    assert outs[0].transpose(1, 2).is_contiguous()
    found, expected = (gradients(out, [packed]) for out in outs)
    assert found[0].is_contiguous()
    assert all_apart(found, expected) <= TOLERANCE[dtype]


# ------------------------------------------------------------------------------------- whole models


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were called, interpreted where there is no GPU."""
    called: list[str] = []

    def record(*args: Any, **kwargs: Any) -> Tensor:
        called.append("short")
        return attend_short(*args, **kwargs)

    monkeypatch.setattr(dispatch, "attend_short", record)
    if not CUDA:
        monkeypatch.setattr(dispatch, "on_gpu", lambda x: x.is_floating_point())
    return called


def translator(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = tiny(width=64, max_positions=64, cross_position=True, **changes)
    model = build("translate", config, vocab=50)
    perturb(model, by=0.05)
    return model.to(DEVICE)


@cache
def pairs() -> list[Tensor]:
    """Sources, targets and their masks; made once, because a capture may not copy from the host."""
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(50, (B, n), generator=generator) for n in (30, 20))
    real = torch.arange(30)[None] < torch.tensor([[30], [17], [1]])
    wanted = torch.arange(20)[None] < torch.tensor([[12], [20], [3]])
    return [x.to(DEVICE) for x in (source, target, real, wanted)]


def run(model: Any, *, plainly: bool, alike: bool = False) -> Tensor:
    """The logits. `alike`: all sequences have the same positions, as in training."""
    source, target, real, wanted = pairs()
    here, there = (
        Tokens.of(ids, mask=mask, positions=torch.arange(ids.shape[1], device=DEVICE))
        if alike
        else Tokens.of(ids, mask=mask)
        for ids, mask in ((source, real), (target, wanted))
    )
    if plainly:
        encoded = model.encode(source, here, weights=True).x_bnw
        return model.head(model.decode(target, there, encoded, here, weights=True).x_bnw)
    return model(source, target, here, there)


BIASED: dict[str, dict[str, Any]] = {
    "t5": {"position": "t5"},
    "t5-grouped": {"position": "t5", "kv_heads": 2},
    "t5-pruned": {
        "position": "t5",
        "kept_heads": {
            **{"encoder": [[1, 3, 4], [2]], "decoder": [[4], [1, 2, 3, 4]]},
            "cross": [[2, 3], [1, 4]],
        },
    },
    "alibi": {"position": "alibi"},
}
MODELS: dict[str, dict[str, Any]] = {
    "rope": {"position": "rope"},
    "grouped": {"position": "rope", "kv_heads": 2},
    "normed": {"position": "rope", "qk_norm": True},
    "sinusoidal": {"position": "sinusoidal", "merge": "reweight"},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_translator_trains_as_the_plain_path_would(name: str, fast: list[str]) -> None:
    model = translator(**MODELS[name])
    assert models_apart(model, run(model, plainly=False), run(model, plainly=True)) <= 1e-4
    assert len(fast) == 6  # Two layers, each: encoder, decoder, cross-attention.


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_is_served_where_sequences_share_it(name: str, fast: list[str]) -> None:
    model = translator(**BIASED[name])
    found, expected = (run(model, plainly=plainly, alike=True) for plainly in (False, True))
    assert models_apart(model, found, expected) <= 1e-4
    assert len(fast) == 6


@pytest.mark.parametrize("name", ["t5", "alibi", "shaw"])
def test_another_bias_is_served_by_another_kernel(name: str, fast: list[str]) -> None:
    """Where each sequence has its own positions, and where the bias depends on the query."""
    model, alike = translator(position=name), name == "shaw"
    found, expected = (run(model, plainly=plainly, alike=alike) for plainly in (False, True))
    assert models_apart(model, found, expected) <= 1e-4
    assert not fast


def models_apart(model: Any, found: Tensor, expected: Tensor) -> float:
    """The largest relative difference of two outputs and of all parameters' gradients."""
    wanted = list(model.parameters())
    return max(
        apart(found, expected), all_apart(gradients(found, wanted), gradients(expected, wanted))
    )


@needs_gpu
@pytest.mark.parametrize("name", ["rope", "t5"])
def test_under_autocast_all_is_bfloat16(name: str, fast: list[str]) -> None:
    model = translator(position=name)
    with torch.autocast("cuda", torch.bfloat16):
        found = run(model, plainly=False, alike=True)
    assert models_apart(model, found.float(), run(model, plainly=True, alike=True)) <= 0.05
    assert len(fast) == 6


@needs_gpu
@pytest.mark.parametrize("name", ["rope", "t5"])
def test_a_captured_step_is_the_eager_one(name: str) -> None:
    model = translator(position=name)
    wanted = list(model.parameters())

    def step() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(model, plainly=False, alike=True).float().square().mean()
        # Detached: a loss kept alive keeps the parameters' AccumulateGrad nodes, and with them the
        # stream they were made on, for the capture.
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(apart(a, b) <= 1e-5 for a, b in zip(captured, eager, strict=True))


@needs_gpu
@COMPILES
@pytest.mark.parametrize("name", ["rope", "sinusoidal", "t5", "t5-pruned", "alibi"])
def test_blocks_compiled_without_a_graph_break_are_the_same(name: str) -> None:
    torch.compiler.reset()  # what other tests compiled of a block counts towards its limit
    model = translator(**(MODELS | BIASED)[name])
    eager = run(model, plainly=False, alike=True)
    for stack in (model.encoder, model.decoder):
        for block in stack.blocks:
            block.compile(fullgraph=True, dynamic=False)
    assert models_apart(model, run(model, plainly=False, alike=True), eager) <= 1e-4
