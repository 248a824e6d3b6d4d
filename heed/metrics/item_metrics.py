"""Metrics as functions of summed item counts.

The sums give exactly the score that the evaluation reports: BLEU and chrF are sacreBLEU's.

Shapes: n items, c counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heed.arrays import Floats
from heed.runs.item_counts import ItemCounts
from heed.stats.comparison import SumMetric
from heed.stats.variance import Metric

BLEU_COUNTS = ("hyp_len", "ref_len", *(f"match{i}" for i in range(1, 5)))
BLEU_COUNTS += tuple(f"total{i}" for i in range(1, 5))
CHRF_COUNTS = tuple(f"{kind}{i}" for i in range(1, 7) for kind in ("hyp", "ref", "match"))
TER_COUNTS = ("edits", "ref_len")
COUNTS = {"bleu": BLEU_COUNTS, "chrf": CHRF_COUNTS, "ter": TER_COUNTS}
"""Names of sacreBLEU's sufficient statistics, in its order."""


@dataclass(frozen=True)
class ItemMetric:
    """A metric and the counts that it is a function of."""

    metric: SumMetric
    build_counts: Callable[[], Floats]

    @cached_property
    def counts_nc(self) -> Floats:
        """The counts [n, c] of every item."""
        return self.build_counts()

    @property
    def value(self) -> float:
        """The metric over all items."""
        return float(self.metric.function(self.counts_nc.sum(axis=0)))


def item_metrics(items: ItemCounts) -> dict[str, ItemMetric]:
    """Every metric that the item counts give, by name; the first is the task's primary one."""
    columns = items.columns
    match items.task:
        case "translate":
            present = [name for name in COUNTS if f"{name}.{COUNTS[name][0]}" in columns]
            return {name: translation_metric(name, columns) for name in present}
        case "classify":
            return _classification_metrics(columns, len(items.classes))
        case _:
            return _loss_metrics(columns)


def translation_metric(name: str, columns: Mapping[str, Floats]) -> ItemMetric:
    """BLEU, chrF or TER of the counts of every sentence."""
    function = {"bleu": bleu_score, "chrf": chrf_score, "ter": ter_score}[name]
    label = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}[name]
    metric = SumMetric(label, function, higher_is_better=name != "ter")
    return ItemMetric(metric, lambda: _stack(columns[f"{name}.{c}"] for c in COUNTS[name]))


def _classification_metrics(columns: Mapping[str, Floats], classes: int) -> dict[str, ItemMetric]:
    label, predicted = columns["label"], columns["predicted"]
    macro_f1 = SumMetric("macro F1", _macro_f1, unit="points of macro F1")
    log_loss = SumMetric("log loss", _ratio, higher_is_better=False, digits=4)

    def confusion() -> Floats:
        counts = np.zeros((len(label), classes * classes))
        counts[np.arange(len(label)), (label * classes + predicted).astype(int)] = 1
        return counts

    def per_text(values: Floats) -> Floats:
        return _stack([values.astype(np.float64), np.ones(len(values))])

    metrics = {
        "accuracy": ItemMetric(ACCURACY, lambda: per_text(label == predicted)),
        "macro_f1": ItemMetric(macro_f1, confusion),
    }
    if "log_probability" in columns:
        losses = columns["log_probability"]
        metrics["log_loss"] = ItemMetric(log_loss, lambda: per_text(-losses))
    return metrics


def _loss_metrics(columns: Mapping[str, Floats]) -> dict[str, ItemMetric]:
    def ratio(name: str, function: Metric, divisor: str, digits: int) -> ItemMetric:
        metric = SumMetric(name, function, higher_is_better=False, digits=digits)
        return ItemMetric(metric, lambda: _stack([columns["loss"], columns[divisor]]))

    return {
        "bits_per_byte": ratio("bits per byte", _bits, "bytes", 4),
        "perplexity": ratio("perplexity", _perplexity, "tokens", 2),
        "word_perplexity": ratio("word perplexity", _perplexity, "words", 1),
        "loss": ratio("loss", _ratio, "tokens", 4),
        "accuracy": ItemMetric(ACCURACY, lambda: _stack([columns["correct"], columns["tokens"]])),
    }


def _stack(columns: Iterable[Floats]) -> Floats:
    return np.stack(list(columns), axis=-1)


def _ratio(counts: Floats) -> Floats:
    return np.asarray(counts[..., 0] / np.maximum(counts[..., 1], 1e-12))


def _percent(counts: Floats) -> Floats:
    return 100 * _ratio(counts)


ACCURACY = SumMetric("accuracy", _percent, unit="points of accuracy")
"""Of counts (correct, all), in percent."""


def _bits(counts: Floats) -> Floats:
    return _ratio(counts) / math.log(2)


def _perplexity(counts: Floats) -> Floats:
    return np.exp(np.minimum(_ratio(counts), 700.0))


def _macro_f1(counts: Floats) -> Floats:
    """The mean over classes that occur of 2 true positives / (labels + predictions), in percent."""
    classes = math.isqrt(counts.shape[-1])
    confusion = counts.reshape(*counts.shape[:-1], classes, classes)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    sizes = confusion.sum(axis=-1) + confusion.sum(axis=-2)
    scores = np.divide(2 * hits, sizes, out=np.zeros_like(hits), where=sizes > 0)
    return np.asarray(100 * scores.sum(axis=-1) / np.maximum((sizes > 0).sum(axis=-1), 1))


def bleu_score(counts: Floats) -> Floats:
    """BLEU (Papineni et al. 2002) as sacreBLEU computes it, with exponential smoothing."""
    hyp_len, ref_len = counts[..., 0], counts[..., 1]
    match, total = counts[..., 2:6], counts[..., 6:10]
    with np.errstate(divide="ignore", invalid="ignore"):
        penalty = np.where(hyp_len < ref_len, np.exp(1 - ref_len / hyp_len), 1.0)
        # The k-th order without a match counts as 1 / 2^k matches.
        missing = np.cumsum(match == 0, axis=-1)
        smoothed = np.where(match == 0, 0.5**missing, match)
        logs = np.log(100 * smoothed / total).mean(axis=-1)
    defined = (match > 0).any(axis=-1) & (total > 0).all(axis=-1)
    return np.where(defined, penalty * np.exp(np.where(defined, logs, 0.0)), 0.0)


def chrf_score(counts: Floats, beta: float = 2.0) -> Floats:
    """chrF2 (Popović 2015) as sacreBLEU computes it: F of the mean precision and recall."""
    hyp, ref, match = (counts[..., i::3] for i in range(3))
    both = (hyp > 0) & (ref > 0)
    orders = np.maximum(both.sum(axis=-1), 1)
    zeros = np.zeros_like(match)
    precision = np.divide(match, hyp, out=zeros.copy(), where=both).sum(axis=-1) / orders
    recall = np.divide(match, ref, out=zeros, where=both).sum(axis=-1) / orders
    factor = beta**2
    weighted = factor * precision + recall
    product = (1 + factor) * precision * recall
    score = np.divide(product, weighted, out=np.zeros_like(product), where=weighted > 0)
    return np.asarray(100 * score)


def ter_score(counts: Floats) -> Floats:
    """TER (Snover et al. 2006): edits in percent of the reference length."""
    edits, length = counts[..., 0], counts[..., 1]
    share = np.divide(edits, length, out=np.zeros_like(edits), where=length > 0)
    return np.asarray(100 * np.where(length > 0, share, (edits > 0).astype(np.float64)))
