"""What can be compared: runs of one task, scored on the same text by the same metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heed.arrays import Ints
from heed.config.task_metrics import TASK_METRICS
from heed.errors import ConfigError, RunError, nearest
from heed.metrics.item_metrics import ItemMetric
from heed.runs.groups import RunGroup
from heed.runs.item_counts import ItemCounts
from heed.study.run_records import ScoredRun

SAME_TOKENIZER = ("perplexity", "loss", "accuracy")
"""Metrics of a language model per token: other tokenizers cut other tokens."""
PREFERRED_SETS = ("test", "dev")


def check_one_task(runs: Sequence[ScoredRun]) -> None:
    """Refuse runs of different tasks: no metric is common to them."""
    tasks = sorted({str(run.recipe.get("task")) for run in runs})
    if len(tasks) > 1:
        raise RunError(
            f"the runs have different tasks: {', '.join(tasks)}.", todo="Name runs of one task."
        )


def choose_set(runs: Sequence[ScoredRun], name: str | None) -> str:
    """The set to compare on: the one named, else test or dev, else the only one of all runs."""
    for run in runs:
        if not run.evaluations:
            raise RunError(
                "this run has not been evaluated with the weights that it has now.",
                where=run.name,
                todo=f"Evaluate it: heed evaluate {run.name}",
            )
    common = [one for one in runs[0].evaluations if all(one in run.evaluations for run in runs[1:])]
    if name is not None:
        missing = [run for run in runs if name not in run.evaluations]
        if missing:
            known = sorted({one for run in runs for one in run.evaluations})
            raise RunError(
                f"this run was not scored on {name!r}.{nearest(name, known)}",
                where=missing[0].name,
                todo=f"It has {', '.join(missing[0].evaluations)}. "
                f"Evaluate it: heed evaluate {missing[0].name} --split {name}",
            )
        return name
    preferred = [one for one in PREFERRED_SETS if one in common]
    if preferred or len(common) == 1:
        return (preferred or common)[0]
    if common:
        names = ", ".join(common)
        raise ConfigError([f"All runs were scored on {names}: choose one with --set."])
    has = "; ".join(f"{run.name} on {', '.join(run.evaluations)}" for run in runs[:4])
    raise RunError(
        f"the runs were not scored on a common set: {has}.",
        todo="Evaluate all on the same text: heed evaluate RUN --test FILE",
    )


def check_same_text(items: dict[str, ItemCounts], set_name: str) -> None:
    """Refuse runs that were scored on different text."""
    by_text: dict[str, list[str]] = {}
    for run, one in items.items():
        by_text.setdefault(one.text_hash, []).append(run)
    if len(by_text) > 1:
        first, second, *_ = by_text.values()
        raise RunError(
            f"{first[0]} and {second[0]} were scored on different text, both as {set_name!r}.",
            todo="Evaluate all runs on the same files: heed evaluate RUN --test FILE",
        )


def choose_metric(
    items: dict[str, ItemCounts], metrics: dict[str, dict[str, ItemMetric]], name: str | None
) -> str:
    """The metric to compare by: the task's primary one unless another is named."""
    available = list(metrics.values())
    common = [one for one in available[0] if all(one in other for other in available)]
    name = common[0] if name is None else name.lower().replace("-", "_").replace(" ", "_")
    task = next(iter(items.values())).task
    if name not in common and name in TASK_METRICS.get(task, ()):
        lacking = next(run for run, one in metrics.items() if name not in one)
        raise RunError(
            f"the runs were not all scored with {name}: {lacking} has {', '.join(common)}.",
            todo=f"Score every run with it: heed evaluate RUN --metric {name}. A study does so "
            f'where it declares metric = "{name}".',
        )
    if name not in common:
        raise ConfigError(
            [f"There is no metric {name!r}: choose {', '.join(common)}.{nearest(name, common)}"]
        )
    signatures = {one.signatures.get(name) for one in items.values()}
    if len(signatures) > 1:
        listed = " and ".join(sorted(map(str, signatures)))
        raise RunError(
            f"{name} was computed in different ways: {listed}.",
            todo="Evaluate all runs with one version of heed and sacreBLEU.",
        )
    tokenizers = {one.settings.get("tokenizer") for one in items.values()}
    is_language_model = next(iter(items.values())).task == "generate"
    if is_language_model and name in SAME_TOKENIZER and len(tokenizers) > 1:
        raise RunError(
            f"{name} counts tokens, and the runs have different tokenizers.",
            todo="Compare by bits_per_byte.",
        )
    return name


def check_seeds(groups: Sequence[RunGroup]) -> None:
    """Refuse two runs of one recipe and one seed: they are the same experiment twice."""
    for group in groups:
        by_seed: dict[int | None, str] = {}
        for run, seed in zip(group.runs, group.seeds, strict=True):
            if seed in by_seed:
                raise RunError(
                    f"{by_seed[seed]} and {run} have the same recipe and the same seed.",
                    todo="Leave one out, or train it with another: --set seed=…",
                )
            by_seed[seed] = run


def find_baseline(groups: Sequence[RunGroup], name: str) -> str:
    """The group that a run or a group's name stands for."""
    for group in groups:
        if name == group.name or any(Path(name) == Path(run) for run in group.runs):
            return group.name
    known = [group.name for group in groups]
    raise ConfigError(
        [
            f"The baseline {name!r} is none of the runs. Name a run, or one of: "
            f"{'; '.join(known)}.{nearest(name, known)}"
        ]
    )


def pair_seeds(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups with their runs in the order of the first group's seeds."""
    seeds = groups[0].seeds
    for group in groups:
        if set(group.seeds) != set(seeds):
            have = "; ".join(
                f"{g.name}: {', '.join(map(str, g.seeds))}" for g in (groups[0], group)
            )
            raise RunError(
                f"paired seeds need the same seeds for every recipe. {have}.",
                todo="Train the missing ones, or compare without --paired-seeds.",
            )
    order = [[group.seeds.index(seed) for seed in seeds] for group in groups]
    return [
        replace(group, runs=tuple(group.runs[i] for i in indices), seeds=seeds)
        for group, indices in zip(groups, order, strict=True)
    ]


def common_groups(items: dict[str, ItemCounts]) -> Ints | None:
    """The groups of the items, from the runs that know them; the text of all runs is the same."""
    known = {run: one.groups for run, one in items.items() if one.groups is not None}
    if not known:
        return None
    (first, groups), *others = known.items()
    for run, other in others:
        if not np.array_equal(groups, other):
            raise RunError(
                f"{first} and {run} were evaluated with different groups of texts.",
                todo="Evaluate all runs with the same: heed evaluate RUN --groups …",
            )
    return groups
