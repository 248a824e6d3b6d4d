"""Decoding with a cache is decoding without one, however the tokens arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    DTYPES,
    FEW,
    POSITIONS,
    TOLERANCE,
    VARIANTS,
    VOCAB,
    apart,
    language_model,
    new_language_model,
    padded,
    texts,
    translator,
)
from torch import Tensor

from heed.errors import DataError
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.nn.cache import FIRST_CAPACITY, Cache, FixedLayerCache, LayerCache
from heed.nn.tokens import Tokens

CHUNKS = [pytest.param([1] * 9, id="one-by-one"), pytest.param([4, 1, 3, 1], id="in-chunks")]
cuts = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def chunks(ids: Tensor, mask: Tensor, sizes: list[int]) -> list[tuple[Tensor, Tensor | None]]:
    """The ids in chunks, each with its mask; a chunk without padding has none."""
    chunked = zip(ids.split(sizes, dim=1), mask.split(sizes, dim=1), strict=True)
    return [(chunk, None if real.all() else real) for chunk, real in chunked]


@torch.no_grad()
def read_on(model: LanguageModel, ids: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """A language model's logits, by way of a cache."""
    cache = Cache()
    chunked = chunks(ids, mask, sizes)
    return torch.cat([model(chunk, mask=real, cache=cache) for chunk, real in chunked], dim=1)


@torch.no_grad()
def write_on(
    model: Translator, source: Tensor, real: Tensor, ids: Tensor, mask: Tensor, sizes: list[int]
) -> Tensor:
    """A translator's logits, by way of a cache that is shown the source once."""
    cache = Cache()
    first: Tensor | None = source
    out = []
    for chunk, chunk_mask in chunks(ids, mask, sizes):
        out.append(model(first, chunk, mask=real, target_mask=chunk_mask, cache=cache))
        first = None
    return torch.cat(out, dim=1)


# -------------------------------------------------------------------------- cached equals full


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", CHUNKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_language_model_reads_on(variant: str, sizes: list[int], dtype: torch.dtype) -> None:
    """Prompts of 9, 2 and 5 tokens, padded on the left, at every step."""
    model = language_model(variant, dtype)
    ids, mask = padded(texts([9, 2, 5]), left=[0, 7, 4])
    full = model(ids, mask=mask)
    stepped = read_on(model, ids, mask, sizes)
    for step in range(ids.shape[1]):
        real = mask[:, step]
        assert apart(stepped[real, step], full[real, step]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", CHUNKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_translator_continues_from_a_cache(
    variant: str, sizes: list[int], dtype: torch.dtype
) -> None:
    model = translator(variant, dtype)
    source, real = padded(texts([4, 6, 1], seed=7), left=[1, 0, 2], right=1)
    ids, mask = padded(texts([9, 2, 5]), left=[0, 7, 4])
    full = model(source, ids, mask=real, target_mask=mask)
    stepped = write_on(model, source, real, ids, mask, sizes)
    for step in range(ids.shape[1]):
        seen = mask[:, step]
        assert apart(stepped[seen, step], full[seen, step]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("variant", FEW)
@settings(max_examples=6)
@given(sizes=cuts, holes=st.booleans(), seed=st.integers(0, 1000))
def test_tokens_may_arrive_in_any_chunks(
    variant: str, sizes: list[int], holes: bool, seed: int
) -> None:
    """Padding may even stand between tokens, as where some rows of a batch end before others."""
    model, n = language_model(variant), sum(sizes)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (3, n), generator=generator)
    mask = torch.ones(3, n, dtype=torch.bool)
    if holes:
        mask = torch.rand(3, n, generator=generator) < 0.7
    full, stepped = model(ids, mask=mask), read_on(model, ids, mask, sizes)
    assert apart(stepped[mask], full[mask]) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("variant", FEW)
@torch.no_grad()
def test_a_cache_goes_on_past_its_first_buffer(variant: str) -> None:
    """`learned` has 64 places in these models, the others as many as it takes."""
    limit = 64 if variant.startswith("learned") else FIRST_CAPACITY + 7
    model = language_model(variant)
    ids = torch.stack(texts([limit, limit]))
    mask = torch.ones_like(ids, dtype=torch.bool)
    stepped = read_on(model, ids, mask, [limit - 9, 2, 1, 6])
    assert apart(stepped, model(ids)) <= TOLERANCE[torch.float32]


# ------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_selected_rows_go_on_as_if_alone(variant: str, dtype: torch.dtype) -> None:
    """A beam keeps some rows, some of them twice, in any order."""
    model, kept = language_model(variant, dtype), torch.tensor([2, 0, 2, 1])
    ids, mask = padded(texts([6, 3, 4]), left=[0, 3, 2])
    more = torch.stack(texts([3, 3, 3, 3], seed=4))
    cache = Cache()
    model(ids, mask=mask, cache=cache)
    cache.select(kept)
    stepped = torch.cat([model(step, cache=cache) for step in more.split(1, dim=1)], dim=1)
    joined = torch.cat([ids[kept], more], dim=1)
    real = torch.cat([mask[kept], torch.ones_like(more, dtype=torch.bool)], dim=1)
    assert apart(stepped, model(joined, mask=real)[:, -3:]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_selected_translations_keep_their_source(variant: str, dtype: torch.dtype) -> None:
    model, kept = translator(variant, dtype), torch.tensor([1, 1, 0])
    source, real = padded(texts([3, 5], seed=7), left=[2, 0])
    begun, more = torch.stack(texts([2, 2])), torch.stack(texts([3, 3, 3], seed=4))
    cache = Cache()
    model(source, begun, mask=real, cache=cache)
    cache.select(kept)
    stepped = torch.cat([model(None, step, cache=cache) for step in more.split(1, dim=1)], dim=1)
    joined = torch.cat([begun[kept], more], dim=1)
    full = model(source[kept], joined, mask=real[kept])[:, -3:]
    assert apart(stepped, full) <= TOLERANCE[dtype]


def test_one_layer_keeps_what_it_was_given() -> None:
    cache, rows = LayerCache(), torch.tensor([1, 0, 1])
    assert not cache.filled
    chunked = [torch.randn(2, 3, size, 4) for size in (5, 60, 1, 130)]
    for i, chunk in enumerate(chunked):
        keys, values = cache.append(chunk, -chunk)
        assert torch.equal(keys, torch.cat(chunked[: i + 1], dim=2))
        assert torch.equal(values, -keys)
    assert cache.filled
    cache.select(rows)
    assert torch.equal(cache.read()[0], torch.cat(chunked, dim=2)[rows])


def test_a_fixed_layer_writes_to_the_given_cells() -> None:
    """In place, into cells that a tensor names, and hands back all there are."""
    keys, values = torch.zeros(2, 3, 6, 4), torch.zeros(2, 3, 6, 4)
    cells = torch.tensor([1, 4])
    layer = FixedLayerCache(keys, values, cells)
    assert layer.filled
    for step in range(2):
        new = torch.randn(2, 3, 2, 4)
        k, v = layer.append(new, -new)
        assert k.data_ptr() == keys.data_ptr()
        assert torch.equal(k[:, :, cells], new)
        assert torch.equal(v, -k)
        assert (k[:, :, 0] == 0).all()
        cells += 1 - 2 * step
    with pytest.raises(ValueError, match="without cells"):
        FixedLayerCache(keys, values).append(keys, values)


# ---------------------------------------------------------------------------------- the end of it


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_only_learned_ends(position: str) -> None:
    """A table of 8 places: decoding stops there with a word, or goes on as if there were none."""
    model = new_language_model(position=position, max_positions=8)
    ids = torch.stack(texts([20]))
    cache = Cache()
    model(ids[:, :8], cache=cache)
    if position == "learned":
        with pytest.raises(DataError, match="8 positions"):
            model(ids[:, 8:9], cache=cache)
    else:
        stepped = torch.cat([model(step, cache=cache) for step in ids[:, 8:].split(1, 1)], dim=1)
        assert apart(stepped, model(ids)[:, 8:]) <= TOLERANCE[torch.float32]


def test_a_translator_asks_for_a_source_once() -> None:
    model = translator("rope-concat")
    with pytest.raises(ValueError, match="needs a source"):
        model(None, torch.stack(texts([2])), cache=Cache())


SEGMENTED = [name for name in FEW if not name.startswith("lstm")]


@pytest.mark.parametrize("variant", SEGMENTED)
@pytest.mark.parametrize("sizes", CHUNKS)
@torch.no_grad()
def test_packed_texts_may_arrive_in_chunks(variant: str, sizes: list[int]) -> None:
    """Segments that end, begin or continue in a later chunk are those of the whole."""
    model = language_model(variant)
    ids = torch.stack(texts([9, 9]))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [3, 3, 4, 4, 4, 4, 4, 4, 4]])
    cache = Cache()
    chunked = zip(ids.split(sizes, dim=1), segments.split(sizes, dim=1), strict=True)
    parts = []
    for chunk, part in chunked:
        tokens = Tokens.of(chunk, segments=part, before=cache.tokens)
        parts.append(model(chunk, tokens, cache=cache))
    expected = model(ids, Tokens.of(ids, segments=segments))
    assert apart(torch.cat(parts, dim=1), expected) <= 1e-5


@pytest.mark.parametrize("variant", SEGMENTED)
@torch.no_grad()
def test_defaults_continue_from_the_cache(variant: str) -> None:
    """After a prompt with segments, or with positions, new tokens are the next of the last text."""
    model = language_model(variant)
    ids = torch.stack(texts([8, 8]))
    segments = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]] * 2)
    positions = torch.arange(5, 13)[None]
    for known in ({"segments": segments}, {"positions": positions}):
        cache = Cache()
        start: dict[str, Any] = {name: whole[:, :5] for name, whole in known.items()}
        all_of_it: dict[str, Any] = dict(known)
        prompt = Tokens.of(ids[:, :5], **start)
        first = model(ids[:, :5], prompt, cache=cache)
        later = [model(ids[:, i : i + 1], cache=cache) for i in range(5, 8)]
        expected = model(ids, Tokens.of(ids, **all_of_it))
        assert apart(torch.cat([first, *later], dim=1), expected) <= 1e-5


def test_a_recurrent_cache_refuses_segments() -> None:
    ids = torch.stack(texts([3]))
    tokens = Tokens.of(ids, segments=torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="takes no segments"):
        language_model("lstm")(ids, tokens, cache=Cache())
