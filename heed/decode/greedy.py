"""Greedy decoding: the likeliest token, again and again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from heed.decode.board import Board
from heed.decode.search import Search
from heed.decode.strategy import Apart
from heed.models import Translator


class Greedy(Apart):
    """One hypothesis a text."""

    def pick(self, logits_bkv: Tensor, board: Board) -> Tensor:
        """The likeliest."""
        return logits_bkv.argmax(dim=-1)


def translate(
    model: Translator,
    sources: Sequence[Sequence[int]],
    *,
    max_ratio: float = 2.0,
    max_extra: int = 10,
    batch_size: int | None = None,
) -> list[list[int]]:
    """The likeliest next token until the end mark, for each source (ids without an end mark).

    An output has at most max_ratio times the source's tokens plus max_extra.
    """
    search = Search([model], Greedy(), batch_size=batch_size)
    found = search.translate(sources, max_ratio=max_ratio, max_extra=max_extra)
    return [hypotheses[0].ids for hypotheses in found]
