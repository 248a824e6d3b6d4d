"""Runs of tokens: each is numbered alike wherever it stands, and only what is real counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import VOCAB, apart, new_classifier, padded, texts, tiny
from torch import Tensor

from heed.errors import ConfigError
from heed.models import build, from_weights
from heed.nn.ngrams import (
    BASE,
    MAX_WORD_LENGTH,
    PRIME,
    WORD_BASE,
    NgramFeatures,
    log_count_ratios,
    ngram_ids,
    word_ids,
)

IDS = 250_000
ids_of = st.lists(st.integers(0, IDS), min_size=1, max_size=12)
spelt = st.lists(st.integers(0, 5), min_size=1, max_size=16)
"""Few letters, of which 0 parts words."""


def grams(lengths: int = 3, share: float = 0.0, **more: Any) -> NgramFeatures:
    """With vectors that differ."""
    config = tiny(ngrams=lengths, ngram_buckets=997, ngram_dropout=share, **more)
    module = NgramFeatures(config, IDS + 1)
    torch.nn.init.normal_(module.table.weight)
    if module.weight_r is not None:
        module.weight_r.uniform_(0.5, 2.0)
    if module.between_v is not None:
        module.between_v[0] = 1.0
    return module


def weighed(lengths: int = 3, *, share: float = 0.0) -> NgramFeatures:
    """With all there is: runs of words, too, each weighed in its own way."""
    return grams(lengths, share, word_ngrams=2, ngram_log_count_ratio=1.0)


def by_hand(module: NgramFeatures, ids: list[int]) -> Tensor:
    """The sum over all runs, one at a time."""
    total = torch.zeros(module.table.embedding_dim)
    for size in range(1, module.lengths + 1):
        for start in range(len(ids) - size + 1):
            run = reversed(ids[start : start + size])
            number = sum((id_ + 1) * BASE**place for place, id_ in enumerate(run)) % PRIME
            total += module.table.weight[number % module.table.num_embeddings]
    return total / len(ids) ** 0.5


def parted(ids: list[int]) -> list[list[int]]:
    """What stands between zeros."""
    found: list[list[int]] = [[]]
    for id_ in ids:
        if id_ == 0:
            found.append([])
        else:
            found[-1].append(id_)
    return [word for word in found if word]


@given(ids=ids_of, lengths=st.integers(1, 9))
@torch.no_grad()
def test_a_text_is_the_sum_of_its_runs(ids: list[int], lengths: int) -> None:
    module = grams(lengths)
    assert apart(module(torch.tensor([ids]))[0], by_hand(module, ids)) <= 1e-4


@given(ids=spelt, word_lengths=st.integers(1, 3))
@torch.no_grad()
def test_words_are_added_as_many_times_as_they_are_fewer(ids: list[int], word_lengths: int) -> None:
    module = grams(word_ngrams=word_lengths)
    own = module(torch.tensor([ids]))[0] - by_hand(module, ids)
    numbers = [
        sum((id_ + 1) * WORD_BASE ** (place + 1) for place, id_ in enumerate(word)) % PRIME
        for word in parted(ids)
    ]
    module.lengths = word_lengths
    assert apart(own, by_hand(module, numbers) if numbers else torch.zeros_like(own)) <= 1e-4


@given(before=spelt, word=st.lists(st.integers(1, 5), min_size=1, max_size=90), after=spelt)
def test_a_word_has_one_number_wherever_it_stands(
    before: list[int], word: list[int], after: list[int]
) -> None:
    def numbers(ids: list[int]) -> list[int]:
        row = torch.tensor([ids])
        number_bn, there_bn = word_ids(row, row != 0, powers)
        return number_bn[there_bn].tolist()

    powers = grams().powers
    (alone,) = numbers(word)
    assert numbers([*before, 0, *word, 0, *after])[len(parted(before))] == alone
    assert len(numbers(before)) == len(parted(before))
    swapped = [*word[1:2], word[0], *word[2:]]
    assert (numbers(swapped) == [alone]) == (swapped == word)


def test_a_word_is_none_of_the_runs_of_its_letters() -> None:
    letters = torch.cartesian_prod(*[torch.arange(1, 9)] * 3)
    inside = torch.ones_like(letters, dtype=torch.bool)
    spelled, _ = ngram_ids(letters, inside, 3)
    number_bn, there_bn = word_ids(letters, inside, grams().powers)
    whole, _ = ngram_ids(number_bn, there_bn, 1)
    assert not set(whole[:, 0, 0].tolist()) & set(spelled.flatten().tolist())
    assert len(whole[:, 0, 0].unique()) == len(letters)
    assert len(grams().powers) == MAX_WORD_LENGTH


@pytest.mark.parametrize("make", [grams, weighed])
@given(ids=spelt, left=st.integers(0, 4), right=st.integers(0, 4), filler=st.integers(0, 99))
@torch.no_grad()
def test_padding_moves_nothing(
    make: Callable[[], NgramFeatures], ids: list[int], left: int, right: int, filler: int
) -> None:
    module = make()
    row = torch.tensor([[filler] * left + ids + [filler] * right])
    mask = torch.tensor([[False] * left + [True] * len(ids) + [False] * right])
    assert apart(module(row, mask), module(torch.tensor([ids]))) <= 1e-4


@given(many=st.lists(spelt, min_size=1, max_size=4))
@torch.no_grad()
def test_a_text_is_read_alike_alone_and_among_others(many: list[list[int]]) -> None:
    module = weighed()
    ids, mask = padded([torch.tensor(ids) for ids in many], left=[0] * len(many))
    for ids_n, together in zip(many, module(ids, mask), strict=True):
        assert apart(module(torch.tensor([ids_n]))[0], together) <= 1e-4


counts_of = st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=2, max_size=4)


@given(counts=counts_of, added=st.floats(0.1, 3.0))
def test_a_run_weighs_what_its_counts_differ_by(counts: list[list[int]], added: float) -> None:
    counts_cr = torch.tensor(counts, dtype=torch.float64)
    weights = log_count_ratios(counts_cr, added)
    assert (weights >= 0).all()
    assert not weights[(counts_cr == 0).all(dim=0)].any()
    assert not log_count_ratios(counts_cr[:1].repeat(3, 1), added).any()
    assert apart(log_count_ratios(counts_cr.flip(0), added), weights) <= 1e-9
    sums = counts_cr.sum(dim=1).clamp(min=1)
    even = counts_cr * (sums.mean() / sums)[:, None] + added
    ratios = (even[:, None] / even[None]).log().abs()
    assert apart(weights, ratios.amax(dim=(0, 1))) <= 1e-9


@given(counts=counts_of, times=st.integers(2, 5))
def test_a_class_of_more_texts_weighs_no_more(counts: list[list[int]], times: int) -> None:
    """Beside what is added, shares count: as much again of one class moves nothing."""
    counts_cr = torch.tensor(counts, dtype=torch.float64) + 1
    again = torch.cat([counts_cr[:1] * times, counts_cr[1:]])
    one, other = (log_count_ratios(x, x.sum(dim=1).mean().item()) for x in (counts_cr, again))
    assert apart(one, other) <= 1e-9


@torch.no_grad()
def test_what_weighs_nothing_says_nothing() -> None:
    module = weighed()
    assert module.weight_r is not None
    ids = torch.tensor([[1, 2, 0, 3]])
    said = module(ids)
    module.weight_r.mul_(2.0)
    assert apart(module(ids), 2 * said) <= 1e-4
    module.weight_r.zero_()
    assert not module(ids).any()


def test_no_run_looks_ahead_or_over_a_gap() -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    numbers, whole = ngram_ids(ids, torch.tensor([[True, True, False, True]]), 2)
    later, _ = ngram_ids(torch.tensor([[5, 6, 9, 9]]), torch.ones(1, 4, dtype=torch.bool), 2)
    assert torch.equal(numbers[..., :2], later[..., :2])
    assert whole.tolist() == [[[True, True, False, True], [False, True, False, False]]]


def test_order_within_a_run_counts() -> None:
    pairs = torch.cartesian_prod(torch.arange(200), torch.arange(200))
    numbers, _ = ngram_ids(pairs, torch.ones_like(pairs, dtype=torch.bool), 2)
    assert len(numbers[:, 1, 1].unique()) == len(pairs)


def test_nothing_real_gives_zeros_and_finite_slopes() -> None:
    module = grams()
    out = module(torch.tensor([[1, 2]]), torch.zeros(1, 2, dtype=torch.bool))
    out.sum().backward()
    assert not out.any()
    slope = module.table.weight.grad
    assert slope is not None
    assert slope.isfinite().all()


def test_runs_are_left_out_in_training_alone_and_on_average_not_at_all() -> None:
    torch.manual_seed(0)
    module, ids = grams(share=0.5), torch.arange(6)[None]
    drawn = module(ids.expand(4000, -1))
    module.eval()
    whole = module(ids)
    assert torch.equal(whole, module(ids))
    assert drawn.std(dim=0).min() > 0
    error = drawn.std(dim=0) / len(drawn) ** 0.5
    assert ((drawn.mean(dim=0) - whole[0]).abs() < 5 * error).all()


@torch.no_grad()
def test_a_fresh_classifier_says_what_it_would_without() -> None:
    config = tiny(ngrams=4, ngram_buckets=50)
    torch.manual_seed(1)
    model = build("classify", config, vocab=VOCAB, classes=3).eval()
    state = {name: t for name, t in model.state_dict().items() if not name.startswith("ngrams")}
    without = from_weights(state, "classify", tiny()).eval()
    ids, mask = padded(texts([5, 3]), left=[0, 0])
    assert torch.equal(model(ids, mask=mask), without(ids, mask=mask))


@pytest.mark.parametrize("family", ["transformer", "lstm"])
@torch.no_grad()
def test_a_classifier_reads_them_and_traces_alike(family: str) -> None:
    model = new_classifier(ngrams=3, ngram_buckets=101, family=family, classifier_hidden=6)
    assert model.ngrams is not None
    ids, mask = padded(texts([7, 4]), left=[0, 2])
    said = model(ids, mask=mask)
    assert apart(model.trace(ids, mask=mask).logits, said) <= 1e-5
    model.ngrams.table.weight.zero_()
    assert apart(model(ids, mask=mask), said) > 1e-4


@pytest.mark.parametrize("key", ["word_ngrams", "ngram_log_count_ratio"])
def test_without_ngrams_their_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*ngrams"):
        tiny(**{key: 1})
    assert not dict(new_classifier(ngrams=3, ngram_buckets=101).named_buffers()).keys() & {
        "ngrams.weight_r",
        "ngrams.between_v",
    }


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_others_have_none(task: str) -> None:
    with pytest.raises(ConfigError, match="ngrams"):
        build(task, tiny(ngrams=2), vocab=VOCAB)


@pytest.mark.parametrize("pooling", ["mean", "first", "max", "attention"])
@torch.no_grad()
def test_a_classifier_reads_in_16_bits(pooling: str) -> None:
    model = new_classifier(ngrams=3, ngram_buckets=101, pooling=pooling)
    ids, mask = padded(texts([7, 4]), left=[0, 2])
    with torch.autocast("cpu", torch.bfloat16):
        said = model(ids, mask=mask)
    assert apart(said.float(), model(ids, mask=mask)) <= 0.1 * model(ids, mask=mask).abs().max()
