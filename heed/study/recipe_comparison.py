"""`heed compare`: which change of recipe was real, by the statistics of `heed.stats`.

Runs of one recipe with different seeds are one system. All runs must be scored on the same text,
by a metric with the same signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.arrays import Ints
from heed.errors import ConfigError
from heed.metrics.item_metrics import ItemMetric, item_metrics
from heed.notebook import render_table
from heed.runs.groups import RunGroup, group_runs
from heed.runs.item_counts import BLOCK, ItemCounts
from heed.stats.comparison import ALPHA, Comparison, Pair, SumMetric, compare_systems
from heed.stats.intervals import Interval
from heed.stats.looks import Look
from heed.stats.variance import MIN_CLUSTERS, System
from heed.stats.verdicts import Judgement, format_level, format_score, judge_pair
from heed.study.comparability import (
    check_one_task,
    check_same_text,
    check_seeds,
    choose_metric,
    choose_set,
    common_groups,
    find_baseline,
    pair_seeds,
)
from heed.study.run_records import (
    ScoredRun,
    mean_minutes,
    open_scored_runs,
    recipes_to_group,
)

HIDDEN_COLUMNS = ("win_share", "smallest_visible", "seeds_needed")
"""Columns of `rows` that notebooks leave out; the sentences tell what matters of them."""
EXPLORATORY = "Exploratory: "
"""The start of a note on what was not declared before training."""
SENTENCES_SHOWN = 5
"""Verdicts in the `repr` of a comparison; `print` shows all."""


@dataclass(frozen=True)
class Declaration:
    """What a study declared before training, as far as a comparison needs it."""

    systems: Mapping[str, str]
    """The study's name for the system of each run."""
    look: Look | None = None
    """Which of the declared looks this is, where the study declared several."""
    deviations: tuple[str, ...] = ()
    """What was not declared before training. Any of them makes the comparison exploratory."""
    notes: tuple[str, ...] = ()

    @property
    def alpha(self) -> float:
        """The familywise level of the comparison."""
        return ALPHA if self.look is None else self.look.level


@dataclass(frozen=True)
class RecipeComparison:
    """Systems compared on one set by one metric, with the verdict on every pair."""

    task: str
    set_name: str
    metric_name: str
    signature: str | None
    unit: str
    """What an item is: a text, or a block of one."""
    groups: list[RunGroup]
    whole: Comparison
    judgements: list[Judgement]
    clean: Comparison | None
    """The same without the texts that also occur in train, where some do."""
    margin: float | None
    minutes_per_run: float | None
    """What one more run is taken to cost (`mean_minutes`)."""
    looks: dict[str, int]
    """How often each run was evaluated on the set, as far as it is known."""
    notes: list[str]
    is_declared: bool = False
    """Whether a study declared the question before training; else it is exploratory."""

    @property
    def metric(self) -> SumMetric:
        """The metric and how it is shown."""
        return self.whole.metric

    @cached_property
    def sentences(self) -> list[str]:
        """The verdicts in words, the first thing to read."""
        if len(self.groups) == 1:
            return [_describe_one_recipe(self)]
        sentences = [judgement.sentence for judgement in self.judgements]
        if self.whole.best is not None and len(self.groups) > 2:
            names = "; ".join(self.whole.best)
            sentences.append(
                f"Best, or not distinguishable from the best: {names} "
                f"(Hsu's comparison with the best, {format_level(self.whole.alpha)})."
            )
        return sentences

    def rows(self) -> list[dict[str, Any]]:
        """One row per system, as pandas takes them: the difference is to the baseline, if any."""
        against = {pair.a: (pair, judgement) for pair, judgement in self.pairs}
        return [
            {
                "system": group.name,
                "seeds": len(group.runs),
                "mean": float(values.mean()),
                "sd": float(values.std(ddof=1)) if len(values) > 1 else None,
                **(_pair_row(*against[group.name]) if group.name in against else {}),
            }
            for group, values in zip(self.groups, self.whole.systems.values(), strict=True)
        ]

    @property
    def exploratory_notes(self) -> list[str]:
        """Why the comparison is exploratory; empty where it is as declared before training."""
        return [note for note in self.notes if note.startswith(EXPLORATORY)]

    @property
    def pairs(self) -> list[tuple[Pair, Judgement]]:
        """Every pair with its verdict."""
        return list(zip(self.whole.pairs, self.judgements, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "task": self.task,
            "set": self.set_name,
            "metric": self.metric_name,
            "signature": self.signature,
            "items": self.whole.items,
            "unit": self.unit,
            "clustered": self.whole.clustered,
            "paired_seeds": self.whole.paired_seeds,
            "alpha": self.whole.alpha,
            "declared": self.is_declared,
            "margin": self.margin,
            "minutes_per_run": self.minutes_per_run,
            "verdicts": self.sentences,
            "best": self.whole.best,
            "systems": [
                {
                    "name": group.name,
                    "runs": list(group.runs),
                    "seeds": list(group.seeds),
                    "differing": group.differing,
                    "scores": values.tolist(),
                }
                for group, values in zip(self.groups, self.whole.systems.values(), strict=True)
            ],
            "pairs": [_pair_json(pair, judgement) for pair, judgement in self.pairs],
            "clean": None
            if self.clean is None
            else {
                "items": self.clean.items,
                "pairs": [_pair_json(pair, None) for pair in self.clean.pairs],
            },
            "looks": self.looks,
            "notes": self.notes,
        }

    def __str__(self) -> str:
        return "\n".join([*self.exploratory_notes, *self.sentences])

    def _repr_html_(self) -> str:
        caption = f"{self.metric.name} on {self.set_name}"
        rows = [{k: v for k, v in row.items() if k not in HIDDEN_COLUMNS} for row in self.rows()]
        notes = [*self.exploratory_notes, *self.sentences]
        return render_table(rows, caption=caption, notes=notes)

    def __repr__(self) -> str:
        runs = sum(len(group.runs) for group in self.groups)
        systems = f"{len(self.groups)} recipe{'s' * (len(self.groups) != 1)}, {runs} runs"
        first, rest = self.sentences[:SENTENCES_SHOWN], self.sentences[SENTENCES_SHOWN:]
        more = [f"… and {len(rest)} more: print(comparison)"] if rest else []
        headline = f"{systems}, {self.metric.name} on {self.set_name}"
        lines = [headline, *self.exploratory_notes, *first, *more]
        text = "\n  ".join(lines)
        return f"RecipeComparison({text})"


def compare_runs(
    runs: str | Path | Sequence[str | Path] | Sequence[ScoredRun],
    *,
    baseline: str | Path | None = None,
    metric: str | None = None,
    margin: float | None = None,
    set_name: str | None = None,
    paired_seeds: bool = False,
    declaration: Declaration | None = None,
) -> RecipeComparison:
    """Compare runs, grouped by recipe without seed, on a set that all were scored on.

    `paired_seeds` takes runs of the same seed as pairs, if that was declared before training.
    `declaration` is what a study declared: its names of the systems, and its looks.
    """
    if isinstance(runs, str | Path):
        runs = [runs]
    scored = [run for run in runs if isinstance(run, ScoredRun)]
    if not scored:
        scored = open_scored_runs([run for run in runs if not isinstance(run, ScoredRun)])
    if len(scored) < 2:
        raise ConfigError(["A comparison needs two runs or more: name their folders."])
    if margin is not None and not 0 < margin < np.inf:
        raise ConfigError([f"--margin is a difference above 0, not {margin}."])
    check_one_task(scored)
    set_name = choose_set(scored, set_name)
    items = {run.name: run.evaluations[set_name] for run in scored}
    check_same_text(items, set_name)
    metrics = {run: item_metrics(one) for run, one in items.items()}
    name = choose_metric(items, metrics, metric)
    groups = (
        group_runs(recipes_to_group(scored))
        if declaration is None
        else group_systems(scored, declaration.systems)
    )
    check_seeds(groups)
    if paired_seeds:
        groups = pair_seeds(groups)
    base = None if baseline is None else find_baseline(groups, str(baseline))
    chosen = {run: one[name] for run, one in metrics.items()}
    clusters = common_groups(items)
    alpha = ALPHA if declaration is None else declaration.alpha
    compare = partial(
        _compare, groups, chosen, base, clusters, paired_seeds=paired_seeds, alpha=alpha
    )
    whole = compare()
    minutes_per_run = mean_minutes(scored)
    first = next(iter(items.values()))
    return RecipeComparison(
        task=first.task,
        set_name=set_name,
        metric_name=name,
        signature=first.signatures.get(name),
        unit=first.unit,
        groups=groups,
        whole=whole,
        judgements=[
            judge_pair(
                pair,
                whole.metric,
                margin=margin,
                minutes_per_run=minutes_per_run,
                alpha=alpha,
                comparisons=len(whole.pairs),
            )
            for pair in whole.pairs
        ],
        clean=_compare_clean(items, compare),
        margin=margin,
        minutes_per_run=minutes_per_run,
        looks={run.name: run.looks[set_name] for run in scored if set_name in run.looks},
        notes=_notes(groups, items, whole, clusters, declaration, margin),
        is_declared=declaration is not None and not declaration.deviations,
    )


def group_systems(runs: Sequence[ScoredRun], systems: Mapping[str, str]) -> list[RunGroup]:
    """The runs grouped and named by a study's systems, in the order of their first runs."""
    members: dict[str, list[ScoredRun]] = {}
    for run in runs:
        members.setdefault(systems[run.name], []).append(run)
    keys = {group.runs: group.differing for group in group_runs(recipes_to_group(runs))}
    return [
        RunGroup(
            name,
            names := tuple(run.name for run in group),
            tuple(run.recipe.get("seed") for run in group),
            keys.get(names, {}),
        )
        for name, group in members.items()
    ]


def _compare(
    groups: Sequence[RunGroup],
    metrics: dict[str, ItemMetric],
    baseline: str | None,
    clusters: Ints | None,
    rows: NDArray[np.bool_] | slice = slice(None),
    *,
    paired_seeds: bool,
    alpha: float,
) -> Comparison:
    """Compare the groups of runs on these rows of the items."""
    systems = [
        System(group.name, np.stack([metrics[run].counts_nc[rows] for run in group.runs]))
        for group in groups
    ]
    return compare_systems(
        systems,
        metrics[groups[0].runs[0]].metric,
        baseline=baseline,
        clusters=None if clusters is None else clusters[rows],
        paired_seeds=paired_seeds,
        alpha=alpha,
    )


def _compare_clean(
    items: dict[str, ItemCounts], compare: Callable[[NDArray[np.bool_]], Comparison]
) -> Comparison | None:
    """The comparison on items that occur in no run's training text; None where all or none do."""
    rows = [one.clean_rows for one in items.values()]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    clean = np.logical_and.reduce(known)
    return None if clean.all() or clean.sum() < 2 else compare(clean)


def _notes(
    groups: Sequence[RunGroup],
    items: dict[str, ItemCounts],
    whole: Comparison,
    clusters: Ints | None,
    declaration: Declaration | None,
    margin: float | None,
) -> list[str]:
    """What a reader must know beside the figures."""
    notes = []
    first = next(iter(items.values()))
    if clusters is not None:
        count = len(np.unique(clusters))
        notes.append(f"Variance is over {count} groups of {first.unit}s (talks, documents).")
        if count < MIN_CLUSTERS:
            notes[-1] = (
                f"Only {count} groups are known: with fewer than {MIN_CLUSTERS}, "
                f"{first.unit}s are taken as independent."
            )
    elif first.unit == BLOCK:
        notes.append("Items are blocks of the few texts, taken as independent.")
    else:
        notes.append(
            "Items are taken as independent: no groups (talk, document) are known; "
            "heed evaluate --groups names them."
        )
    if whole.paired_seeds and (declaration is None or declaration.deviations):
        notes.append("Runs of one seed are pairs: valid only if declared before training.")
    if any(max(pair.seeds) > 1 for pair in whole.pairs):
        pairing = "in pairs" if whole.paired_seeds else "not in pairs"
        notes.append(f"Interval and p: Student's t over seeds ({pairing}) and items together.")
    if len(whole.pairs) > 1:
        notes.append(
            f"Intervals and p-values hold for all {len(whole.pairs)} comparisons together (max-t)."
        )
        if margin is not None and any(pair.compares_recipes for pair in whole.pairs):
            notes.append(
                f"As good is judged by the {format_level(2 * whole.alpha)} "
                "interval of each pair alone, which is not corrected for the other comparisons."
            )
    if len(groups) > 1:
        notes += _declaration_notes(declaration, margin)
    settings = {str(sorted(one.settings.items())) for one in items.values()}
    if len(settings) > 1 and first.task != "generate":
        notes.append("The runs were evaluated with different settings (decoding, calibration).")
    return notes


def _declaration_notes(declaration: Declaration | None, margin: float | None) -> list[str]:
    """Whether the question was fixed before training, and what was not."""
    if declaration is None:
        return [
            f"{EXPLORATORY}nothing shows that the question, the margin and the number of seeds "
            "were fixed before training."
        ]
    notes = [] if declaration.look is None else [str(declaration.look)]
    if declaration.deviations:
        notes += [f"{EXPLORATORY}{deviation}" for deviation in declaration.deviations]
    else:
        delta = "" if margin is None else "the margin, "
        notes.append(
            f"Declared before training: the question, the metric, {delta}the set and the seeds."
        )
    return [*notes, *declaration.notes]


def _describe_one_recipe(comparison: RecipeComparison) -> str:
    """What several runs of one recipe show: how much the seed matters."""
    metric, [values] = comparison.metric, comparison.whole.systems.values()
    mean, spread, low, high = (
        format_score(float(value), metric)
        for value in (values.mean(), values.std(ddof=1), values.min(), values.max())
    )
    return (
        f"These {len(values)} runs have one recipe: {metric.name} {mean} on average, standard "
        f"deviation {spread} over seeds ({low} to {high}). There is no other recipe to compare it "
        "with."
    )


def _pair_row(pair: Pair, judgement: Judgement) -> dict[str, Any]:
    return {
        "against": pair.b,
        "difference": pair.difference,
        "low": pair.interval.low,
        "high": pair.interval.high,
        "p": pair.corrected_p,
        "win_share": pair.win_share,
        "smallest_visible": pair.smallest_visible,
        "seeds_needed": pair.seeds_needed,
        "verdict": judgement.verdict.value,
    }


def _pair_json(pair: Pair, judgement: Judgement | None) -> dict[str, Any]:
    values = {key: _plain(getattr(pair, key)) for key in pair.__dataclass_fields__}
    if judgement is not None:
        values |= {
            "verdict": judgement.verdict.value,
            "within_margin": judgement.within_margin,
            "equivalence_interval_is_corrected": False,
            "sentence": judgement.sentence,
        }
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {"low": value.low, "high": value.high}
    if hasattr(value, "__dataclass_fields__"):
        return {key: getattr(value, key) for key in value.__dataclass_fields__}
    return list(value) if isinstance(value, tuple) else value
