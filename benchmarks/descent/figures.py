"""Everything there is to tell of the runs, as plain values without a word of the corpora."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from reading import MACHINE, Facts, environments, evaluation, facts, read, spread
from ted.joined import holm, welch

from descent import paired
from descent.systems import (
    BEYOND,
    FIRST_SEED,
    FRESH_SEEDS,
    HIGHEST,
    LOWEST,
    REFERENCE,
    RULES,
    SHARED,
    TASKS,
    Rule,
    Task,
    best,
    folder_name,
    grid,
    rate,
)
from descent.training import dev_figure, swept
from heed.runs.run import Run


def gather(folder: Path) -> Facts:
    """All figures of the runs in a folder."""
    found = {task.name: _task(folder, task) for task in TASKS}
    told = {name: own for name, own in found.items() if own["rules"]}
    return {"machine": read(folder / MACHINE), "tasks": told}


def halves_tried(folder: Path, task: Task) -> list[int]:
    """The rates of a task: those that all begin with, and those that were added."""
    wide = grid((BEYOND, BEYOND))
    tried = [half for half in wide if any(_ended(folder, task, rule, half) for rule in RULES)]
    low, high = min([LOWEST, *tried]), max([HIGHEST, *tried])
    return [half for half in wide if low <= half <= high]


def _ended(folder: Path, task: Task, rule: Rule, half: int) -> str | None:
    return facts(folder / folder_name(task, rule, half, FIRST_SEED)).get("ended")


def _task(folder: Path, task: Task) -> Facts:
    """One task: every rule, and the rules held against the reference."""
    halves = halves_tried(folder, task)
    rules = {rule.name: _rule(folder, task, rule, halves) for rule in RULES}
    rules = {name: own for name, own in rules.items() if own["tried"]}
    return {
        "title": task.title,
        "recipe": task.recipe,
        "changes": list(task.changes),
        "metric": task.metric,
        "seeds": {"choice": FIRST_SEED, "fresh": list(FRESH_SEEDS)},
        "rates": [rate(half) for half in halves],
        "shared_rate": rate(SHARED),
        "rules": rules,
        "wins": _wins(task, rules),
        "at_one_rate": _by_seeds(task, rules, "shared"),
        "at_own_rate": _by_seeds(task, rules, "own"),
        "on_test": _on_test(folder, task, rules),
        "environment": environments(sorted(folder.glob(f"{task.name}-*/environment.json"))),
    }


def _rule(folder: Path, task: Task, rule: Rule, halves: Sequence[int]) -> Facts:
    """One optimizer: all its rates, and what fresh seeds did at its best and at the shared one."""
    found = swept(folder, task, rule, halves)
    ends = {half: _ended(folder, task, rule, half) for half in halves}
    own = best(task, found)
    facts_of: Facts = {
        "label": rule.label,
        "changes": list(rule.changes),
        "tried": sum(end is not None for end in ends.values()),
        "by_rate": {
            f"{rate(half):g}": found.get(half, ends[half]) for half in halves if ends[half]
        },
        "best": None if own is None else rate(own),
        "at_edge": own in (halves[0], halves[-1]),
        "as_good": [] if own is None else _as_good(task, found, found[own]),
    }
    for name, half in (("own", own), ("shared", SHARED)):
        if half is not None and (told := _fresh(folder, task, rule, half)):
            facts_of[name] = told
    return facts_of


def _as_good(task: Task, found: Mapping[int, float], top: float) -> list[float]:
    """The rates that are near the best."""
    return [rate(half) for half, value in found.items() if abs(value - top) <= task.near]


def _fresh(folder: Path, task: Task, rule: Rule, half: int) -> Facts:
    """What the seeds did that the choice has not seen: on dev, and where they were asked on test.

    A seed that ended in numbers that are none has no figure, and is counted.
    """
    folders = {seed: folder / folder_name(task, rule, half, seed) for seed in FRESH_SEEDS}
    ended = {seed: path for seed, path in folders.items() if "ended" in facts(path)}
    dev = {seed: dev_figure(task, path) for seed, path in ended.items()}
    known = {seed: value for seed, value in dev.items() if value is not None}
    if not known:
        return {}
    told: Facts = {
        "rate": rate(half),
        "diverged": len(ended) - len(known),
        "dev": spread(known.values()),
        "curve": _curve(task, [ended[seed] for seed in known]),
        "seconds": spread(facts(ended[seed])["seconds"]["train"] for seed in known),
    }
    tables = tables_of(task, {seed: ended[seed] for seed in known})
    if tables:
        low, high = paired.span(tables)
        told["test"] = spread(map(paired.figure, tables.values())) | {"low": low, "high": high}
        scores = [evaluation(ended[seed])["test"] for seed in tables]
        told["clean"] = spread((one["clean"] or one)[task.metric] for one in scores)
        told["test_set"] = {key: scores[0][key] for key in ("texts", "in_train", "hash")}
        if not task.rises:
            told["bits_per_byte"] = spread(one["bits_per_byte"] for one in scores)
    return told


def tables_of(task: Task, folders: Mapping[int, Path]) -> dict[int, paired.Table]:
    """What every seed answered on test."""
    found = {seed: paired.counts(task, path) for seed, path in folders.items()}
    return {seed: table for seed, table in found.items() if table is not None}


def _curve(task: Task, folders: Sequence[Path]) -> list[Facts]:
    """By update: dev's figure, its mean and both ends over seeds."""
    by_step: dict[int, list[float]] = {}
    for folder in folders:
        for line in Run(folder).metrics():
            if line["event"] == "evaluate":
                by_step.setdefault(line["step"], []).append(line["dev"][task.metric])
    return [
        {"step": step, "mean": fmean(values), "low": min(values), "high": max(values)}
        for step, values in sorted(by_step.items())
        if len(values) == len(folders)
    ]


def _wins(task: Task, rules: Mapping[str, Facts]) -> dict[str, Facts]:
    """Who would be first and last, were this rate the one for all: of rates that all tried."""
    found: dict[str, Facts] = {}
    for name in next(iter(rules.values()), {}).get("by_rate", {}):
        figures = {rule: own["by_rate"].get(name) for rule, own in rules.items()}
        if len(rules) < len(RULES) or None in figures.values():
            continue
        worst = float("-inf") if task.rises else float("inf")
        known = {rule: v if isinstance(v, float) else worst for rule, v in figures.items()}
        order = sorted(known, key=lambda rule: known[rule], reverse=task.rises)
        if abs(known[order[0]] - known[order[-1]]) > task.near:  # else nobody has learnt, or all
            found[name] = {"first": order[0], "last": order[-1]}
    return found


def _by_seeds(task: Task, rules: Mapping[str, Facts], which: str) -> dict[str, Facts]:
    """On dev, each rule against the reference, both at the shared rate or each at its own."""
    sign = 1.0 if task.rises else -1.0
    each = {name: own[which]["dev"]["each"] for name, own in rules.items() if which in own}
    if REFERENCE not in each:
        return {}
    theirs = each.pop(REFERENCE)
    found = {
        name: {
            "gain": sign * (fmean(mine) - fmean(theirs)),
            "p": welch(mine, theirs) if min(len(mine), len(theirs)) > 1 else None,
        }
        for name, mine in each.items()
    }
    return _corrected(found)


def _on_test(folder: Path, task: Task, rules: Mapping[str, Facts]) -> dict[str, Facts]:
    """On test, each rule at its own rate against the reference at its own."""
    tables = {}
    for rule in RULES:
        own = rules.get(rule.name, {}).get("own")
        if own and "test" in own:
            half = next(h for h in grid((BEYOND, BEYOND)) if rate(h) == own["rate"])
            paths = {seed: folder / folder_name(task, rule, half, seed) for seed in FRESH_SEEDS}
            tables[rule.name] = tables_of(task, paths)
    enough = {name: own for name, own in tables.items() if len(own) > 1}
    theirs = enough.pop(REFERENCE, None)
    if theirs is None:
        return {}
    found = {name: paired.against(task, mine, theirs) for name, mine in enough.items()}
    return _corrected({name: asdict(one) | {"p": one.p} for name, one in found.items()})


def _corrected(found: dict[str, Facts]) -> dict[str, Facts]:
    """The same with p as it counts among so many tests (Holm 1979)."""
    tested = [one for one in found.values() if one["p"] is not None]
    for one, chance in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p_holm"] = chance
    return found
