"""What must hold of every model, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    ATTENDING,
    DTYPES,
    FEW,
    POSITIONS,
    TOLERANCE,
    VARIANTS,
    VOCAB,
    all_apart,
    apart,
    assert_weights,
    classifier,
    fresh,
    gradients,
    language_model,
    new_classifier,
    packed,
    padded,
    texts,
    translator,
)
from torch import Tensor

from heed.errors import DataError
from heed.models import Model
from heed.models.trace import Trace
from heed.models.translator import Translator
from heed.nn.tokens import Tokens

TASKS = ("generate", "classify", "translate")
SHARED: dict[str, Callable[[str, torch.dtype], Model]] = {
    "generate": language_model,
    "classify": classifier,
    "translate": translator,
}
POOLINGS = ("mean", "first", "max", "attention")

every_variant = pytest.mark.parametrize("variant", VARIANTS)
few_variants = pytest.mark.parametrize("variant", FEW)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_task = pytest.mark.parametrize("task", TASKS)
lengths = st.lists(st.integers(1, 7), min_size=1, max_size=4)


class Batch:
    """A padded batch in which some rows have no token at all, and some sources neither."""

    ids, mask = padded(texts([5, 9, 3, 2, 0]), left=[4, 0, 2, 1, 0], right=1)
    source, source_mask = padded(texts([3, 6, 0, 4, 2], seed=5), left=[1, 0, 0, 2, 0], right=1)


def answer(model: Model, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """The fused path. A translator reads a source of fixed length; each call draws the same."""
    torch.manual_seed(0)
    if isinstance(model, Translator):
        return model(Batch.source, ids, mask=Batch.source_mask, target_mask=mask)
    return model(ids, mask=mask)


def trace(model: Model, ids: Tensor, mask: Tensor | None = None) -> Trace:
    """The plain path, with every weight."""
    torch.manual_seed(0)
    if isinstance(model, Translator):
        return model.trace(Batch.source, ids, mask=Batch.source_mask, target_mask=mask)
    return model.trace(ids, mask=mask)


# --------------------------------------------------------------------------- fused equals plain


@every_dtype
@every_task
@every_variant
def test_fused_equals_plain(variant: str, task: str, dtype: torch.dtype) -> None:
    """Logits and the gradients of all parameters, with rows that see nothing, and none is NaN."""
    model = SHARED[task](variant, dtype)
    fast, plain = answer(model, Batch.ids, Batch.mask), trace(model, Batch.ids, Batch.mask).logits
    parameters = list(model.parameters())
    slopes, plain_slopes = gradients(fast, parameters), gradients(plain, parameters)
    assert all(x.isfinite().all() for x in (fast, plain, *slopes, *plain_slopes))
    assert apart(fast, plain) <= TOLERANCE[dtype]
    assert all_apart(slopes, plain_slopes) <= TOLERANCE[dtype]


@every_task
@few_variants
def test_fused_equals_plain_without_masks(variant: str, task: str) -> None:
    """Without padding a causal kernel takes no mask at all."""
    model = SHARED[task](variant, torch.float32)
    fast, plain = answer(model, Batch.ids), trace(model, Batch.ids).logits
    parameters = list(model.parameters())
    assert apart(fast, plain) <= TOLERANCE[torch.float32]
    assert all_apart(gradients(fast, parameters), gradients(plain, parameters)) <= 1e-5


@every_dtype
@every_task
@pytest.mark.parametrize("variant", ATTENDING)
def test_every_weight_is_a_share_of_what_may_be_seen(
    variant: str, task: str, dtype: torch.dtype
) -> None:
    found = trace(SHARED[task](variant, dtype), Batch.ids, Batch.mask)
    n = Batch.ids.shape[1]
    triangle = torch.ones(n, n, dtype=torch.bool).tril()
    encoder_mask = Batch.source_mask if task == "translate" else Batch.mask
    rows, width = encoder_mask.shape
    for weights in found.encoder:
        assert_weights(weights, encoder_mask[:, None].expand(rows, width, width))
    for weights in found.decoder:
        assert_weights(weights, Batch.mask[:, None] & triangle)
    for weights in found.cross:
        assert_weights(weights, Batch.source_mask[:, None].expand(rows, n, width))
    layers = len(found.encoder) + len(found.decoder) + len(found.cross)
    assert layers == {"generate": 2, "classify": 2}.get(task, 6 if dtype == torch.float32 else 3)


# ------------------------------------------------------------------------------------ causality


@every_dtype
@pytest.mark.parametrize("task", ["generate", "translate"])
@every_variant
def test_the_future_moves_nothing(variant: str, task: str, dtype: torch.dtype) -> None:
    """Not one bit: whatever comes after token i, the logits up to i are the same."""
    model, ids = SHARED[task](variant, dtype), Batch.ids
    whole = answer(model, ids)
    for kept in (1, 4, ids.shape[1] - 1):
        changed = ids.clone()
        changed[:, kept:] = (ids[:, kept:] + 1) % VOCAB
        moved = answer(model, changed)
        assert torch.equal(moved[:, :kept], whole[:, :kept])
        assert not torch.equal(moved[:, kept:], whole[:, kept:])


@few_variants
@settings(max_examples=8)
@given(b=st.integers(1, 3), n=st.integers(2, 12), seed=st.integers(0, 1000), data=st.data())
def test_the_future_moves_nothing_in_any_shape(
    variant: str, b: int, n: int, seed: int, data: st.DataObject
) -> None:
    model, kept = language_model(variant), data.draw(st.integers(1, n - 1))
    one, other = (torch.stack(texts([n] * b, seed=s)) for s in (seed, seed + 1))
    other[:, :kept] = one[:, :kept]
    assert torch.equal(answer(model, one)[:, :kept], answer(model, other)[:, :kept])


# -------------------------------------------------------------------------------------- padding


def alone_and_padded(
    model: Model, sizes: list[int], left: list[int], right: int
) -> list[tuple[Tensor, Tensor]]:
    """Each text's answer alone, and its answer in a padded batch with the others."""
    rows, sources = texts(sizes), texts([size % 4 + 1 for size in sizes], seed=5)
    ids, mask = padded(rows, left=left, right=right)
    torch.manual_seed(0)
    if isinstance(model, Translator):
        source, real = padded(sources, left=left[::-1], right=right)
        together = model(source, ids, mask=real, target_mask=mask)
    else:
        together = model(ids, mask=mask)
    pairs = []
    for i, (row, source) in enumerate(zip(rows, sources, strict=True)):
        torch.manual_seed(0)
        if isinstance(model, Translator):
            pairs.append((model(source[None], row[None])[0], together[i, mask[i]]))
        else:
            shown = together[i] if together.dim() == 2 else together[i, mask[i]]
            pairs.append((model(row[None])[0], shown))
    return pairs


@every_dtype
@every_task
@every_variant
@torch.no_grad()
def test_padding_and_neighbours_move_nothing(variant: str, task: str, dtype: torch.dtype) -> None:
    model = SHARED[task](variant, dtype)
    for alone, together in alone_and_padded(model, [4, 1, 9], [3, 0, 1], 2):
        assert apart(together, alone) <= TOLERANCE[dtype]


@every_task
@few_variants
@settings(max_examples=5)
@given(sizes=lengths, right=st.integers(0, 3), data=st.data())
@torch.no_grad()
def test_any_padding_moves_nothing(
    variant: str, task: str, sizes: list[int], right: int, data: st.DataObject
) -> None:
    left = data.draw(st.lists(st.integers(0, 4), min_size=len(sizes), max_size=len(sizes)))
    model = SHARED[task](variant, torch.float32)
    for alone, together in alone_and_padded(model, sizes, left, right):
        assert apart(together, alone) <= TOLERANCE[torch.float32]


@every_dtype
@pytest.mark.parametrize("family", ["transformer", "lstm"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_no_pooling_sees_padding(pooling: str, family: str, dtype: torch.dtype) -> None:
    model = new_classifier(pooling=pooling, family=family, classifier_hidden=6, dtype=dtype)
    for alone, together in alone_and_padded(model, [4, 1, 9], [3, 0, 1], 2):
        assert apart(together, alone) <= TOLERANCE[dtype]


@every_dtype
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_of_padding_alone_is_no_nan(pooling: str, dtype: torch.dtype) -> None:
    model = new_classifier(pooling=pooling, dtype=dtype)
    ids, mask = padded(texts([0, 3]), left=[2, 0])
    out = model(ids, mask=mask)
    assert out.isfinite().all()
    assert all(slope.isfinite().all() for slope in gradients(out, list(model.parameters())))
    assert torch.equal(
        model.pool(model.states(ids, mask=mask).x_bnw, mask)[0], torch.zeros(16).to(dtype)
    )


# ------------------------------------------------------------------------------ order and shifts

SHUFFLED = torch.tensor([3, 0, 5, 1, 4, 2])


@every_dtype
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_only_none_cannot_tell_order(variant: str, dtype: torch.dtype) -> None:
    """A permuted text permutes the vectors of a `none` encoder, and of no other."""
    model, ids = classifier(variant, dtype), torch.stack(texts([6, 6]))
    torch.manual_seed(0)
    vectors = model.states(ids).x_bnw[:, SHUFFLED]
    torch.manual_seed(0)
    permuted = model.states(ids[:, SHUFFLED]).x_bnw
    logits, other = answer(model, ids), answer(model, ids[:, SHUFFLED])
    if variant.startswith("none"):
        assert apart(permuted, vectors) <= TOLERANCE[dtype]
        assert apart(other, logits) <= TOLERANCE[dtype]
    else:
        assert apart(permuted, vectors) > 1e-2


ABSOLUTE = ("sinusoidal", "learned")
"""The encodings that know where a text begins; any other sees only distances."""


@every_dtype
@every_task
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("shift", [1, 9, 40])
@torch.no_grad()
def test_relative_encodings_do_not_move_when_all_positions_shift(
    position: str, task: str, shift: int, dtype: torch.dtype
) -> None:
    model, places = SHARED[task](f"{position}-concat", dtype), torch.arange(9)
    ids = torch.stack(texts([9, 9]))
    if isinstance(model, Translator):
        source = torch.stack(texts([9, 9], seed=5))
        here, there = (
            model(source, ids, Tokens.of(source, positions=at), Tokens.of(ids, positions=at))
            for at in (places, places + shift)
        )
    else:
        here, there = (model(ids, Tokens.of(ids, positions=at)) for at in (places, places + shift))
    if position in ABSOLUTE:
        assert apart(there, here) > 1e-2
    else:
        assert apart(there, here) <= TOLERANCE[dtype]


# -------------------------------------------------------------------------------------- packing


@every_dtype
@every_variant
@torch.no_grad()
def test_packed_texts_do_not_see_each_other(variant: str, dtype: torch.dtype) -> None:
    """Each has the logits and the vectors it has alone."""
    rows = texts([4, 1, 6, 2])
    ids, segments = packed(rows)
    reader, encoder = language_model(variant, dtype), classifier(variant, dtype)
    torch.manual_seed(0)
    logits = reader(ids, Tokens.of(ids, segments=segments))
    torch.manual_seed(0)
    vectors = encoder.states(ids, Tokens.of(ids, segments=segments)).x_bnw
    for i, row in enumerate(rows):
        assert apart(logits[segments == i], answer(reader, row[None])[0]) <= TOLERANCE[dtype]
        torch.manual_seed(0)
        alone = encoder.states(row[None]).x_bnw[0]
        assert apart(vectors[segments == i], alone) <= TOLERANCE[dtype]


@every_dtype
@every_variant
@torch.no_grad()
def test_packed_translations_do_not_see_each_other(variant: str, dtype: torch.dtype) -> None:
    model = translator(variant, dtype)
    sources, targets = texts([3, 1, 4], seed=5), texts([2, 4, 3])
    (source, sides), (target, segments) = packed(sources), packed(targets)
    torch.manual_seed(0)
    tokens = Tokens.of(source, segments=sides), Tokens.of(target, segments=segments)
    together = model(source, target, *tokens)
    for i, (one, other) in enumerate(zip(sources, targets, strict=True)):
        torch.manual_seed(0)
        alone = model(one[None], other[None])[0]
        assert apart(together[segments == i], alone) <= TOLERANCE[dtype]


@few_variants
@settings(max_examples=6)
@given(first=lengths, second=lengths)
@torch.no_grad()
def test_packed_rows_may_be_padded(variant: str, first: list[int], second: list[int]) -> None:
    """Two packed rows of different length, the shorter one padded on the left."""
    model = language_model(variant)
    rows = [texts(first), texts(second, seed=2)]
    joined, numbers = zip(*((x[0] for x in packed(row)) for row in rows), strict=True)
    width = max(len(row) for row in joined) + 1
    left = [width - len(row) for row in joined]
    ids, mask = padded(joined, left=left)
    segments = torch.zeros_like(ids)
    for i, (number, before) in enumerate(zip(numbers, left, strict=True)):
        segments[i, before:] = number
    logits = model(ids, Tokens.of(ids, mask=mask, segments=segments))
    for i, row in enumerate(rows):
        for number, text in enumerate(row):
            found = logits[i][(segments[i] == number) & mask[i]]
            assert apart(found, model(text[None])[0]) <= TOLERANCE[torch.float32]


# --------------------------------------------------------------------------------------- length


@every_task
@pytest.mark.parametrize("position", POSITIONS)
def test_only_learned_has_a_limit(position: str, task: str) -> None:
    """Built for 8 positions and given 20 tokens: a word that names the limit, or an answer.

    The answer is that of a model built for more.
    """
    short = fresh(task, position=position, max_positions=8)
    ids = torch.stack(texts([20] * 5))
    if position == "learned":
        with pytest.raises(DataError, match=r"Position 19 .* has 8 positions") as caught:
            answer(short, ids)
        assert caught.value.where == "model.max_positions"
        assert "8 tokens" in str(caught.value.todo)
    else:
        long = fresh(task, position=position, max_positions=64)
        assert torch.equal(answer(short, ids), answer(long, ids))
