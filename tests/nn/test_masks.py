"""Who may see whom, stated cell by cell."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support import language_model, texts
from torch import Tensor

from heed.nn.kernels.flex_attention import block_mask
from heed.nn.masks import Mask, count_positions, restart_positions
from heed.nn.tokens import Tokens


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    """Any mask: causal or not, with padding, with segments, queries fewer than keys."""
    b, m, causal = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.booleans())
    n = draw(st.integers(1, m if causal else 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    real = torch.rand(b, m, generator=generator) < 0.7 if draw(st.booleans()) else None
    q_segments = k_segments = None
    if draw(st.booleans()):
        k_segments = torch.randint(3, (b, m), generator=generator)
        q_segments = torch.randint(3, (b, n), generator=generator)
    return Mask(n, m, torch.device("cpu"), causal, real, q_segments, k_segments)


def may_see(mask: Mask, row: int, query: int, key: int) -> bool:
    """The rule in words: not the future, not padding, not another text."""
    if mask.causal and key > query + mask.keys - mask.queries:
        return False
    if mask.real_bm is not None and not mask.real_bm[row, key]:
        return False
    if mask.q_segments_bn is None or mask.k_segments_bm is None:
        return True
    return bool(mask.q_segments_bn[row, query] == mask.k_segments_bm[row, key])


def rows(mask: Mask) -> int:
    known = (x for x in (mask.real_bm, mask.k_segments_bm) if x is not None)
    return next((x.shape[0] for x in known), 1)


def stated(mask: Mask) -> Tensor:
    b, n, m = rows(mask), mask.queries, mask.keys
    cells = [[[may_see(mask, r, i, j) for j in range(m)] for i in range(n)] for r in range(b)]
    return torch.tensor(cells)


@given(masks())
def test_dense_is_the_rule(mask: Mask) -> None:
    expected = stated(mask)
    dense = mask.dense()
    if dense is None:
        assert expected.all()
    else:
        assert torch.equal(dense[:, 0].expand_as(expected), expected)
    assert mask.dense() is dense, "one forward pass makes its mask once"


@given(masks())
def test_the_flags_tell_the_truth(mask: Mask) -> None:
    expected = stated(mask)
    if mask.sees_all:
        assert expected.all()
    if mask.only_causal:
        triangle = torch.ones_like(expected).tril(mask.keys - mask.queries)
        assert torch.equal(expected, triangle)


@given(masks())
def test_the_blocks_for_long_texts_say_the_same(mask: Mask) -> None:
    """FlexAttention asks for one cell at a time, and skips blocks where no cell may be seen."""
    if mask.sees_all:
        return
    expected = stated(mask)
    b, n, m = expected.shape
    blocks = block_mask(mask)
    row, query, key = (torch.arange(size) for size in (b, n, m))
    cells = blocks.mask_mod(row[:, None, None], row[:1], query[None, :, None], key[None, None])
    assert torch.equal(cells.expand_as(expected), expected)
    assert torch.equal(blocks.to_dense()[:, 0, 0, 0].bool(), expected.flatten(1).any(dim=1))


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_positions_count_real_tokens(real: list[list[bool]]) -> None:
    counted = count_positions(torch.tensor(real))
    for row, flags in enumerate(real):
        places = [int(counted[row, i]) for i, flag in enumerate(flags) if flag]
        assert places == list(range(sum(flags)))
    assert (counted >= 0).all()


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_positions_start_anew_in_each_segment(packed: list[list[bool]]) -> None:
    """Each text counts its own real tokens, wherever padding stands in it."""
    segments = torch.tensor([[i for i, text in enumerate(packed) for _ in text]])
    real = torch.tensor([[flag for text in packed for flag in text]])
    counted = restart_positions(segments, real)
    assert counted.shape == real.shape
    for i, text in enumerate(packed):
        assert counted[(segments == i) & real].tolist() == list(range(sum(text)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_positions_start_anew_without_padding(lengths: list[int]) -> None:
    segments = torch.tensor([[i for i, length in enumerate(lengths) for _ in range(length)]])
    expected = [place for length in lengths for place in range(length)]
    assert restart_positions(segments, None)[0].tolist() == expected


def test_positions_may_be_given_once_for_all_rows() -> None:
    model = language_model("sinusoidal-concat")
    ids = torch.stack(texts([6, 6, 6]))
    places = torch.tensor([3, 1, 4, 15, 9, 2])
    once, for_each = (
        model(ids, Tokens.of(ids, positions=at)) for at in (places, places.expand(3, 6))
    )
    assert torch.equal(once, for_each)
