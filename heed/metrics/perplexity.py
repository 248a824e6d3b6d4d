"""Perplexity of a causal language model: the loss of every token, and sums over texts.

A text is read after the begin-of-sequence token and predicted up to its end-of-sequence token. A
text longer than the window is read in overlapping windows: each begins `stride` tokens after the
one before, and only the tokens that no earlier window covered are scored. So every token is scored
once; after the first window, each is predicted from `window - stride + 1` to `window` tokens.

Losses are natural logarithms. Perplexities per token of different tokenizers do not compare. Those
per word, and bits per byte, compare if no text was lost to unknown tokens.

Shapes: b windows, n tokens, r scored tokens of a chunk, w width.
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

from heed.arrays import Floats, Ints
from heed.data.batching.batch import IGNORE_INDEX
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.models import LanguageModel
from heed.models.inference import evaluating, position_limit
from heed.stats.intervals import ratio_interval

BATCH_TOKENS = 1 << 13
"""Tokens in a batch, padding included."""
CHUNK_LOGITS = 1 << 22
"""Logits in memory at once: what fits a CPU's cache."""
LN2 = math.log(2)
INTERVALS = ("perplexity", "word_perplexity", "bits_per_byte")
"""Metrics that get an interval."""


@dataclass(frozen=True)
class TokenLosses:
    """The tokens of one text and their losses; the end-of-sequence token is the last."""

    ids: Ints
    losses: Floats
    """-log P(token | the tokens before it in its window)."""
    correct: NDArray[np.bool_]
    """Whether the token was the most probable one."""


@dataclass(frozen=True)
class Window:
    """A window over a text: predicts tokens `start` … `stop` - 1, scores those from `first` on."""

    text: int
    start: int
    first: int
    stop: int


def sliding_windows(text: int, count: int, *, window: int, stride: int) -> Iterator[Window]:
    """The windows over a text with `count` tokens to predict."""
    start = first = 0
    while first < count:
        stop = min(start + window, count)
        yield Window(text, start, first, stop)
        start, first = start + stride, stop


def token_losses(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    *,
    window: int,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    specials: SpecialTokens = DEFAULT_SPECIALS,
) -> list[TokenLosses]:
    """The loss of every token of every text (ids without special tokens), in sliding windows.

    `stride` is half the window by default. 1 gives every token the longest context; `window` cuts
    the text into independent blocks.
    """
    stride = max(1, window // 2) if stride is None else stride
    _check_window(model, window, stride)
    sequences = [np.array([specials.bos, *ids, specials.eos], np.int64) for ids in texts]
    scored = [
        TokenLosses(ids[1:], np.zeros(len(ids) - 1), np.zeros(len(ids) - 1, bool))
        for ids in sequences
    ]
    windows = [
        one
        for i, ids in enumerate(sequences)
        for one in sliding_windows(i, len(ids) - 1, window=window, stride=stride)
    ]
    # Windows of similar length share a batch. The longest come first: the peak of memory is early.
    windows.sort(key=lambda one: one.start - one.stop)
    done = 0
    with evaluating(model):
        while done < len(windows):
            longest = windows[done].stop - windows[done].start
            batch = windows[done : done + max(1, batch_tokens // longest)]
            losses, correct = _batch_losses(model, *_pad_batch(batch, sequences))
            end = 0
            for one in batch:
                source, target = slice(end, end + one.stop - one.first), slice(one.first, one.stop)
                scored[one.text].losses[target] = losses[source]
                scored[one.text].correct[target] = correct[source]
                end = source.stop
            done += len(batch)
    return scored


def _check_window(model: LanguageModel, window: int, stride: int) -> None:
    limit = position_limit([model])
    if not 1 <= stride <= window:
        raise ConfigError([f"stride cannot be {stride}: it is 1 to {window}, the window."])
    if limit is not None and window > limit:
        raise ConfigError(
            [f"a window of {window} tokens is beyond this model's {limit} positions."]
        )
    if not model.causal:
        raise ConfigError(
            ["a masked language model has no perplexity: it does not predict the next token."]
        )


def _pad_batch(batch: Sequence[Window], sequences: Sequence[Ints]) -> tuple[Tensor, Tensor, Tensor]:
    """Input ids [b, n], the padding mask, and targets, IGNORED where a token is not scored."""
    sizes = np.array([one.stop - one.start for one in batch])
    real_bn = np.arange(sizes.max()) < sizes[:, None]
    ids_bn = np.zeros(real_bn.shape, np.int64)
    targets_bn = np.full(real_bn.shape, IGNORE_INDEX, np.int64)
    for row, one in enumerate(batch):
        ids_bn[row, : one.stop - one.start] = sequences[one.text][one.start : one.stop]
        targets = sequences[one.text][one.first + 1 : one.stop + 1]
        targets_bn[row, one.first - one.start : one.stop - one.start] = targets
    return torch.from_numpy(ids_bn), torch.from_numpy(real_bn), torch.from_numpy(targets_bn)


def _batch_losses(
    model: LanguageModel, ids_bn: Tensor, real_bn: Tensor, targets_bn: Tensor
) -> tuple[Floats, NDArray[np.bool_]]:
    """Loss and correctness of every scored token, row by row.

    Padding is on the right, where the causal mask hides it from real tokens. Only a merge that
    looks past one token needs the padding mask.
    """
    device = next(model.parameters()).device
    scored_bn = (targets_bn != IGNORE_INDEX).to(device)
    mask = None if model.config.reweight_over == "token" else real_bn.to(device)
    x_rw = model.states(ids_bn.to(device), mask=mask).x_bnw[scored_bn]
    targets_r = targets_bn.to(device)[scored_bn]
    rows = max(1, CHUNK_LOGITS // model.head.weight.shape[0])
    losses, correct = [], []
    for x, targets in zip(x_rw.split(rows), targets_r.split(rows), strict=True):
        logits = model.head(x).float()
        losses.append(F.cross_entropy(logits, targets, reduction="none").double().cpu())
        correct.append((logits.argmax(dim=-1) == targets).cpu())
    return torch.cat(losses).numpy(), torch.cat(correct).numpy()


@dataclass(frozen=True)
class LossCounts:
    """The sum of the losses of some text, and the counts to divide it by."""

    loss: float
    tokens: int
    """Tokens, the end-of-sequence token included."""
    words: int
    """Words between white space."""
    bytes: int
    """Bytes of UTF-8, and one for the end of each text, as in a file of lines."""
    correct: int
    unknown: int
    """Unknown tokens."""
    altered: int
    """Texts that the tokenizer does not restore exactly."""

    def __add__(self, other: LossCounts) -> LossCounts:
        ours, theirs = asdict(self), asdict(other)
        return LossCounts(**{key: ours[key] + theirs[key] for key in ours})

    def metrics(self) -> dict[str, float]:
        """Mean loss per token, perplexity per token and per word, bits per byte, accuracy."""
        return {
            "loss": self.loss / self.tokens,
            "perplexity": exponential(self.loss / self.tokens),
            "word_perplexity": exponential(self.loss / max(1, self.words)),
            "bits_per_byte": self.loss / LN2 / self.bytes,
            "accuracy": self.correct / self.tokens,
        }


def count_losses(
    tokenizer: Tokenizer, texts: Sequence[str], scored: Sequence[TokenLosses]
) -> list[LossCounts]:
    """The loss sum and counts of each text."""
    ids, unknown = [one.ids[:-1].tolist() for one in scored], tokenizer.specials.unk
    restored = tokenizer.decode_batch(ids)
    return [
        LossCounts(
            loss=float(one.losses.sum()),
            tokens=len(one.ids),
            words=len(text.split()),
            bytes=len(text.encode()) + 1,
            correct=int(one.correct.sum()),
            unknown=text_ids.count(unknown),
            altered=int(decoded != text or unknown in text_ids),
        )
        for text, one, text_ids, decoded in zip(texts, scored, ids, restored, strict=True)
    ]


def perplexity_metrics(counts: Sequence[LossCounts]) -> dict[str, Any]:
    """Loss, perplexities, bits per byte, accuracy and counts of texts, with intervals."""
    total = sum(counts[1:], counts[0])
    text_perplexities = np.array([exponential(one.loss / one.tokens) for one in counts])
    return total.metrics() | {
        "mean_text_perplexity": float(text_perplexities.mean()),
        "tokens": total.tokens,
        "words": total.words,
        "bytes": total.bytes,
        "unknown_tokens": total.unknown,
        "altered_texts": total.altered,
        "bits_comparable": total.altered == 0,
        "interval": perplexity_intervals(counts),
    }


def perplexity_intervals(counts: Sequence[LossCounts]) -> dict[str, dict[str, float]]:
    """Intervals of perplexity per token and word and of bits per byte, over texts.

    The interval of the mean loss is Student's; that of a perplexity is its exponential. There is
    none for fewer than `MIN_ITEMS` texts.
    """
    loss = np.array([one.loss for one in counts])
    divisors = (
        [one.tokens for one in counts],
        [one.words for one in counts],
        [one.bytes for one in counts],
    )
    intervals = {}
    for name, divisor in zip(INTERVALS, divisors, strict=True):
        interval = ratio_interval(loss, np.array(divisor, np.float64))
        if interval is not None:
            low, high = (
                max(0.0, bound) / LN2 if name == "bits_per_byte" else exponential(max(0.0, bound))
                for bound in (interval.low, interval.high)
            )
            intervals[name] = {"low": low, "high": high}
    return intervals


def exponential(x: float) -> float:
    """e^x, infinite where it would overflow."""
    return math.exp(x) if x < 700 else math.inf
