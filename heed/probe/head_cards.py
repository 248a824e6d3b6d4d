"""Head report cards: what every attention head of a run does, measured over a whole set.

The set is streamed: batches of attention weights become sums for each head, with intervals over
texts, and the weights are dropped. Names follow from the metrics by the rules in `RULES`.

Shapes: b examples, h heads, n queries, m keys, k metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heed.arrays import Floats
from heed.errors import DataError, RunError
from heed.models import LanguageModel, Model, Translator
from heed.models.inference import evaluating
from heed.nn.tokens import Tokens
from heed.probe.examples import Example, Inputs, Links, ProbeSet
from heed.probe.head_metrics import (
    ENDS,
    EVENNESS,
    INDUCTION,
    METRICS,
    REACH,
    SHARE_ENDS,
    Cells,
    TokenKinds,
    WordMaps,
    cross_cells,
    self_cells,
)
from heed.probe.patch import Head, list_heads
from heed.probe.word_aligner import WordAligner
from heed.stats.intervals import Interval, RatioSums
from heed.terminal import Say

GOLD_ERROR, ALIGNER_ERROR = "alignment_error", "aligner_error"
ALIGNMENT_METRICS = {
    GOLD_ERROR: "alignment error rate of the most attended source words, against gold links",
    ALIGNER_ERROR: "alignment error rate of the same links, against the statistical word aligner",
}
ERROR_ENDS = ("fewest wrong links: aligns words best", "most wrong links")
"""What a lower and a higher error of an alignment mean; lower is better."""
ALIGNER_PAIRS = 5000
"""Sentence pairs that the word aligner is fitted to: of the set, then of the training text."""
PERIOD, COPIES, REPEATS = 25, 4, 40
"""Induction: random sequences of so many tokens, repeated so often, and the number of them."""
MIXED = "mixed"


@dataclass(frozen=True)
class Rule:
    """A head has this name if a metric is beyond the threshold, with its whole interval."""

    name: str
    metric: str
    threshold: float
    below: bool = False
    """Whether the metric must be below the threshold, not above it."""

    @property
    def short_name(self) -> str:
        """The name in tables and figures, which leave out "token"."""
        return self.name.removesuffix(" token")

    def limit(self) -> str:
        """The condition in words: `AER below 0.33`."""
        share = f"{100 * self.threshold:.0f}%"
        limits = {
            GOLD_ERROR: f"AER below {self.threshold:.2f}",
            ALIGNER_ERROR: f"AER below {self.threshold:.2f}",
            EVENNESS: f"entropy above {share} of uniform attention's",
            REACH: f"distance below {share} of uniform attention's",
        }
        return limits.get(self.metric, f"share above {share}")

    def holds(self, estimate: Estimate | None) -> bool:
        """Whether the interval (without one, the value) is beyond the threshold."""
        if estimate is None:
            return False
        interval = estimate.interval or Interval(estimate.value, estimate.value)
        return interval.high < self.threshold if self.below else interval.low > self.threshold


RULES = (
    Rule("alignment", GOLD_ERROR, 1 / 3, below=True),
    Rule("alignment", ALIGNER_ERROR, 1 / 3, below=True),
    Rule("induction", INDUCTION, 0.5),
    Rule("previous token", "previous", 0.5),
    Rule("next token", "next", 0.5),
    Rule("same token", "same", 0.5),
    Rule("duplicate token", "duplicate", 0.5),
    Rule("first token", "first", 0.5),
    Rule("end token", "end", 0.5),
    Rule("punctuation", "punctuation", 0.5),
    Rule("local", REACH, 1 / 3, below=True),
    Rule("broad", EVENNESS, 0.9),
)
"""Names of heads. The first rule that holds decides; a head without one is mixed."""


@dataclass(frozen=True)
class Estimate:
    """A metric over all texts, with its 95% interval; no interval for fewer than ten texts."""

    value: float
    interval: Interval | None

    def to_dict(self) -> dict[str, float | None]:
        """The estimate as JSON values."""
        if self.interval is None:
            return {"value": self.value, "low": None, "high": None}
        return {"value": self.value, "low": self.interval.low, "high": self.interval.high}


@dataclass(frozen=True)
class HeadCard:
    """One head: its metrics and its name."""

    head: Head
    metrics: dict[str, Estimate]
    name: str

    @property
    def rule(self) -> Rule | None:
        """The rule that gave the name; None for a mixed head."""
        return find_rule(self.metrics)


@dataclass(frozen=True)
class HeadReport:
    """The cards of all heads of a run on one set."""

    run: str
    task: str
    set_name: str
    texts: int
    examples: int
    """Sentence pairs, texts to classify, or windows of a language model: the items of intervals."""
    cut: int
    """Examples that were cut to the model's limit."""
    cards: list[HeadCard]
    uniform: dict[str, dict[str, Estimate]]
    """By kind, what uniform attention would give: a share means little where it is the same."""
    aligner: dict[str, float | int] | None = None
    """The word aligner: the pairs it was fitted to, and its own alignment error against gold."""
    kinds: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; layers and heads count from 1."""
        fields = ("run", "task", "set_name", "texts", "examples", "cut", "aligner")
        return {
            **{name: getattr(self, name) for name in fields},
            "heads": [
                {
                    "kind": card.head.kind,
                    "layer": card.head.layer + 1,
                    "head": card.head.head + 1,
                    "name": card.name,
                    "metrics": _metrics_to_dict(card.metrics),
                }
                for card in self.cards
            ],
            "uniform": {kind: _metrics_to_dict(metrics) for kind, metrics in self.uniform.items()},
            "rules": [asdict(rule) for rule in RULES],
            "describe": METRICS | ALIGNMENT_METRICS,
            "ends": {name: ENDS.get(name, SHARE_ENDS) for name in METRICS}
            | dict.fromkeys(ALIGNMENT_METRICS, ERROR_ENDS),
            "lower_is_better": list(ALIGNMENT_METRICS),
        }


def measure_heads(
    probe: ProbeSet, *, align: bool = True, notify: Say = lambda text: None
) -> HeadReport:
    """Measure every head of the run over the set.

    With `align` a word aligner is fitted, and cross-attention is compared with its links.
    """
    require_heads(probe)
    aligner = None
    if align and isinstance(probe.model, Translator):
        pairs = list(islice(aligner_pairs(probe), ALIGNER_PAIRS))
        notify(f"Fitting a word aligner to {len(pairs):,} sentence pairs…")
        aligner = WordAligner.fit(pairs)
    notify(f"Measuring {len(list_heads(probe.model))} heads on {probe.held_out.name}…")
    sums = _HeadSums(probe, aligner)
    with evaluating(probe.model):
        for inputs in probe.batches():
            sums.add(inputs)
        if not sums.examples:
            raise DataError("there is nothing to measure.", where=probe.held_out.name)
        if isinstance(probe.model, LanguageModel) and probe.is_causal:
            sums.add_repeats()
    return sums.report()


def require_heads(probe: ProbeSet) -> None:
    """Raise an error for a model without attention."""
    if not list_heads(probe.model):
        raise RunError(
            f"this {probe.recipe.model.family} has no attention heads.",
            where=str(probe.run.folder),
            todo="Use a Transformer, or an LSTM translator, whose one head attends to the source.",
        )


def attention_weights(model: Model, inputs: Inputs) -> dict[str, list[Tensor]]:
    """The weights [b, h, n, m] of every layer, by kind, of what the plain formula computes."""
    tokens = Tokens.of(inputs.ids_bn, mask=inputs.real_bn)
    if not isinstance(model, Translator):
        out = model.states(inputs.ids_bn, tokens, weights=True)
        kind = "decoder" if isinstance(model, LanguageModel) and model.causal else "encoder"
        return _with_heads({kind: out.self_weights})
    if inputs.source_bm is None:
        raise ValueError("A translator needs sources.")
    source_tokens = Tokens.of(inputs.source_bm, mask=inputs.source_real_bm)
    encoded = model.encode(inputs.source_bm, source_tokens, weights=True)
    out = model.decode(inputs.ids_bn, tokens, encoded.x_bnw, source_tokens, weights=True)
    weights = {
        "encoder": encoded.self_weights,
        "decoder": out.self_weights,
        "cross": out.cross_weights,
    }
    return _with_heads(weights)


def _with_heads(weights: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """The kinds that have a head: all of a kind's heads may be pruned."""
    return {
        kind: layers for kind, layers in weights.items() if any(layer.shape[1] for layer in layers)
    }


def aligner_pairs(probe: ProbeSet) -> Iterator[tuple[str, str]]:
    """Sentence pairs to fit a word aligner to: those of the set, then of the training text."""
    for record in probe.records():
        yield record.texts[0], record.texts[1]
    if not probe.held_out.is_train:
        for record in probe.train.records():
            yield record.texts[0], record.texts[1]


class _HeadSums:
    """Sums over the examples read so far, for every head and metric."""

    def __init__(self, probe: ProbeSet, aligner: WordAligner | None) -> None:
        self.probe, self.aligner = probe, aligner
        self.kinds = TokenKinds.of(probe.tokenizer, next(probe.model.parameters()).device)
        self.heads: dict[str, list[Head]] = {}
        for head in list_heads(probe.model):
            self.heads.setdefault(head.kind, []).append(head)
        self.names: dict[str, tuple[str, ...]] = {}
        self.sums: dict[str, RatioSums] = {}
        """By kind, [h + 1, k]: the heads of all layers, then uniform attention."""
        heads = (len(self.heads.get("cross", ())),)
        self.errors = {name: RatioSums(heads) for name in ALIGNMENT_METRICS}
        self.aligner_error = RatioSums((1,))
        self.induction: RatioSums | None = None
        self.examples = self.texts = self.cut = 0
        self.seen_v = torch.zeros_like(self.kinds.special_v)

    def add(self, inputs: Inputs) -> None:
        """Add a batch of examples."""
        weights = attention_weights(self.probe.model, inputs)
        for kind, layers in weights.items():
            cells = self._cells(kind, inputs)
            numerators = [cells.numerators(layer) for layer in layers] + [cells.uniform()]
            if kind not in self.sums:
                self.names[kind] = cells.names
                self.sums[kind] = RatioSums((len(self.heads[kind]) + 1, len(cells.names)))
            self.sums[kind].add(np.concatenate(numerators, axis=1), cells.denominators()[:, None])
        if "cross" in weights:
            self._add_alignments(inputs, weights["cross"])
        self.examples += len(inputs.examples)
        self.texts += sum(one.begins_text for one in inputs.examples)
        self.cut += sum(not one.is_whole for one in inputs.examples)
        self.seen_v[inputs.ids_bn[inputs.real_bn]] = True

    def add_repeats(self) -> None:
        """Measure induction on repeated random tokens, as Olsson et al. (2022) do."""
        room = self.probe.max_length - 1
        period = min(PERIOD, room // 2)
        usable = torch.nonzero(self.seen_v & ~self.kinds.special_v).flatten().cpu().numpy()
        if period < 2 or len(usable) < 2:
            return
        random = np.random.Generator(np.random.PCG64(0))
        bos, sequences = self.probe.tokenizer.specials.bos, []
        for _ in range(REPEATS):
            draw = random.choice(usable, period, replace=len(usable) < period).tolist()
            sequences.append(Example([bos, *draw * min(COPIES, room // period)], [], ("",)))
        if "decoder" not in self.heads:
            return
        self.induction = RatioSums((len(self.heads["decoder"]) + 1,))
        for inputs in self.probe.batches_of(sequences):
            cells = self._cells("decoder", inputs)
            column = cells.names.index(INDUCTION)
            layers = attention_weights(self.probe.model, inputs)["decoder"]
            numerators = [cells.numerators(layer) for layer in layers] + [cells.uniform()]
            self.induction.add(
                np.concatenate(numerators, axis=1)[..., column],
                cells.denominators()[:, [column]],
            )

    def report(self) -> HeadReport:
        """The cards of all heads."""
        probe, cards, uniform = self.probe, list[HeadCard](), dict[str, dict[str, Estimate]]()
        for kind, heads in self.heads.items():
            table = _estimates(self.sums[kind])
            rows = [dict(zip(self.names[kind], row, strict=True)) for row in table]
            if kind == "decoder" and self.induction is not None:
                for row, estimate in zip(rows, _estimates(self.induction), strict=True):
                    row[INDUCTION] = estimate
            if kind == "cross":
                for name, sums in self.errors.items():
                    for row, estimate in zip(rows, _estimates(sums), strict=False):
                        row[name] = estimate
            rows = [
                {name: one for name, one in row.items() if not math.isnan(one.value)}
                for row in rows
            ]
            uniform[kind] = rows.pop()
            for head, row in zip(heads, rows, strict=True):
                cards.append(HeadCard(head, row, name_head(row)))
        return HeadReport(
            run=str(probe.run.folder),
            task=probe.recipe.task,
            set_name=probe.held_out.name,
            texts=self.texts,
            examples=self.examples,
            cut=self.cut,
            cards=cards,
            uniform=uniform,
            aligner=self._describe_aligner(),
            kinds=list(self.heads),
        )

    def _cells(self, kind: str, inputs: Inputs) -> Cells:
        if kind == "cross":
            return cross_cells(inputs, self.kinds)
        if kind == "encoder" and inputs.source_bm is not None:
            if inputs.source_real_bm is None:
                raise ValueError("Sources need a mask.")
            return self_cells(inputs.source_bm, inputs.source_real_bm, self.kinds, causal=False)
        return self_cells(inputs.ids_bn, inputs.real_bn, self.kinds, causal=kind == "decoder")

    def _add_alignments(self, inputs: Inputs, layers: Sequence[Tensor]) -> None:
        maps = WordMaps(inputs, self.probe.tokenizer)
        gold = [one.links for one in inputs.examples]
        references: dict[str, list[Links | None]] = {GOLD_ERROR: gold}
        if self.aligner is not None:
            pairs = [(one.texts[0], one.texts[1]) for one in inputs.examples]
            aligned = [frozenset(links) for links in self.aligner.align(pairs)]
            references[ALIGNER_ERROR] = list(aligned)
            self.aligner_error.add(*_link_errors(aligned, gold))
        for name, links in references.items():
            parts = [maps.alignment_errors(layer, links) for layer in layers]
            self.errors[name].add(np.concatenate([part for part, _ in parts], axis=1), parts[0][1])

    def _describe_aligner(self) -> dict[str, float | int] | None:
        if self.aligner is None:
            return None
        result: dict[str, float | int] = {"pairs": self.aligner.pairs}
        (error,) = _estimates(self.aligner_error)
        if not math.isnan(error.value):
            result[GOLD_ERROR] = error.value
            if error.interval is not None:
                result |= {"low": error.interval.low, "high": error.interval.high}
        return result


def name_head(metrics: dict[str, Estimate]) -> str:
    """The name of a head with these metrics: that of the first rule that holds."""
    rule = find_rule(metrics)
    return MIXED if rule is None else rule.name


def find_rule(metrics: dict[str, Estimate]) -> Rule | None:
    """The first rule that holds; the word aligner counts only where there are no gold links."""
    ignored = ALIGNER_ERROR if GOLD_ERROR in metrics else None
    rules = (rule for rule in RULES if rule.metric != ignored)
    return next((rule for rule in rules if rule.holds(metrics.get(rule.metric))), None)


def _link_errors(predicted: Sequence[Links], gold: Sequence[Links | None]) -> tuple[Floats, Floats]:
    """[b, 1]: numerators and denominators of the alignment error rate of each pair."""
    sizes = [0 if g is None else len(p) + len(g) for p, g in zip(predicted, gold, strict=True)]
    shared = [0 if g is None else len(p & g) for p, g in zip(predicted, gold, strict=True)]
    errors = np.array(sizes, float) - 2 * np.array(shared, float)
    return errors[:, None], np.array(sizes, float)[:, None]


def _estimates(sums: RatioSums) -> Any:
    """The ratios as estimates, nested as the sums' shape is."""
    values, widths = sums.ratios(), sums.half_widths()
    rows = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        value, width = float(values[index]), float(widths[index])
        interval = None if math.isnan(width) else Interval.around(value, width)
        rows[index] = Estimate(value, interval)
    return rows.tolist()


def _metrics_to_dict(metrics: dict[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {name: one.to_dict() for name, one in metrics.items()}
