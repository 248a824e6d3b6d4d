"""Samples are drawn from what the filters leave, each by its own stream of draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from decode import ending_models
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import texts

from heed.data.tokenizers.tokenizer import BOS
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample, sample_index
from heed.decode.search import Search

SOURCES = [ids.tolist() for ids in texts([4, 1, 7, 3])]
logits_of = st.lists(
    st.floats(-6, 6).map(lambda x: round(x, 2)), min_size=1, max_size=12, unique=True
)


def by_token(strategy: Sample, logits: list[float]) -> list[float]:
    """How likely each token is to be drawn."""
    shares, tokens = strategy.candidates(torch.tensor(logits))
    out = torch.zeros(len(logits))
    out[torch.arange(len(logits)) if tokens is None else tokens] = shares
    return out.tolist()


def softmax(logits: list[float]) -> list[float]:
    powers = [math.exp(x) for x in logits]
    return [power / sum(powers) for power in powers]


def only(shares: list[float], kept: set[int]) -> list[float]:
    """The rest left out, and what is kept made whole again."""
    total = sum(shares[i] for i in kept)
    return [share / total if i in kept else 0.0 for i, share in enumerate(shares)]


def ranked(shares: list[float]) -> list[int]:
    return sorted(range(len(shares)), key=lambda i: -shares[i])


# ----------------------------------------------------------------- the filters, by their definition


def top_k(shares: list[float], k: int) -> list[float]:
    """The k likeliest (Fan et al. 2018)."""
    return only(shares, set(ranked(shares)[:k]))


def top_p(shares: list[float], p: float) -> list[float]:
    """The fewest of the likeliest whose probability reaches p (Holtzman et al. 2020)."""
    order = ranked(shares)
    sums = np.cumsum([shares[i] for i in order])
    assume((abs(sums - p) > 1e-5).all())  # float32 may see such a sum on the other side
    return only(shares, set(order[: int((sums < p).sum()) + 1]))


def min_p(shares: list[float], share: float) -> list[float]:
    """What has at least a share of the likeliest one's probability (Nguyen et al. 2024)."""
    least = share * max(shares)
    assume(all(abs(one - least) > 1e-5 for one in shares))
    return only(shares, {i for i, one in enumerate(shares) if one >= least})


@given(logits=logits_of, temperature=st.floats(0.2, 5.0))
def test_temperature_divides_logits(logits: list[float], temperature: float) -> None:
    expected = softmax([x / temperature for x in logits])
    assert by_token(Sample(temperature=temperature), logits) == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of, temperature=st.floats(0.0, exclude_min=True, allow_infinity=False))
def test_no_temperature_is_too_small_or_too_large(logits: list[float], temperature: float) -> None:
    """Shares are shares, and what must not be generated has none."""
    shares = by_token(Sample(temperature=temperature), [*logits, -math.inf])
    assert sum(shares) == pytest.approx(1.0, abs=1e-5)
    assert shares[-1] == 0.0
    assert max(shares) == shares[logits.index(max(logits))]


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
    found = by_token(Sample(top_k=k, top_p=p, min_p=m), logits)
    assert found == pytest.approx(expected, abs=1e-5)


@given(logits=logits_of)
def test_a_grid_of_draws_gives_each_its_share(logits: list[float]) -> None:
    """Draws spread evenly over 0 … 1 choose every candidate as often as its share says."""
    shares, grid = torch.tensor(softmax(logits)), 1000
    draws = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    chosen = sample_index(shares.expand(1, grid, -1), draws[None])
    counts = torch.bincount(chosen[0], minlength=len(logits))
    assert (counts - grid * shares).abs().max() <= 1.0 + 1e-3


@given(logits=logits_of, draw=st.sampled_from([0.0, 0.5, 1.0 - 2**-53]))
def test_what_has_no_share_is_never_drawn(logits: list[float], draw: float) -> None:
    shares, tokens = Sample(top_p=0.5).candidates(torch.tensor([[logits]]))
    place = sample_index(shares, torch.tensor([[draw]], dtype=torch.float64))
    assert tokens is not None
    assert float(shares[0, 0, int(place)]) > 0


# ------------------------------------------------------------------------------ streams of draws


@pytest.mark.parametrize("variant", ["rope-concat", "lstm"])
def test_samples_come_again(variant: str) -> None:
    model = ending_models.ending_translator(variant)
    first = Search([model], Sample(3, seed=7)).translate(SOURCES)
    assert Search([model], Sample(3, seed=7)).translate(SOURCES) == first
    assert Search([model], Sample(3, seed=8)).translate(SOURCES) != first
    texts_of = [[tuple(one.ids) for one in several] for several in first]
    assert any(len(set(several)) > 1 for several in texts_of)


@settings(max_examples=8)
@given(count=st.integers(1, 5), batch=st.integers(1, 4), number=st.integers(0, 9))
def test_a_sample_is_its_own(count: int, batch: int, number: int) -> None:
    """Sample j of text i is the same however many are drawn, and beside whatever texts."""
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
def test_no_two_samples_share_their_draws(one: tuple[int, int], other: tuple[int, int]) -> None:
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
    """Not those of the sharpened or filtered shares they were drawn from."""
    model = ending_models.ending_translator("rope-concat")
    strategy = Sample(2, temperature=0.5, top_k=3)
    for source, several in zip(SOURCES, Search([model], strategy).translate(SOURCES), strict=True):
        for one in several:
            logprob = ending_models.fresh_logprob(model, source, one.ids, one.cut)
            assert abs(one.logprob - logprob) <= 1e-4


def test_a_language_model_samples_after_its_prompt() -> None:
    model = ending_models.ending_language_model("alibi-concat")
    prompts = [[BOS, *ids.tolist()] for ids in texts([3, 0, 6], seed=1)]
    found = Search([model], Sample(4, seed=1)).generate(prompts, max_tokens=9)
    for i, (prompt, several) in enumerate(zip(prompts, found, strict=True)):
        (alone,) = Search([model], Sample(4, seed=1)).generate([prompt], max_tokens=9, numbers=[i])
        assert [one.ids for one in alone] == [one.ids for one in several]
        assert all(len(one.ids) <= 9 for one in several)
