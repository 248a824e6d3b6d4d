"""One batch: what it holds, and how it is put together from a store, all rows at once.

Shapes: b texts, n tokens, m source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.token_store import Side
from heed.data.tokenizers.special_tokens import OWN, Specials

Ids = NDArray[np.int64]
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
    """[1, n] or, of packed texts, [b, n]: where each token stands in its text."""
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

    def tensors(self) -> dict[str, Tensor]:
        """The tensors it has, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor], **facts: Any) -> Batch:
        """The same batch with these tensors in their place."""
        changes: dict[str, Any] = {**tensors, **facts}
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device, on its way before it is needed."""
        there = {name: t.to(device, non_blocking=True) for name, t in self.tensors().items()}
        return self.with_tensors(there)

    @property
    def tokens(self) -> int:
        """Cells of the batch, padding included."""
        return self.ids.numel() + (0 if self.source is None else self.source.numel())


def filled(batch: Batch, texts: int) -> Batch:
    """The batch with blank rows up to `texts`: nothing in them is real, nothing is asked."""
    more = texts - len(batch.ids)
    blanks = {"ids": 0, "targets": IGNORED, "mask": False, "source": 0, "source_mask": False}
    if batch.segments is not None:  # only then has each row positions of its own
        blanks |= {"segments": -1, "positions": 0}
    longer: dict[str, Any] = {}
    for name, blank in blanks.items():
        value = getattr(batch, name)
        if value is not None and more:
            longer[name] = torch.cat([value, value.new_full((more, *value.shape[1:]), blank)])
    return replace(batch, **longer)


def joined(parts: list[Batch]) -> Batch:
    """Batches of the same lengths as one: the rows of the first, then those of the next."""
    first = parts[0]
    if len(parts) == 1:
        return first
    own = [name for name, t in first.tensors().items() if not name.endswith("positions")]
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in own}
    rows = tuple(row for part in parts for row in part.rows)
    return first.with_tensors(tensors, count=sum(part.count for part in parts), rows=rows)


@dataclass(frozen=True)
class TokenSpan:
    """Of some texts of a side, what each gives to a batch."""

    side: Side
    rows: NDArray[Any]
    """[b] which texts,"""
    starts: Ids
    """[b] from which token on,"""
    sizes: Ids
    """[b] and how many cells, those of special tokens included."""
    begin: int | None = None
    """What is read before the first token; unset, BOS."""

    @property
    def specials(self) -> Specials:
        """The ids of padding, begin, end and the mask here."""
        return self.side.specials

    def real(self, length: int) -> NDArray[np.bool_]:
        """[b, n] which cells of rows so long are not padding."""
        mask: NDArray[np.bool_] = np.arange(length) < self.sizes[:, None]
        return mask

    def ended(self, length: int) -> Ids:
        """[b, n] the tokens, and from the end of its text on, EOS."""
        left = self.side.lengths(self.rows) - self.starts
        tokens = self.side.tokens(self.rows, self.starts, length)
        return np.where(np.arange(length) < left[:, None], tokens, self.specials.eos)

    def before(self) -> Ids:
        """[b] the token before the first; `begin` where that is the first of its text."""
        tokens = self.side.tokens(self.rows, np.maximum(self.starts - 1, 0), 1)[:, 0]
        begin = self.specials.bos if self.begin is None else self.begin
        return np.where(self.starts > 0, tokens, begin)


def to_continue(texts: TokenSpan, length: int) -> Batch:
    """Read each token, say the next. A later window begins with the token before it."""
    said, mask = texts.ended(length), texts.real(length)
    read = np.concatenate([texts.before()[:, None], said[:, :-1]], axis=1)
    targets = np.where(mask, said, IGNORED)
    return _batch(texts, read, targets, mask, int(texts.sizes.sum()))


def to_translate(sources: TokenSpan, texts: TokenSpan, source_length: int, length: int) -> Batch:
    """Read a source, and what was said of its translation; say how that goes on."""
    mask = sources.real(source_length)
    return replace(
        to_continue(texts, length),
        source=torch.from_numpy(_padded(sources, sources.ended(source_length), mask)),
        source_mask=torch.from_numpy(mask),
        source_positions=torch.arange(source_length)[None],
    )


def to_classify(texts: TokenSpan, length: int, classes: NDArray[Any] | None) -> Batch:
    """Read a text between BOS and EOS, which stand even where the text is cut; say its class."""
    mask, column = texts.real(length), np.arange(length)
    first = np.full((len(mask), 1), texts.specials.bos)
    read = np.concatenate([first, texts.ended(length)[:, :-1]], axis=1)
    read = np.where((column > 0) & (column == texts.sizes[:, None] - 1), texts.specials.eos, read)
    said = np.full(len(mask), IGNORED) if classes is None else classes.astype(np.int64)
    return _batch(texts, read, said, mask, len(mask))


def hidden(
    batch: Batch, share: float, random: np.random.Generator, specials: Specials = OWN
) -> Batch:
    """The batch with about this share of its words shown as the mask; BOS and EOS stay.

    Of a translation that is its source (Gal and Ghahramani 2016, Sennrich et al. 2016).
    """
    name, ids, real, key = "ids", batch.ids, batch.mask, "train.token_dropout"
    if batch.source is not None and batch.source_mask is not None:
        name, ids, real, key = (
            "source",
            batch.source,
            batch.source_mask,
            "train.source_token_dropout",
        )
    drawn = torch.from_numpy(random.random(tuple(ids.shape)) < share)
    words = real & (ids != specials.bos) & (ids != specials.eos)
    return batch.with_tensors({name: ids.masked_fill(drawn & words, specials.masking(key))})


def to_unmask(
    texts: TokenSpan, length: int, *, share: float, vocab: int, random: np.random.Generator
) -> Batch:
    """Guess hidden tokens of a text between BOS and EOS from all the others (Devlin et al. 2019).

    Of the tokens asked for, 80% are shown as the mask, 10% as another token, 10% as they are; at
    least one is asked for in every text. BOS and EOS stand as a classifier will read them.
    """
    mask = texts.real(length)
    said = np.concatenate([texts.before()[:, None], texts.ended(length)[:, :-1]], axis=1)
    words = mask & (said != texts.specials.bos) & (said != texts.specials.eos)
    drawn = np.where(words, random.random(mask.shape), 1.0)
    asked = (drawn < share) | (drawn == drawn.min(axis=1, keepdims=True))
    asked &= words
    shown, least = texts.specials.masking("train.objective = 'masked'"), texts.specials.ordinary
    how, other = (
        random.random(mask.shape),
        random.integers(least, max(least + 1, vocab), mask.shape),
    )
    read = np.where(asked & (how < 0.8), shown, np.where(asked & (how >= 0.9), other, said))
    targets = np.where(asked, said, IGNORED)
    return _batch(texts, read, targets, mask, int(asked.sum()))


def _padded(texts: TokenSpan, ids: Ids, mask: NDArray[np.bool_]) -> Ids:
    return np.where(mask, ids, texts.specials.pad)


def _batch(texts: TokenSpan, ids: Ids, targets: Ids, mask: NDArray[np.bool_], count: int) -> Batch:
    return Batch(
        torch.from_numpy(_padded(texts, ids, mask)),
        torch.from_numpy(targets),
        torch.from_numpy(mask),
        torch.arange(ids.shape[1])[None],
        count,
        tuple(texts.rows.tolist()),
    )


def padded(texts: list[Ids], length: int, fill: int) -> tuple[Tensor, Tensor]:
    """Texts side by side, filled up on the right; and which cells are text."""
    out = np.full((len(texts), length), fill, np.int64)
    mask = np.zeros((len(texts), length), np.bool_)
    for i, text in enumerate(texts):
        out[i, : len(text)] = text
        mask[i, : len(text)] = True
    return torch.from_numpy(out), torch.from_numpy(mask)
