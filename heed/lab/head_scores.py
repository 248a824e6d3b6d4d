"""What heads do and what silencing them costs, measured for the lab on a few texts of dev.

A run's cards and its scores with some heads silenced are kept, so that one more head costs one more
pass. All changes that a page shows are one family: their intervals hold together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from heed.arrays import Floats
from heed.errors import DataError
from heed.lab.lab_context import LabContext
from heed.lab.loaded_models import weights_version
from heed.lab.streamed_answer import Report
from heed.probe.ablate import METRICS, METRICS_OF_TASK, Scorer, check_options, compare_counts
from heed.probe.examples import ProbeSet, open_probe_set
from heed.probe.head_cards import HeadReport, measure_heads, require_heads
from heed.probe.patch import Head, check_head
from heed.runs.run import Run, refuse_unsafe_texts
from heed.stats.intervals import MIN_ITEMS

CAPACITY = 4
"""Scored runs that are kept, each with its own model."""
Heads = frozenset[Head]


@dataclass
class _Scores:
    """A run on a few texts with one way to silence heads, and the counts that are known."""

    scorer: Scorer
    counts: dict[tuple[str, Heads], Floats] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


class HeadScores:
    """Cards and ablations of one lab; the oldest make room for new ones."""

    def __init__(self) -> None:
        self._reports: OrderedDict[tuple[Any, ...], HeadReport] = OrderedDict()
        self._scores: OrderedDict[tuple[Any, ...], _Scores] = OrderedDict()
        self._lock = Lock()

    def cards(
        self, lab: LabContext, name: str, weights: str, limit: int, report: Report
    ) -> dict[str, Any]:
        """The report card of every head on the first texts of dev."""
        run = lab.folder.run(name)
        key = (*weights_version(run, weights), limit)
        cards = self._reports.get(key)
        if cards is None:
            report({"note": "Opening the run and its dev set…"})
            probe = self._open(lab, run, weights, limit)
            # Without gold links a word aligner stands in for them; fitting it takes a while.
            cards = measure_heads(
                probe, align=probe.gold is None, notify=lambda text: report({"note": text})
            )
            self._keep(self._reports, key, cards)
        measured = cards.to_dict()
        for head in measured["heads"]:
            head["layer"] -= 1
            head["head"] -= 1
        task = measured["task"]
        return measured | {"run": name, "ablation_metrics": METRICS_OF_TASK[task]}

    def ablate(
        self,
        lab: LabContext,
        name: str,
        weights: str,
        heads: Sequence[Heads],
        *,
        how: str,
        metric: str,
        limit: int,
        report: Report,
    ) -> dict[str, Any]:
        """Silence each set of heads and compare with the whole model, paired by example."""
        run = lab.folder.run(name)
        key = (*weights_version(run, weights), limit, how)
        report({"note": "Scoring the whole model…", "done": 0, "total": len(heads)})
        scores = self._scores.get(key)
        if scores is None:
            probe = self._open(lab, run, weights, limit)
            check_options(probe, how, metric)
            scores = _Scores(Scorer(probe, how))
            if len(scores.scorer.examples) < MIN_ITEMS:
                what = f"{len(scores.scorer.examples)} examples give no intervals."
                todo = f"Take at least {MIN_ITEMS} texts."
                raise DataError(what, where=probe.held_out.name, todo=todo)
            self._keep(self._scores, key, scores)
        scorer = scores.scorer
        check_options(scorer.probe, how, metric)
        for head in frozenset[Head]().union(*heads):
            check_head(scorer.probe.model, head)
        with scores.lock:
            for number, silenced in enumerate((Heads(), *heads)):
                if (metric, silenced) not in scores.counts:
                    scores.counts[metric, silenced] = scorer.counts(metric, silenced)
                report({"note": "Silencing heads…", "done": number, "total": len(heads)})
            whole = scores.counts[metric, Heads()]
            counts = [scores.counts[metric, silenced] for silenced in heads]
        changes = compare_counts(METRICS[metric], whole, counts, scorer.text_of)
        return {
            "set": scorer.probe.held_out.name,
            "examples": len(scorer.examples),
            "metric": METRICS[metric].name,
            "higher_is_better": METRICS[metric].higher_is_better,
            "how": how,
            "whole": float(METRICS[metric].function(whole.sum(axis=0))),
            "changes": [
                {
                    "heads": [[head.kind, head.layer, head.head] for head in sorted(silenced)],
                    "value": change.value,
                    "difference": change.difference,
                    "low": change.interval.low,
                    "high": change.interval.high,
                    "p": change.p,
                }
                for silenced, change in zip(heads, changes, strict=True)
            ],
        }

    def _open(self, lab: LabContext, run: Run, weights: str, limit: int) -> ProbeSet:
        refuse_unsafe_texts(run.recipe())
        probe = open_probe_set(run.folder, limit=limit, device=lab.models.device, weights=weights)
        require_heads(probe)
        return probe

    def _keep(
        self, kept: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any
    ) -> None:
        with self._lock:
            kept[key] = value
            while len(kept) > CAPACITY:
                kept.popitem(last=False)
