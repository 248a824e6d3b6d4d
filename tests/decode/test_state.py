"""Decode states of a few bucketed sizes that are reused give the results of fresh ones.

Captured steps on a GPU work that way. Here the steps run eagerly, so that a CPU can test it.
"""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from decode import ending_models
from hypothesis import given
from hypothesis import strategies as st
from support import texts

from heed.decode import batch_plan
from heed.decode.batch_plan import MIN_GROUP, StateSizes, plan_batches, plan_groups
from heed.decode.beam import Beam
from heed.decode.cuda_graph import Step
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.state import DecodeState
from heed.decode.strategy import Strategy

LENGTHS = [5, 1, 9, 3, 7, 2, 6, 12, 4, 4, 30]
SOURCES = [ids.tolist() for ids in texts(LENGTHS)]
SOME = ["rope-concat", "t5-concat", "shaw-values", "lstm"]
STRATEGIES: list[Strategy] = [
    Greedy(),
    Beam(4, nbest=4),
    Beam(2, coverage_penalty=0.3, early_stop=True),
    Sample(3, seed=5, top_p=0.9),
]
by_name = pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__
)


class ReusingSearch(Search):
    """A search that reuses its states as on a GPU, with old data in each of them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, capture=False)
        self.capture, self.sizes = True, StateSizes(bucketed=True)

    def _capture_step(self, state: DecodeState) -> Step:
        step = partial(self._step, state)
        for _ in range(3):  # as capturing runs them
            step()
        return step

    def _evict_captured(self) -> None:
        """Nothing to evict."""


@by_name
@pytest.mark.parametrize("variant", SOME)
def test_reused_states_give_the_same_results(variant: str, strategy: Strategy) -> None:
    """First with new states, then with states that hold old data."""
    model = ending_models.ending_translator(variant)
    expected = Search([model], strategy, batch_size=8).translate(SOURCES, max_ratio=1.5)
    search = ReusingSearch([model], strategy, batch_size=8)
    for sources in (SOURCES, SOURCES[::-1], SOURCES[3:]):
        numbers = [SOURCES.index(source) for source in sources]
        results = search.translate(sources, max_ratio=1.5, numbers=numbers)
        for source, hypotheses in zip(sources, results, strict=True):
            others = expected[SOURCES.index(source)]
            assert [one.ids for one in hypotheses] == [one.ids for one in others]
            scores, theirs = (torch.tensor([one.score for one in x]) for x in (hypotheses, others))
            torch.testing.assert_close(scores, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["learned-concat", "rope-concat"])
def test_positions_end_where_a_table_does(variant: str) -> None:
    """Unused slots and finished inputs do not count beyond the table of positions."""
    model = ending_models.ending_language_model(variant)
    search = ReusingSearch([model], Greedy(), batch_size=8)
    for length in (30, 25, 30):
        prompts = [[2, *ids.tolist()] for ids in texts([length, 3, 10, 10, 10])]
        expected = Search([model], Greedy(), batch_size=1).generate(prompts, max_tokens=40)
        for hypotheses, others in zip(
            search.generate(prompts, max_tokens=40), expected, strict=True
        ):
            assert [one.ids for one in hypotheses] == [one.ids for one in others]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 120),
)
def test_a_batch_costs_at_most_the_maximum(
    inputs: list[tuple[int, int]], size: int, max_cost: int
) -> None:
    """Unless a single input does; and every input is in exactly one batch."""
    lengths, costs = [n for n, _ in inputs], [cost for _, cost in inputs]
    chosen = list(plan_batches(lengths, size, costs=costs, max_cost=max_cost))
    assert sorted(i for rows in chosen for i in rows) == list(range(len(lengths)))
    for rows in chosen:
        assert len(rows) <= size
        assert len(rows) == 1 or len(rows) * max(costs[i] for i in rows) <= max_cost


@given(st.lists(st.integers(1, 300), min_size=1, max_size=400), st.integers(0, 40))
def test_groups_hold_all_inputs_and_are_long_enough(lengths: list[int], more: int) -> None:
    lengths = sorted(lengths, reverse=True)
    results = plan_groups(lengths, lengths[0] + more)
    assert results[0][1] == lengths[0] + more
    assert sum(count for count, _ in results) == len(lengths)
    assert all(count >= MIN_GROUP for count, _ in results[:-1])
    first = 0
    for count, length in results:
        assert max(lengths[first : first + count]) <= length
        first += count
    assert [length for _, length in results] == sorted(
        {length for _, length in results}, reverse=True
    )


@by_name
@pytest.mark.parametrize("variant", SOME)
def test_sources_encoded_in_groups_are_translated_the_same(
    variant: str, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups of two and more, without the padding of longer sources."""
    model = ending_models.ending_translator(variant)
    expected = Search([model], strategy).translate(SOURCES, max_ratio=1.5)
    monkeypatch.setattr(batch_plan, "MIN_GROUP", 2)
    assert len(plan_groups(sorted(LENGTHS, reverse=True), 40)) > 2
    for hypotheses, others in zip(
        Search([model], strategy).translate(SOURCES, max_ratio=1.5), expected, strict=True
    ):
        assert [one.ids for one in hypotheses] == [one.ids for one in others]
        scores, theirs = (torch.tensor([one.score for one in x]) for x in (hypotheses, others))
        torch.testing.assert_close(scores, theirs, rtol=0, atol=1e-4)


def test_a_search_without_references_is_freed_at_once() -> None:
    """Else the garbage collector could destroy its graphs while others are captured."""
    search = Search([ending_models.ending_translator("rope-concat")], Greedy())
    search.translate(SOURCES[:2])
    gone = weakref.ref(search)
    gc.disable()
    try:
        del search
        assert gone() is None
    finally:
        gc.enable()
