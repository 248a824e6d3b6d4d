"""Boards of few sizes that are kept and written over again say what fresh ones say.

That is strategy a GPU's captured steps go. Here the steps run as they are, so a CPU shows it, too.
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


class Keeping(Search):
    """A search that keeps its boards as on a GPU, and leaves something on each of them."""

    def __init__(self, *told: Any, **more: Any) -> None:
        super().__init__(*told, **more, capture=False)
        self.capture, self.sizes = True, StateSizes(bucketed=True)

    def _capture_step(self, state: DecodeState) -> Step:
        step = partial(self._step, state)
        for _ in range(3):  # as capturing does
            step()
        return step

    def _evict_captured(self) -> None:
        """There is enough."""


@by_name
@pytest.mark.parametrize("variant", SOME)
def test_kept_boards_write_the_same(variant: str, strategy: Strategy) -> None:
    """The first time on boards that are new, then on boards that hold what others left."""
    model = ending_models.ending_translator(variant)
    expected = Search([model], strategy, batch_size=8).translate(SOURCES, max_ratio=1.5)
    search = Keeping([model], strategy, batch_size=8)
    for sources in (SOURCES, SOURCES[::-1], SOURCES[3:]):
        numbers = [SOURCES.index(source) for source in sources]
        found = search.translate(sources, max_ratio=1.5, numbers=numbers)
        for source, several in zip(sources, found, strict=True):
            others = expected[SOURCES.index(source)]
            assert [one.ids for one in several] == [one.ids for one in others]
            scores, theirs = (torch.tensor([one.score for one in x]) for x in (several, others))
            torch.testing.assert_close(scores, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["learned-concat", "rope-concat"])
def test_positions_end_where_a_table_does(variant: str) -> None:
    """Seats that others left, and texts that are finished, do not count on beyond the table."""
    model = ending_models.ending_language_model(variant)
    search = Keeping([model], Greedy(), batch_size=8)
    for length in (30, 25, 30):
        prompts = [[2, *ids.tolist()] for ids in texts([length, 3, 10, 10, 10])]
        expected = Search([model], Greedy(), batch_size=1).generate(prompts, max_tokens=40)
        for several, others in zip(search.generate(prompts, max_tokens=40), expected, strict=True):
            assert [one.ids for one in several] == [one.ids for one in others]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 120),
)
def test_a_batch_costs_no_more_than_it_may(
    told: list[tuple[int, int]], size: int, most: int
) -> None:
    """Unless one text alone does; and every text is in one batch."""
    lengths, costs = [n for n, _ in told], [cost for _, cost in told]
    chosen = list(plan_batches(lengths, size, costs=costs, max_cost=most))
    assert sorted(i for rows in chosen for i in rows) == list(range(len(lengths)))
    for rows in chosen:
        assert len(rows) <= size
        assert len(rows) == 1 or len(rows) * max(costs[i] for i in rows) <= most


@given(st.lists(st.integers(1, 300), min_size=1, max_size=400), st.integers(0, 40))
def test_groups_hold_all_texts_and_what_they_have(lengths: list[int], more: int) -> None:
    lengths = sorted(lengths, reverse=True)
    found = plan_groups(lengths, lengths[0] + more)
    assert found[0][1] == lengths[0] + more
    assert sum(count for count, _ in found) == len(lengths)
    assert all(count >= MIN_GROUP for count, _ in found[:-1])
    first = 0
    for count, room in found:
        assert max(lengths[first : first + count]) <= room
        first += count
    assert [room for _, room in found] == sorted({room for _, room in found}, reverse=True)


@by_name
@pytest.mark.parametrize("variant", SOME)
def test_sources_read_apart_are_translated_the_same(
    variant: str, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups of two and more; nobody is on a board with padding that others brought."""
    model = ending_models.ending_translator(variant)
    expected = Search([model], strategy).translate(SOURCES, max_ratio=1.5)
    monkeypatch.setattr(batch_plan, "MIN_GROUP", 2)
    assert len(plan_groups(sorted(LENGTHS, reverse=True), 40)) > 2
    for several, others in zip(
        Search([model], strategy).translate(SOURCES, max_ratio=1.5), expected, strict=True
    ):
        assert [one.ids for one in several] == [one.ids for one in others]
        scores, theirs = (torch.tensor([one.score for one in x]) for x in (several, others))
        torch.testing.assert_close(scores, theirs, rtol=0, atol=1e-4)


def test_a_search_that_nobody_keeps_is_gone_at_once() -> None:
    """Else its graphs would wait for the garbage, and be destroyed while others are captured."""
    search = Search([ending_models.ending_translator("rope-concat")], Greedy())
    search.translate(SOURCES[:2])
    gone = weakref.ref(search)
    gc.disable()
    try:
        del search
        assert gone() is None
    finally:
        gc.enable()
