"""Each encoding against its paper's formula, written out here, and against `transformers`' own."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support import POSITIONS, apart, perturb, tiny
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from heed.config import POSITIONS as ENCODINGS
from heed.errors import DataError
from heed.nn.attention import AttentionContext, MultiHeadAttention
from heed.nn.kernels.position_forms import form_of
from heed.nn.positions import (
    T5,
    Alibi,
    Learned,
    Position,
    Rope,
    Shaw,
    alibi_slopes,
    build_position,
    sinusoids,
)

HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 20, 32]
BUCKETS = [(32, 128), (8, 20), (16, 1000), (4, 5)]
DIRECTIONS = [pytest.param(True, id="causal"), pytest.param(False, id="bidirectional")]
FARTHEST = 10_000

# Functions that `transformers` leaves untyped.
mpt_alibi: Any = build_mpt_alibi_tensor
t5_bucket: Any = T5Attention._relative_position_bucket
marian_table: Any = MarianSinusoidalPositionalEmbedding.create_weight


def line(n: int) -> Tensor:
    return torch.arange(n)[None]


# --------------------------------------------------------------------------------------- ALiBi


def stated_slopes(heads: int) -> list[float]:
    """Press et al. 2022: for n = 2^k heads a geometric sequence from 2^(-8/n), its ratio the same.

    Other numbers take those of the power of two below, then every other one of the power above.
    """

    def sequence(n: int) -> list[float]:
        return [2.0 ** float(-Fraction(8, n) * i) for i in range(1, n + 1)]

    below = 1
    while 2 * below <= heads:
        below *= 2
    return (sequence(below) + sequence(2 * below)[::2])[:heads]


@pytest.mark.parametrize("heads", HEADS)
def test_alibi_slopes_are_the_papers(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(stated_slopes(heads), rel=1e-15)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("n", [1, 7, 30])
def test_alibi_agrees_with_bloom_and_mpt(heads: int, n: int) -> None:
    """Bloom adds slope · key, which differs from ours by a number a row; MPT's is our last row."""
    bias = Alibi(tiny(heads=heads, width=heads)).bias(None, line(n), line(n))[0]
    bloom = build_alibi_tensor(torch.ones(1, n), heads, torch.float32)
    past = torch.ones(n, n, dtype=torch.bool).tril()
    by_row = bloom - bloom.transpose(1, 2)
    assert torch.allclose(bias[:, past], by_row[:, past], rtol=1e-5, atol=1e-5)
    assert torch.allclose(bias[:, -1:], mpt_alibi(heads, n), rtol=1e-5)


# ------------------------------------------------------------------------------------------ T5


def stated_bucket(distance: int, *, buckets: int, farthest: int, causal: bool) -> int:
    """Raffel et al. 2020, in integers: half the buckets exact, then equal steps of the logarithm.

    Bucket `exact + i` begins at exact · (farthest / exact)^(i / steps); both sides to the power of
    `steps` are whole numbers.
    """
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance > 0 else 0
        away = abs(distance)
    else:
        away = max(0, -distance)
    exact = buckets // 2
    if away < exact:
        return first + away
    steps = buckets - exact
    begun = (i for i in range(steps) if away**steps * exact**i >= farthest**i * exact**steps)
    return first + exact + max(begun)


@pytest.mark.parametrize("causal", DIRECTIONS)
@pytest.mark.parametrize(("buckets", "farthest"), BUCKETS)
def test_t5_buckets_are_the_papers(buckets: int, farthest: int, causal: bool) -> None:
    position = T5(tiny(t5_buckets=buckets, t5_distance=farthest), causal=causal)
    found = position.bucket(torch.arange(-FARTHEST, FARTHEST + 1)).tolist()
    rule: dict[str, Any] = {"buckets": buckets, "farthest": farthest, "causal": causal}
    expected = [stated_bucket(d, **rule) for d in range(-FARTHEST, FARTHEST + 1)]
    assert found == expected


@pytest.mark.parametrize("causal", DIRECTIONS)
@pytest.mark.parametrize(("buckets", "farthest"), BUCKETS)
def test_t5_buckets_agree_with_transformers(buckets: int, farthest: int, causal: bool) -> None:
    position = T5(tiny(t5_buckets=buckets, t5_distance=farthest), causal=causal)
    distance = torch.arange(-FARTHEST, FARTHEST + 1)
    theirs = t5_bucket(distance, not causal, buckets, farthest)
    assert torch.equal(position.bucket(distance), theirs)


@pytest.mark.parametrize("causal", DIRECTIONS)
def test_t5_bias_is_its_table_by_bucket(causal: bool) -> None:
    position = T5(tiny(), causal=causal)
    perturb(position)
    bias = position.bias(None, line(6), line(9))
    for head, query, key in product(range(4), range(6), range(9)):
        bucket = position.bucket(torch.tensor(key - query))
        assert bias[0, head, query, key] == position.table.weight[bucket, head] * position.scale


# ------------------------------------------------------------------------- sinusoids and RoPE


def test_sinusoids_are_the_papers() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/w)), PE(pos, 2i + 1) = cos of the same."""
    places, width = [0, 1, 2, 17, 500], 12
    for place, row in zip(places, sinusoids(torch.tensor(places), width).tolist(), strict=True):
        angles = [place / 10000 ** (2 * i / width) for i in range(width // 2)]
        expected = [value for angle in angles for value in (math.sin(angle), math.cos(angle))]
        assert row == pytest.approx(expected, abs=1e-4)


def test_sinusoids_agree_with_marian_up_to_its_order() -> None:
    """Marian keeps all sines and then all cosines, where the paper takes them in turn."""
    marian = marian_table(MarianSinusoidalPositionalEmbedding(300, 16))
    ours = sinusoids(torch.arange(300), 16)
    halves = torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1)
    assert torch.allclose(halves, marian, atol=1e-4)


def stated_turn(x: list[float], place: int, base: float) -> list[float]:
    """Su et al. 2021, equation 15, whose pairs are (2i, 2i + 1)."""
    turned = []
    for i in range(len(x) // 2):
        angle = place * base ** (-2 * i / len(x))
        a, b = x[2 * i], x[2 * i + 1]
        turned += [
            a * math.cos(angle) - b * math.sin(angle),
            b * math.cos(angle) + a * math.sin(angle),
        ]
    return turned


@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("width", [2, 6, 16])
def test_rope_is_the_papers_up_to_its_order(width: int, base: float) -> None:
    """Ours pairs (i, i + d/2): dimension 2i of the paper is our i, and 2i + 1 our i + d/2."""
    order = [i + half for i in range(width // 2) for half in (0, width // 2)]
    places = torch.tensor([[0, 1, 5, 77, 900]])
    q, k = torch.randn(1, 1, 5, width), torch.randn(1, 1, 5, width)
    rope = Rope(tiny(head_width=width, rope_base=base))
    for x, turned in zip((q, k), rope.rotate(q, k, places, places), strict=True):
        rows = zip(x[0, 0, :, order].tolist(), places[0].tolist(), strict=True)
        expected = torch.tensor([stated_turn(row, place, base) for row, place in rows])
        assert torch.allclose(turned[0, 0, :, order], expected, atol=2e-4)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rope_agrees_with_llama(base: float) -> None:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    q, k = torch.randn(2, 4, 40, 16), torch.randn(2, 2, 40, 16)
    places = torch.randint(500, (2, 40))
    cos, sin = LlamaRotaryEmbedding(config)(q, places)
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    ours = Rope(tiny(head_width=16, rope_base=base)).rotate(q, k, places, places)
    assert all(torch.allclose(a, b, atol=2e-4) for a, b in zip(ours, theirs, strict=True))


def test_rope_rotates_and_keeps_lengths() -> None:
    q = torch.randn(2, 4, 9, 8)
    turned, _ = Rope(tiny(head_width=8)).rotate(q, q, line(9), line(9))
    assert torch.allclose(turned.norm(dim=-1), q.norm(dim=-1), rtol=1e-5)


# ---------------------------------------------------------------------------------------- Shaw


@pytest.mark.parametrize("with_values", [False, True], ids=["keys", "keys-and-values"])
@torch.no_grad()
def test_shaw_is_the_papers(with_values: bool) -> None:
    """Shaw et al. 2018: z = Σ α (v + a^V), α the softmax of q · (k + a^K) / √d, naively."""
    n, heads, d, clip = 7, 2, 4, 2
    config = tiny(width=8, heads=heads, shaw_clip=clip, shaw_values=with_values)
    layer, position = MultiHeadAttention(8, heads), Shaw(config)
    perturb(layer)
    perturb(position)
    x = torch.randn(1, n, 8)
    sight = AttentionContext(line(n), line(n))
    out, _ = layer(x, sight, position)
    traced, weights = layer(x, sight, position, weights=True)

    q, k, v = layer.qkv(x)[0].unflatten(1, (3, heads, d)).unbind(dim=1)
    key_vectors = position.keys.weight
    value_vectors = torch.zeros_like(key_vectors)
    if position.value_vectors is not None:
        value_vectors = position.value_vectors.weight
    z = torch.zeros(n, heads, d)
    for h, i in product(range(heads), range(n)):
        near = [max(-clip, min(clip, j - i)) + clip for j in range(n)]
        scores = [float(q[i, h] @ (k[j, h] + key_vectors[near[j]])) for j in range(n)]
        powers = [math.exp(score / math.sqrt(d)) for score in scores]
        for j in range(n):
            share = powers[j] / sum(powers)
            assert float(weights[0, h, i, j]) == pytest.approx(share, rel=1e-4)
            z[i, h] += share * (v[j, h] + value_vectors[near[j]])
    expected = layer.out(z.flatten(1))[None]
    assert apart(out, expected) <= 1e-5
    assert apart(traced, expected) <= 1e-5


@given(seed=st.integers(0, 100), share=st.floats(0.1, 0.9))
def test_shaws_values_and_value_vectors_lose_the_same_weights(seed: int, share: float) -> None:
    """Dropout comes before both sums of equation 3, once."""
    config = tiny(width=8, heads=2, shaw_values=True)
    layer, position = MultiHeadAttention(8, 2, dropout=share), Shaw(config)
    perturb(layer, seed=seed)
    perturb(position, seed=seed)
    assert position.value_vectors is not None
    x, context = torch.randn(1, 6, 8), AttentionContext(line(6), line(6))
    torch.manual_seed(seed)
    out, weights = layer.train()(x, context, position, weights=True)
    torch.manual_seed(seed)
    dropped = F.dropout(weights, share)
    v = layer.project(x, context, position).v_bgmd
    extra = position.values(dropped, line(6), line(6))
    assert extra is not None
    assert apart(out, layer.out(layer.merge(dropped @ v + extra, None))) <= 1e-5


def test_shaw_reads_the_query() -> None:
    with pytest.raises(ValueError, match="query"):
        Shaw(tiny()).bias(None, line(3), line(3))


# ----------------------------------------------------------------------------- what all share


@pytest.mark.parametrize("causal", DIRECTIONS)
@pytest.mark.parametrize("name", POSITIONS)
@given(
    b=st.integers(1, 3),
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    shared=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_bias_for_long_texts_is_the_same_bias(
    name: str, causal: bool, b: int, n: int, m: int, shared: bool, seed: int
) -> None:
    """FlexAttention asks `score_mod` for one cell at a time; `bias` makes them all at once.

    An encoding may have a bias and no `score_mod`, and not the other way round.
    """
    position = build_position(tiny(position=name), causal=causal)
    perturb(position)
    generator = torch.Generator().manual_seed(seed)
    rows = 1 if shared else b
    positions = [torch.randint(50, (rows, size), generator=generator) for size in (n, m)]
    q = torch.randn(b, 4, n, 4, generator=generator)
    dense, one_cell = (
        position.bias(q, *positions),
        form_of(position).score_mod(position, q, *positions),
    )
    assert dense is not None or one_cell is None
    if dense is None or one_cell is None:
        return
    cells = torch.meshgrid(*(torch.arange(size) for size in (b, 4, n, m)), indexing="ij")
    assert apart(one_cell(torch.zeros(b, 4, n, m), *cells), dense.expand(b, -1, -1, -1)) <= 1e-6


def test_learned_adds_its_table_and_has_an_end() -> None:
    position = Learned(tiny(max_positions=5))
    perturb(position)
    x, places = torch.randn(1, 3, 16), torch.tensor([[4, 0, 2]])
    assert torch.equal(position.embed(x, places), x + position.table.weight[[4, 0, 2]])
    for mode in (True, False):
        position.train(mode)
        with pytest.raises(DataError, match="5 positions"):
            position.embed(x, places + 1)


def test_none_does_nothing() -> None:
    position, x = Position(), torch.randn(2, 3, 4)
    q = torch.randn(2, 1, 3, 4)
    assert position.embed(x, line(3)) is x
    assert position.rotate(q, q, line(3), line(3)) == (q, q)
    assert position.bias(q, line(3), line(3)) is None
    assert form_of(position).score_mod(position, q, line(3), line(3)) is None
    assert form_of(position).distance_bias(position, line(3), line(3)) is None
    assert form_of(position).frequencies(position) is None
    assert position.values(q, line(3), line(3)) is None


def test_the_names_a_recipe_may_use_are_those_defined() -> None:
    assert set(ENCODINGS.declared) == set(ENCODINGS.classes) == set(ENCODINGS.names())
    assert {name for name, kind in ENCODINGS.items() if name == kind.name} == set(ENCODINGS)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"position": "sinusoidal", "width": 5, "heads": 1}, "even"),
        ({"position": "rope", "width": 6, "heads": 2}, "pairs"),
        ({"position": "rope", "head_width": 7}, "pairs"),
        ({"position": "t5", "t5_buckets": 3}, "t5_buckets 3"),
        ({"position": "t5", "t5_buckets": 16, "t5_distance": 16}, "t5_distance 16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_an_encoding_says_why_it_does_not_fit(changes: dict[str, Any], word: str) -> None:
    config = tiny(**changes)
    complaint = ENCODINGS[config.position].complaint(config)
    assert complaint is not None
    assert word in complaint
