"""What an epoch asks of every pair of texts: to translate it, and whatever else a recipe says.

| way                        | read                 | said   | first token of what is said |
|----------------------------|----------------------|--------|-----------------------------|
| translate                  | source               | target | BOS                         |
| translate back (`both`)    | target               | source | EOS                         |
| restore (`denoise`)        | target, with noise   | target | BOS                         |
| restore (`denoise`, `both`) | source, with noise  | source | EOS                         |

The first token tells the model which language to write. Translated are all texts, restored is a
share of them: epoch by epoch the next ones in an order drawn once, until they come round again.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.data.batching.length_buckets import Rows
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.errors import DataError

SOURCE, TARGET = 0, 1
"""The sides of a pair."""


class Direction(NamedTuple):
    """Which side is read, which is said, and what a decoder reads first."""

    read: int
    said: int
    begin: int

    @property
    def noisy(self) -> bool:
        """Whether a text is to be restored: nobody asks for what can be read."""
        return self.read == self.said


class Directions:
    """Texts in every way: places, numbered way by way."""

    def __init__(
        self,
        texts: int,
        marks: Specials = OWN,
        *,
        both: bool = False,
        denoise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`denoise` is the share of texts to restore in an epoch, in each language written."""
        self.texts, self.seed = texts, seed
        self.some = min(texts, max(1, round(denoise * texts))) if denoise else 0
        """Texts to restore in an epoch."""
        self.ways = [Direction(SOURCE, TARGET, marks.bos)]
        if both:
            if marks.bos == marks.eos:
                raise DataError(
                    "this tokenizer has one mark for begin and end, so the first token cannot tell "
                    "which language to write.",
                    where="data.bidirectional",
                    todo="Use a tokenizer with two, or one direction.",
                )
            self.ways.append(Direction(TARGET, SOURCE, marks.eos))
        self._whole = len(self.ways) * texts
        """Places of the ways that all texts go."""
        if self.some:
            self.ways += [Direction(way.said, way.said, way.begin) for way in self.ways]

    @cached_property
    def _order(self) -> Rows:
        """In which texts are restored."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        return random.permutation(self.texts).astype(np.uint32)

    def __len__(self) -> int:
        return self._whole + self.some * sum(way.noisy for way in self.ways)

    def at(self, places: slice | Rows, epoch: int) -> tuple[NDArray[np.int64], Rows]:
        """The way of each of these places in an epoch, and which text it is."""
        if isinstance(places, slice):
            places = np.arange(places.start, places.stop, dtype=np.uint32)
        way, text = np.divmod(places.astype(np.int64), max(1, self.texts))
        if self.some:
            noisy = places >= self._whole
            way_of_noisy, number = np.divmod(
                places[noisy].astype(np.int64) - self._whole, self.some
            )
            way[noisy] = way_of_noisy + self._whole // self.texts
            text[noisy] = self._order[(epoch * self.some + number) % self.texts]
        return way, text.astype(np.uint32)
