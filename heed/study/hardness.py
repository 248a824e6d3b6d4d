"""Why some texts are harder than others: words not in train, rare words, subwords, length.

The loss of each text is regressed on what describes the text in numbers. Where texts belong to
groups (speakers, talks, or the sets of a study) and the hardest differs from the easiest, the gap
is compared with what each property of the texts accounts for. Every number is a function of summed
item counts, so its interval is over seeds and texts like that of a comparison.

Each property is taken alone, and all are taken together. Unseen words are rare words of several
subwords: with the others held equal, the sign of one depends on the rest. A language model's loss
is that per word: per token, a text of unseen words looks easy, because their last subwords are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from heed.arrays import Floats, Ints
from heed.runs.item_counts import GROUP, ItemCounts
from heed.stats.comparison import SumMetric
from heed.stats.intervals import MIN_ITEMS, Interval
from heed.stats.regression import (
    coefficient_metric,
    contribution_metric,
    gap_metric,
    regression_counts,
)
from heed.study.finding import RATE, Finding, describe_estimate, quote_name
from heed.study.scored_systems import Estimate, estimate_value
from heed.study.study_results import StudyResults

FIGURE, TEXT_FIGURE = "by-group", "text-properties"
MAX_GROUPS = 12
"""With more groups, such as talks, no two of them are singled out."""
MIN_PER_PREDICTOR = 10
"""Items for each predictor of a regression."""
UNITS = {"generate": "nats per word", "classify": "nats per text"}
PROPERTIES = {
    "unseen": ("words not in train", "10 points more words not in train"),
    "surprisal": ("rare words", "one nat more unigram surprisal per word"),
    "tokens": ("subwords per word", "one token more per word"),
    "length": ("length", "twice the length"),
}
"""What describes a text: its name, and what one unit of it is."""
EVERYTHING = "all"
"""In place of one property: all of them together."""


@dataclass(frozen=True)
class TextLosses:
    """The losses of one system on texts, and what describes the texts."""

    system: str
    task: str
    outcome_sn: Floats
    """The loss of every run on every text: of a language model, the sum over its words."""
    weight_n: Floats
    """Words of every text, or 1."""
    properties: dict[str, Floats]
    groups: Ints | None
    names: list[str]
    """The names of the groups, by their numbers."""


@dataclass(frozen=True)
class GroupScore:
    """One group of texts: how hard it is, and its properties."""

    name: str
    texts: int
    loss: float
    interval: Interval
    properties: dict[str, float]
    """The mean of each property, weighted as the loss is."""


def open_text_losses(results: StudyResults) -> TextLosses | None:
    """The losses of the system that dev chooses; None where its records do not describe texts."""
    if results.comparison is None or results.best is None:
        return None
    finished = {state.trial.name for state in results.system(results.best).finished}
    runs = [
        results.record(name).run
        for group in results.comparison.groups
        for name in group.runs
        if name in finished
    ]
    sets = _different_texts(results.config.sets or [results.set_name])
    if not runs or any(name not in run.evaluations for run in runs for name in sets):
        return None
    parts = [[run.evaluations[name] for run in runs] for name in sets]
    if any(not _has_losses(one) or not _properties(one) for part in parts for one in part):
        return None
    common = [key for key in PROPERTIES if all(key in _properties(part[0]) for part in parts)]
    outcome = np.concatenate([np.stack([*map(_outcome, part)]) for part in parts], axis=1)
    groups, names = _groups(sets, [part[0] for part in parts])
    return TextLosses(
        results.best,
        parts[0][0].task,
        outcome,
        np.concatenate([_weights(part[0]) for part in parts]),
        {key: np.concatenate([_properties(part[0])[key] for part in parts]) for key in common},
        groups,
        names,
    )


def _different_texts(sets: Sequence[str]) -> list[str]:
    """The sets without those that score a text again, as `test@window-128` does that of test."""
    return list({name.partition("@")[0]: name for name in reversed(sets)}.values())[::-1]


def _has_losses(items: ItemCounts) -> bool:
    """Whether the task has a loss of every text that adds up."""
    return items.task == "generate" or "log_probability" in items.columns


def _outcome(items: ItemCounts) -> Floats:
    """The loss of every text, in nats."""
    columns = items.columns
    return columns["loss"] if items.task == "generate" else -columns["log_probability"]


def _weights(items: ItemCounts) -> Floats:
    if items.task == "generate":
        return np.maximum(items.columns["text.words"], 1.0)
    return np.ones(len(items))


def _properties(items: ItemCounts) -> dict[str, Floats]:
    """What describes every text, in the units of `PROPERTIES`."""
    columns = items.columns
    if "text.words" not in columns:
        return {}
    words = np.maximum(columns["text.words"], 1.0)
    properties = {"length": np.log2(words)}
    if "text.unseen" in columns:
        properties["unseen"] = 10 * columns["text.unseen"] / words
        properties["surprisal"] = columns["text.surprisal"] / 1000 / words
    tokens = columns.get("text.tokens", columns.get("tokens"))
    if tokens is not None:
        properties["tokens"] = tokens / words
    return {key: one for key, one in properties.items() if one.std() > 1e-9}


def _groups(sets: list[str], parts: list[ItemCounts]) -> tuple[Ints | None, list[str]]:
    """The group of every text: its set, where there are several, else its recorded group."""
    if len(parts) > 1:
        return np.repeat(np.arange(len(parts)), [len(part) for part in parts]), sets
    if GROUP not in parts[0].columns:
        return None, []
    numbers, groups = np.unique(parts[0].columns[GROUP].astype(int), return_inverse=True)
    return groups, [f"group {number + 1}" for number in numbers]


# ----------------------------------------------------------------------------------- the questions


def score_groups(losses: TextLosses) -> list[GroupScore]:
    """The mean loss of every group of enough texts; empty where there are none, or too many."""
    if losses.groups is None or not 2 <= len(losses.names) <= MAX_GROUPS:
        return []
    scores = []
    for number, name in enumerate(losses.names):
        rows = losses.groups == number
        if rows.sum() < MIN_ITEMS:
            continue
        weights = np.broadcast_to(losses.weight_n[rows], losses.outcome_sn[:, rows].shape)
        counts = np.stack([losses.outcome_sn[:, rows], weights], axis=-1)
        one = estimate_value(counts, lambda sums: sums[..., 0] / sums[..., 1])
        properties = {
            key: float(np.average(values[rows], weights=losses.weight_n[rows]))
            for key, values in losses.properties.items()
        }
        scores.append(GroupScore(name, int(rows.sum()), one.value, one.interval, properties))
    return scores


def find_hard_groups(losses: TextLosses) -> list[Finding]:
    """The gap between the hardest and the easiest group; where there is one, what goes with it."""
    scores = sorted(score_groups(losses), key=lambda score: score.loss)
    if len(scores) < 2:
        return []
    easy, hard = scores[0], scores[-1]
    groups = np.array(losses.groups)
    rows = np.isin(groups, [losses.names.index(one.name) for one in (easy, hard)])
    indicator = (groups[rows] == losses.names.index(hard.name)).astype(np.float64)
    keys, predictors = _predictors(losses, rows, indicator)
    counts = regression_counts(losses.outcome_sn[:, rows], predictors, losses.weight_n[rows])
    width = predictors.shape[1]
    metric = _nats(losses)
    # The two were picked from all groups by their losses.
    pairs = len(list(combinations(scores, 2)))
    gap = estimate_value(counts, gap_metric(1, width), questions=pairs)
    text = (
        f"For {quote_name(losses.system)} (chosen on dev), loss on {hard.name} minus that on "
        f"{easy.name} is {describe_estimate(gap.value, gap.interval, gap.p, metric)}"
        + (f", corrected for {pairs} pairs of groups." if pairs > 1 else ".")
    )
    numbers: dict[str, Any] = {"system": losses.system, "hard": hard.name, "easy": easy.name}
    findings = [Finding("group", text, FIGURE, numbers | {"gap": gap.value}, gap.interval, gap.p)]
    if gap.p > RATE:
        return findings
    parts = [([2 + i], key, f"{PROPERTIES[key][0]}, taken alone") for i, key in enumerate(keys)]
    if len(keys) > 1:
        everything = [2 + i for i in range(len(keys))]
        parts.append((everything, EVERYTHING, "all these properties together"))
    for indices, key, name in parts:
        part = _estimate_part(losses, rows, predictors[:, [0, 1, *indices]])
        estimate = describe_estimate(part.value, part.interval, part.p, metric)
        share = part.value / gap.value if gap.value else 0.0
        more = {"property": key, "part": part.value, "share": share, "gap": gap.value}
        text = f"Of the gap between {hard.name} and {easy.name}, {estimate} goes with {name}."
        findings.append(Finding("group", text, FIGURE, numbers | more, part.interval, part.p))
    return findings


def _estimate_part(losses: TextLosses, rows: Any, predictors: Floats) -> Estimate:
    """What of the gap goes with the predictors after the constant and the group."""
    counts = regression_counts(losses.outcome_sn[:, rows], predictors, losses.weight_n[rows])
    width = predictors.shape[1]
    return estimate_value(counts, contribution_metric(1, range(2, width), width))


def find_text_effects(losses: TextLosses) -> list[Finding]:
    """How the loss of a text goes with each of its properties, taken alone."""
    rows = np.ones(losses.outcome_sn.shape[1], dtype=bool)
    keys, predictors = _predictors(losses, rows, None)
    if not keys:
        return []
    findings = []
    for index, key in enumerate(keys, 1):
        counts = regression_counts(losses.outcome_sn, predictors[:, [0, index]], losses.weight_n)
        one = estimate_value(counts, coefficient_metric(1, 2))
        text = (
            f"With {PROPERTIES[key][1]}, the loss of {quote_name(losses.system)} (chosen on dev) "
            f"changes by {describe_estimate(one.value, one.interval, one.p, _nats(losses))}, this "
            "property taken alone."
        )
        numbers = {"system": losses.system, "property": key, "coefficient": one.value}
        numbers |= {"unit": UNITS[losses.task]}
        findings.append(Finding("hardness", text, TEXT_FIGURE, numbers, one.interval, one.p))
    return findings


def _predictors(
    losses: TextLosses, rows: Any, indicator: Floats | None
) -> tuple[list[str], Floats]:
    """The names of the properties that vary enough, and the predictors: 1, the group, and these."""
    columns = [np.ones(int(rows.sum()))] + ([] if indicator is None else [indicator])
    limit = int(rows.sum()) // MIN_PER_PREDICTOR - len(columns)
    keys = [key for key, one in losses.properties.items() if one[rows].std() > 1e-9][
        : max(limit, 0)
    ]
    columns += [losses.properties[key][rows] for key in keys]
    return keys, np.stack(columns, axis=1)


def _nats(losses: TextLosses) -> SumMetric:
    return SumMetric(
        "loss", lambda sums: sums[..., 0], higher_is_better=False, digits=3, unit=UNITS[losses.task]
    )
