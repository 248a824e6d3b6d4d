"""Sampling: the filters by their definitions, and one random stream per sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from decode import ending_models
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import texts

from heed.data.tokenizers.special_tokens import BOS
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample, sample_index
from heed.decode.search import Search

SOURCES = [ids.tolist() for ids in texts([4, 1, 7, 3])]
logits_of = st.lists(
    st.floats(-6, 6).map(lambda x: round(x, 2)), min_size=1, max_size=12, unique=True
)


def by_token(strategy: Sample, logits: list[float]) -> list[float]:
    """The probability of each token."""
    probabilities, tokens = strategy.candidates(torch.tensor(logits))
    out = torch.zeros(len(logits))
    out[torch.arange(len(logits)) if tokens is None else tokens] = probabilities
    return out.tolist()


def softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(x) for x in logits]
    return [power / sum(powers) for power in powers]


def only(probabilities: list[float], kept: set[int]) -> list[float]:
    """Keep some probabilities and renormalize them."""
    total = sum(probabilities[i] for i in kept)
    return [share / total if i in kept else 0.0 for i, share in enumerate(probabilities)]


def ranked(probabilities: list[float]) -> list[int]:
    return sorted(range(len(probabilities)), key=lambda i: -probabilities[i])


# ----------------------------------------------------------------- the filters, by their definition


def top_k(probabilities: list[float], k: int) -> list[float]:
    """The k most probable (Fan et al. 2018)."""
    return only(probabilities, set(ranked(probabilities)[:k]))


def top_p(probabilities: list[float], p: float) -> list[float]:
    """The smallest set of most probable tokens whose sum reaches p (Holtzman et al. 2020)."""
    order = ranked(probabilities)
    sums = np.cumsum([probabilities[i] for i in order])
    assume((abs(sums - p) > 1e-5).all())  # float32 may see such a sum on the other side
    return only(probabilities, set(order[: int((sums < p).sum()) + 1]))


def min_p(probabilities: list[float], share: float) -> list[float]:
    """Tokens with at least a share of the largest probability (Nguyen et al. 2024)."""
    least = share * max(probabilities)
    assume(all(abs(one - least) > 1e-5 for one in probabilities))
    return only(probabilities, {i for i, one in enumerate(probabilities) if one >= least})


@given(logits=logits_of, temperature=st.floats(0.2, 5.0))
def test_temperature_divides_logits(logits: list[float], temperature: float) -> None:
    expected = softmax([x / temperature for x in logits])
    assert by_token(Sample(temperature=temperature), logits) == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of, temperature=st.floats(0.0, exclude_min=True, allow_infinity=False))
def test_no_temperature_is_too_small_or_too_large(logits: list[float], temperature: float) -> None:
    """Probabilities sum to 1, and a suppressed token has probability 0."""
    probabilities = by_token(Sample(temperature=temperature), [*logits, -math.inf])
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    assert probabilities[-1] == 0.0
    assert max(probabilities) == probabilities[logits.index(max(logits))]


@given(logits=logits_of, k=st.integers(1, 15))
def test_top_k(logits: list[float], k: int) -> None:
    expected = top_k(softmax(logits), k)
    assert by_token(Sample(top_k=k), logits) == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of, p=st.floats(0.01, 0.999))
def test_top_p(logits: list[float], p: float) -> None:
    expected = top_p(softmax(logits), p)
    assert by_token(Sample(top_p=p), logits) == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of, share=st.floats(0.01, 0.99))
def test_min_p(logits: list[float], share: float) -> None:
    expected = min_p(softmax(logits), share)
    assert by_token(Sample(min_p=share), logits) == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of, k=st.integers(1, 12), p=st.floats(0.05, 0.95), m=st.floats(0.05, 0.5))
def test_filters_act_one_after_the_other(logits: list[float], k: int, p: float, m: float) -> None:
    expected = min_p(top_p(top_k(softmax(logits), k), p), m)
    results = by_token(Sample(top_k=k, top_p=p, min_p=m), logits)
    assert results == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of)
def test_a_grid_of_uniforms_gives_each_token_its_probability(logits: list[float]) -> None:
    """Numbers spread evenly over 0 … 1 select each candidate in proportion."""
    probabilities, grid = torch.tensor(softmax(logits)), 1000
    draws = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    chosen = sample_index(probabilities.expand(1, grid, -1), draws[None])
    counts = torch.bincount(chosen[0], minlength=len(logits))
    assert (counts - grid * probabilities).abs().max() <= 1.0 + 1e-3


@given(logits=logits_of, draw=st.sampled_from([0.0, 0.5, 1.0 - 2**-53]))
def test_a_token_with_probability_0_is_never_drawn(logits: list[float], draw: float) -> None:
    probabilities, tokens = Sample(top_p=0.5).candidates(torch.tensor([[logits]]))
    place = sample_index(probabilities, torch.tensor([[draw]], dtype=torch.float64))
    assert tokens is not None
    assert float(probabilities[0, 0, int(place)]) > 0


# ------------------------------------------------------------------------------ streams of draws


@pytest.mark.parametrize("variant", ["rope-concat", "lstm"])
def test_a_seed_repeats_its_samples(variant: str) -> None:
    model = ending_models.ending_translator(variant)
    first = Search([model], Sample(3, seed=7)).translate(SOURCES)
    assert Search([model], Sample(3, seed=7)).translate(SOURCES) == first
    assert Search([model], Sample(3, seed=8)).translate(SOURCES) != first
    texts_of = [[tuple(one.ids) for one in several] for several in first]
    assert any(len(set(several)) > 1 for several in texts_of)


@settings(max_examples=8)
@given(count=st.integers(1, 5), batch=st.integers(1, 4), number=st.integers(0, 9))
def test_a_sample_depends_on_its_numbers_only(count: int, batch: int, number: int) -> None:
    """Sample j of input i is the same for every number of samples and every batch."""
    model = ending_models.ending_translator("rope-concat")
    numbers = range(number, number + len(SOURCES))
    many = Search([model], Sample(count, seed=3), batch_size=batch).translate(
        SOURCES, numbers=numbers
    )
    for i, source in zip(numbers, SOURCES, strict=True):
        (alone,) = Search([model], Sample(5, seed=3)).translate([source], numbers=[i])
        assert [one.ids for one in alone[:count]] == [one.ids for one in many[i - number]]


@given(
    one=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 20)),
    other=st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 20)),
)
@example(one=(1 << 32, 0), other=(0, 1))  # a large number would run into the next word
def test_no_two_samples_share_a_stream(one: tuple[int, int], other: tuple[int, int]) -> None:
    assume(one != other)
    strategy = Sample(seed=3)
    assert not np.array_equal(strategy.stream(*one).random(4), strategy.stream(*other).random(4))


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_next_to_no_temperature_is_greedy(temperature: float) -> None:
    model = ending_models.ending_translator("rope-concat")
    cold = Search([model], Sample(2, temperature=temperature)).translate(SOURCES)
    for several, (best,) in zip(cold, Search([model], Greedy()).translate(SOURCES), strict=True):
        assert all(one.ids == best.ids for one in several)


def test_scores_of_samples_are_the_models_own() -> None:
    """Not those of the sharpened or filtered distribution."""
    model = ending_models.ending_translator("rope-concat")
    strategy = Sample(2, temperature=0.5, top_k=3)
    for source, several in zip(SOURCES, Search([model], strategy).translate(SOURCES), strict=True):
        for one in several:
            logprob = ending_models.fresh_logprob(model, source, one.ids, one.cut)
            assert abs(one.logprob - logprob) <= 1e-4


def test_a_language_model_samples_after_its_prompt() -> None:
    model = ending_models.ending_language_model("alibi-concat")
    prompts = [[BOS, *ids.tolist()] for ids in texts([3, 0, 6], seed=1)]
    results = Search([model], Sample(4, seed=1)).generate(prompts, max_tokens=9)
    for i, (prompt, several) in enumerate(zip(prompts, results, strict=True)):
        (alone,) = Search([model], Sample(4, seed=1)).generate([prompt], max_tokens=9, numbers=[i])
        assert [one.ids for one in alone] == [one.ids for one in several]
        assert all(len(one.ids) <= 9 for one in several)
