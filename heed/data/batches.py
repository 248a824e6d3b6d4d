"""Batches: few shapes, little padding, and an order that is a function of seed, epoch and step.

Which shapes there are is chosen by the lengths of the texts (`heed.data.shapes`). Which texts stand
in batch number i of epoch e depends on nothing but those, the seed, e and i: a resumed run goes on
with the very batch an unbroken one would have had next.

A budget of `batch_tokens` bounds the cells of a batch, padding included; of a translation, those of
its longer side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batch import (
    IGNORED,
    Batch,
    Ids,
    Stretch,
    filled,
    padded,
    to_classify,
    to_continue,
    to_translate,
    to_unmask,
)
from heed.data.shapes import Layout, Rows, Shape, chunks, ladder
from heed.data.store import Store

__all__ = [
    "DEFAULT_TOKENS",
    "IGNORED",
    "Batch",
    "Batches",
    "Plan",
    "Rows",
    "Shape",
    "at",
    "batch_sizes",
    "filled",
    "padded",
]

DEFAULT_TOKENS = 4096
FREE = -1


@dataclass(frozen=True)
class Plan:
    """One epoch: which texts stand in which batch, in order."""

    order: Rows
    starts: NDArray[np.int64]
    """Where batch i begins in `order`,"""
    stops: NDArray[np.int64]
    """and where it ends."""
    shapes: NDArray[np.int8]
    """The number of its shape; FREE where it is as long as its texts make it."""
    epoch: int

    def __len__(self) -> int:
        return len(self.starts)

    def items(self, number: int) -> Rows:
        """What stands in one batch."""
        return self.order[self.starts[number] : self.stops[number]]


class Batches:
    """The batches of one split for one task: texts of like length side by side.

    A text of a language model that is longer than `max_length` is read in several windows; any
    other text is cut there. Held are one byte a text for its shape, and four for an epoch's order.
    """

    def __init__(
        self,
        store: Store,
        task: str,
        *,
        max_length: int,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        rows: Rows | None = None,
        masked: float = 0.0,
    ) -> None:
        """`rows` are the texts to use, in order; all of the store's unless some are named.

        `masked` is the share of tokens a masked language model must guess; 0 is a causal one.
        """
        self.store, self.task, self.max_length, self.seed = store, task, max_length, seed
        self.batch_tokens, self.batch_size, self.masked = batch_tokens, batch_size, masked
        self.rows: Rows | range = range(len(store)) if rows is None else rows
        self.starts: Rows | None = None
        """Where in its text each window begins; None where every text is one window."""
        self._added = 2 if task == "classify" else 0 if masked else 1
        """Tokens put around a text."""
        self.cut = 0
        """Texts that are longer than max_length and will be read in part."""
        windows, longest = 0, 1
        for part in chunks(len(self.rows)):
            whole = np.maximum(*self._whole(part))
            longest = max(longest, int(whole.max()))
            self.cut += int((whole > max_length).sum())
            windows += int(_windows(whole, max_length).sum())
        if task == "generate":
            self.cut = 0
            if longest > max_length:
                self.rows, self.starts = self._split(windows)
        self._longest = min(longest, max_length)

    def only(self, rows: NDArray[Any]) -> Batches:
        """The same, over some of the store's texts."""
        return Batches(
            self.store,
            self.task,
            max_length=self.max_length,
            batch_tokens=self.batch_tokens,
            batch_size=self.batch_size,
            seed=self.seed,
            rows=rows.astype(np.uint32),
            masked=self.masked,
        )

    def shapes(self) -> list[Shape]:
        """The shapes of this text's batches, the same in every epoch."""
        each = zip(self._layout.shapes, self._layout.counts, strict=True)
        return [replace(shape, texts=min(shape.texts, count)) for shape, count in each if count]

    def plan(self, epoch: int) -> Plan:
        """A shuffled epoch: texts in random order, grouped by shape, the groups mixed."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        layout, order = self._layout, self._layout.shuffled(random)
        each = [batch_sizes(n, s.texts) for n, s in zip(layout.counts, layout.shapes, strict=True)]
        shapes = np.repeat(np.arange(len(each), dtype=np.int8), [len(sizes) for sizes in each])
        sizes, turn = np.concatenate(each), random.permutation(len(shapes))
        stops = np.cumsum(sizes)
        return Plan(order, (stops - sizes)[turn], stops[turn], shapes[turn], epoch)

    def in_order(self) -> Plan:
        """Every text once, in the order of the file: for evaluation."""
        order = np.arange(len(self.rows), dtype=np.uint32)
        sizes = batch_sizes(len(order), self._texts(self._rung(self._longest)))
        stops = np.cumsum(sizes)
        return Plan(order, stops - sizes, stops, np.full(len(sizes), FREE, np.int8), epoch=-1)

    @cached_property
    def _layout(self) -> Layout:
        """Made for training only: evaluation does without."""
        paired = self.task == "translate"
        return Layout(
            self._sizes, len(self.rows), longest=self.max_length, paired=paired, size=self._texts
        )

    def _texts(self, length: int) -> int:
        """How many texts of this length a batch holds."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, (self.batch_tokens or DEFAULT_TOKENS) // length)

    def _rung(self, length: int) -> int:
        """The rung of the ladder that holds this length."""
        rungs = ladder(self.max_length)
        return int(rungs[np.searchsorted(rungs, length)])

    def _whole(self, places: slice | Rows) -> tuple[Ids, Ids]:
        """The tokens of the source, if there is one, and of the text, uncut, at each place."""
        rows = at(self.rows, places)
        *source, own = (side.lengths(rows) + self._added for side in self.store.sides)
        return (source[0] if source else np.zeros_like(own)), own

    def _sizes(self, places: slice | Rows) -> tuple[Ids, Ids]:
        """The same as a batch has them: from the start of the window, up to the longest length."""
        source, own = self._whole(places)
        if self.starts is not None:
            own = own - self.starts[places]
        return np.minimum(source, self.max_length), np.minimum(own, self.max_length)

    def _split(self, count: int) -> tuple[Rows, Rows]:
        """Texts and starts of windows: `count` of them, of `max_length` tokens or what is left."""
        rows, starts, stop = np.empty(count, np.uint32), np.empty(count, np.uint32), 0
        for part in chunks(len(self.rows)):
            counts = _windows(self._whole(part)[1], self.max_length)
            ends = np.cumsum(counts)
            here = slice(stop, stop + int(ends[-1]))
            number = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
            rows[here] = np.repeat(at(self.rows, part), counts)
            starts[here] = number * self.max_length
            stop = here.stop
        return rows, starts

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        places = plan.items(number)
        rows, (source_sizes, sizes) = at(self.rows, places), self._sizes(places)
        if plan.shapes[number] == FREE:
            length, source_length = self._rung(sizes.max()), self._rung(source_sizes.max())
        else:
            shape = self._layout.shapes[plan.shapes[number]]
            length, source_length = shape.length, shape.source_length or 0
        starts = np.zeros_like(sizes) if self.starts is None else self.starts[places].astype("i8")
        texts = Stretch(self.store.sides[-1], rows, starts, sizes)
        if self.task == "translate":
            sources = Stretch(self.store.sides[0], rows, starts, source_sizes)
            return to_translate(sources, texts, source_length, length)
        if self.task == "classify":
            labels = self.store.labels
            return to_classify(texts, length, None if labels is None else labels[rows])
        if not self.masked:
            return to_continue(texts, length)
        random = np.random.Generator(np.random.PCG64([self.seed, plan.epoch + 1, number]))
        return to_unmask(texts, length, share=self.masked, vocab=self.store.vocab, random=random)


def at(rows: Rows | range, places: slice | Rows) -> Rows:
    """The rows at these places; a range of all rows is not written out before it must be."""
    if not isinstance(rows, range):
        return rows[places]
    if isinstance(places, slice):
        return np.arange(places.start, places.stop, dtype=np.uint32)
    return places


def _windows(whole: Ids, size: int) -> Ids:
    """How many windows of `size` tokens each text needs."""
    return np.maximum(1, -(-whole // size))


def batch_sizes(count: int, size: int) -> NDArray[np.int64]:
    """`count` texts in batches of `size`, the last one smaller."""
    whole, left = divmod(count, size)
    return np.array([size] * whole + [left] * (left > 0), np.int64)
