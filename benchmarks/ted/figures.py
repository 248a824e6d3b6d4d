"""Everything there is to tell, as plain values without a word of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from reading import Facts, environments, spread

from heed.score.sentences import Group, length_groups
from heed.score.translation import corpus_scores
from ted import joined
from ted.folders import Runs, Trained, find
from ted.joined import Array
from ted.systems import GROUPS, REPORTED, SETS, SHORT, System

METRICS = {
    "chrf": "chrf",
    "ter": "ter",
    "plain": "nltk_mean_sentence_bleu",
    "length_ratio": "length_ratio",
    "hit_limit": "hit_limit",
}
"""Figures of the test set, averaged over seeds, by the name that `heed evaluate` has for them."""
MACHINE = ("python", "platform", "packages", "gpu", "cuda", "cpu_capability", "commit", "bf16")
CURVED = ("best", "sets", "fail")
"""Groups of which the curves of the first seed are kept."""
SET_3 = "set3"
"""The set that wins on long sentences, if the course report is right."""
Pair = tuple[str, str]
"""A system, and what it is held against."""


def gather(folder: Path) -> Facts:
    """All figures of the runs in a folder."""
    runs, left_out = find(folder)
    found: Facts = {"systems": {name: _described(own) for name, own in runs.items()}}
    found["left_out"] = left_out
    if not runs:
        return found
    first = next(iter(runs.values()))[0]
    found["test"] = _test_set(first)
    found["machines"] = environments(
        (run.run.environment_path for own in runs.values() for run in own), MACHINE
    )
    found["compared"] = dict(_compared(runs))
    found["by_length"] = dict(_by_length(runs, first.sentences.sources))
    drawn = [system for group in CURVED for system in GROUPS[group]]
    found["curves"] = {name: runs[name][0].curve() for name in _there(runs, drawn)}
    return found


def _there(runs: Runs, systems: Iterable[System]) -> list[str]:
    return [system.name for system in systems if system.name in runs]


def _described(runs: Sequence[Trained]) -> Facts:
    """One system, its seeds joined."""
    first, tables = runs[0], {run.seed: run.counts for run in runs}
    low, high = joined.interval(tables)
    told = [run.scores["test"] for run in runs]
    facts: Facts = {
        "label": str(first.system),
        "recipe": first.system.recipe,
        "changes": first.changes(),
        "seeds": list(tables),
        "beam": told[0]["decode"]["beam"],
        "parameters": first.noted.get("parameters"),
        "jobs": first.noted.get("jobs"),
        "gpu": first.gpu,
        "bleu": spread(joined.each(tables).values()) | {"low": low, "high": high},
        "clean_bleu": spread((one["clean"] or one)["bleu"] for one in told),
    }
    for name, key in METRICS.items():
        if all(key in one for one in told):  # a run that scores itself leaves out what takes long
            facts[name] = spread(one[key] for one in told)
    if all("dev" in run.scores for run in runs):
        facts["dev_bleu"] = spread(run.scores["dev"]["bleu"] for run in runs)
    facts["scaled_otherwise"] = any(run.scaled_otherwise() for run in runs)
    paces = [run.pace() for run in runs]
    for key in paces[0]:
        facts[key] = _mean(pace[key] for pace in paces)
    facts["best_epoch"] = _mean((one["checkpoint"] or {}).get("epoch") for one in told)
    return facts


def _mean(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return fmean(known) if known and len(known) == len(listed) else None


def _test_set(run: Trained) -> Facts:
    """What was tested on, and the signatures of the figures as they were computed."""
    told, own = run.scores["test"], run.sentences
    again = corpus_scores(own.hypotheses[:1], [own.references[:1]])  # a sentence has the same
    plain = {"plain": told["signature"]["nltk_mean_sentence_bleu"]}
    return {
        "texts": told["texts"],
        "in_train": told["in_train"],
        "hash": told["hash"],
        "signatures": {name: score.signature for name, score in again.items()} | plain,
    }


def _compared(runs: Runs) -> Iterator[tuple[str, list[Facts]]]:
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
        if found := compare(runs, pairs):
            yield question, found


def compare(runs: Runs, pairs: Iterable[Pair], rows: Sequence[int] | None = None) -> list[Facts]:
    """Each pair of systems on all sentences or some; p_holm counts how many pairs there are."""
    found: list[Facts] = []
    for name, other in pairs:
        if name in runs and other in runs:
            result = joined.against(_tables(runs[name], rows), _tables(runs[other], rows))
            if result is not None:
                found.append({"system": name, "against": other} | asdict(result) | {"p": result.p})
    for facts, chance in zip(found, joined.holm([one["p"] for one in found]), strict=True):
        facts["p_holm"] = chance
    return found


def _tables(runs: Sequence[Trained], rows: Sequence[int] | None) -> dict[int, Array]:
    return {run.seed: run.counts if rows is None else run.counts[list(rows)] for run in runs}


def _by_length(runs: Runs, sources: Sequence[str]) -> Iterator[tuple[str, Facts]]:
    """BLEU by source length, and tests where sentences are long."""
    groups, long = length_groups(sources), _some(sources, above=SHORT)
    for name, systems in (("sets", SETS), ("reported", REPORTED)):
        if present := _there(runs, systems):
            third = next((one for one in present if one.startswith(SET_3)), present[0])
            pairs = [(third, other) for other in present if other != third]
            tests = _tested(runs, pairs, [groups[-1], *long])
            yield name, {"groups": _scored(runs, groups, present), "tests": tests}
    if present := _there(runs, GROUPS["lengths"]):
        rope, *others = (system.name for system in GROUPS["lengths"])
        shown = [*present, *_there(runs, GROUPS["positions"])]
        short = _some(sources, above=-1, up_to=SHORT)
        yield (
            "lengths",
            {
                "groups": _scored(runs, [*short, *_parted(sources, long)], shown),
                "parts": _scored(runs, [*short, *long], shown),
                "tests": _tested(runs, [(other, rope) for other in others], [*long, groups[-1]]),
            },
        )


def _some(sources: Sequence[str], *, above: int, up_to: int | None = None) -> list[Group]:
    """The sentences of more than so many words, and of no more than so many; or nothing."""
    lengths = {row: len(source.split()) for row, source in enumerate(sources)}
    kept = {r: n for r, n in lengths.items() if n > above and (up_to is None or n <= up_to)}
    return [Group(min(kept.values()), max(kept.values()), tuple(kept))] if kept else []


def _parted(sources: Sequence[str], groups: Sequence[Group]) -> Iterator[Group]:
    """Groups of like length within a group."""
    for group in groups:
        for part in length_groups([sources[row] for row in group.rows]):
            yield Group(part.shortest, part.longest, tuple(group.rows[i] for i in part.rows))


def _tested(runs: Runs, pairs: Iterable[Pair], groups: Sequence[Group]) -> list[Facts]:
    """Pairs of systems, tested on each of some groups of sentences."""
    return [{**_named(group), "compared": compare(runs, pairs, group.rows)} for group in groups]


def _named(group: Group) -> dict[str, Any]:
    return {"words": [group.shortest, group.longest], "texts": len(group.rows)}


def _scored(runs: Runs, groups: Sequence[Group], names: Sequence[str]) -> list[Facts]:
    """Each group of sentences: every system's score there, with its interval."""
    sources = runs[names[0]][0].sentences.sources
    found = []
    for group in groups:
        scores = {name: _score(_tables(runs[name], group.rows)) for name in names}
        mean_words = fmean(len(sources[row].split()) for row in group.rows)
        found.append({**_named(group), "mean_words": mean_words, "systems": scores})
    return found


def _score(tables: dict[int, Array]) -> Facts:
    low, high = joined.interval(tables)
    written, reference, *_ = sum(table.sum(axis=0) for table in tables.values())
    return {
        "bleu": joined.score(tables),
        "low": low,
        "high": high,
        "length_ratio": float(written / reference),
    }
