"""Batches: few shapes, little padding, and an order that is a function of seed, epoch and step.

Lengths go up a short ladder, so that kernels, allocators and captured graphs meet the same shapes
again and again. Which texts stand in batch number i of epoch e depends on nothing but the seed, e
and i: a resumed run goes on with the very batch an unbroken one would have had next.

Shapes: b texts, n tokens, m source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.store import Store
from heed.data.tokenizer import BOS, EOS, MASK, PAD

Ids = NDArray[np.int64]
Rows = NDArray[np.uint32]
DEFAULT_TOKENS = 4096

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

    order: Rows
    starts: NDArray[np.int64]
    """Where batch i begins in `order`; one more than there are batches."""
    epoch: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def items(self, number: int) -> Rows:
        """What stands in one batch."""
        return self.order[self.starts[number] : self.starts[number + 1]]


class Batches:
    """The batches of one split for one task: texts of like length side by side.

    A text of a language model that is longer than `max_length` is read in several windows; any
    other text is cut there.
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
        self.rows = np.arange(len(store), dtype=np.uint32) if rows is None else rows
        lengths = np.max([side.lengths() for side in store.sides], axis=0)[self.rows] + 1
        self.cut = 0 if task == "generate" else int((lengths > max_length).sum())
        """Texts that are longer than max_length and will be read in part."""
        self.starts: NDArray[np.uint32] | None = None
        """Where in its text each window begins; None where every text is one window."""
        if task == "generate" and (lengths > max_length).any():
            self.rows, self.starts, lengths = _windows(self.rows, lengths, max_length)
        steps = [step for step in LADDER if step < max_length] + [rung(max_length)]
        self._steps = np.array(steps)
        self._step_of = np.searchsorted(self._steps, np.minimum(lengths, max_length)).astype("u1")

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

    def plan(self, epoch: int) -> Plan:
        """A shuffled epoch: texts in random order, grouped by length, the groups mixed."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        order = random.permutation(np.arange(len(self.rows), dtype=np.uint32))
        pieces, sizes = [], []
        for step, length in enumerate(self._steps):
            pieces.append(order[self._step_of[order] == step])
            sizes.append(batch_sizes(len(pieces[-1]), self._texts(int(length))))
        return mixed(np.concatenate(pieces), np.concatenate(sizes), random, epoch)

    def in_order(self) -> Plan:
        """Every text once, in the order of the file: for evaluation."""
        size = self._texts(int(self._steps[self._step_of.max(initial=0)]))
        order = np.arange(len(self.rows), dtype=np.uint32)
        return Plan(order, batch_starts(batch_sizes(len(order), size)), epoch=-1)

    def _texts(self, length: int) -> int:
        """How many texts of this length a batch holds."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, (self.batch_tokens or DEFAULT_TOKENS) // length)

    def batch(self, plan: Plan, number: int) -> Batch:
        """Batch `number` of a plan."""
        places = plan.items(number)
        rows = tuple(int(row) for row in self.rows[places])
        if self.task == "classify":
            return self._to_classify(rows)
        if self.task == "translate":
            return self._to_translate(rows)
        starts = [0] * len(rows) if self.starts is None else self.starts[places].tolist()
        texts = [
            self.store.sides[0][row][start : start + self.max_length].astype(np.int64)
            for row, start in zip(rows, starts, strict=True)
        ]
        if self.masked:
            random = np.random.Generator(np.random.PCG64([self.seed, plan.epoch + 1, number]))
            return self._to_unmask(rows, texts, random)
        return self._to_continue(rows, texts, starts)

    def _to_continue(self, rows: tuple[int, ...], texts: list[Ids], starts: list[int]) -> Batch:
        """Read each token, say the next. A later window begins with the token before it."""
        said = [
            np.append(text, EOS)[: self.max_length]
            if start + len(text) == self._length(row)
            else text
            for row, start, text in zip(rows, starts, texts, strict=True)
        ]
        first = [
            int(self.store.sides[0][row][start - 1]) if start else BOS
            for row, start in zip(rows, starts, strict=True)
        ]
        read = [np.append(f, s[:-1]).astype(np.int64) for f, s in zip(first, said, strict=True)]
        return _next_token_batch(rows, read, said, self._fit(read))

    def _length(self, row: int) -> int:
        return len(self.store.sides[0][row])

    def _to_translate(self, rows: tuple[int, ...]) -> Batch:
        limit, (sources, targets) = self.max_length, self.store.sides
        source = [np.append(sources[row], EOS)[:limit].astype(np.int64) for row in rows]
        said = [np.append(targets[row], EOS)[:limit].astype(np.int64) for row in rows]
        read = [np.append(BOS, text[:-1]).astype(np.int64) for text in said]
        length = self._fit([*read, *source])
        ids, mask = padded(source, length, PAD)
        batch = _next_token_batch(rows, read, said, length)
        return replace(batch, source=ids, source_mask=mask, source_positions=batch.positions)

    def _to_classify(self, rows: tuple[int, ...]) -> Batch:
        inside = max(0, self.max_length - 2)
        texts = [self.store.sides[0][row][:inside].astype(np.int64) for row in rows]
        texts = [np.concatenate([[BOS], text, [EOS]])[: self.max_length] for text in texts]
        ids, mask = padded(texts, self._fit(texts), PAD)
        labels = self.store.labels
        classes = [IGNORED if labels is None else int(labels[row]) for row in rows]
        positions = torch.arange(ids.shape[1])[None]
        return Batch(ids, torch.tensor(classes), mask, positions, len(rows), rows)

    def _to_unmask(
        self, rows: tuple[int, ...], texts: list[Ids], random: np.random.Generator
    ) -> Batch:
        """Guess the hidden tokens from all the others (Devlin et al. 2019)."""
        hidden = [hide(text, self.masked, self.store.vocab, random) for text in texts]
        ids, mask = padded([shown for shown, _ in hidden], self._fit(texts), PAD)
        targets, _ = padded([asked for _, asked in hidden], ids.shape[1], IGNORED)
        positions = torch.arange(ids.shape[1])[None]
        return Batch(ids, targets, mask, positions, int((targets != IGNORED).sum()), rows)

    def _fit(self, texts: list[Ids]) -> int:
        """The rung that holds the longest of these, or `max_length` where that is enough."""
        longest = max(map(len, texts))
        return min(rung(longest), max(self.max_length, longest))


def hide(text: Ids, share: float, vocab: int, random: np.random.Generator) -> tuple[Ids, Ids]:
    """What a masked model reads, and what it is asked (IGNORED elsewhere).

    Of the tokens asked for, 80% are shown as the mask, 10% as another token, 10% as they are; at
    least one is asked for in every text.
    """
    asked = random.random(len(text)) < share
    asked[random.integers(len(text))] = True
    how = random.random(len(text))
    shown = np.where(asked & (how < 0.8), MASK, text)
    other = random.integers(MASK + 1, max(MASK + 2, vocab), len(text))
    shown = np.where(asked & (how >= 0.9), other, shown)
    return shown, np.where(asked, text, IGNORED)


def _next_token_batch(
    rows: tuple[int, ...], read: list[Ids], said: list[Ids], length: int
) -> Batch:
    ids, mask = padded(read, length, PAD)
    targets, _ = padded(said, length, IGNORED)
    return Batch(ids, targets, mask, torch.arange(length)[None], sum(map(len, said)), rows)


def _windows(rows: Rows, lengths: NDArray[Any], size: int) -> tuple[Rows, Rows, NDArray[Any]]:
    """Texts and starts and lengths of windows of `size` over texts of these lengths."""
    counts = -(-lengths // size)
    text = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = number * size
    return rows[text], starts.astype(np.uint32), np.minimum(size, lengths[text] - starts)


def padded(texts: list[Ids], length: int, fill: int) -> tuple[Tensor, Tensor]:
    """Texts side by side, filled up on the right; and which cells are text."""
    out = np.full((len(texts), length), fill, np.int64)
    mask = np.zeros((len(texts), length), np.bool_)
    for i, text in enumerate(texts):
        out[i, : len(text)] = text
        mask[i, : len(text)] = True
    return torch.from_numpy(out), torch.from_numpy(mask)


def batch_sizes(count: int, size: int) -> NDArray[np.int64]:
    """`count` texts in batches of `size`, the last one smaller."""
    whole, left = divmod(count, size)
    return np.array([size] * whole + [left] * (left > 0), np.int64)


def batch_starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each batch begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def mixed(order: Rows, sizes: NDArray[np.int64], random: np.random.Generator, epoch: int) -> Plan:
    """The same batches in random order."""
    starts, turn = batch_starts(sizes), random.permutation(len(sizes))
    parts = [order[starts[i] : starts[i + 1]] for i in turn]
    return Plan(np.concatenate(parts or [order]), batch_starts(sizes[turn]), epoch)
