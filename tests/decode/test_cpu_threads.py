"""Batches written side by side on several threads say what they say one after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from decode import ending_models
from hypothesis import given
from hypothesis import strategies as st
from support import texts

from heed.decode.batch_plan import compact_order
from heed.decode.beam import Beam
from heed.decode.cpu_threads import map_batches
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Strategy
from heed.decode.streaming import StreamingSearch

SOURCES = [ids.tolist() for ids in texts([5, 1, 9, 3, 7, 2, 6, 12, 4, 4, 30])]
STRATEGIES: list[Strategy] = [Greedy(), Beam(3, nbest=2), Sample(2, seed=5)]


@pytest.fixture
def threads() -> Iterator[int]:
    """Two of them, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "lstm"])
def test_a_crew_writes_the_same(variant: str, strategy: Strategy, threads: int) -> None:
    search = Search([ending_models.ending_translator(variant)], strategy, batch_size=2)
    together = search.translate(SOURCES)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    alone = search.translate(SOURCES)
    for several, others in zip(together, alone, strict=True):
        for x, y in zip(several, others, strict=True):
            assert x.ids == y.ids
            assert x.score == pytest.approx(y.score, abs=1e-5)


def test_every_text_is_heard_by_its_own_number(threads: int) -> None:
    """However many batches there are, and though some texts are ended early."""
    models, heard = [ending_models.ending_translator("rope-concat")], dict[int, list[int]]()

    def on_tokens(number: int, tokens: list[int]) -> bool:
        heard.setdefault(number, []).extend(tokens)
        return len(heard[number]) >= 3

    aloud = StreamingSearch(models, Greedy(), on_tokens, batch_size=2).translate(SOURCES)
    silent = Search(models, Greedy(), batch_size=2).translate(SOURCES)
    for number, ((said,), (whole,)) in enumerate(zip(aloud, silent, strict=True)):
        assert said.ids == whole.ids[: len(said.ids)]
        assert len(said.ids) >= min(3, len(whole.ids))
        assert said.ids[: len(heard.get(number, []))] == heard.get(number, [])[: len(said.ids)]


def test_a_crew_answers_in_order_and_may_fail(threads: int) -> None:
    assert list(map_batches(lambda n: n * n, range(20), parallel=True)) == [
        n * n for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        list(map_batches(lambda n: 1 // n, [3, 2, 1, 0], parallel=True))
    assert torch.get_num_threads() == threads


@given(st.sets(st.integers(0, 40)))
def test_who_need_not_change_seats_stays(rows: set[int]) -> None:
    found = compact_order(sorted(rows))
    assert sorted(found) == sorted(rows)
    for seat, row in enumerate(found):
        assert seat == row or (row >= len(rows) and seat not in rows)
