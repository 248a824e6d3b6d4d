"""How well a causal language model foresees text: the loss of every token, and their sums.

A text is read after the begin mark and judged to its end mark. One that is longer than the window
is read in windows that overlap: each begins `stride` tokens after the one before, and of each only
the tokens are judged that no earlier window reached. So every token is judged once, past the first
window after `window - stride + 1` to `window` tokens.

Losses are natural logarithms. Tokenizers cut text differently, so their perplexities by token do
not compare; those by word, and bits by byte, do where nothing of the text was hidden as unknown.

Shapes: b windows, n tokens, r rows of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from heed.data.batching.bucketed import IGNORED
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.models import LanguageModel
from heed.models.inference import evaluating, position_limit
from heed.stats.bootstrap import RESAMPLES, Whole, interval, resampled

Floats = NDArray[np.float64]
CELLS = 1 << 13
"""Tokens read side by side, padding included."""
LOGITS = 1 << 22
"""Logits held at once: what a CPU's cache takes."""
LN2 = math.log(2)
MEASURES = ("perplexity", "word_perplexity", "bits_per_byte")
"""What an interval is given for."""


@dataclass(frozen=True)
class Judged:
    """One text, token by token, its end mark last."""

    ids: NDArray[np.int64]
    losses: Floats
    """-log P(token | what the window shows before it)."""
    right: NDArray[np.bool_]
    """Whether no other token was likelier."""


@dataclass(frozen=True)
class Window:
    """Tokens `start` … `stop` - 1 of a text are to be said, those from `first` on are judged."""

    text: int
    start: int
    first: int
    stop: int


def windows(text: int, count: int, *, window: int, stride: int) -> Iterator[Window]:
    """The windows over a text of which `count` tokens are to be said."""
    start = first = 0
    while first < count:
        stop = min(start + window, count)
        yield Window(text, start, first, stop)
        start, first = start + stride, stop


def judge(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    window: int,
    stride: int | None = None,
    cells: int = CELLS,
    specials: Specials = OWN,
) -> list[Judged]:
    """The loss of every token of every text (ids without marks), read in windows so long.

    `stride` is half the window unless told: 1 gives every token all the context there is room for,
    `window` cuts the text into blocks that don't know each other.
    """
    stride = max(1, window // 2) if stride is None else stride
    _refuse(model, window, stride)
    whole = [np.array([specials.bos, *ids, specials.eos], np.int64) for ids in texts]
    found = [Judged(ids[1:], np.zeros(len(ids) - 1), np.zeros(len(ids) - 1, bool)) for ids in whole]
    every = [
        one
        for i, ids in enumerate(whole)
        for one in windows(i, len(ids) - 1, window=window, stride=stride)
    ]
    # Those of like length stand side by side, the longest first: what memory must hold comes first.
    every.sort(key=lambda one: one.start - one.stop)
    at = 0
    with evaluating(model):
        while at < len(every):
            batch = every[at : at + max(1, cells // (every[at].stop - every[at].start))]
            losses, right = _losses(model, *_laid(batch, whole))
            end = 0
            for one in batch:
                here, there = slice(end, end + one.stop - one.first), slice(one.first, one.stop)
                found[one.text].losses[there] = losses[here]
                found[one.text].right[there] = right[here]
                end = here.stop
            at += len(batch)
    return found


def _refuse(model: LanguageModel, window: int, stride: int) -> None:
    limit = position_limit([model])
    if not 1 <= stride <= window:
        raise ConfigError([f"stride cannot be {stride}: it is 1 to {window}, the window."])
    if limit is not None and window > limit:
        raise ConfigError(
            [f"a window of {window} tokens is beyond this model's {limit} positions."]
        )
    if not model.causal:
        raise ConfigError(["a masked language model foresees nothing: it has no loss by token."])


def _laid(
    batch: Sequence[Window], whole: Sequence[NDArray[np.int64]]
) -> tuple[Tensor, Tensor, Tensor]:
    """What to read [b, n], where it is real, and what to say, IGNORED where nothing is judged."""
    sizes = np.array([one.stop - one.start for one in batch])
    real_bn = np.arange(sizes.max()) < sizes[:, None]
    ids_bn = np.zeros(real_bn.shape, np.int64)
    targets_bn = np.full(real_bn.shape, IGNORED, np.int64)
    for row, one in enumerate(batch):
        ids_bn[row, : one.stop - one.start] = whole[one.text][one.start : one.stop]
        judged = whole[one.text][one.first + 1 : one.stop + 1]
        targets_bn[row, one.first - one.start : one.stop - one.start] = judged
    return torch.from_numpy(ids_bn), torch.from_numpy(real_bn), torch.from_numpy(targets_bn)


def _losses(
    model: LanguageModel, ids_bn: Tensor, real_bn: Tensor, targets_bn: Tensor
) -> tuple[Floats, NDArray[np.bool_]]:
    """Loss and rightness of every token that is judged, row by row.

    Padding stands on the right, where under a causal mask nothing real sees it. Only a merge that
    looks past one token has to be told of it.
    """
    device = next(model.parameters()).device
    asked_bn = (targets_bn != IGNORED).to(device)
    mask = None if model.config.reweight_over == "token" else real_bn.to(device)
    x_rw = model.states(ids_bn.to(device), mask=mask).x_bnw[asked_bn]
    targets_r = targets_bn.to(device)[asked_bn]
    rows = max(1, LOGITS // model.head.weight.shape[0])
    losses, right = [], []
    for x, targets in zip(x_rw.split(rows), targets_r.split(rows), strict=True):
        logits = model.head(x).float()
        losses.append(F.cross_entropy(logits, targets, reduction="none").double().cpu())
        right.append((logits.argmax(dim=-1) == targets).cpu())
    return torch.cat(losses).numpy(), torch.cat(right).numpy()


@dataclass(frozen=True)
class Counts:
    """Of some text: the sum of its losses, and what to divide it by."""

    loss: float
    tokens: int
    """The end mark is one."""
    words: int
    """Between white space."""
    bytes: int
    """Of UTF-8, and one for the end of each text, as a file of lines has it."""
    right: int
    unknown: int
    """Tokens that stand for whatever the vocabulary does not have."""
    altered: int
    """Texts that the tokenizer would not give back to the letter."""

    def __add__(self, other: Counts) -> Counts:
        mine, its = asdict(self), asdict(other)
        return Counts(**{key: mine[key] + its[key] for key in mine})

    def measures(self) -> dict[str, float]:
        """Mean loss by token, and what it is by token, by word and by byte."""
        return {
            "loss": self.loss / self.tokens,
            "perplexity": _exp(self.loss / self.tokens),
            "word_perplexity": _exp(self.loss / max(1, self.words)),
            "bits_per_byte": self.loss / LN2 / self.bytes,
            "accuracy": self.right / self.tokens,
        }


def count(tokenizer: Tokenizer, texts: Sequence[str], judged: Sequence[Judged]) -> list[Counts]:
    """The sums of each text."""
    ids, unknown = [one.ids[:-1] for one in judged], tokenizer.specials.unk
    back = tokenizer.decode_batch([own.tolist() for own in ids])
    return [
        Counts(
            loss=float(one.losses.sum()),
            tokens=len(one.ids),
            words=len(text.split()),
            bytes=len(text.encode()) + 1,
            right=int(one.right.sum()),
            unknown=own.tolist().count(unknown),
            altered=int(given != text or unknown in own.tolist()),
        )
        for text, one, own, given in zip(texts, judged, ids, back, strict=True)
    ]


def told(found: Sequence[Counts], *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """What there is to tell about texts, for a person and for a program."""
    whole = sum(found[1:], found[0])
    each = np.array([_exp(one.loss / one.tokens) for one in found])
    facts: dict[str, Any] = whole.measures() | {
        "mean_text_perplexity": float(each.mean()),
        "tokens": whole.tokens,
        "words": whole.words,
        "bytes": whole.bytes,
        "unknown_tokens": whole.unknown,
        "altered_texts": whole.altered,
        "bits_compare": whole.altered == 0,
    }
    if resamples and len(found) > 1:
        facts["interval"] = intervals(found, resamples)
    return facts


def intervals(found: Sequence[Counts], resamples: int) -> dict[str, dict[str, float]]:
    """Of each measure, where it would lie on other texts."""
    sums_n4 = np.array([(one.loss, one.tokens, one.words, one.bytes) for one in found], float)

    def drawn_sums(drawn_rn: Whole) -> Floats:
        return sums_n4[drawn_rn].sum(axis=1)

    loss, *counts = resampled(drawn_sums, len(found), resamples, held=sums_n4.size).T
    spans = {}
    for name, by in zip(MEASURES, counts, strict=True):
        ends = interval(loss / np.maximum(1, by))
        low, high = (
            end / LN2 if name == "bits_per_byte" else _exp(end) for end in (ends.low, ends.high)
        )
        spans[name] = {"low": low, "high": high}
    return spans


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
