"""Attention in blocks of queries is the plain formula, and makes no bias of all queries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart
from torch import Tensor

from heed.config import ModelConfig
from heed.nn.attention import attend
from heed.nn.kernels import blocked_attention, dispatch
from heed.nn.kernels.blocked_attention import BLOCK, attend_in_blocks
from heed.nn.kernels.heads import Heads
from heed.nn.kernels.position_bias import KeptHeadsBias, PositionBias
from heed.nn.kernels.sdpa import attend_sdpa
from heed.nn.masks import Mask
from heed.nn.positions import Position, build_position

HEADS, WIDTH = 4, 8
BIASED = ("alibi", "t5", "shaw")
ROUNDING = 1e-6
"""The formula's softmax is in float32."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 4)


def encoding(name: str, *, causal: bool = False) -> Position:
    torch.manual_seed(0)
    config = ModelConfig(layers=1, heads=HEADS, width=HEADS * WIDTH, position=name)
    position = build_position(config, causal=causal).double()
    for parameter in position.parameters():  # learned biases that are seen
        torch.nn.init.normal_(parameter)
    return position


def draw(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64)


def mask_of(kind: str, b: int, n: int, m: int) -> Mask | None:
    if kind == "none":
        return None
    mask = Mask(n, m, torch.device("cpu"), causal="causal" in kind)
    if "padded" in kind:
        mask.real_bm = torch.arange(m) < torch.randint(0, m + 1, (b, 1))
    if "left" in kind:
        mask.real_bm = torch.arange(m) >= torch.randint(0, m, (b, 1))
    if "packed" in kind:
        segments_bm = torch.randint(0, 2, (b, m)).cumsum(dim=1)
        mask.q_segments_bn, mask.k_segments_bm = segments_bm[:, m - n :], segments_bm
    return mask


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize(
    "kind", ["none", "padded", "causal", "causal padded", "causal left", "causal packed"]
)
@given(b=st.integers(1, 3), n=st.integers(1, 11), before=st.integers(0, 6), groups=st.booleans())
def test_it_is_the_formula_with_its_gradients(
    name: str, kind: str, b: int, n: int, before: int, groups: bool
) -> None:
    torch.manual_seed(n)
    position, m = encoding(name, causal="causal" in kind), n + before
    heads = HEADS // 2 if groups else HEADS
    q, k, v = draw(b, HEADS, n, WIDTH), draw(b, heads, m, WIDTH), draw(b, heads, m, WIDTH)
    mask, places = mask_of(kind, b, n, m), torch.arange(m)[None]
    learned = [q, k, v, *position.parameters()]
    for x in learned:
        x.requires_grad_()
    scale, mix = 0.3, draw(b, HEADS, n, WIDTH)
    bias = PositionBias(position, places[:, before:], places, q_bhnd=q, scale=scale)
    formula, _ = attend(
        q, k, v, mask=None if mask is None else mask.dense(), bias=bias.dense(), scale=scale
    )
    whole = attend_sdpa(q, k, v, mask=mask, bias=bias, scale=scale, dropout=0.0)
    wanted = torch.autograd.grad(whole, learned, mix)
    out = attend_in_blocks(q, k, v, mask=mask, bias=bias, scale=scale, dropout=0.0)
    found = torch.autograd.grad(out, learned, mix)
    assert apart(out, formula) <= ROUNDING
    for a, c in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        evaluated = attend_in_blocks(q, k, v, mask=mask, bias=bias, scale=scale, dropout=0.0)
    torch.testing.assert_close(evaluated, out)


@pytest.mark.parametrize("name", BIASED)
def test_no_bias_of_more_queries_than_a_block_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", BLOCK)
    n, position, made = dispatch.LONG_CPU, encoding(name, causal=True).float(), []
    bias_of = position.bias

    def noted(q: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        made.append((q_positions.shape[1], k_positions.shape[1]))
        return bias_of(q, q_positions, k_positions)

    monkeypatch.setattr(position, "bias", noted)
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3))
    places, mask = torch.arange(n)[None], Mask(n, n, torch.device("cpu"), causal=True)
    bias = PositionBias(position, places, places, q_bhnd=q)
    attend_in_blocks(q, k, v, mask=mask, bias=bias, scale=None, dropout=0.0).sum().backward()
    ends = range(BLOCK, n + 1, BLOCK)
    assert sorted(made) == sorted([(BLOCK, end) for end in ends] * 2)  # forward and backward


def test_dropout_is_the_same_in_the_backward_pass() -> None:
    position, places = encoding("alibi"), torch.arange(6)[None]
    q, k, v = (draw(1, HEADS, 6, WIDTH).requires_grad_() for _ in range(3))
    bias = PositionBias(position, places, places)

    def run() -> Tensor:
        torch.manual_seed(3)
        return attend_in_blocks(q, k, v, mask=None, bias=bias, scale=None, dropout=0.5)

    # Linear in v: the product of its gradient with v is the output, if both hide the same weights.
    out = run()
    (dv,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((dv * v).sum(), out.sum())
    assert torch.equal(run(), out)


def test_the_bias_of_kept_heads_is_theirs() -> None:
    position, places, kept = encoding("t5"), torch.arange(9)[None], torch.tensor([2, 0])
    q, k, v = (draw(2, 2, 9, WIDTH) for _ in range(3))
    bias = KeptHeadsBias(PositionBias(position, places, places), kept)
    exact, _ = attend(q, k, v, bias=bias.dense())
    out = attend_in_blocks(q, k, v, mask=None, bias=bias, scale=None, dropout=0.0)
    assert apart(out, exact) <= ROUNDING


@torch.no_grad()
def test_it_serves_long_sequences_with_a_bias() -> None:
    def serving(name: str, n: int, mask: Mask | None = None) -> str:
        position, places = encoding(name).float(), torch.arange(n)[None]
        q = torch.randn(1, HEADS, n, WIDTH)
        bias = PositionBias(position, places, places, q_bhnd=q)
        call = dispatch.Call(Heads(q, q, q), mask, bias, None, 0.1)
        return next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call))

    for name in BIASED:
        long = dispatch.LONG_CPU_BY_QUERY if name == "shaw" else dispatch.LONG_CPU
        assert serving(name, long) == "blocked_attention"
        assert serving(name, long - 1) == "sdpa"
    causal = Mask(2048, 2048, torch.device("cpu"), causal=True)
    assert serving("rope", 2048, causal) == "sdpa"
    assert serving("t5", 2048, causal) == "blocked_attention"
    more_queries = Mask(2048, 2047, torch.device("cpu"), causal=True)
    q, k = torch.randn(1, HEADS, 2048, WIDTH), torch.randn(1, HEADS, 2047, WIDTH)
    bias = PositionBias(encoding("t5").float(), torch.arange(2048)[None], torch.arange(2047)[None])
    call = dispatch.Call(Heads(q, k, k), more_queries, bias, None, 0.1)
    assert next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call)) == "sdpa"
    assert serving("alibi", 2048, causal) == "blocked_attention"
