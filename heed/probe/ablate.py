"""Ablation: what silencing each attention head costs, and in which order heads can be removed.

Every head is silenced in turn, and the model is scored on the same examples. The difference to the
whole model is paired by example, so only examples vary. All heads are one family: the intervals
hold for all of them together. Then heads are removed one after another, each time the one that
costs least.

Shapes: n examples, c counts of a metric, h heads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heed.arrays import Floats, Ints
from heed.errors import ConfigError, DataError, nearest
from heed.metrics.item_metrics import ACCURACY, bleu_score, translation_metric
from heed.metrics.translation_counts import translation_columns
from heed.models import Classifier, LanguageModel, Translator
from heed.models.inference import evaluating
from heed.nn.tokens import Tokens
from heed.pipelines.translate import TranslationPipeline
from heed.probe.examples import Inputs, ProbeSet
from heed.probe.head_cards import require_heads
from heed.probe.patch import ZERO, Edit, Head, edit_attention, list_heads, record_head_means
from heed.stats.comparison import SumMetric
from heed.stats.families import DRAWS, judge_family
from heed.stats.intervals import MIN_ITEMS, Interval
from heed.stats.variance import System, estimate_variances
from heed.terminal import Say
from heed.train.validate import greedy_config

MEAN, UNIFORM = "mean", "uniform"
HOWS = {
    ZERO: "the head's output becomes zero",
    MEAN: "its output becomes its mean over the examples",
    UNIFORM: "it attends to all visible keys alike",
}
"""Ways to silence a head."""
CHUNK_LOGITS = 1 << 22
"""Logits in memory at once."""
MASKED_SHARE = 0.15
"""Tokens that a masked language model is scored on."""
TRIAL_EXAMPLES, CANDIDATES = 128, 8
"""Greedy removal tries this many heads at each step, those that cost least at their last trial, on
this many examples."""
FAMILY_DRAWS = 10_000_000
"""Random numbers for the joint distribution of all heads' differences, at most."""
WHOLE = "whole model"


def _mean(counts: Floats) -> Floats:
    return np.asarray(counts[..., 0] / np.maximum(counts[..., 1], 1e-12))


METRICS = {
    "loss": SumMetric("loss", _mean, higher_is_better=False, digits=4),
    "bleu": SumMetric("BLEU", bleu_score),
    "accuracy": ACCURACY,
}
METRICS_OF_TASK = {
    "translate": ("loss", "bleu"),
    "classify": ("loss", "accuracy"),
    "generate": ("loss", "accuracy"),
}
"""Metrics of each task. The loss is that of a token, or of a text that is classified."""


@dataclass(frozen=True)
class Change:
    """The score of an edited model, and how it differs from that of the whole model."""

    value: float
    difference: float
    interval: Interval
    """95%, simultaneous for all changes of one list."""
    p: float
    """Corrected for all changes of one list."""


@dataclass(frozen=True)
class HeadCost:
    """What silencing one head changes; in a removal curve, it and all those before it."""

    head: Head
    change: Change


@dataclass(frozen=True)
class Ablation:
    """The costs of all heads, the largest first, and the removal curve, the cheapest first."""

    run: str
    task: str
    set_name: str
    how: str
    metric: SumMetric
    examples: int
    whole: float
    """The score of the whole model."""
    costs: list[HeadCost]
    removals: list[HeadCost]

    def to_dict(self) -> dict[str, Any]:
        """The ablation as JSON values; layers and heads count from 1."""
        return {
            **{name: getattr(self, name) for name in ("run", "task", "set_name", "how")},
            "metric": self.metric.name,
            "examples": self.examples,
            "whole": self.whole,
            "heads": [_to_dict(cost) for cost in self.costs],
            "removals": [_to_dict(cost) for cost in self.removals],
        }


def ablate_heads(
    probe: ProbeSet,
    *,
    how: str = ZERO,
    metric: str = "loss",
    notify: Say = lambda text: None,
) -> Ablation:
    """Silence each head in turn, then remove them greedily; all on the same examples."""
    require_heads(probe)
    check_options(probe, how, metric)
    scorer = Scorer(probe, how)
    if len(scorer.examples) < MIN_ITEMS:
        what = f"{len(scorer.examples)} examples give no intervals: take at least {MIN_ITEMS}."
        raise DataError(what, where=probe.held_out.name, todo="Raise --limit, or use more text.")
    heads = list_heads(probe.model)
    notify(f"Silencing {len(heads)} heads in turn on {len(scorer.examples):,} examples…")
    whole = scorer.counts(metric)
    counts = {head: scorer.counts(metric, [head]) for head in heads}
    changes = compare_counts(METRICS[metric], whole, list(counts.values()), scorer.text_of)
    costs = [HeadCost(head, change) for head, change in zip(heads, changes, strict=True)]
    sign = -1 if METRICS[metric].higher_is_better else 1
    costs.sort(key=lambda cost: -sign * cost.change.difference)
    notify("Removing heads greedily…")
    order = order_greedily(scorer, [cost.head for cost in reversed(costs)])
    steps = [scorer.counts(metric, order[: i + 1]) for i in range(len(order))]
    changes = compare_counts(METRICS[metric], whole, steps, scorer.text_of)
    return Ablation(
        run=str(probe.run.folder),
        task=probe.recipe.task,
        set_name=probe.held_out.name,
        how=how,
        metric=METRICS[metric],
        examples=len(scorer.examples),
        whole=float(METRICS[metric].function(whole.sum(axis=0))),
        costs=costs,
        removals=[HeadCost(head, change) for head, change in zip(order, changes, strict=True)],
    )


def check_options(probe: ProbeSet, how: str, metric: str) -> None:
    """Raise an error for a way to silence or a metric that there is not."""
    if how not in HOWS:
        options = ", ".join(HOWS)
        raise ConfigError([f"--how cannot be {how!r}: it is {options}.{nearest(how, [*HOWS])}"])
    known = METRICS_OF_TASK[probe.recipe.task]
    if metric not in known:
        options = " or ".join(known)
        raise ConfigError(
            [
                f"--metric cannot be {metric!r}: a run of the task {probe.recipe.task!r} is scored "
                f"by {options}.{nearest(metric, known)}"
            ]
        )


def order_greedily(scorer: Scorer, cheapest_first: Sequence[Head]) -> list[Head]:
    """Heads in the order of removal: at each step the one whose removal raises the loss least.

    Each step tries the heads that cost least at their last trial, on the first examples.
    """
    loss = METRICS["loss"].function
    waiting, order = list(cheapest_first), list[Head]()
    while waiting:
        trials = {
            head: float(loss(scorer.counts("loss", [*order, head], trial=True).sum(axis=0)))
            for head in waiting[:CANDIDATES]
        }
        tried = sorted(trials, key=lambda head: trials[head])
        order.append(tried[0])
        waiting = tried[1:] + waiting[CANDIDATES:]
    return order


def compare_counts(
    metric: SumMetric, whole_nc: Floats, edited: Sequence[Floats], text_of: Ints | None = None
) -> list[Change]:
    """How each edited model's score differs from the whole model's, paired by example.

    With `text_of`, the examples of one text are a cluster.
    """
    systems = [System(WHOLE, whole_nc[None])]
    systems += [System(str(i), counts_nc[None]) for i, counts_nc in enumerate(edited)]
    variances = estimate_variances(systems, metric.function, clusters=text_of)
    contrasts = [variances.contrast(i + 1, 0) for i in range(len(edited))]
    draws = max(1000, min(DRAWS, FAMILY_DRAWS // max(1, len(edited))))
    judged = judge_family(variances, contrasts, draws=draws)
    return [
        Change(
            value=float(value),
            difference=one.difference,
            interval=Interval.around(one.difference, one.critical * one.standard_error),
            p=one.corrected_p,
        )
        for value, one in zip(variances.means_k[1:], judged, strict=True)
    ]


class Scorer:
    """Scores of a model with some heads silenced, always on the same examples."""

    def __init__(self, probe: ProbeSet, how: str = ZERO) -> None:
        self.probe, self.how = probe, how
        self.examples = list(probe.examples())
        if not self.examples:
            raise DataError("there is nothing to score.", where=probe.held_out.name)
        self.text_of = np.cumsum([one.begins_text for one in self.examples])
        """[n]: the text of each example; of a language model, several windows may share one."""
        self._batches = list(probe.batches_of(self.examples))
        self._trial_batches = list(probe.batches_of(self.examples[:TRIAL_EXAMPLES]))
        self._rows = {id(one): i for i, one in enumerate(self.examples)}
        self._means = self._head_means() if how == MEAN else {}

    def counts(
        self, metric: str, silenced: Collection[Head] = (), *, trial: bool = False
    ) -> Floats:
        """[n, c]: a metric's counts of each example; with `trial`, of the first few."""
        batches = self._trial_batches if trial else self._batches
        with edit_attention(self.probe.model, self._edits(silenced)):
            if metric == "bleu":
                return self._bleu_counts()
            return self._loss_counts(batches)[:, (2, 1) if metric == "accuracy" else (0, 1)]

    def _edits(self, heads: Collection[Head]) -> Mapping[tuple[str, int, int], Edit]:
        return {head: self._means[head] if self.how == MEAN else self.how for head in heads}

    def _head_means(self) -> dict[Head, Tensor]:
        with record_head_means(self.probe.model) as recorded:
            self._loss_counts(self._batches)
        return recorded.means()

    def _loss_counts(self, batches: Sequence[Inputs]) -> Floats:
        """[n, 3]: the loss sum, the predictions and how many of them are right."""
        counts = np.zeros((sum(len(inputs.examples) for inputs in batches), 3))
        random = np.random.Generator(np.random.PCG64(0))  # the same masks for every head
        with evaluating(self.probe.model):
            for inputs in batches:
                losses, correct, row_of = self._predict(inputs, random)
                example_of = np.array([self._rows[id(one)] for one in inputs.examples])[row_of]
                for column, values in enumerate((losses, np.ones(len(losses)), correct)):
                    counts[:, column] += np.bincount(example_of, values, len(counts))
        return counts

    def _predict(self, inputs: Inputs, random: np.random.Generator) -> tuple[Floats, Floats, Any]:
        """The loss of each prediction of a batch, whether it is right, and its row."""
        model, device = self.probe.model, inputs.ids_bn.device
        tokens = Tokens.of(inputs.ids_bn, mask=inputs.real_bn)
        if isinstance(model, Classifier):
            targets = torch.tensor([one.targets[0] for one in inputs.examples], device=device)
            logits = model(inputs.ids_bn, tokens).float()
            losses = F.cross_entropy(logits, targets, reduction="none")
            correct = logits.argmax(dim=-1) == targets
            return _to_numpy(losses), _to_numpy(correct), np.arange(len(targets))
        ids_bn, scored_bn = inputs.ids_bn, inputs.real_bn
        targets_bn = torch.zeros_like(ids_bn)
        for row, one in enumerate(inputs.examples):
            targets_bn[row, : len(one.targets)] = torch.tensor(one.targets, device=device)
        if isinstance(model, LanguageModel) and not model.causal:
            ids_bn, scored_bn = self._mask_some(inputs, random)
        if isinstance(model, Translator):
            source_bm = cast("Tensor", inputs.source_bm)
            source_tokens = Tokens.of(source_bm, mask=inputs.source_real_bm)
            out = model.states(source_bm, ids_bn, source_tokens, tokens)
        else:
            out = model.states(ids_bn, tokens)
        x_rw, targets_r = out.x_bnw[scored_bn], targets_bn[scored_bn]
        rows = max(1, CHUNK_LOGITS // model.head.weight.shape[0])
        losses_of_chunks, correct_of_chunks = [], []
        for x, targets in zip(x_rw.split(rows), targets_r.split(rows), strict=True):
            logits = model.head(x).float()
            losses_of_chunks.append(F.cross_entropy(logits, targets, reduction="none"))
            correct_of_chunks.append(logits.argmax(dim=-1) == targets)
        row_of = torch.nonzero(scored_bn)[:, 0].cpu().numpy()
        return (
            _to_numpy(torch.cat(losses_of_chunks)),
            _to_numpy(torch.cat(correct_of_chunks)),
            row_of,
        )

    def _mask_some(self, inputs: Inputs, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """The ids with some tokens masked, and where; every example has at least one."""
        specials, ids_bn = self.probe.tokenizer.specials, inputs.ids_bn
        draws = torch.from_numpy(random.random(tuple(ids_bn.shape))).to(ids_bn.device)
        is_word = inputs.real_bn & (ids_bn != specials.bos) & (ids_bn != specials.eos)
        draws = draws.masked_fill(~is_word, 2.0)
        masked_bn = (draws < MASKED_SHARE) | (draws == draws.amin(dim=1, keepdim=True))
        masked_bn &= is_word
        return ids_bn.masked_fill(masked_bn, specials.require_mask("--ablate")), masked_bn

    def _bleu_counts(self) -> Floats:
        """[n, 10]: BLEU's counts of greedy translations."""
        probe, examples = self.probe, self.examples
        pipeline = TranslationPipeline(
            [cast("Translator", probe.model)],
            probe.tokenizer,
            greedy_config(probe.recipe.decode),
            max_source=probe.max_length - 1,
        )
        translations = pipeline.translate([one.texts[0] for one in examples])
        columns, _ = translation_columns(
            [one.text for one in translations], [[one.texts[1] for one in examples]], ["bleu"]
        )
        return translation_metric("bleu", columns).counts_nc


def _to_numpy(x: Tensor) -> Floats:
    return np.asarray(x.double().cpu().numpy())


def _to_dict(cost: HeadCost) -> dict[str, Any]:
    kind, layer, head = cost.head
    return {"kind": kind, "layer": layer + 1, "head": head + 1, **asdict(cost.change)}
