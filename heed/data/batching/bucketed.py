"""Batches: few shapes, little padding, and an order that is a function of seed, epoch and step.

Which shapes there are is chosen by the lengths of the texts (`heed.data.batching.length_buckets`).
Which texts stand
in batch number i of epoch e depends on nothing but those, the seed, e and i: a resumed run goes on
with the very batch an unbroken one would have had next.

Where a store has draws, each epoch reads the next of them. All have the same shapes; and as many
batches, for where a draw would have fewer, its largest are halved.

A budget of `batch_tokens` bounds the cells of a batch, padding included; of a translation, those of
its longer side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batching.batch import (
    IGNORED,
    Batch,
    Ids,
    TokenSpan,
    filled,
    hidden,
    joined,
    padded,
    to_classify,
    to_continue,
    to_translate,
    to_unmask,
)
from heed.data.batching.denoising import spoiled
from heed.data.batching.directions import Directions
from heed.data.batching.length_buckets import Layout, Rows, Shape, chunks, common_corners, ladder
from heed.data.token_store import DRAWS, Side, Store

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
NOISE = 1
"""Tells the draws of noise from those that hide words."""


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
        both: bool = False,
        denoise: float = 0.0,
    ) -> None:
        """`rows` are the texts to use, in order; all of the store's unless some are named.

        `masked` is the share of tokens a masked language model must guess; 0 is a causal one. Of a
        classifier or of a translator's source, it is the share that training hides; evaluation
        shows everything. With `both`, an epoch has every pair a second time, the other way round;
        with `denoise`, this share of texts to be restored, too.
        """
        self.store, self.task, self.max_length, self.seed = store, task, max_length, seed
        self.batch_tokens, self.batch_size, self.masked = batch_tokens, batch_size, masked
        self.both, self.denoise = both, denoise
        self.rows: Rows | range = range(len(store)) if rows is None else rows
        self.starts: Rows | None = None
        """Where in its text each window begins; None where every text is one window."""
        framed = task == "classify" or (task == "generate" and masked > 0)
        self._added = 2 if framed else 1
        """Tokens put around a text."""
        self.cut = 0
        """Texts that are longer than max_length and will be read in part."""
        windows, longest = 0, 1
        for part in chunks(len(self.rows)):
            whole = self._whole(part)
            longest = max(longest, int(whole.max()))
            self.cut += int((whole > max_length).sum())
            windows += int(_windows(whole, max_length).sum())
        if task == "generate":
            self.cut = 0
            if longest > max_length:
                self.rows, self.starts = self._split(windows)
        self._longest = min(longest, max_length)
        marks, texts = store.sides[0].specials, len(self.rows)
        self.ways = Directions(texts, marks, both=both, denoise=denoise, seed=seed)

    @property
    def text_count(self) -> int:
        """How many texts there are, in however many windows they are read."""
        return len(self.rows) if self.starts is None else int((self.starts == 0).sum())

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
            both=self.both,
            denoise=self.denoise,
        )

    def shapes(self) -> list[Shape]:
        """The shapes of this text's batches, the same in every epoch."""
        layouts = self._layouts
        counts = [max(each) for each in zip(*(layout.counts for layout in layouts), strict=True)]
        each = zip(layouts[0].shapes, counts, strict=True)
        return [replace(shape, texts=min(shape.texts, count)) for shape, count in each if count]

    def plan(self, epoch: int) -> Plan:
        """A shuffled epoch: texts in random order, grouped by shape, the groups mixed."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        layout = self._layouts[epoch % len(self._layouts)]
        order, (shapes, sizes) = layout.shuffled(random), _grouped(layout)
        most = max(len(_grouped(one)[1]) for one in self._layouts)
        while len(sizes) < most:
            large = np.argsort(-sizes, kind="stable")[: most - len(sizes)]
            large = np.sort(large[sizes[large] > 1])
            halves = sizes[large] // 2
            sizes[large] -= halves
            sizes = np.insert(sizes, large, halves)
            shapes = np.insert(shapes, large, shapes[large])
        turn, stops = random.permutation(len(shapes)), np.cumsum(sizes)
        return Plan(order, (stops - sizes)[turn], stops[turn], shapes[turn], epoch)

    def in_order(self) -> Plan:
        """Every text once, in the order of the file: for evaluation."""
        order = np.arange(len(self.rows), dtype=np.uint32)
        sizes = batch_sizes(len(order), self._texts(self._rung(self._longest)))
        stops = np.cumsum(sizes)
        return Plan(order, stops - sizes, stops, np.full(len(sizes), FREE, np.int8), epoch=-1)

    @cached_property
    def _layouts(self) -> list[Layout]:
        """One for each draw, made for training only: evaluation does without."""
        told: dict[str, Any] = {"longest": self.max_length, "paired": self.task == "translate"}
        epochs = range(self._editions)
        editions = [(partial(self._sizes, epoch=epoch), len(self.ways)) for epoch in epochs]
        corners = common_corners(editions, **told)
        return [Layout(*each, size=self._texts, corners=corners, **told) for each in editions]

    @property
    def _editions(self) -> int:
        """After how many epochs the same texts are read again, cut and chosen alike."""
        return len(self.store.draws) or (DRAWS if self.denoise else 1)

    def _sides(self, epoch: int) -> tuple[Side, ...]:
        """The texts as an epoch reads them; -1 is as they are."""
        draws = self.store.draws
        return draws[epoch % len(draws)] if draws and epoch >= 0 else self.store.sides

    def _texts(self, length: int) -> int:
        """How many texts of this length a batch holds."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, (self.batch_tokens or DEFAULT_TOKENS) // length)

    def _rung(self, length: int) -> int:
        """The rung of the ladder that holds this length."""
        rungs = ladder(self.max_length)
        return int(rungs[np.searchsorted(rungs, length)])

    def _whole(self, places: slice) -> Ids:
        """The tokens of each of these texts, uncut: of its longer side, in its longest draw."""
        rows, longest = at(self.rows, places), np.zeros(places.stop - places.start, np.int64)
        for side in chain(self.store.sides, *self.store.draws):
            np.maximum(longest, side.lengths(rows), out=longest)
        return longest + self._added

    def _sizes(self, places: slice | Rows, epoch: int) -> tuple[Ids, Ids]:
        """The tokens of source, if there is one, and text at each place, as a batch has them.

        That is from the start of the window, up to the longest length.
        """
        way, text = self.ways.at(places, epoch % self._editions)
        rows, each = at(self.rows, text), np.arange(len(text))
        lengths = np.stack([side.lengths(rows) for side in self._sides(epoch)]) + self._added
        if self.task == "translate":
            read, said, _ = np.array(self.ways.ways).T
            source, own = lengths[read[way], each], lengths[said[way], each]
        else:
            source, own = np.zeros_like(lengths[0]), lengths[0]
        if self.starts is not None:
            own = own - self.starts[text]
        return np.clip(source, 0, self.max_length), np.clip(own, 0, self.max_length)

    def _split(self, count: int) -> tuple[Rows, Rows]:
        """Texts and starts of windows: `count` of them, of `max_length` tokens or what is left."""
        rows, starts, stop = np.empty(count, np.uint32), np.empty(count, np.uint32), 0
        for part in chunks(len(self.rows)):
            counts = _windows(self._whole(part), self.max_length)
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
        source_sizes, sizes = self._sizes(places, plan.epoch)
        if plan.shapes[number] == FREE:
            length, source_length = self._rung(sizes.max()), self._rung(source_sizes.max())
        else:
            shape = self._layouts[0].shapes[plan.shapes[number]]
            length, source_length = shape.length, shape.source_length or 0
        if self.task == "translate":
            made = self._translations(plan, number, (source_sizes, sizes), (source_length, length))
            return self._shown(made, plan, number)
        rows, side = at(self.rows, places), self._sides(plan.epoch)[0]
        starts = np.zeros_like(sizes) if self.starts is None else self.starts[places].astype("i8")
        texts = TokenSpan(side, rows, starts, sizes)
        if self.task == "classify":
            labels = self.store.labels
            batch = to_classify(texts, length, None if labels is None else labels[rows])
            return self._shown(batch, plan, number)
        if not self.masked:
            return to_continue(texts, length)
        random = self._random(plan, number)
        return to_unmask(texts, length, share=self.masked, vocab=self.store.vocab, random=random)

    def _translations(
        self, plan: Plan, number: int, sizes: tuple[Ids, Ids], lengths: tuple[int, int]
    ) -> Batch:
        """Pairs in every way there is. Sizes are those of each, of source and text."""
        way, text = self.ways.at(plan.items(number), plan.epoch % self._editions)
        rows, sides = at(self.rows, text), self._sides(plan.epoch)
        random, parts = self._random(plan, number, NOISE), []
        for one in np.unique(way).tolist():
            here, told = way == one, self.ways.ways[one]
            from_start = np.zeros(here.sum(), np.int64)
            sources, texts = (
                TokenSpan(sides[side], rows[here], from_start, each[here], told.begin)
                for side, each in zip((told.read, told.said), sizes, strict=True)
            )
            part = to_translate(sources, texts, *lengths)
            parts.append(spoiled(part, random, texts.specials) if told.noisy else part)
        return joined(parts)

    def _shown(self, batch: Batch, plan: Plan, number: int) -> Batch:
        """The batch with words hidden, where it is one to learn from."""
        if not self.masked or plan.epoch < 0:
            return batch
        random, marks = self._random(plan, number), self.store.sides[0].specials
        return hidden(batch, self.masked, random, marks)

    def _random(self, plan: Plan, number: int, *use: int) -> np.random.Generator:
        """Of one batch and use, the same whenever it is made; evaluation, too, has its own."""
        return np.random.Generator(np.random.PCG64([self.seed, plan.epoch + 1, number, *use]))


def at(rows: Rows | range, places: slice | Rows) -> Rows:
    """The rows at these places; a range of all rows is not written out before it must be."""
    if not isinstance(rows, range):
        return rows[places]
    if isinstance(places, slice):
        return np.arange(places.start, places.stop, dtype=np.uint32)
    return places


def _grouped(layout: Layout) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """The batches of a layout, shape by shape: the number of the shape, and how many texts."""
    each = [batch_sizes(n, s.texts) for n, s in zip(layout.counts, layout.shapes, strict=True)]
    shapes = np.repeat(np.arange(len(each), dtype=np.int8), [len(sizes) for sizes in each])
    return shapes, np.concatenate(each)


def _windows(whole: Ids, size: int) -> Ids:
    """How many windows of `size` tokens each text needs."""
    return np.maximum(1, -(-whole // size))


def batch_sizes(count: int, size: int) -> NDArray[np.int64]:
    """`count` texts in batches of `size`, the last one smaller."""
    whole, left = divmod(count, size)
    return np.array([size] * whole + [left] * (left > 0), np.int64)
