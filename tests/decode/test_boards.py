"""Boards of few sizes that are kept and written over again say what fresh ones say.

That is how a GPU's captured steps go. Here the steps run as they are, so a CPU shows it, too.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from decode import plain
from support import texts

from heed.decode.beam import Beam
from heed.decode.board import Board
from heed.decode.graphs import Step
from heed.decode.greedy import Greedy
from heed.decode.limits import Sizes, batches
from heed.decode.sample import Sample
from heed.decode.search import Search
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
by_name = pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: type(how).__name__)


class Keeping(Search):
    """A search that keeps its boards as on a GPU, and leaves something on each of them."""

    def __init__(self, *told: object, **more: object) -> None:
        super().__init__(*told, **more, capture=False)  # type: ignore[arg-type]
        self.capture, self.sizes = True, Sizes(few=True)

    def _captured(self, board: Board) -> Step:
        step = partial(self._step, board)
        for _ in range(3):  # as capturing does
            step()
        return step

    def _make_room(self) -> None:
        """There is enough."""


@by_name
@pytest.mark.parametrize("variant", SOME)
def test_kept_boards_write_the_same(variant: str, how: Strategy) -> None:
    """The first time on boards that are new, then on boards that hold what others left."""
    model = plain.ending_translator(variant)
    expected = Search([model], how, batch_size=8).translate(SOURCES, max_ratio=1.5)
    search = Keeping([model], how, batch_size=8)
    for sources in (SOURCES, SOURCES[::-1], SOURCES[3:]):
        numbers = [SOURCES.index(source) for source in sources]
        found = search.translate(sources, max_ratio=1.5, numbers=numbers)
        for source, several in zip(sources, found, strict=True):
            others = expected[SOURCES.index(source)]
            assert [one.ids for one in several] == [one.ids for one in others]
            scores, theirs = (torch.tensor([one.score for one in x]) for x in (several, others))
            torch.testing.assert_close(scores, theirs, rtol=0, atol=1e-4)


def test_a_batch_costs_no_more_than_it_may() -> None:
    """Unless one text alone does; and every text is in one batch."""
    costs = [3 * n + 2 for n in LENGTHS]
    chosen = list(batches(LENGTHS, 4, costs=costs, most=40))
    assert sorted(i for rows in chosen for i in rows) == list(range(len(LENGTHS)))
    for rows in chosen:
        assert len(rows) <= 4
        assert len(rows) == 1 or len(rows) * max(costs[i] for i in rows) <= 40
