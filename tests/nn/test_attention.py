"""The plain formula says what attention is; the fused kernels must say the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import (
    DTYPES,
    POSITIONS,
    TOLERANCE,
    all_apart,
    apart,
    assert_weights,
    gradients,
    perturb,
    tiny,
)
from torch import Tensor

from heed.nn.attention import AttentionContext, MultiHeadAttention, attend
from heed.nn.cache import LayerCache
from heed.nn.kernels import dispatch
from heed.nn.kernels.position_bias import PositionBias
from heed.nn.masks import Mask
from heed.nn.positions import Position, build_position

MASKS = ("none", "causal", "padding", "holes", "blind")
BIASES = ("none", "head", "cell")


@dataclass
class Call:
    """One call of attention: its tensors, and what to say of them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: float | None

    @property
    def inputs(self) -> list[Tensor]:
        return [x for x in (self.q, self.k, self.v, self.bias) if x is not None]

    @property
    def options(self) -> dict[str, Any]:
        return {"mask": self.mask, "bias": self.bias, "scale": self.scale}

    def seen(self) -> Tensor:
        """What may be seen [b, n, m]."""
        b, n, m = self.q.shape[0], self.q.shape[2], self.k.shape[2]
        if self.mask is None:
            return torch.ones(b, n, m, dtype=torch.bool)
        return self.mask.expand(b, 1, n, m)[:, 0]


def make_call(
    sizes: tuple[int, int, int, int, int, int],
    *,
    mask: str = "none",
    bias: str = "none",
    scale: float | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Call:
    b, groups, share, n, m, d = sizes
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    q, k, v = draw(b, groups * share, n, d), draw(b, groups, m, d), draw(b, groups, m, d)
    bias_shape = {"head": (1, groups * share, n, m), "cell": (b, groups * share, n, m)}
    added = None if bias == "none" else draw(*bias_shape[bias])
    return Call(q, k, v, make_mask(mask, b, n, m, generator), added, scale)


def make_mask(kind: str, b: int, n: int, m: int, generator: torch.Generator) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(1, 1, n, m, dtype=torch.bool).tril(m - n)
    if kind == "padding":
        lengths = torch.randint(1, m + 1, (b, 1, 1, 1), generator=generator)
        return (torch.arange(m) < lengths).expand(b, 1, n, m)
    mask = torch.rand(b, 1, n, m, generator=generator) < 0.6
    if kind == "blind":
        mask[:, :, ::2] = False
    return mask


sizes = st.tuples(*(st.integers(1, top) for top in (3, 3, 3, 9, 9, 8)))
calls = {
    "sizes": sizes,
    "mask": st.sampled_from(MASKS),
    "bias": st.sampled_from(BIASES),
    "scale": st.sampled_from([None, 0.5, 1.0]),
    "seed": st.integers(0, 1000),
}


# ------------------------------------------------------------------------------- fused = plain


@pytest.mark.parametrize("dtype", DTYPES)
@given(**calls)
def test_fused_equals_plain(dtype: torch.dtype, sizes: Any, **options: Any) -> None:
    call = make_call(sizes, dtype=dtype, **options)
    plain, _ = attend(call.q, call.k, call.v, **call.options)
    fast = dispatch.attention(call.q, call.k, call.v, **call.options)
    assert fast.dtype == plain.dtype == dtype
    assert apart(fast, plain) <= TOLERANCE[dtype]
    assert (
        all_apart(gradients(fast, call.inputs), gradients(plain, call.inputs)) <= TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POSITIONS)
@given(seed=st.integers(0, 1000), causal=st.booleans(), hides=st.booleans(), data=st.data())
def test_fused_reads_masks_and_positions_as_plain_does(
    name: str, dtype: torch.dtype, seed: int, causal: bool, hides: bool, data: st.DataObject
) -> None:
    """`Mask` and `PositionBias` are what a model hands to the kernels in place of tensors."""
    b, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    m = data.draw(st.integers(n, 10)) if causal else data.draw(st.integers(1, 10))
    call = make_call((b, 2, 2, n, m, 4), seed=seed, dtype=dtype)
    # Noise times the usual scale would make biases too large for bfloat16 to tell apart.
    config = tiny(position=name, position_scale=1.0)
    position = build_position(config, causal=causal)
    perturb(position, seed=seed)
    position.to(dtype)
    real = torch.rand(b, m, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask = Mask(n, m, call.q.device, causal=causal, real_bm=real if hides else None)
    places = torch.arange(m)[None]
    positions = places[:, m - n :] if causal else torch.arange(n)[None], places
    q, k = position.rotate(call.q, call.k, *positions)
    bias = PositionBias(position, *positions, q_bhnd=q, scale=0.5)
    fast = dispatch.attention(q, k, call.v, mask=mask, bias=bias, scale=0.5)
    plain, weights = attend(q, k, call.v, mask=mask.dense(), bias=bias.dense(), scale=0.5)
    assert apart(fast, plain) <= TOLERANCE[dtype]
    inputs = call.inputs + list(position.parameters())
    assert all_apart(gradients(fast, inputs), gradients(plain, inputs)) <= TOLERANCE[dtype]
    dense = mask.dense()
    seen = (
        torch.ones(b, n, m, dtype=torch.bool) if dense is None else dense.expand(b, 1, n, m)[:, 0]
    )
    assert_weights(weights, seen)


# ---------------------------------------------------------------------------- the formula itself


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


@given(**calls)
def test_attend_is_the_formula(sizes: Any, **options: Any) -> None:
    """softmax(q kᵀ / √d + bias) v, one number at a time (Vaswani et al. 2017, equation 1)."""
    call = make_call(sizes, **options)
    out, weights = attend(call.q, call.k, call.v, **call.options)
    b, groups, share, n, m, d = sizes
    scale = 1 / math.sqrt(d) if call.scale is None else call.scale
    bias = torch.zeros_like(weights) if call.bias is None else call.bias.expand_as(weights)
    q, k, v, added = (x.tolist() for x in (call.q, call.k, call.v, bias))
    seen = call.seen().tolist()
    shares = [[[[0.0] * m for _ in range(n)] for _ in q[0]] for _ in q]
    expected = [[[[0.0] * d for _ in range(n)] for _ in q[0]] for _ in q]
    for r, h, i in product(range(b), range(groups * share), range(n)):
        g = h // share
        powers = {
            j: math.exp(scale * dot(q[r][h][i], k[r][g][j]) + added[r][h][i][j])
            for j in range(m)
            if seen[r][i][j]
        }
        for j, power in powers.items():
            shares[r][h][i][j] = power / sum(powers.values())
        for c in range(d):
            column = [v[r][g][j][c] for j in range(m)]
            expected[r][h][i][c] = dot(shares[r][h][i], column)
    assert apart(weights, torch.tensor(shares)) <= 1e-5
    assert apart(out, torch.tensor(expected)) <= 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@given(**calls)
def test_weights_are_shares(dtype: torch.dtype, sizes: Any, **options: Any) -> None:
    call = make_call(sizes, dtype=dtype, **options)
    _, weights = attend(call.q, call.k, call.v, **call.options)
    assert_weights(weights, call.seen())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("share", [1, 2], ids=["alone", "grouped"])
def test_a_query_that_sees_nothing_gives_zeros_and_no_nan(
    share: int, bias: str, dtype: torch.dtype
) -> None:
    call = make_call((2, 2, share, 6, 5, 4), mask="blind", bias=bias, dtype=dtype)
    assert call.mask is not None
    blind = ~call.mask.any(dim=-1).expand(2, 2 * share, 6)
    plain, _ = attend(call.q, call.k, call.v, **call.options)
    for out in (plain, dispatch.attention(call.q, call.k, call.v, **call.options)):
        assert (out[blind] == 0).all()
        found = gradients(out, call.inputs)
        assert all(grad.isfinite().all() for grad in found)
        assert (found[0][blind] == 0).all()


def test_huge_scores_stay_finite() -> None:
    """A softmax that did not subtract the largest score would overflow here."""
    call = make_call((1, 1, 1, 4, 4, 4), scale=1e4)
    plain, weights = attend(call.q, call.k, call.v, **call.options)
    assert weights.isfinite().all()
    assert apart(dispatch.attention(call.q, call.k, call.v, **call.options), plain) <= 1e-5


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_dropout_hides_weights_but_does_not_change_what_is_reported(share: float) -> None:
    """With v the identity the output is the weights as they were used: hidden, or scaled up."""
    call = make_call((2, 2, 1, 6, 4, 4), bias="head")
    eye = torch.eye(4).expand(2, 2, 4, 4)
    _, whole = attend(call.q, call.k, eye, **call.options)
    torch.manual_seed(5)
    plain, reported = attend(call.q, call.k, eye, dropout=share, **call.options)
    fast = dispatch.attention(call.q, call.k, eye, dropout=share, **call.options)
    assert torch.equal(reported, whole)
    for used in (plain, fast):
        kept = used != 0
        assert kept.any()
        assert not kept.all()
        assert apart(used[kept], whole[kept] / (1 - share)) <= 1e-5


# ------------------------------------------------------------------------------ the layer around


def look(n: int, m: int | None = None) -> AttentionContext:
    """Everyone sees everyone, in counting order."""
    return AttentionContext(torch.arange(n)[None], torch.arange(m or n)[None])


def test_grouped_heads_equal_full_heads_that_repeat_them() -> None:
    """Grouped-query attention is multi-head attention whose key and value heads are copies."""
    torch.manual_seed(0)
    grouped = MultiHeadAttention(12, 6, kv_heads=2)
    full = MultiHeadAttention(12, 6)
    perturb(grouped)
    full.load_state_dict(grouped.state_dict() | _repeated(grouped))
    x = torch.randn(2, 5, 12)
    few, _ = grouped(x, look(5), Position())
    many, _ = full(x, look(5), Position())
    assert apart(few, many) <= 1e-5


def _repeated(grouped: MultiHeadAttention) -> dict[str, Tensor]:
    """The joint map of queries, keys and values, with each key and value head repeated."""

    def spread(rows: Tensor) -> Tensor:
        q, k, v = rows.unflatten(0, (-1, grouped.head_width)).split([6, 2, 2])
        return torch.cat([q, k.repeat_interleave(3, 0), v.repeat_interleave(3, 0)]).flatten(0, 1)

    return {f"qkv.{key}": spread(value.detach()) for key, value in grouped.qkv.named_parameters()}


def test_weights_are_returned_only_on_request() -> None:
    layer = MultiHeadAttention(8, 2)
    perturb(layer)
    x = torch.randn(1, 3, 8)
    fast, nothing = layer(x, look(3), Position())
    plain, weights = layer(x, look(3), Position(), weights=True)
    assert nothing is None
    assert weights.shape == (1, 2, 3, 3)
    assert apart(fast, plain) <= 1e-5


@torch.no_grad()
def test_normalized_heads_bound_the_scores() -> None:
    """However long the vectors, |q·k| / √d is at most √d times the largest gains of both norms."""
    layer = MultiHeadAttention(8, 2, qk_norm=True)
    perturb(layer)
    x = 1e3 * torch.randn(1, 6, 8)
    _, weights = layer(x, look(6), Position(), weights=True)
    gains = [float(p.abs().max()) for n, p in layer.named_parameters() if "_norm" in n]
    bound = math.sqrt(4) * math.prod(gains)
    spread = (weights.amax(dim=-1) / weights.amin(dim=-1)).log()
    assert float(spread.max()) <= 2 * bound + 1e-4


def test_cross_attention_needs_a_source_until_its_cache_is_filled() -> None:
    layer = MultiHeadAttention(8, 2, source_width=6)
    perturb(layer)
    x, sight = torch.randn(2, 3, 8), look(3, 4)
    with pytest.raises(ValueError, match="needs a source"):
        layer(x, sight, Position())
    cache = LayerCache()
    with_source = AttentionContext(
        sight.q_positions, sight.k_positions, source_bmw=torch.randn(2, 4, 6)
    )
    first, _ = layer(x, with_source, Position(), cache=cache)
    again, _ = layer(x, sight, Position(), cache=cache)
    assert torch.equal(first, again)
