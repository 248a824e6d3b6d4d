"""Batches: few shapes, little padding, and an order that is a function of seed, epoch and step.

Lengths go up a short ladder, so that kernels, allocators and captured graphs meet the same shapes
again and again. Which texts stand in batch number i of epoch e depends on nothing but the seed, e
and i: a resumed run goes on with the very batch an unbroken one would have had next.

Shapes: b texts, n tokens, m source tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.store import Store
from heed.data.tokenizer import BOS, EOS, PAD

LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Lengths a batch may have; beyond the last, powers of two."""
IGNORED = -100
"""In targets: nothing is asked here."""


@dataclass(frozen=True)
class Batch:
    """What one step reads and what it should say, with everything masks are made of."""

    ids: Tensor
    """[b, n] what the model reads; for translation, the target so far."""
    targets: Tensor
    """[b, n] the token that follows each, or [b] the class; IGNORED where nothing is asked."""
    mask: Tensor
    """[b, n] True where `ids` is a real token."""
    positions: Tensor
    """[1, n] or [b, n] where each token stands in its text."""
    count: int
    """How many targets are asked for: what a loss sum is divided by."""
    rows: tuple[int, ...]
    """Which texts of the store these are."""
    segments: Tensor | None = None
    """[b, n] which packed text each token is of."""
    source: Tensor | None = None
    """[b, m] what a translator reads."""
    source_mask: Tensor | None = None
    source_positions: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device, on its way before it is needed."""
        moved: dict[str, Any] = {
            f.name: value.to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)

    @property
    def tokens(self) -> int:
        """Cells of the batch, padding included."""
        return self.ids.numel() + (0 if self.source is None else self.source.numel())


def rung(length: int) -> int:
    """The step of the ladder that holds this length."""
    for step in LADDER:
        if length <= step:
            return step
    return 1 << (length - 1).bit_length()


@dataclass(frozen=True)
class Plan:
    """One epoch: which texts stand in which batch, in order."""

    order: NDArray[np.uint32]
    starts: NDArray[np.int64]
    """Where batch i begins in `order`; one more than there are batches."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, batch: int) -> NDArray[np.uint32]:
        """The texts of one batch."""
        return self.order[self.starts[batch] : self.starts[batch + 1]]


class Batches:
    """The batches of one split for one task."""

    def __init__(
        self,
        store: Store,
        task: str,
        *,
        max_length: int,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.store, self.task, self.max_length, self.seed = store, task, max_length, seed
        self.batch_tokens, self.batch_size = batch_tokens, batch_size
        lengths = np.max([side.lengths() for side in store.sides], axis=0) + 1
        self.cut = int((lengths > max_length).sum())
        """Texts that are longer than max_length and will be read in part."""
        steps = np.array([step for step in LADDER if step < max_length] + [rung(max_length)])
        self._steps = steps
        self._step_of = np.searchsorted(steps, np.minimum(lengths, max_length)).astype(np.uint8)

    def plan(self, epoch: int) -> Plan:
        """A shuffled epoch: texts in random order, grouped by length, the groups mixed."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = random.permutation(np.arange(len(self.store), dtype=np.uint32))
        pieces, sizes = [], []
        for step, length in enumerate(self._steps):
            members = order[self._step_of[order] == step]
            pieces.append(members)
            sizes.append(_sizes(len(members), self._texts(int(length))))
        return _mixed(np.concatenate(pieces), np.concatenate(sizes), random)

    def in_order(self) -> Plan:
        """Every text once, in the order of the file: for evaluation."""
        order = np.arange(len(self.store), dtype=np.uint32)
        size = self._texts(int(self._steps[self._step_of.max(initial=0)]))
        return Plan(order, _starts(_sizes(len(order), size)))

    def _texts(self, length: int) -> int:
        """How many texts of this length a batch holds."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, (self.batch_tokens or 4096) // length)

    def make(self, rows: NDArray[np.uint32]) -> Batch:
        """The batch of these texts."""
        numbers = tuple(int(row) for row in rows)
        limit = self.max_length
        texts = [self.store.sides[-1][row].astype(np.int64) for row in numbers]
        if self.task == "classify":
            return self._to_classify(numbers, [_wrapped(text, limit) for text in texts])
        read = [np.concatenate([[BOS], text])[:limit] for text in texts]
        said = [np.concatenate([text, [EOS]])[:limit] for text in texts]
        source = None
        if self.task == "translate":
            source = [
                np.concatenate([self.store.sides[0][row], [EOS]])[:limit].astype(np.int64)
                for row in numbers
            ]
        longest = max(len(text) for text in [*read, *(source or [])])
        length = min(rung(longest), max(limit, longest))
        ids, mask = _padded(read, length, PAD)
        targets, _ = _padded(said, length, IGNORED)
        batch = Batch(ids, targets, mask, torch.arange(length)[None], sum(map(len, said)), numbers)
        if source is None:
            return batch
        source_ids, source_mask = _padded(source, length, PAD)
        return replace(
            batch, source=source_ids, source_mask=source_mask, source_positions=batch.positions
        )

    def _to_classify(self, numbers: tuple[int, ...], texts: list[NDArray[np.int64]]) -> Batch:
        longest = max(map(len, texts))
        ids, mask = _padded(texts, min(rung(longest), max(self.max_length, longest)), PAD)
        if self.store.labels is None:
            targets = torch.full((len(texts),), IGNORED)
        else:
            targets = torch.tensor([int(self.store.labels[row]) for row in numbers])
        positions = torch.arange(ids.shape[1])[None]
        return Batch(ids, targets, mask, positions, len(numbers), numbers)

    def walk(self, plan: Plan, start: int = 0) -> Iterator[Batch]:
        """The batches of a plan from number `start` on."""
        for i in range(start, len(plan)):
            yield self.make(plan.rows(i))


def _wrapped(text: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """A text with its beginning and end marked, cut to fit."""
    return np.concatenate([[BOS], text[: max(0, limit - 2)], [EOS]])[:limit].astype(np.int64)


def _padded(texts: list[NDArray[Any]], length: int, fill: int) -> tuple[Tensor, Tensor]:
    """Texts side by side, filled up on the right; and which cells are text."""
    out = np.full((len(texts), length), fill, np.int64)
    mask = np.zeros((len(texts), length), np.bool_)
    for i, text in enumerate(texts):
        out[i, : len(text)] = text
        mask[i, : len(text)] = True
    return torch.from_numpy(out), torch.from_numpy(mask)


def _sizes(count: int, size: int) -> NDArray[np.int64]:
    """`count` texts in batches of `size`, the last one smaller."""
    whole, left = divmod(count, size)
    return np.array([size] * whole + [left] * (left > 0), np.int64)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _mixed(
    order: NDArray[np.uint32], sizes: NDArray[np.int64], random: np.random.Generator
) -> Plan:
    """The same batches in random order."""
    starts, turn = _starts(sizes), random.permutation(len(sizes))
    mixed = np.concatenate([order[starts[i] : starts[i + 1]] for i in turn] or [order])
    return Plan(mixed, _starts(sizes[turn]))
