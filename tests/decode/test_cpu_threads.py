"""Batches decoded on several threads give the results of one after another."""

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
    """Two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "lstm"])
def test_threads_decode_the_same(variant: str, strategy: Strategy, threads: int) -> None:
    search = Search([ending_models.ending_translator(variant)], strategy, batch_size=2)
    threaded = search.translate(SOURCES)
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    single = search.translate(SOURCES)
    for several, others in zip(threaded, single, strict=True):
        for x, y in zip(several, others, strict=True):
            assert x.ids == y.ids
            assert x.score == pytest.approx(y.score, abs=1e-5)


def test_streamed_tokens_come_with_the_number_of_their_input(threads: int) -> None:
    """With several batches, and with inputs that the callback ends early."""
    models, reported = [ending_models.ending_translator("rope-concat")], dict[int, list[int]]()

    def on_tokens(number: int, tokens: list[int]) -> bool:
        reported.setdefault(number, []).extend(tokens)
        return len(reported[number]) >= 3

    streamed = StreamingSearch(models, Greedy(), on_tokens, batch_size=2).translate(SOURCES)
    searched = Search(models, Greedy(), batch_size=2).translate(SOURCES)
    for number, ((part,), (whole,)) in enumerate(zip(streamed, searched, strict=True)):
        assert part.ids == whole.ids[: len(part.ids)]
        assert len(part.ids) >= min(3, len(whole.ids))
        assert (
            part.ids[: len(reported.get(number, []))] == reported.get(number, [])[: len(part.ids)]
        )


def test_results_are_in_order_and_errors_are_raised(threads: int) -> None:
    assert list(map_batches(lambda n: n * n, range(20), parallel=True)) == [
        n * n for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        list(map_batches(lambda n: 1 // n, [3, 2, 1, 0], parallel=True))
    assert torch.get_num_threads() == threads


@given(st.sets(st.integers(0, 40)))
def test_compacting_moves_only_rows_beyond_the_new_size(rows: set[int]) -> None:
    order = compact_order(sorted(rows))
    assert sorted(order) == sorted(rows)
    for slot, row in enumerate(order):
        assert slot == row or (row >= len(rows) and slot not in rows)
