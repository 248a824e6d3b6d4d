"""Metrics as functions of summed item counts, and the item counts of each task.

The sums give exactly the score that the evaluation reports: BLEU and chrF are sacreBLEU's.

Shapes: n items, c counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.metrics.classification import Predictions
from heed.metrics.corpus_bleu import METRICS, Texts
from heed.metrics.perplexity import LossCounts, TokenLosses
from heed.runs.item_counts import ItemCounts, to_columns
from heed.stats.comparison import SumMetric
from heed.stats.variance import Floats

BLEU_COUNTS = ("hyp_len", "ref_len", *(f"match{i}" for i in range(1, 5)))
BLEU_COUNTS += tuple(f"total{i}" for i in range(1, 5))
CHRF_COUNTS = tuple(f"{kind}{i}" for i in range(1, 7) for kind in ("hyp", "ref", "match"))
TER_COUNTS = ("edits", "ref_len")
COUNTS = {"bleu": BLEU_COUNTS, "chrf": CHRF_COUNTS, "ter": TER_COUNTS}
"""Names of sacreBLEU's sufficient statistics, in its order."""
MIN_TEXTS = 10
"""With fewer texts, the items of a language model are blocks of consecutive tokens."""
BLOCKS = 40
LOSS_COLUMNS = ("loss", "tokens", "words", "bytes", "correct")


@dataclass(frozen=True)
class ItemMetric:
    """A metric and the counts [n, c] that it is a function of."""

    metric: SumMetric
    counts_nc: Floats

    @property
    def value(self) -> float:
        """The metric over all items."""
        return float(self.metric.function(self.counts_nc.sum(axis=0)))


# ------------------------------------------------------------------------------ counts of each task


def translation_columns(
    hypotheses: Texts, references: Sequence[Texts], metrics: Sequence[str]
) -> tuple[dict[str, Floats], dict[str, str]]:
    """The counts of every sentence, and the signature of each metric."""
    columns: dict[str, Floats] = {}
    signatures = {}
    reference_lists = [list(texts) for texts in references]
    for name in metrics:
        metric = METRICS[name]()
        counts = np.array(metric._extract_corpus_statistics(list(hypotheses), reference_lists))
        columns |= {
            f"{name}.{count}": counts[:, i].astype(np.float64)
            for i, count in enumerate(COUNTS[name])
        }
        signatures[name] = str(metric.get_signature())
    return columns, signatures


def classification_columns(predictions: Predictions) -> dict[str, Floats]:
    """Label, prediction and log-probability of the label of every text."""
    columns = to_columns({"label": predictions.labels, "predicted": predictions.predicted})
    if predictions.log_probs is not None:
        rows = np.arange(len(predictions.labels))
        columns["log_probability"] = predictions.log_probs[rows, predictions.labels]
    return columns


def loss_columns(counts: Sequence[LossCounts]) -> dict[str, Floats]:
    """Loss sum, tokens, words, bytes and correct tokens of every text."""
    return to_columns({name: [getattr(one, name) for one in counts] for name in LOSS_COLUMNS})


def block_columns(
    tokenizer: Tokenizer,
    scored: Sequence[TokenLosses],
    counts: Sequence[LossCounts],
) -> tuple[dict[str, Floats], list[int]]:
    """The same for blocks of consecutive tokens, and the text of each block.

    A few long texts say nothing about how much texts differ, so blocks of them serve as items.
    """
    total = sum(one.tokens for one in counts)
    size = max(1, math.ceil(total / BLOCKS))
    rows: dict[str, list[float]] = {name: [] for name in LOSS_COLUMNS}
    text_of_block = []
    for i, (one, whole) in enumerate(zip(scored, counts, strict=True)):
        ids, bounds = one.ids[:-1].tolist(), [*range(0, len(one.ids), size), len(one.ids)]
        # A block ends inside a word or a character: what its prefix decodes to is its share.
        prefixes = [tokenizer.decode_batch([ids[:end]])[0] for end in bounds[1:-1]]
        bytes_at = [0, *(min(len(p.encode()), whole.bytes) for p in prefixes), whole.bytes]
        words_at = [0, *(min(len(p.split()), whole.words) for p in prefixes), whole.words]
        for j, (start, end) in enumerate(pairwise(bounds)):
            rows["loss"].append(float(one.losses[start:end].sum()))
            rows["tokens"].append(end - start)
            rows["words"].append(words_at[j + 1] - words_at[j])
            rows["bytes"].append(bytes_at[j + 1] - bytes_at[j])
            rows["correct"].append(float(one.correct[start:end].sum()))
            text_of_block.append(i)
    return to_columns(rows), text_of_block


# --------------------------------------------------------------------- metrics from summed counts


def item_metrics(items: ItemCounts) -> dict[str, ItemMetric]:
    """Every metric that the item counts give, by name; the first is the task's primary one."""
    columns = items.columns
    match items.task:
        case "translate":
            present = [name for name in COUNTS if f"{name}.{COUNTS[name][0]}" in columns]
            return {name: _translation_metric(name, columns) for name in present}
        case "classify":
            return _classification_metrics(columns, len(items.classes))
        case _:
            return _loss_metrics(columns)


def _translation_metric(name: str, columns: dict[str, Floats]) -> ItemMetric:
    function = {"bleu": bleu_score, "chrf": chrf_score, "ter": ter_score}[name]
    label = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}[name]
    counts = np.stack([columns[f"{name}.{count}"] for count in COUNTS[name]], axis=-1)
    return ItemMetric(SumMetric(label, function, higher_is_better=name != "ter"), counts)


def _classification_metrics(columns: dict[str, Floats], classes: int) -> dict[str, ItemMetric]:
    label, predicted = columns["label"].astype(int), columns["predicted"].astype(int)
    ones = np.ones(len(label))
    correct = np.stack([(label == predicted).astype(np.float64), ones], axis=-1)
    confusion = np.zeros((len(label), classes * classes))
    confusion[np.arange(len(label)), label * classes + predicted] = 1
    metrics = {
        "accuracy": ItemMetric(SumMetric("accuracy", _percent, unit="points of accuracy"), correct),
        "macro_f1": ItemMetric(
            SumMetric("macro F1", _macro_f1, unit="points of macro F1"), confusion
        ),
    }
    if "log_probability" in columns:
        losses = np.stack([-columns["log_probability"], ones], axis=-1)
        metrics["log_loss"] = ItemMetric(
            SumMetric("log loss", _ratio, higher_is_better=False, digits=4), losses
        )
    return metrics


def _loss_metrics(columns: dict[str, Floats]) -> dict[str, ItemMetric]:
    def ratio(name: str, function: str, divisor: str, digits: int) -> ItemMetric:
        functions = {"bits": _bits, "exp": _perplexity, "ratio": _ratio}
        counts = np.stack([columns["loss"], columns[divisor]], axis=-1)
        metric = SumMetric(name, functions[function], higher_is_better=False, digits=digits)
        return ItemMetric(metric, counts)

    correct = np.stack([columns["correct"], columns["tokens"]], axis=-1)
    return {
        "bits_per_byte": ratio("bits per byte", "bits", "bytes", 4),
        "perplexity": ratio("perplexity", "exp", "tokens", 2),
        "word_perplexity": ratio("word perplexity", "exp", "words", 1),
        "loss": ratio("loss", "ratio", "tokens", 4),
        "accuracy": ItemMetric(SumMetric("accuracy", _percent, unit="points of accuracy"), correct),
    }


def _ratio(counts: Floats) -> Floats:
    return np.asarray(counts[..., 0] / np.maximum(counts[..., 1], 1e-12))


def _percent(counts: Floats) -> Floats:
    return 100 * _ratio(counts)


def _bits(counts: Floats) -> Floats:
    return _ratio(counts) / math.log(2)


def _perplexity(counts: Floats) -> Floats:
    return np.exp(np.minimum(_ratio(counts), 700.0))


def _macro_f1(counts: Floats) -> Floats:
    """The mean over classes of 2 true positives / (labels + predictions), in percent."""
    classes = math.isqrt(counts.shape[-1])
    confusion = counts.reshape(*counts.shape[:-1], classes, classes)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    sizes = confusion.sum(axis=-1) + confusion.sum(axis=-2)
    scores = np.divide(2 * hits, sizes, out=np.zeros_like(hits), where=sizes > 0)
    return np.asarray(100 * scores.mean(axis=-1))


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
