"""Everything there is to tell, as plain values without a word of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from reading import Facts, distinct, spread

from heed.metrics.sentence_bleu import LengthGroup, length_groups
from ted import joined
from ted.joined import Array, Compared
from ted.records import METRICS, Kept, Lengths, Record
from ted.systems import GROUPS, REPORTED, SETS, SHORT, System

PACE = ("minutes", "tokens_per_second", "epochs", "updates", "best_epoch")
CURVED = ("best", "sets", "fail")
"""Groups of which the curves of the first seed are kept."""
SET_3 = "set3"
"""The set that wins on long sentences, if the course report is right."""
Pair = tuple[str, str]
"""A system, and what it is held against."""
EFFECTS: dict[str, list[Pair]] = {
    "half the dropout": [("fail-set3", "set3-reported"), ("set4-reported", "fail-dropout")],
    "two more layers": [("fail-dropout", "set3-reported"), ("set4-reported", "fail-set3")],
}
"""What makes set 3 as reported set 4 as reported: systems with each change, and without."""


def gather(folder: Path) -> Facts:
    """All figures of the runs whose records are in a folder."""
    kept = Kept(folder)
    runs = kept.runs
    found: Facts = {"systems": {name: _described(kept, name) for name in runs}}
    found["left_out"] = kept.left_out
    if not runs:
        return found
    found["test"] = {key: kept.test[key] for key in ("texts", "in_train", "hash", "signatures")}
    found["machines"] = distinct(run.facts["machine"] for own in runs.values() for run in own)
    found["compared"] = dict(_compared(kept))
    found["by_length"] = dict(_by_length(kept))
    drawn = [system for group in CURVED for system in GROUPS[group]]
    found["curves"] = {name: runs[name][0].facts["curve"] for name in _there(kept, drawn)}
    return found


def _there(kept: Kept, systems: Iterable[System]) -> list[str]:
    return [system.name for system in systems if system.name in kept.runs]


def _described(kept: Kept, name: str) -> Facts:
    """One system, its seeds joined."""
    runs = kept.runs[name]
    first, told = runs[0], [run.facts for run in runs]
    bleu, by_sentence = spread(_scores(runs)), _score(kept, name)
    bleu |= _around(bleu["mean"], by_sentence["bleu"], by_sentence)
    facts: Facts = {
        "label": str(first.system),
        "recipe": first.system.recipe,
        "changes": first.facts["changes"],
        "seeds": [run.seed for run in runs],
        "beam": first.facts["beam"],
        "parameters": first.facts["parameters"],
        "apart": _apart(one["parameters"] for one in told),
        "jobs": max(one["jobs"] or 1 for one in told),
        "gpu": first.facts["machine"].get("gpu"),
        "bleu": bleu | {"sentences": by_sentence["sentences"]},
    }
    for key in ("clean_bleu", *METRICS, "dev_bleu"):
        if all(key in one for one in told):
            facts[key] = spread(one[key] for one in told)
    facts["scaled_otherwise"] = any(one["scaled_otherwise"] for one in told)
    return facts | {key: _mean(one[key] for one in told) for key in PACE}


def _apart(sizes: Iterable[int | None]) -> int:
    """How far apart seeds are in what should be the same: versions of heed may lie between."""
    known = [size for size in sizes if size is not None]
    return max(known, default=0) - min(known, default=0)


def _mean(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return fmean(known) if known and len(known) == len(listed) else None


def _tables(runs: Sequence[Record], group: LengthGroup | None) -> dict[int, Array]:
    """What BLEU counts in all sentences or in some, of the seeds for which that is kept."""
    counted = {run.seed: run.counts for run in runs if run.counts is not None}
    if group is None:
        return counted
    return {seed: counts[list(group.rows)] for seed, counts in counted.items()}


def _lengths(group: LengthGroup | None) -> Lengths | None:
    return None if group is None else (group.shortest, group.longest)


# ---------------------------------------------------------------------------------- comparisons


def _compared(kept: Kept) -> Iterator[tuple[str, list[Facts]]]:
    """By question."""
    rope, *others = GROUPS["positions"]
    asked: dict[str, list[Pair]] = {
        "best": [("best", system.name) for system in (*SETS, *REPORTED)],
        "sets": [(well.name, told.name) for well, told in zip(SETS, REPORTED, strict=True)],
        "fail": [(one.name, one.recipe.removeprefix("ted-en-fr/")) for one in GROUPS["fail"]],
        "depth": [("fail-dropout", "set3-reported"), ("set4-reported", "fail-set3")],
        "smaller": [(REPORTED[-1].name, other.name) for other in REPORTED[:-1]],
        "lstm": [(GROUPS["lstm"][1].name, GROUPS["lstm"][0].name)],
        "positions": [(other.name, rope.name) for other in others],
    }
    for question, pairs in asked.items():
        if found := compare(kept, pairs):
            yield question, found
    if found := _effects(kept):
        yield "effects", found


def compare(kept: Kept, pairs: Iterable[Pair], group: LengthGroup | None = None) -> list[Facts]:
    """Each pair of systems on all sentences or some; p_holm counts how many pairs there are."""
    found = []
    for name, other in pairs:
        if facts := _tested(kept, [(name, other)], group):
            found.append({"system": name, "against": other} | facts)
    return _corrected(found)


def _effects(kept: Kept) -> list[Facts]:
    """What each of the two changes does that make set 3 set 4, over both ways of the other one."""
    tested = {name: _tested(kept, pairs, None) for name, pairs in EFFECTS.items()}
    return _corrected([{"change": name} | facts for name, facts in tested.items() if facts])


def _corrected(found: list[Facts]) -> list[Facts]:
    for facts, chance in zip(found, joined.holm([one["p"] for one in found]), strict=True):
        facts["p_holm"] = chance
    return found


def _tested(kept: Kept, pairs: Sequence[Pair], group: LengthGroup | None) -> Facts | None:
    """The mean difference of pairs of systems, if all of them are there, and its tests.

    On all sentences it is of all seeds, and so is the test over seeds. How much sentences vary is
    seen in the seeds that both have counts of, or was in an earlier test, if of more seeds. On some
    sentences all is of the seeds with counts, where there are any.
    """
    if not all(name in kept.runs for pair in pairs for name in pair):
        return None
    tables = [
        (_tables(kept.runs[name], group), _tables(kept.runs[other], group)) for name, other in pairs
    ]
    scores = [[_scores(kept.runs[name]) for name in pair] for pair in pairs]
    counts = [len(one) for pair in scores for one in pair]
    difference = fmean(fmean(one) - fmean(other) for one, other in scores)
    shared = min(len(mine.keys() & theirs.keys()) for mine, theirs in tables)
    earlier = kept.test_of(*pairs[0], _lengths(group)) if len(pairs) == 1 else None
    whole = group is None
    if earlier is not None and earlier["sentences"] > shared and (whole or not shared):
        seeds, shared = earlier["seeds"], earlier["sentences"]
        result = Compared(**{field.name: earlier[field.name] for field in fields(Compared)})
        if whole:
            result = replace(result, **_around(difference, result.difference, earlier))
    elif (found := joined.effect(tables, difference if whole else None)) is not None:
        seeds, result = [len(own) for pair in tables for own in pair], found
    else:
        return None
    if whole:
        seeds, several = counts, min(counts) > 1
        over_seeds = joined.welch_of_all(scores) if several else None
        result = replace(result, difference=difference, p_seeds=over_seeds)
    return asdict(result) | {"p": result.p, "seeds": seeds, "sentences": shared}


def _around(mean: float, of_some: float, interval: Facts) -> Facts:
    """An interval that was found around the mean of some seeds, around that of all."""
    return {key: interval[key] + mean - of_some for key in ("low", "high")}


def _scores(runs: Sequence[Record]) -> list[float]:
    return [run.facts["bleu"] for run in runs]


# ------------------------------------------------------------------------------------ by length


def _by_length(kept: Kept) -> Iterator[tuple[str, Facts]]:
    """BLEU by source length, and tests where sentences are long."""
    words = kept.test["words"]
    groups, long = length_groups(words), _some(words, above=SHORT)
    for name, systems in (("sets", SETS), ("reported", REPORTED)):
        if present := _there(kept, systems):
            third = next((one for one in present if one.startswith(SET_3)), present[0])
            pairs = [(third, other) for other in present if other != third]
            tests = _where_long(kept, pairs, [groups[-1], *long])
            yield name, {"groups": _scored(kept, groups, present), "tests": tests}
    if present := _there(kept, GROUPS["lengths"]):
        rope, *others = (system.name for system in GROUPS["lengths"])
        shown = [*present, *_there(kept, GROUPS["positions"])]
        short = _some(words, above=-1, up_to=SHORT)
        yield (
            "lengths",
            {
                "groups": _scored(kept, [*short, *_parted(words, long)], shown),
                "parts": _scored(kept, [*short, *long], shown),
                "tests": _where_long(
                    kept, [(other, rope) for other in others], [*long, groups[-1]]
                ),
            },
        )


def _some(words: Sequence[int], *, above: int, up_to: int | None = None) -> list[LengthGroup]:
    """The sentences of more than so many words, and of no more than so many; or nothing."""
    kept = {i: n for i, n in enumerate(words) if n > above and (up_to is None or n <= up_to)}
    return [LengthGroup(min(kept.values()), max(kept.values()), tuple(kept))] if kept else []


def _parted(words: Sequence[int], groups: Sequence[LengthGroup]) -> Iterator[LengthGroup]:
    """Groups of like length within a group."""
    for group in groups:
        for part in length_groups([words[row] for row in group.rows]):
            yield LengthGroup(part.shortest, part.longest, tuple(group.rows[i] for i in part.rows))


def _where_long(kept: Kept, pairs: Iterable[Pair], groups: Sequence[LengthGroup]) -> list[Facts]:
    """Pairs of systems, tested on each of some groups of sentences."""
    return [{**_named(group), "compared": compare(kept, pairs, group)} for group in groups]


def _named(group: LengthGroup) -> dict[str, Any]:
    return {"words": [group.shortest, group.longest], "texts": len(group.rows)}


def _scored(kept: Kept, groups: Sequence[LengthGroup], names: Sequence[str]) -> list[Facts]:
    """Each group of sentences: every system's score there, with its interval."""
    found = []
    for group in groups:
        scores = {name: _score(kept, name, group) for name in names}
        mean_words = fmean(kept.test["words"][row] for row in group.rows)
        found.append({**_named(group), "mean_words": mean_words, "systems": scores})
    return found


def _score(kept: Kept, name: str, group: LengthGroup | None = None) -> Facts:
    """A system's score and its interval, of the same seeds as its tests: see `_tested`."""
    tables, earlier = _tables(kept.runs[name], group), kept.interval(name, _lengths(group))
    fewer = earlier is not None and earlier["sentences"] > len(tables)
    if earlier is not None and fewer and (group is None or not tables):
        return dict(earlier)
    low, high = joined.interval(tables)
    written, reference, *_ = sum(table.sum(axis=0) for table in tables.values())
    return {
        "bleu": joined.score(tables),
        "low": low,
        "high": high,
        "length_ratio": float(written / reference),
        "sentences": len(tables),
    }
