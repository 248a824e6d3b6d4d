"""Batches written side by side on several threads say what they say one after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from decode import plain
from hypothesis import given
from hypothesis import strategies as st
from support import texts

from heed.decode.beam import Beam
from heed.decode.crew import each
from heed.decode.greedy import Greedy
from heed.decode.limits import seated
from heed.decode.sample import Sample
from heed.decode.search import Search
from heed.decode.strategy import Strategy

SOURCES = [ids.tolist() for ids in texts([5, 1, 9, 3, 7, 2, 6, 12, 4, 4, 30])]
STRATEGIES: list[Strategy] = [Greedy(), Beam(3, nbest=2), Sample(2, seed=5)]


@pytest.fixture
def threads() -> Iterator[int]:
    """Two of them, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: type(how).__name__)
@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "lstm"])
def test_a_crew_writes_the_same(variant: str, how: Strategy, threads: int) -> None:
    search = Search([plain.ending_translator(variant)], how, batch_size=2)
    together = search.translate(SOURCES)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    alone = search.translate(SOURCES)
    for several, others in zip(together, alone, strict=True):
        for x, y in zip(several, others, strict=True):
            assert x.ids == y.ids
            assert x.score == pytest.approx(y.score, abs=1e-5)


def test_a_crew_answers_in_order_and_may_fail(threads: int) -> None:
    assert list(each(lambda n: n * n, range(20), crew=True)) == [n * n for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(each(lambda n: 1 // n, [3, 2, 1, 0], crew=True))
    assert torch.get_num_threads() == threads


@given(st.sets(st.integers(0, 40)))
def test_who_need_not_change_seats_stays(rows: set[int]) -> None:
    found = seated(sorted(rows))
    assert sorted(found) == sorted(rows)
    for seat, row in enumerate(found):
        assert seat == row or (row >= len(rows) and seat not in rows)
