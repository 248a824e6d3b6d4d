"""One batch: its tensors, and how they are assembled from a token store, all rows at once.

Shapes: b examples, n tokens, m source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.token_store import Side
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens

Ids = NDArray[np.int64]
IGNORE_INDEX = -100
"""Target value at which no loss is computed, as in torch's cross_entropy."""


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of one training step, with everything that masks are built from."""

    ids: Tensor
    """[b, n] input ids; for translation, the target shifted right."""
    targets: Tensor
    """[b, n] the next token at each position, or [b] the class; IGNORE_INDEX where there is no
    loss."""
    mask: Tensor
    """[b, n] True where `ids` is a real token."""
    positions: Tensor
    """[1, n], or [b, n] for packed sequences: position of each token in its sequence."""
    count: int
    """Number of targets with a loss: what the loss sum is divided by."""
    rows: tuple[int, ...]
    """Rows of the token store that these examples are."""
    segments: Tensor | None = None
    """[b, n] number of the packed sequence that each token belongs to."""
    source: Tensor | None = None
    """[b, m] source ids of a translation."""
    source_mask: Tensor | None = None
    source_positions: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of this batch by name, absent ones left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def row_tensors(self) -> dict[str, Tensor]:
        """The tensors with one row per example; the others, positions, are shared by all rows."""
        shared = {"source_positions"} | ({"positions"} if self.segments is None else set())
        return {name: value for name, value in self.tensors().items() if name not in shared}

    def with_tensors(self, tensors: dict[str, Tensor], **others: Any) -> Batch:
        """A copy of this batch with some tensors or other fields replaced."""
        changes: dict[str, Any] = {**tensors, **others}
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to a device without waiting for the transfer."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors().items()}
        return self.with_tensors(moved)

    @property
    def cells(self) -> int:
        """Cells of the batch, source and target, padding included."""
        return self.ids.numel() + (0 if self.source is None else self.source.numel())

    def count_real_tokens(self) -> int:
        """Tokens of the batch without padding; on a GPU this waits for it."""
        source = 0 if self.source_mask is None else int(self.source_mask.sum())
        return int(self.mask.sum()) + source


def pad_rows(batch: Batch, rows: int) -> Batch:
    """Pad a batch with blank rows up to `rows`: all padding, without targets."""
    missing = rows - len(batch.ids)
    if not missing:
        return batch
    fills, padded = {"targets": IGNORE_INDEX, "segments": -1}, {}
    for name, value in batch.row_tensors().items():
        blank = value.new_full((missing, *value.shape[1:]), fills.get(name, 0))
        padded[name] = torch.cat([value, blank])
    return batch.with_tensors(padded)


def concat_batches(parts: list[Batch]) -> Batch:
    """Concatenate the rows of batches of the same lengths."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = first.row_tensors()
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    rows = tuple(row for part in parts for row in part.rows)
    return first.with_tensors(tensors, count=sum(part.count for part in parts), rows=rows)


@dataclass(frozen=True)
class TokenSpan:
    """A span of tokens from each of some rows of one side."""

    side: Side
    rows: NDArray[Any]
    """[b] rows of the token store."""
    starts: Ids
    """[b] first token of each span."""
    sizes: Ids
    """[b] cells of each span, special tokens included."""
    first_token: int | None = None
    """Decoder input before the first token; BOS where unset."""

    @property
    def specials(self) -> SpecialTokens:
        """Special token ids of this side."""
        return self.side.specials

    def token_mask(self, length: int) -> NDArray[np.bool_]:
        """[b, n] which cells of rows of this length are not padding."""
        mask: NDArray[np.bool_] = np.arange(length) < self.sizes[:, None]
        return mask

    def tokens_then_eos(self, length: int) -> Ids:
        """[b, n] the tokens of each span, and EOS from the end of its sequence on."""
        remaining = self.side.lengths(self.rows) - self.starts
        tokens = self.side.tokens(self.rows, self.starts, length)
        return np.where(np.arange(length) < remaining[:, None], tokens, self.specials.eos)

    def previous_tokens(self) -> Ids:
        """[b] the token before each span; `first_token` at the start of a sequence."""
        tokens = self.side.tokens(self.rows, np.maximum(self.starts - 1, 0), 1)[:, 0]
        first_token = self.specials.bos if self.first_token is None else self.first_token
        return np.where(self.starts > 0, tokens, first_token)


def causal_lm_batch(span: TokenSpan, length: int) -> Batch:
    """Inputs and next-token targets. A later window starts with the token before it."""
    next_tokens, mask = span.tokens_then_eos(length), span.token_mask(length)
    inputs = np.concatenate([span.previous_tokens()[:, None], next_tokens[:, :-1]], axis=1)
    targets = np.where(mask, next_tokens, IGNORE_INDEX)
    return _build_batch(span, inputs, targets, mask, int(span.sizes.sum()))


def translation_batch(
    sources: TokenSpan, targets: TokenSpan, source_length: int, length: int
) -> Batch:
    """Source, shifted target and next-token targets of sentence pairs."""
    mask = sources.token_mask(source_length)
    return replace(
        causal_lm_batch(targets, length),
        source=torch.from_numpy(_pad(sources, sources.tokens_then_eos(source_length), mask)),
        source_mask=torch.from_numpy(mask),
        source_positions=torch.arange(source_length)[None],
    )


def classification_batch(span: TokenSpan, length: int, classes: NDArray[Any] | None) -> Batch:
    """Sequences between BOS and EOS, also where truncated, with their class as target."""
    mask, column = span.token_mask(length), np.arange(length)
    bos = np.full((len(mask), 1), span.specials.bos)
    inputs = np.concatenate([bos, span.tokens_then_eos(length)[:, :-1]], axis=1)
    inputs = np.where((column > 0) & (column == span.sizes[:, None] - 1), span.specials.eos, inputs)
    targets = np.full(len(mask), IGNORE_INDEX) if classes is None else classes.astype(np.int64)
    return _build_batch(span, inputs, targets, mask, len(mask))


def mask_tokens(
    batch: Batch,
    share: float,
    random: np.random.Generator,
    specials: SpecialTokens = DEFAULT_SPECIALS,
) -> Batch:
    """Mask about this share of the input tokens; BOS and EOS stay.

    For translation these are tokens of the source (Gal and Ghahramani 2016, Sennrich et al. 2016).
    """
    name, ids, mask, key = "ids", batch.ids, batch.mask, "train.token_dropout"
    if batch.source is not None and batch.source_mask is not None:
        name, ids, mask, key = (
            "source",
            batch.source,
            batch.source_mask,
            "train.source_token_dropout",
        )
    selected = torch.from_numpy(random.random(tuple(ids.shape)) < share)
    words = mask & (ids != specials.bos) & (ids != specials.eos)
    return batch.with_tensors({name: ids.masked_fill(selected & words, specials.require_mask(key))})


def masked_lm_batch(
    span: TokenSpan, length: int, *, share: float, vocab: int, random: np.random.Generator
) -> Batch:
    """Masked language modeling of sequences between BOS and EOS (Devlin et al. 2019).

    Of the tokens to predict, 80% are masked, 10% replaced by a random token, 10% left as they are.
    At least one token per sequence is predicted. BOS and EOS stand where a classifier will read
    them.
    """
    mask = span.token_mask(length)
    following = span.tokens_then_eos(length)[:, :-1]
    tokens = np.concatenate([span.previous_tokens()[:, None], following], axis=1)
    words = mask & (tokens != span.specials.bos) & (tokens != span.specials.eos)
    draws = np.where(words, random.random(mask.shape), 1.0)
    predicted = (draws < share) | (draws == draws.min(axis=1, keepdims=True))
    predicted &= words
    mask_id = span.specials.require_mask("train.objective = 'masked'")
    lowest_id = span.specials.first_ordinary_id
    treatment = random.random(mask.shape)
    random_tokens = random.integers(lowest_id, max(lowest_id + 1, vocab), mask.shape)
    inputs = np.where(predicted & (treatment < 0.8), mask_id, tokens)
    inputs = np.where(predicted & (treatment >= 0.9), random_tokens, inputs)
    targets = np.where(predicted, tokens, IGNORE_INDEX)
    return _build_batch(span, inputs, targets, mask, int(predicted.sum()))


def _pad(span: TokenSpan, ids: Ids, mask: NDArray[np.bool_]) -> Ids:
    return np.where(mask, ids, span.specials.pad)


def _build_batch(
    span: TokenSpan, ids: Ids, targets: Ids, mask: NDArray[np.bool_], count: int
) -> Batch:
    return Batch(
        torch.from_numpy(_pad(span, ids, mask)),
        torch.from_numpy(targets),
        torch.from_numpy(mask),
        torch.arange(ids.shape[1])[None],
        count,
        tuple(span.rows.tolist()),
    )
