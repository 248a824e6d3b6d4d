"""Short attention in C equals the plain formula, whatever the threads and the rest of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TOLERANCE, all_apart, apart, threads, tiny
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from heed.nn.attention import attend
from heed.nn.kernels import dispatch, long_attention_cpu, qkv_layout, short_attention_cpu
from heed.nn.kernels.heads import Heads, PendingRotation
from heed.nn.kernels.short_attention_cpu import MAX_TOKENS, attend_short_cpu, load_kernels
from heed.nn.masks import Mask
from heed.nn.positions import Rope

CPU = torch.device("cpu")
NEAR = TOLERANCE[torch.float32]
SCALE = 0.2
MASKS = ("none", "causal", "padding", "segments", "all")

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no C compiler")


@dataclass
class Case:
    """One call of attention, on views of the outputs of linear layers."""

    packed: list[Tensor]
    """[b, n, (h + 2g) · d], or for cross-attention [b, n, h · d] and [b, m, 2g · d]."""
    counts: tuple[int, int, int]
    width: int
    mask: Mask | None
    bias: Tensor | None
    """[1, h, n, m], shared by all sequences."""

    @property
    def inputs(self) -> list[Tensor]:
        """What has a gradient."""
        return self.packed if self.bias is None else [*self.packed, self.bias]

    def parts(self, packed: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        if len(packed) == 1:
            q, k, v = qkv_layout.split_heads_autograd(packed[0], self.counts, self.width)
            return q, k, v
        h, g, _ = self.counts
        (q,) = qkv_layout.split_heads_autograd(packed[0], (h,), self.width)
        k, v = qkv_layout.split_heads_autograd(packed[1], (g, g), self.width)
        return q, k, v

    def run(self) -> Tensor:
        """By the kernel."""
        return attend_short_cpu(
            *self.parts(self.packed), mask=self.mask, bias=self.bias, scale=SCALE
        )

    def run_all(self) -> list[Tensor]:
        """The output and all gradients, by the kernel."""
        out = self.run()
        return [out, *gradients(out, self.inputs)]

    def exact(self) -> list[Tensor]:
        """The output and all gradients, by the plain formula in float64."""
        inputs = [x.detach().double().requires_grad_() for x in self.inputs]
        bias = None if self.bias is None else inputs[-1]
        visible = None if self.mask is None else self.mask.dense()
        q, k, v = self.parts(inputs[: len(self.packed)])
        out, _ = attend(q, k, v, mask=visible, bias=bias, scale=SCALE)
        return [out, *gradients(out, inputs)]


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a random mix of `out`: the same for each sequence, alone or in a batch."""
    mix = torch.randn(out.shape[1:], generator=torch.Generator().manual_seed(3)).to(out)
    return list(torch.autograd.grad(out, inputs, mix.expand_as(out), retain_graph=True))


def make_case(
    n: int,
    m: int | None = None,
    *,
    b: int = 3,
    groups: int = 2,
    share: int = 1,
    width: int = 16,
    mask: str = "none",
    biased: bool = False,
    seed: int = 0,
) -> Case:
    """With `m`, cross-attention."""
    generator = torch.Generator().manual_seed(seed)
    counts = (groups * share, groups, groups)
    shapes = [(n, sum(counts))] if m is None else [(n, counts[0]), (m, 2 * groups)]
    packed = [
        torch.randn(b, tokens, count * width, generator=generator).requires_grad_()
        for tokens, count in shapes
    ]
    keys = n if m is None else m
    bias = 2 * torch.randn(1, counts[0], n, keys, generator=generator)
    made = make_mask(mask, b, n, keys, generator)
    return Case(packed, counts, width, made, bias.requires_grad_() if biased else None)


def make_mask(kind: str, b: int, n: int, m: int, generator: torch.Generator) -> Mask | None:
    """Random padding and segments: with them some queries see nothing."""
    if kind == "none":
        return None
    mask = Mask(n, m, CPU, causal=kind in ("causal", "all"))
    if kind in ("padding", "all"):
        mask.real_bm = torch.rand(b, m, generator=generator) < 0.7
        mask.real_bm[:, 2 * m // 3 + 1 :] = False
        mask.real_bm[-1] = False
    if kind in ("segments", "all"):
        mask.k_segments_bm = torch.randint(4, (b, m), generator=generator)
        q_segments = torch.randint(4, (b, n), generator=generator)
        mask.q_segments_bn = mask.k_segments_bm if n == m else q_segments
    return mask


def one_row(mask: Mask, i: int) -> Mask:
    """The mask of one sequence."""
    tensors = mask.real_bm, mask.q_segments_bn, mask.k_segments_bm
    real, of_queries, of_keys = (None if x is None else x[i : i + 1] for x in tensors)
    return replace(mask, real_bm=real, q_segments_bn=of_queries, k_segments_bm=of_keys)


def compare(case: Case) -> None:
    """The kernel against float64: output, gradients, and zeros where nothing is seen."""
    (out, *found), (expected, *exact) = case.run_all(), case.exact()
    assert out.transpose(1, 2).is_contiguous()
    assert apart(out, expected) <= NEAR
    assert all_apart(found, [x.float() for x in exact]) <= NEAR
    visible = None if case.mask is None else case.mask.dense()
    if visible is not None:
        blind = ~visible.any(dim=-1).expand(len(out), case.counts[0], -1)
        assert (out[blind] == 0).all()
        dq = found[0].unflatten(2, (-1, case.width))[:, :, : case.counts[0]].transpose(1, 2)
        assert (dq[blind] == 0).all()


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


# ------------------------------------------------------------------------------ the plain formula


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, MAX_TOKENS),
    m=st.none() | st.integers(1, MAX_TOKENS),
    b=st.integers(1, 3),
    groups=st.integers(1, 3),
    share=st.integers(1, 3),
    width=st.sampled_from([1, 6, 8, 16, 24, 32, 64, 80, 128]),
    mask=st.sampled_from(MASKS),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_call_is_the_plain_formula(**drawn: Any) -> None:
    compare(make_case(**drawn))


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("mask", MASKS)
def test_each_mask_is_the_plain_formula(mask: str, biased: bool) -> None:
    for n, m in ((32, None), (17, None), (20, 45), (45, 20)):
        compare(make_case(n, m, share=2, mask=mask, biased=biased))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_inputs_may_have_any_strides(order: tuple[int, ...]) -> None:
    case = make_case(20, mask="all")
    back = sorted(range(4), key=order.__getitem__)
    q, k, v = parts = [
        x.detach().permute(order).contiguous().permute(back).requires_grad_()
        for x in case.parts(case.packed)
    ]
    assert case.mask is not None
    out = attend_short_cpu(q, k, v, mask=case.mask, scale=SCALE)
    expected, _ = attend(q, k, v, mask=case.mask.dense(), scale=SCALE)
    assert apart(out, expected) <= NEAR
    assert all_apart(gradients(out, parts), gradients(expected, parts)) <= NEAR
    # A sum's gradient is one number, expanded.
    found, exact = (torch.autograd.grad(x.sum(), parts[1:]) for x in (out, expected))
    assert all_apart(found, exact) <= NEAR


def test_huge_scores_stay_finite() -> None:
    case = make_case(20, mask="causal")
    q, k, v = case.parts(case.packed)
    assert case.mask is not None
    out = attend_short_cpu(1e3 * q, k, v, mask=case.mask)
    expected, _ = attend(1e3 * q, k, v, mask=case.mask.dense())
    assert apart(out, expected) <= 1e-4


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_nan_stays_nan(part: int) -> None:
    """For all queries that see it, and in no other sequence."""
    case = make_case(20, mask="causal")
    parts = [x.detach().clone() for x in case.parts(case.packed)]
    parts[part][1, 0, 7] = float("nan")
    parts = [x.requires_grad_() for x in parts]
    out = attend_short_cpu(*parts, mask=case.mask)
    assert out[1, 0, 7 : 8 if part == 0 else 20].isnan().all()
    assert out[0].isfinite().all()
    dq, _, _ = torch.autograd.grad(out.sum(), parts)
    assert dq[1, 0, 7].isnan().all()
    assert dq[0].isfinite().all()


def test_what_needs_no_gradient_gets_none() -> None:
    case = make_case(20)
    q, k, v = (x.detach() for x in case.parts(case.packed))
    out = attend_short_cpu(q, k.requires_grad_(), v)
    expected, _ = attend(q, k, v)
    assert all_apart(gradients(out, [k]), gradients(expected, [k])) <= NEAR
    assert not attend_short_cpu(q, k.detach(), v).requires_grad


def test_a_second_backward_pass_is_the_first_again() -> None:
    case = make_case(20, 33, mask="all", biased=True)
    out = case.run()
    first, second = (gradients(out, case.inputs) for _ in range(2))
    assert all(map(torch.equal, first, second))


# ------------------------------------------------------------------------------------------- bias


@pytest.mark.parametrize("m", [5, 17, 32, 45])
def test_rows_of_a_bias_may_be_padded(m: int) -> None:
    """Whatever the padding has: it changes no bit, and its gradient is zero."""
    case = make_case(20, m, mask="padding", biased=True)
    assert case.bias is not None
    plain = case.run_all()
    for value in (0.0, float("nan")):
        padded = F.pad(case.bias.detach(), (0, 32 - m % 16), value=value).requires_grad_()
        *others, d_bias = replace(case, bias=padded).run_all()
        assert all(map(torch.equal, [*others, d_bias[..., :m]], plain))
        assert (d_bias[..., m:] == 0).all()


def test_one_bias_may_serve_all_heads() -> None:
    case = make_case(20, 30, share=2, mask="causal", biased=True)
    assert case.bias is not None
    shared = case.bias.detach()[:, :1].requires_grad_()
    outs = [replace(case, bias=x).run() for x in (shared, shared.expand(-1, 4, -1, -1))]
    found, exact = (torch.autograd.grad(out.square().sum(), shared) for out in outs)
    assert all_apart(found, exact) <= NEAR


# ------------------------------------------------------------------- threads, batches and layouts


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("mask", MASKS)
def test_the_number_of_threads_changes_no_bit(mask: str) -> None:
    case = make_case(37, groups=3, share=2, width=24, mask=mask, biased=True)
    two = case.run_all()
    torch.set_num_threads(1)
    assert all(map(torch.equal, case.run_all(), two))


@pytest.mark.parametrize("mask", MASKS)
def test_the_rest_of_the_batch_changes_no_bit(mask: str) -> None:
    case = make_case(37, share=2, mask=mask)
    together = case.run_all()
    for i in range(3):
        own = replace(case, packed=[x.detach()[i : i + 1].requires_grad_() for x in case.packed])
        own.mask = None if case.mask is None else one_row(case.mask, i)
        assert all(map(torch.equal, own.run_all(), (x[i : i + 1] for x in together)))


def test_gradients_of_one_layers_heads_are_one_tensor() -> None:
    case = make_case(20, width=8)
    parts = case.parts(case.packed)
    grads = torch.autograd.grad(case.run(), case.packed, torch.ones(3, 2, 20, 8))
    found = torch.autograd.grad(
        attend_short_cpu(*parts, scale=SCALE), parts, torch.ones(3, 2, 20, 8)
    )
    joined = qkv_layout.find_packed(found)
    assert joined is not None
    assert torch.equal(joined, grads[0])


def test_a_mask_may_have_one_row_for_all_sequences() -> None:
    case = make_case(20)
    real = torch.arange(20)[None] < 13
    case.mask = Mask(20, 20, CPU, real_bm=real, q_segments_bn=real, k_segments_bm=real.int())
    compare(case)


# --------------------------------------------------------------------------------------- dispatch


def dispatched(case: Case, **changes: Any) -> dispatch.Call:
    call = dispatch.Call(Heads(*case.parts(case.packed)), case.mask, None, SCALE, 0.0)
    return call._replace(**changes)


def serving(call: dispatch.Call) -> str:
    return next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call))


@pytest.mark.parametrize("mask", MASKS)
def test_short_sequences_that_train_have_the_kernel(mask: str) -> None:
    case = make_case(20, mask=mask)
    assert serving(dispatched(case)) == "short_attention_cpu"
    assert serving(dispatched(case, dropout=0.1)) == "sdpa"
    assert serving(dispatched(case, mask=torch.ones(20, 20, dtype=torch.bool))) == "sdpa"
    assert serving(dispatched(case, bias=torch.zeros(1, 2, 20, 20))) == "sdpa"
    with torch.no_grad():
        assert serving(dispatched(case)) == "sdpa"
    wide = dispatched(make_case(20, width=136))
    assert serving(wide) == "long_attention_cpu"
    q, k, v = (x.double() for x in case.parts(case.packed))
    double = Heads(q, k, v)
    assert serving(dispatched(case, heads=double)) == "sdpa"


def test_heads_of_other_sizes_are_left_to_sdpa() -> None:
    """C would read beyond the end of a tensor that SDPA broadcasts, or refuses."""
    q, k, few = torch.randn(3, 4, 20, 8), torch.randn(3, 2, 30, 8), torch.randn(1, 2, 30, 8)
    for others in ((few, few), (k, few), (k, k[:, :1]), (k, k[:, :, 1:]), (k[..., 1:], k)):
        assert serving(dispatch.Call(Heads(q, *others), None, None, SCALE, 0.0)) == "sdpa"
    assert serving(dispatch.Call(Heads(q[:, :3], k, k), None, None, SCALE, 0.0)) == "sdpa"
    out = dispatch.attention(q, few, few, scale=SCALE)
    assert apart(out, attend(q, few, few, scale=SCALE)[0]) <= NEAR


@pytest.mark.parametrize("part", ["real_bm", "q_segments_bn", "k_segments_bm"])
def test_a_mask_of_other_tokens_is_an_error(part: str) -> None:
    q = torch.randn(2, 2, 20, 8)
    mask = Mask(20, 20, CPU, q_segments_bn=torch.ones(1, 20), k_segments_bm=torch.ones(1, 20))
    setattr(mask, part, torch.ones(1, 19))
    with pytest.raises(RuntimeError, match="19"):
        attend_short_cpu(q, q, q, mask=mask)


def test_without_a_compiler_sdpa_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(20, mask="causal")
    call = dispatched(case)
    expected = case.run()
    for module in (short_attention_cpu, long_attention_cpu):
        monkeypatch.setattr(module, "load_kernels", lambda: None)
    assert serving(call) == "sdpa"
    out = dispatch.attention(*case.parts(case.packed), mask=case.mask, scale=SCALE)
    assert apart(out, expected) <= NEAR


def test_tensors_without_memory_are_left_to_sdpa() -> None:
    with FakeTensorMode():
        case = make_case(20)
        assert serving(dispatched(case)) == "sdpa"
        assert dispatch.split_heads(case.packed[0], case.counts, case.width)[0].shape[1] == 2


def test_a_pending_rotation_is_applied_first() -> None:
    case, places = make_case(20, mask="causal"), torch.arange(20)[None]
    rotation = PendingRotation(Rope(tiny(head_width=16)), places, places)
    heads = Heads(*case.parts(case.packed), rotation)
    assert serving(dispatched(case, heads=heads)) == "short_attention_cpu"
    out = dispatch.attention(*heads[:3], mask=case.mask, rotation=rotation)
    assert case.mask is not None
    expected, _ = attend(*heads.rotated(), mask=case.mask.dense())
    assert apart(out, expected) <= NEAR
    found, exact = (gradients(x, case.packed) for x in (out, expected))
    assert all_apart(found, exact) <= NEAR


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_attention_is_computed_in_float32(dtype: torch.dtype) -> None:
    case = make_case(20, mask="all")
    parts = [x.detach().to(dtype).requires_grad_() for x in case.parts(case.packed)]
    with torch.autocast("cpu", torch.bfloat16):
        out = dispatch.attention(*parts, mask=case.mask, scale=SCALE)
    wide = [x.detach().float().requires_grad_() for x in parts]
    expected = attend_short_cpu(*wide, mask=case.mask, scale=SCALE)
    assert out.dtype == dtype
    assert torch.equal(out, expected.to(dtype))
    found, exact = gradients(out, parts), gradients(expected, wide)
    assert [x.dtype for x in found] == [dtype] * 3
    assert all_apart(found, [x.to(dtype) for x in exact]) <= TOLERANCE[dtype]
