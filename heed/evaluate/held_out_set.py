"""What to evaluate on: the set that was asked for, and the text it must be told apart from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heed.config import Recipe
from heed.data.batching.bucketed import Batches, Rows
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.doctor import overlap
from heed.data.held_out import set_aside
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError, RunError, nearest
from heed.models import Model
from heed.runs.run import Run
from heed.stats.bootstrap import RESAMPLES
from heed.train.prepare.setup import open_corpora, with_dev, world_files

Say = Callable[[str], None]
Facts = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What `heed evaluate` was asked for."""

    split: str | None = None
    test: Sequence[str] = ()
    metrics: Sequence[str] = ()
    """Of translations; none named, all."""
    resamples: int = RESAMPLES
    sentences: Path | None = None
    """Where else to write every translation with its score."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[decode]` to change: beam=5."""
    baseline: bool = False
    """Whether to hold a classifier against baselines that learn from the same text."""
    calibrate: bool = False
    """Whether to fit the temperature of a classifier's probabilities on dev first."""
    text: Sequence[str] = ()
    """Texts of one's own, to be shown token by token instead of a set."""
    stride: int | None = None
    """Tokens between two windows over a long text; unset, half a window."""


@dataclass(frozen=True)
class Train:
    """The text a run learnt from, where it is still there; and why not, where it is not."""

    corpus: Corpus | None
    missing: str = ""


@dataclass(frozen=True)
class HeldOut:
    """A set of texts to evaluate on."""

    name: str
    corpus: Corpus
    rows: Rows | None = None
    """Which of the texts kept; None is all."""

    @property
    def set_aside(self) -> bool:
        """Whether it is a part of files of which train is the rest."""
        return self.rows is not None or self.corpus.span is not None

    def records(self, dropped: Counter[str]) -> list[Record]:
        """The texts, in order."""
        records = list(self.corpus.kept(dropped))
        return records if self.rows is None else [records[i] for i in self.rows.tolist()]


@dataclass(frozen=True)
class Job:
    """A loaded run and the texts to score it on: what the evaluation of a task begins from."""

    run: Run
    model: Model
    tokenizer: Tokenizer
    recipe: Recipe
    train: Train
    held_out: HeldOut
    records: Sequence[Record]
    seen: Sequence[bool] | None
    """For each text, whether train has it too; None where that cannot be known."""
    parts: Sequence[Sequence[int]]
    """Rows of `records`: the whole set, then the part that train does not have, if it differs."""
    batches: Batches
    """The same texts as the model reads them; a row of them is a row of the set's store."""
    settings: Settings
    say: Say
    later: list[Callable[[], None]] = field(default_factory=list)
    """What writes into the run folder, once the figures were told: it may not be writable."""


def training_text(run: Run, recipe: Recipe) -> Train:
    """What the run learnt from, if it is still there and still the same."""
    data = recipe.data
    if data.synthetic is None and not data.train:  # it was not trained here
        return Train(None, "this run names no training text.")
    try:
        if data.synthetic is not None:
            corpus = open_corpora(recipe)["train"]
        else:
            corpus = open_corpus(
                data.train, task=recipe.task, unit=data.unit, drop=data.drop_pattern
            )
            corpus = corpus if data.dev else with_dev(corpus)["train"]
        now = corpus.fingerprint()
    except DataError as error:
        return Train(None, f"the training text cannot be read: {error}")
    if run.environment().get("data", {}).get("train") != now:
        return Train(None, f"the training text is not what it was: {', '.join(corpus.paths)}")
    return Train(corpus)


def find_set(recipe: Recipe, train: Train, settings: Settings) -> HeldOut:
    """The files named, or the split named, or the recipe's test set, or dev."""
    if settings.test and settings.split is not None:
        raise ConfigError(["--test and --split are two ways to name a set: use one of them."])
    if settings.test:
        return HeldOut(_stem(settings.test[0]), _open(settings.test, recipe, train))
    named = _own_sets(recipe)
    if not named:
        raise RunError("this run names no text to evaluate on.", todo="Name files with --test.")
    name = settings.split or ("test" if "test" in named else "dev")
    if name in named:
        return HeldOut(name, _open(named[name], recipe, train))
    if name == "dev" and train.corpus is not None:  # a share of train was set aside
        if train.corpus.span is not None:
            return HeldOut("dev", train.corpus.rest())
        held_out, _ = set_aside(sum(1 for _ in train.corpus.kept()), recipe.data.dev_seed)
        return HeldOut("dev", train.corpus, held_out)
    known = [*named, *([] if "dev" in named else ["dev"])]
    if name in known:
        lost = f"dev was set aside from train, and {train.missing}"
        raise RunError(lost, todo="Name files with --test.")
    raise ConfigError(
        [f"There is no set {name!r}: this run has {', '.join(known)}.{nearest(name, known)}"]
    )


def others(recipe: Recipe, settings: Settings) -> set[str]:
    """Names that files given by `--test` must leave to sets of the run's own."""
    if not settings.test:
        return set()
    asked = [*map(_resolved, settings.test)]
    own = {"dev": [], **_own_sets(recipe)}
    return {name for name, files in own.items() if [*map(_resolved, files)] != asked}


def _resolved(file: str) -> Path:
    return Path(file).resolve()


def _own_sets(recipe: Recipe) -> dict[str, Sequence[str]]:
    """The files of each set that the recipe names."""
    data, named = recipe.data, dict[str, Sequence[str]](recipe.data.sets)
    if data.synthetic is not None:
        return named | world_files(recipe)
    given = {"train": data.train, "dev": data.dev, "test": data.test}
    return named | {name: files for name, files in given.items() if files}


def _open(files: Sequence[str], recipe: Recipe, train: Train) -> Corpus:
    return open_corpus(files, task=recipe.task, unit=recipe.data.unit, like=train.corpus)


def _stem(path: str) -> str:
    """`newstest` for `data/newstest.en.gz`."""
    return Path(path).name.partition(".")[0] or "test"


def seen_in_train(held_out: HeldOut, records: Sequence[Record], train: Train) -> list[bool] | None:
    """For each text, whether train has it too; None where that cannot be known."""
    if train.corpus is None:
        return None
    learnt = train.corpus.kept()
    if held_out.rows is not None:  # the set is a part of the same files
        apart = set(held_out.rows.tolist())
        learnt = (record for i, record in enumerate(learnt) if i not in apart)
    return overlap(learnt, records)
