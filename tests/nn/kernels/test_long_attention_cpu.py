"""Attention over long sequences in C is the plain formula, with its gradients and linear memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TOLERANCE, all_apart, apart, threads
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from heed.config import ModelConfig
from heed.nn.attention import attend
from heed.nn.kernels import dispatch, long_attention_cpu, position_forms
from heed.nn.kernels.distance_attention import DistanceBias
from heed.nn.kernels.heads import Heads
from heed.nn.kernels.long_attention_cpu import attend_long_cpu, load_kernels
from heed.nn.kernels.position_bias import KeptHeadsBias, PositionBias
from heed.nn.kernels.position_forms import PositionForm
from heed.nn.kernels.qkv_layout import find_packed
from heed.nn.masks import Mask
from heed.nn.positions import Alibi, Position, build_position

needs_kernel = pytest.mark.skipif(load_kernels() is None, reason="no C compiler")
HEADS = 4
NAMES = ("none", "alibi", "t5", "shaw")
KINDS = ("none", "padded", "left", "causal", "causal padded", "causal left", "causal packed")
ROUNDING = 2e-6


def encoding(name: str, width: int, *, causal: bool) -> Position:
    """An encoding whose learned biases are large enough to be seen, and whose reach is short."""
    torch.manual_seed(0)
    short: dict[str, Any] = {"shaw_clip": 9, "t5_buckets": 8, "t5_distance": 20}
    config = ModelConfig(layers=1, heads=HEADS, width=HEADS * width, position=name, **short)
    position = build_position(config, causal=causal)
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return position


def draw(*size: int) -> Tensor:
    return torch.randn(size)


def mask_of(kind: str, b: int, n: int, m: int) -> Mask | None:
    if kind == "none":
        return None
    mask = Mask(n, m, torch.device("cpu"), causal="causal" in kind)
    if "padded" in kind:
        mask.real_bm = torch.arange(m) < torch.randint(0, m + 1, (b, 1))
    if "left" in kind:
        mask.real_bm = torch.arange(m) >= torch.randint(0, m, (b, 1))
    if "packed" in kind:
        segments_bm = (torch.rand(b, m) < 0.02).long().cumsum(dim=1)
        mask.q_segments_bn, mask.k_segments_bm = segments_bm[:, m - n :], segments_bm
    return mask


def positions_of(kind: str, b: int, m: int) -> Tensor:
    """Positions of tokens: adjacent, shifted, with gaps, or of each sequence's own."""
    steps = torch.ones(1, m, dtype=torch.long)
    if kind == "gaps":
        steps = torch.randint(0, 3, (1, m))
    if kind == "own":
        steps = torch.randint(0, 2, (b, m))
    return steps.cumsum(dim=1) + (1000 if kind == "shifted" else -1)


def exactly(
    position: Position, qkv: list[Tensor], places: Any, mask: Mask | None, scale: float
) -> Tensor:
    """The formula, with a softmax in float64."""
    q, k, v = qkv
    bias = position.bias(q * scale, *places)
    scores = (q * scale) @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    scores = scores if bias is None else scores + bias
    visible = None if mask is None else mask.dense()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


@needs_kernel
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    b=st.integers(1, 2),
    n=st.sampled_from([2, 17, 64, 65, 131]),
    before=st.sampled_from([0, 1, 70, 129]),
    width=st.sampled_from([1, 4, 16, 20, 33, 136]),
    groups=st.sampled_from([1, 2, HEADS]),
    places=st.sampled_from(["adjacent", "shifted", "gaps", "own"]),
)
def test_it_is_the_formula_with_its_gradients(
    name: str, kind: str, b: int, n: int, before: int, width: int, groups: int, places: str
) -> None:
    torch.manual_seed(n + before + width)
    position, m = encoding(name, width, causal="causal" in kind), n + before
    mask, scale = mask_of(kind, b, n, m), 0.4
    k_positions = positions_of(places, b, m)
    q_positions = k_positions[:, before:]
    sizes = (b, HEADS, n, width), (b, groups, m, width), (b, groups, m, width)
    q, k, v = (draw(*size).requires_grad_() for size in sizes)
    mix = draw(b, HEADS, n, width)
    bias = PositionBias(position, q_positions, k_positions, q_bhnd=q, scale=scale)
    out = attend_long_cpu(q, k, v, mask=mask, bias=bias.by_distance(), scale=scale)
    found = torch.autograd.grad(out, [q, k, v, *position.parameters()], mix)
    position = position.double()
    learned = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact = exactly(position, learned, (q_positions, k_positions), mask, scale)
    wanted = torch.autograd.grad(exact, [*learned, *position.parameters()], mix.double())
    assert apart(out.double(), exact) <= ROUNDING
    for i, (a, c) in enumerate(zip(found, wanted, strict=True)):
        # A table's gradient is a sum over all pairs, most of which cancel out.
        rounding = 1e-5 * (b * n * m * width) ** 0.5 if i > 2 else 2e-4
        torch.testing.assert_close(a.double(), c, rtol=1e-4, atol=rounding)


@needs_kernel
@pytest.mark.parametrize("name", ["alibi", "t5", "shaw"])
def test_it_is_attend(name: str) -> None:
    position, places = encoding(name, 16, causal=True), torch.arange(150)[None]
    q, k, v = (draw(2, HEADS, 150, 16) for _ in range(3))
    mask = Mask(150, 150, torch.device("cpu"), causal=True)
    bias = PositionBias(position, places, places, q_bhnd=q, scale=0.25)
    out = attend_long_cpu(q, k, v, mask=mask, bias=bias.by_distance())
    plain, _ = attend(q, k, v, mask=mask.dense(), bias=bias.dense())
    assert apart(out, plain) <= ROUNDING


@needs_kernel
@pytest.mark.parametrize("groups", [1, 2, HEADS])
@pytest.mark.parametrize("name", ["none", "alibi", "t5"])
@given(count=st.integers(2, 5), b=st.integers(1, 3), other=st.integers(2, 200))
@settings(max_examples=10)
def test_threads_and_neighbours_change_no_bit(
    name: str, groups: int, count: int, b: int, other: int
) -> None:
    torch.manual_seed(0)
    position, n = encoding(name, 16, causal=True), 140

    def run(qkv: list[Tensor], real: Tensor) -> tuple[Tensor, ...]:
        m = qkv[0].shape[2]
        mask = Mask(m, m, torch.device("cpu"), causal=True, real_bm=real)
        places = torch.arange(m)[None]
        bias = PositionBias(position, places, places).by_distance()
        parts = [x.clone().requires_grad_() for x in qkv]
        out = attend_long_cpu(*parts, mask=mask, bias=bias)
        found = torch.autograd.grad(out, [*parts, *position.parameters()], torch.ones_like(out))
        return out, *found

    alone = [draw(1, heads, n, 16) for heads in (HEADS, groups, groups)]
    with threads(1):
        out, *expected = run(alone, torch.ones(1, n, dtype=torch.bool))
    with threads(count):
        again, *found = run(alone, torch.ones(1, n, dtype=torch.bool))
    assert all(torch.equal(x, y) for x, y in zip([out, *expected], [again, *found], strict=True))
    longer = max(n, other)  # beside other sequences, which may be longer
    together = [draw(b + 1, x.shape[1], longer, 16) for x in alone]
    for x, y in zip(together, alone, strict=True):
        x[0, :, :n] = y[0]
    real = torch.ones(b + 1, longer, dtype=torch.bool)
    real[0, n:] = False
    assert torch.equal(run(together, real)[0][0, :, :n], out[0])


@needs_kernel
def test_a_query_that_sees_nothing_gets_zeros_and_gives_none() -> None:
    q, k, v = (draw(1, 1, 130, 8).requires_grad_() for _ in range(3))
    real = torch.arange(130)[None] >= 129
    mask = Mask(130, 130, torch.device("cpu"), causal=True, real_bm=real)
    out = attend_long_cpu(q, k, v, mask=mask)
    assert torch.equal(out[:, :, :129], torch.zeros(1, 1, 129, 8))
    grads = torch.autograd.grad(out.sum(), [q, k, v])
    assert all(x.isfinite().all() for x in grads)
    assert torch.equal(grads[2][:, :, :129], torch.zeros(1, 1, 129, 8))


@needs_kernel
@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_reach_out(part: int, value: float) -> None:
    """To all queries that see them, and to no other sequence."""
    parts = [draw(2, 1, 200, 4) for _ in range(3)]
    parts[0].abs_()  # so that an infinite key gives infinite scores of one sign
    parts[part][1, 0, 70] = value
    parts = [x.requires_grad_() for x in parts]
    out = attend_long_cpu(*parts, mask=Mask(200, 200, torch.device("cpu"), causal=True))
    assert not out[1, 0, 70 : 71 if part == 0 else 200].isfinite().any()
    assert out[0].isfinite().all()
    dq, dk, dv = torch.autograd.grad(out.sum(), parts)
    assert not dq[1, 0, 70].isfinite().any()
    assert all(x[0].isfinite().all() for x in (dq, dk, dv))


@needs_kernel
def test_huge_scores_stay_finite() -> None:
    q, k, v = (draw(1, 2, 200, 8) for _ in range(3))
    mask = Mask(200, 200, torch.device("cpu"), causal=True)
    out = attend_long_cpu(1e3 * q, k, v, mask=mask)
    assert apart(out, attend(1e3 * q, k, v, mask=mask.dense())[0]) <= 1e-4


@needs_kernel
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_inputs_may_have_any_strides(order: tuple[int, ...]) -> None:
    back = sorted(range(4), key=order.__getitem__)
    q, k, v = parts = [
        draw(2, heads, 140, 20).permute(order).contiguous().permute(back).requires_grad_()
        for heads in (HEADS, 2, 2)
    ]
    out, (expected, _) = attend_long_cpu(q, k, v), attend(q, k, v)
    assert apart(out, expected) <= ROUNDING
    found, exact = (torch.autograd.grad(x.sum(), [k, v]) for x in (out, expected))
    assert all_apart(found, exact) <= TOLERANCE[torch.float32]
    one = [x[:1].expand(2, -1, -1, -1) for x in parts]  # its stride over the batch is 0
    assert torch.equal(attend_long_cpu(*one)[1], out[0])


@needs_kernel
def test_what_needs_no_gradient_gets_none() -> None:
    q, k, v = (draw(1, HEADS, 140, 8) for _ in range(3))
    (dk,) = torch.autograd.grad(attend_long_cpu(q, k.requires_grad_(), v).sum(), [k])
    (exact,) = torch.autograd.grad(attend(q, k, v)[0].sum(), [k])
    assert all_apart([dk], [exact]) <= TOLERANCE[torch.float32]
    assert not attend_long_cpu(q, k.detach(), v).requires_grad


@needs_kernel
def test_a_second_derivative_is_refused_not_wrong() -> None:
    q = draw(1, 1, 140, 8).requires_grad_()
    (grad,) = torch.autograd.grad(attend_long_cpu(q, q, q).sum(), [q], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


@needs_kernel
@pytest.mark.parametrize("name", NAMES)
def test_a_model_evaluates_by_the_bits_it_trains_with(name: str) -> None:
    position, n = encoding(name, 8, causal=True), 520
    q, k, v = (draw(2, HEADS, n, 8).requires_grad_() for _ in range(3))
    places = torch.arange(n)[None]

    def attention() -> Tensor:
        mask = Mask(n, n, q.device, causal=True)
        bias = PositionBias(position, places, places, q_bhnd=q, scale=0.3)
        return dispatch.attention(q, k, v, mask=mask, bias=bias, scale=0.3)

    trained = attention().detach()
    for without_gradients in (torch.no_grad(), torch.inference_mode()):
        with without_gradients:
            assert torch.equal(attention(), trained)


@needs_kernel
def test_c_reads_no_memory_of_another_device() -> None:
    q, elsewhere = draw(1, 2, 140, 8), torch.empty(1, 2, 140, 8, device="meta")
    assert not long_attention_cpu.fits_long_cpu(q, elsewhere, elsewhere)
    mask = Mask(140, 140, q.device, real_bm=torch.ones(1, 140, dtype=torch.bool, device="meta"))
    with pytest.raises(ValueError, match="on meta"):
        attend_long_cpu(q, q, q, mask=mask)


@needs_kernel
def test_gradients_of_one_linear_layer_lie_together() -> None:
    packed = draw(2, 140, 3 * 2 * 16).requires_grad_()
    q, k, v = dispatch.split_heads(packed, (2, 2, 2), 16)
    grads = torch.autograd.grad(attend_long_cpu(q, k, v).sum(), [q, k, v])
    assert find_packed(grads) is not None


@needs_kernel
def test_16_bits_are_computed_in_32_bits() -> None:
    q, k, v = (draw(1, 2, 130, 16).bfloat16().requires_grad_() for _ in range(3))
    out = attend_long_cpu(q, k, v)
    wide = attend_long_cpu(q.float(), k.float(), v.float())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, wide.bfloat16())


@needs_kernel
@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_under_autocast_attention_is_computed_in_32_bits(name: str) -> None:
    position, places = encoding(name, 16, causal=True), torch.arange(140)[None]
    q, k, v = parts = [draw(1, HEADS, 140, 16).requires_grad_() for _ in range(3)]
    learned = [*parts, *position.parameters()]

    def run(*, narrow: bool) -> list[Tensor]:
        bias = PositionBias(position, places, places, q_bhnd=q, scale=0.25)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            out = dispatch.attention(q, k, v, bias=bias)
        return [out, *torch.autograd.grad(out.sum(), learned)]

    assert all(map(torch.equal, run(narrow=True), run(narrow=False)))


@needs_kernel
def test_the_bias_of_kept_heads_is_theirs() -> None:
    position, places = encoding("t5", 16, causal=False), torch.arange(140)[None]
    q, k, v = (draw(1, 2, 140, 16) for _ in range(3))
    bias = KeptHeadsBias(PositionBias(position, places, places), torch.tensor([3, 1]))
    out = attend_long_cpu(q, k, v, bias=bias.by_distance())
    assert apart(out, attend(q, k, v, bias=bias.dense())[0]) <= ROUNDING


class OneTable(Position):
    """A learned table by distance for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.table_t = nn.Parameter(torch.linspace(-1, 1, 9))

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = k_positions[:, None, :] - q_positions[:, :, None]
        return self.table_t[distance.clamp(-4, 4) + 4][:, None]


class OneTableForm(PositionForm):
    """The table, where positions are few; else none."""

    def distance_bias(
        self, position: OneTable, q_positions: Tensor, k_positions: Tensor
    ) -> DistanceBias | None:
        if q_positions.shape[1] > 200:
            return None
        table = position.table_t[None, None, None]
        return DistanceBias(
            q_positions, k_positions, table_1h1c=table, max_distance=4, num_buckets=9
        )


class LearnedSlopesForm(PositionForm):
    """A form with slopes that learn."""

    def distance_bias(
        self, position: OneTable, q_positions: Tensor, k_positions: Tensor
    ) -> DistanceBias:
        return DistanceBias(q_positions, k_positions, slopes_h=position.table_t[:HEADS])


@needs_kernel
def test_all_heads_may_share_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute different heads don't add to the same gradient."""
    monkeypatch.setitem(position_forms.FORMS, OneTable, OneTableForm())
    position, places = OneTable(), torch.arange(140)[None]
    q, k, v = (draw(3, HEADS, 140, 8) for _ in range(3))
    exact = attend(q, k, v, bias=position.bias(None, places, places))[0]
    (expected,) = torch.autograd.grad(exact.square().sum(), [position.table_t])
    for _ in range(5):
        with threads(4):
            bias = PositionBias(position, places, places).by_distance()
            out = attend_long_cpu(q, k, v, bias=bias)
            (found,) = torch.autograd.grad(out.square().sum(), [position.table_t])
        assert apart(out, exact) <= ROUNDING
        assert all_apart([found], [expected]) <= 1e-4


@needs_kernel
def test_a_form_without_a_bias_for_this_call_does_not_drop_the_bias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    position = OneTable()
    monkeypatch.setitem(position_forms.FORMS, OneTable, OneTableForm())
    assert serving("", 200, position=position) == "long_attention_cpu"
    assert serving("", 201, position=position) == "sdpa"
    monkeypatch.setitem(position_forms.FORMS, OneTable, LearnedSlopesForm())
    assert serving("", 140, position=position) == "sdpa"


@needs_kernel
def test_positions_may_be_far_apart() -> None:
    position, places = encoding("alibi", 8, causal=True), torch.arange(140)[None].clone()
    places[:, 100:] += 10**12
    q, k, v = (draw(1, HEADS, 140, 8) for _ in range(3))
    bias = PositionBias(position, places, places)
    out = attend_long_cpu(q, k, v, bias=bias.by_distance())
    assert apart(out, attend(q, k, v, bias=bias.dense())[0]) <= ROUNDING


@needs_kernel
def test_a_mask_or_positions_of_other_tokens_are_an_error() -> None:
    q, position, places = draw(1, HEADS, 140, 8), encoding("t5", 8, causal=True), torch.arange(130)
    for mask in (
        Mask(140, 140, q.device, real_bm=torch.ones(1, 130)),
        Mask(140, 140, q.device, q_segments_bn=places[None], k_segments_bm=torch.ones(1, 140)),
        Mask(140, 140, q.device, q_segments_bn=torch.ones(1, 140), k_segments_bm=places[None]),
    ):
        with pytest.raises(RuntimeError, match="130"):
            attend_long_cpu(q, q, q, mask=mask)
    bias = PositionBias(position, places[None], places[None])
    with pytest.raises(RuntimeError, match="130"):
        attend_long_cpu(q, q, q, bias=bias.by_distance())


@needs_kernel
def test_heads_of_other_sizes_are_left_to_sdpa() -> None:
    """C would read beyond the end of a tensor that SDPA broadcasts, or refuses."""
    q, k, few = draw(3, 4, 140, 8), draw(3, 2, 150, 8), draw(1, 2, 150, 8)

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> str:
        call = dispatch.Call(Heads(q, k, v), None, None, None, 0.0)
        return next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call))

    assert kernel(q, k, k) == "long_attention_cpu"
    for others in ((few, few), (k, few), (k, k[:, :1]), (k, k[:, :, 1:]), (k[..., 1:], k)):
        assert kernel(q, *others) == "sdpa"
    assert kernel(q[:, :3], k, k) == "sdpa"
    assert kernel(q[:0], k[:0], k[:0]) == "sdpa"
    assert kernel(q[:, :, :1], k, k) == "sdpa"
    for width, name in ((256, "long_attention_cpu"), (257, "sdpa")):
        wide = draw(1, 1, 130, width)
        assert kernel(wide, wide, wide) == name
    assert apart(dispatch.attention(q, few, few), attend(q, few, few)[0]) <= ROUNDING
    with FakeTensorMode():
        fake = draw(3, 2, 150, 8)
        assert kernel(fake, fake, fake) == "sdpa"


@needs_kernel
def test_memory_is_linear_in_the_length() -> None:
    """No tensor that the backward pass keeps has a number for each pair of tokens."""
    n, position = 1500, encoding("t5", 8, causal=True)
    q, k, v = (draw(1, HEADS, n, 8).requires_grad_() for _ in range(3))
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    places, mask = torch.arange(n)[None], Mask(n, n, torch.device("cpu"), causal=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        dispatch.attention(q, k, v, mask=mask, bias=PositionBias(position, places, places))
    assert kept
    assert max(kept) < n * n / 8


def serving(
    name: str, n: int, *, dropout: float = 0.0, own: bool = False, position: Any = None
) -> str:
    position = position or encoding(name, 8, causal=True)
    places = torch.arange(n).expand(2 if own else 1, -1)
    q = draw(2, HEADS, n, 8)
    bias = PositionBias(position, places, places, q_bhnd=q)
    call = dispatch.Call(Heads(q, q, q), Mask(n, n, q.device, causal=True), bias, None, dropout)
    return next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call))


@needs_kernel
def test_it_serves_training_that_the_kernel_for_short_sequences_does_not() -> None:
    for name in NAMES:
        assert serving(name, 129) == "long_attention_cpu"
        short = "long_attention_cpu" if name == "shaw" else "short_attention_cpu"
        assert serving(name, 128) == short
    assert serving("t5", 64, own=True) == "long_attention_cpu"
    assert serving("rope", 129, dropout=0.1) == "sdpa"
    with torch.no_grad():
        assert serving("rope", 129) == "sdpa"

    class Own(Alibi):
        """An encoding without a form by distance."""

    own = Own(ModelConfig(heads=HEADS, width=32), causal=True)
    assert serving("", 129, position=own) == "sdpa"
    assert serving("", dispatch.LONG_CPU, position=own) == "blocked_attention"


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_attention_cpu, "load_kernels", lambda: None)
    assert serving("t5", 129) == "sdpa"
    assert serving("t5", dispatch.LONG_CPU) == "blocked_attention"
