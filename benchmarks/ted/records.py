"""What is kept of every run: figures, and what BLEU counts in each sentence, but no words.

A run folder holds the corpus and stays where it was made, which may be a machine that is thrown
away. Its record, NAME-SEED.json, goes beside the results; pages are made from records, so they can
be made again, and further runs added, by whoever has no folder at all. `test.json` tells of the
sentences. `earlier.json` has intervals and tests of runs that were thrown away before there were
records: such runs have figures, and no counts; what training took is the mean over their seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from reading import Facts, environment, read, rounded

from heed.metrics.corpus_bleu import corpus_scores
from heed.metrics.sentence_bleu import word_counts
from ted.folders import Trained, find
from ted.joined import ORDER, Array
from ted.systems import System, runs_among

TEST, EARLIER = "test.json", "earlier.json"
METRICS = {
    "chrf": "chrf",
    "ter": "ter",
    "plain": "nltk_mean_sentence_bleu",
    "length_ratio": "length_ratio",
    "hit_limit": "hit_limit",
}
"""Figures of the test set by the name that `heed evaluate` has for them."""
MACHINE = ("python", "platform", "packages", "gpu", "cuda", "cpu_capability", "commit", "bf16")
COUNTED = (0, *range(2, 2 + ORDER))
"""Columns of counts that are kept: tokens written, and matches. The others follow from these."""
Lengths = tuple[int, int]
"""The fewest and the most words in the source of some sentences."""


@dataclass(frozen=True)
class Record:
    """One run."""

    system: System
    seed: int
    facts: Facts
    counts: Array | None
    """What BLEU counts in each sentence, where that is kept."""


Records = dict[str, list[Record]]
"""By system, seed by seed."""


class Kept:
    """All records in a folder."""

    def __init__(self, folder: Path) -> None:
        self.test = read(folder / TEST)
        self.runs: Records = {}
        self.left_out: list[str] = []
        self._earlier = read(folder / EARLIER)
        for system, seed, path in runs_among(folder.glob("*.json"), ".json"):
            self._take(system, seed, read(path))

    def _take(self, system: System, seed: int, facts: Facts) -> None:
        if facts["test"] != self.test["hash"]:
            self.left_out.append(f"{system.name}-{seed}: it was scored on other sentences.")
            return
        told = facts.pop("counts", None)
        counts = None if told is None else unpacked(told, self.test["references"])
        self.runs.setdefault(system.name, []).append(Record(system, seed, facts, counts))

    def interval(self, name: str, lengths: Lengths | None = None) -> Facts | None:
        """A system's score on sentences of some lengths as it once was, and of how many seeds."""
        return self._intervals.get((name, lengths))

    def test_of(self, name: str, other: str, lengths: Lengths | None = None) -> Facts | None:
        """The tests of two systems as they once were, and of how many seeds."""
        return self._tests.get((name, other, lengths))

    @cached_property
    def _intervals(self) -> dict[tuple[str, Lengths | None], Facts]:
        told = self._earlier.get("intervals", [])
        return {(one["system"], _lengths(one)): one["found"] for one in told}

    @cached_property
    def _tests(self) -> dict[tuple[str, str, Lengths | None], Facts]:
        told = self._earlier.get("tests", [])
        return {(one["system"], one["against"], _lengths(one)): one["found"] for one in told}


def _lengths(told: Facts) -> Lengths | None:
    return (told["words"][0], told["words"][1]) if told["words"] else None


def keep(runs: Path, folder: Path) -> list[str]:
    """Write the records of all runs in a folder; a line for each run that cannot be kept."""
    found, left_out = find(runs)
    folder.mkdir(parents=True, exist_ok=True)
    known = read(folder / TEST)
    for run in (run for own in found.values() for run in own):
        test = _test_set(run)
        if not known:
            known = test
            _write(folder / TEST, test)
        elif any(known[key] != test[key] for key in ("hash", "words", "references")):
            left_out.append(f"{run.run.folder.name}: it was scored on other sentences.")
            continue
        _write(folder / f"{run.system.name}-{run.seed}.json", _facts(run))
    return left_out


def _write(path: Path, facts: Facts) -> None:
    """Each value on a line of its own, however long."""
    lines = [f" {json.dumps(key)}: {json.dumps(rounded(own))}" for key, own in facts.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


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
        "words": word_counts(own.sources),
        "references": run.counts[:, 1].astype(int).tolist(),
    }


def _facts(run: Trained) -> Facts:
    told = run.scores["test"]
    facts: Facts = {
        "test": told["hash"],
        "bleu": run.bleu,
        "clean_bleu": (told["clean"] or told)["bleu"],
    }
    # A run that scores itself leaves out what takes long.
    facts |= {name: told[key] for name, key in METRICS.items() if key in told}
    if "dev" in run.scores:
        facts["dev_bleu"] = run.scores["dev"]["bleu"]
    facts |= {
        "changes": run.changes(),
        "beam": told["decode"]["beam"],
        "parameters": run.noted.get("parameters"),
        "jobs": run.noted.get("jobs"),
        "scaled_otherwise": run.scaled_otherwise(),
        "best_epoch": (told["checkpoint"] or {}).get("epoch"),
    }
    facts |= run.pace() | {"machine": environment(run.run.environment_path, MACHINE)}
    return facts | {"curve": run.curve(), "counts": packed(run.counts)}


# --------------------------------------------------------------------------------------- counts


def packed(counts_nc: Array) -> str:
    """What is kept of counts: of each sentence its tokens and its matches of 1- to 4-grams."""
    return " ".join(map(str, counts_nc[:, COUNTED].astype(int).ravel()))


def unpacked(text: str, references: Sequence[int]) -> Array:
    """All counts again, with the lengths of the references; k tokens have k - i + 1 i-grams."""
    table = np.array(text.split(), dtype=np.float64).reshape(len(references), len(COUNTED))
    written_n1 = table[:, :1]
    totals = np.maximum(written_n1 - np.arange(ORDER), 0)
    columns = [written_n1, np.array(references, dtype=np.float64)[:, None], table[:, 1:], totals]
    return np.concatenate(columns, axis=1)
