"""Run folders as records are made of them: what was measured, and every sentence translated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median

from reading import Facts, evaluation, facts

from heed.config import Recipe
from heed.data.corpus.lines import unescape_tsv
from heed.errors import ConfigError
from heed.recipes import find as shipped
from heed.runs.results_file import TRANSLATIONS
from heed.runs.run import Run
from ted import joined
from ted.joined import Array
from ted.systems import System, runs_among

FILES = ("train", "dev", "test", "sets")
"""Keys that differ from place to place and change nothing."""
SCALES = ("embedding_scale", "position_scale")
"""Keys that runs of an earlier format are read with; the page says where that matters."""
PAUSE = 600.0
"""Seconds between two lines of a run's metrics that mean it did not go on meanwhile."""


@dataclass(frozen=True)
class Sentences:
    """A test set as a run translated it."""

    sources: tuple[str, ...]
    references: tuple[str, ...]
    hypotheses: tuple[str, ...]


def read_sentences(text: str) -> Sentences:
    """The TSV that `heed evaluate` keeps: source, reference, hypothesis, score, with a header."""
    rows = text.split("\n")[1:-1]
    cells = [[unescape_tsv(cell) for cell in row.split("\t")[:3]] for row in rows]
    return Sentences(*(tuple(row[i] for row in cells) for i in range(3)))


class Trained:
    """One run; of its folder no weights are needed."""

    def __init__(self, system: System, seed: int, folder: Path) -> None:
        self.system, self.seed, self.run = system, seed, Run(folder)
        self.scores, self.noted = evaluation(folder), facts(folder)
        self.lines = self.run.metrics()

    @property
    def scored(self) -> bool:
        """Whether its test set is there, every sentence of it."""
        return "test" in self.scores and self._table.exists()

    @property
    def _table(self) -> Path:
        return self.run.folder / TRANSLATIONS / "test.tsv"

    @cached_property
    def sentences(self) -> Sentences:
        """The test set as it translated it."""
        return read_sentences(self._table.read_text(encoding="utf-8"))

    @cached_property
    def counts(self) -> Array:
        """What BLEU counts in each sentence."""
        return joined.counts(self.sentences.hypotheses, self.sentences.references)

    @property
    def bleu(self) -> float:
        """Of the test set."""
        return float(joined.bleu(self.counts.sum(axis=0)))

    def scaled_otherwise(self) -> bool:
        """Whether it was made when tokens and positions began at other sizes than now."""
        positions = self.run.recipe().model.position in ("sinusoidal", "learned", "t5")
        return positions and int(self.run.environment().get("format", 2)) < 2

    def curve(self) -> list[Facts]:
        """By epoch: training loss as it was met, and how dev went."""
        return [
            {
                "epoch": line["epoch"],
                "train_loss": line["seen"]["loss"],
                "train_accuracy": line["seen"]["accuracy"],
                "dev_loss": line["dev"]["loss"],
                "dev_accuracy": line["dev"]["accuracy"],
                "dev_bleu": line["dev"].get("bleu"),
            }
            for line in self.lines
            if line["event"] == "evaluate"
        ]

    def pace(self) -> Facts:
        """What training took: by who began it, or by its own clock where that knows of more."""
        unix = [line["time"]["unix"] for line in self.lines]
        between = [later - earlier for earlier, later in pairwise(unix)]
        by_itself = sum(seconds for seconds in between if seconds < PAUSE)
        logged = [line for line in self.lines if line["event"] == "train"]
        speeds = [line["time"]["tokens_per_second"] for line in logged]
        curve = self.curve()
        return {
            "minutes": max(self.noted.get("seconds", {}).get("train", 0.0), by_itself) / 60,
            "tokens_per_second": median(speeds) if speeds else None,
            "epochs": curve[-1]["epoch"] if curve else None,
            "updates": self.lines[-1]["step"] if self.lines else None,
        }

    def changes(self) -> list[str]:
        """What was told to it beyond its recipe, seed and files apart."""
        try:
            before = Recipe.read(shipped(self.system.recipe)).tables()
        except ConfigError:  # a recipe that is no longer shipped
            return list(self.system.changes)
        return [
            f"{section}.{key}={value}"
            for section, values in self.run.recipe().tables().items()
            if isinstance(values, dict)
            for key, value in values.items()
            if key not in (*FILES, *SCALES) and before[section].get(key) != value
        ]


Runs = dict[str, list[Trained]]
"""The scored runs of each system, seed by seed."""


def find(folder: Path) -> tuple[Runs, list[str]]:
    """Every run of a known system, and a line for each that cannot be used."""
    found: Runs = {}
    lines: list[str] = []
    test: Sentences | None = None
    for system, seed, path in runs_among(path for path in folder.iterdir() if path.is_dir()):
        run = Trained(system, seed, path)
        if not run.scored:
            lines.append(f"{path.name}: it has no scores.")
            continue
        own = run.sentences
        test = test or own
        if (own.sources, own.references) != (test.sources, test.references):
            lines.append(f"{path.name}: it was scored on other sentences.")
            continue
        found.setdefault(system.name, []).append(run)
    return found, lines
