"""The set to evaluate on, and the training text that it must not overlap with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from heed.config import Recipe
from heed.data.batching.length_buckets import Rows
from heed.data.corpus import Corpus, Record, open_corpus
from heed.data.doctor import find_overlap
from heed.data.doctor.language import has_swapped_sides
from heed.data.held_out import hold_out_dev
from heed.data.splits import open_splits, split_files, synthetic_files
from heed.errors import ConfigError, DataError, RunError, make_printable, nearest
from heed.evaluate.text_columns import WordFrequencies
from heed.runs.run import Run

MAX_NAMED = 3
"""Files whose names are in the name of a set of several."""


@dataclass(frozen=True)
class TrainingText:
    """The text that a run was trained on, or the reason why it is missing."""

    corpus: Corpus | None
    missing: str = ""
    rows: Rows | None = None
    """Rows of the corpus that were trained on; None for all, where none were set aside for dev."""

    def records(self) -> Iterator[Record]:
        """The texts that the run was trained on, without those set aside for dev."""
        records = () if self.corpus is None else self.corpus.usable_records()
        if self.rows is None:
            yield from records
            return
        trained_on = set(self.rows.tolist())
        yield from (record for i, record in enumerate(records) if i in trained_on)

    @cached_property
    def word_frequencies(self) -> WordFrequencies | None:
        """How often each word of the first text of a record occurs; None where train is missing."""
        if self.corpus is None:
            return None
        return WordFrequencies.of(record.texts[0] for record in self.records())


@dataclass(frozen=True)
class HeldOutSet:
    """A set of texts to evaluate on."""

    name: str
    corpus: Corpus
    rows: Rows | None = None
    """Rows of the corpus that belong to the set; None for all."""
    is_train: bool = False
    """Whether the set is what the run was trained on."""

    @property
    def is_part(self) -> bool:
        """Whether the set is a part of its files: dev, or train without dev."""
        return self.rows is not None or self.corpus.line_range is not None

    def records(self, dropped: Counter[str]) -> list[Record]:
        """The texts, in order; `dropped` counts those left out, by reason."""
        records = list(self.corpus.usable_records(dropped))
        return records if self.rows is None else [records[i] for i in self.rows.tolist()]

    def choose_evenly(self, count: int) -> HeldOutSet:
        """The set with at most so many of its texts, evenly chosen."""
        rows = self.rows
        if rows is None:
            rows = np.arange(sum(1 for _ in self.corpus.usable_records()), dtype=np.uint32)
        chosen = np.linspace(0, len(rows), min(count, len(rows)), endpoint=False).astype(np.int64)
        return replace(self, rows=rows[chosen])


def find_training_text(run: Run, recipe: Recipe) -> TrainingText:
    """The text that the run was trained on, if it is still there and unchanged."""
    data = recipe.data
    if data.synthetic is None and not data.train:  # the run was not trained here
        return TrainingText(None, "this run names no training text.")
    try:
        if data.synthetic is not None:
            corpus = open_splits(recipe)["train"]
        else:
            corpus = open_corpus(
                data.train,
                task=recipe.task,
                unit=data.unit,
                header=data.header,
                drop=data.drop_pattern,
            )
            if data.splits_off_dev:
                corpus = split_files(corpus, data.dev_share)["train"]
        fingerprint = corpus.fingerprint()
    except DataError as error:
        return TrainingText(None, f"the training text cannot be read: {error}")
    if run.environment().get("data", {}).get("train") != fingerprint:
        paths = ", ".join(corpus.paths)
        return TrainingText(None, f"the training text has changed since training: {paths}")
    if not data.splits_off_dev or corpus.line_range is not None:
        return TrainingText(corpus)
    count = sum(1 for _ in corpus.usable_records())
    return TrainingText(corpus, rows=hold_out_dev(count, data)[1])


def find_set(
    recipe: Recipe,
    train: TrainingText,
    *,
    split: str | None = None,
    test: Sequence[str] = (),
    header: bool | None = None,
) -> HeldOutSet:
    """The files of `test`, or the split of that name, or the recipe's test set, or dev.

    `header` says whether the first row of a table in `test` names its columns; None decides as the
    recipe does.
    """
    if header is not None and not test:
        raise ConfigError(["--no-header is about the files of --test: name them."])
    if test and split is not None:
        raise ConfigError(["--test and --split are two ways to name a set: use one of them."])
    if test:
        held_out = HeldOutSet(_name_files(test, recipe.task), _open(test, recipe, train, header))
        _refuse_swapped_sides(held_out.corpus, train)
        return held_out
    named = _recipe_sets(recipe)
    if not named:
        raise RunError("this run names no text to evaluate on.", todo="Name files with --test.")
    name = split or ("test" if "test" in named else "dev")
    if name == "train" and train.corpus is not None:
        return HeldOutSet(name, train.corpus, train.rows, is_train=True)
    if name == "dev" and name not in named and train.corpus is not None:
        if train.corpus.line_range is not None:
            return HeldOutSet(name, train.corpus.remainder())
        if train.rows is not None:
            count = sum(1 for _ in train.corpus.usable_records())
            dev_rows, _ = hold_out_dev(count, recipe.data)
            return HeldOutSet(name, train.corpus, dev_rows)
    if name in named and (name != "train" or not recipe.data.splits_off_dev):
        return HeldOutSet(name, _open(named[name], recipe, train))
    if name == "dev" and not recipe.data.has_dev:
        raise RunError(
            "this run has no dev set: data.dev_share is 0.", todo="Name files with --test."
        )
    known = [*named, *([] if "dev" in named or not recipe.data.has_dev else ["dev"])]
    if name in known:
        what = f"dev was set aside from train, and {train.missing}"
        raise RunError(what, todo="Name files with --test.")
    raise ConfigError(
        [f"There is no set {name!r}: this run has {', '.join(known)}.{nearest(name, known)}"]
    )


def reserved_names(recipe: Recipe, test: Sequence[str]) -> set[str]:
    """Names of the run's own sets, which other files given by `--test` must not take."""
    if not test:
        return set()
    test_files = [*map(_resolved, test)]
    sets = {"dev": [], **_recipe_sets(recipe)}
    return {name for name, files in sets.items() if [*map(_resolved, files)] != test_files}


def _resolved(file: str) -> Path:
    return Path(file).resolve()


def _recipe_sets(recipe: Recipe) -> dict[str, Sequence[str]]:
    """The files of each set that the recipe names."""
    data, named = recipe.data, dict[str, Sequence[str]](recipe.data.sets)
    if data.synthetic is not None:
        return named | synthetic_files(recipe)
    splits = {"train": data.train, "dev": data.dev, "test": data.test}
    return named | {name: files for name, files in splits.items() if files}


def _open(
    files: Sequence[str], recipe: Recipe, train: TrainingText, header: bool | None = None
) -> Corpus:
    data = recipe.data
    return open_corpus(
        files,
        task=recipe.task,
        unit=data.unit,
        header=data.header if header is None else header,
        like=train.corpus if header is None else None,
    )


def _refuse_swapped_sides(corpus: Corpus, train: TrainingText) -> None:
    """Raise an error where the sides of a test set are in the order opposite to train's."""
    if train.corpus is not None and has_swapped_sides(corpus, train.corpus):
        raise DataError(
            "source and target are swapped: their languages are those of train in the other order.",
            where=", ".join(map(make_printable, corpus.paths)),
            todo="Name the two files, or columns, in train's order.",
        )


def _name_files(files: Sequence[str], task: str) -> str:
    """The name of a set: that of its file, or of its files; two sides share the first's."""
    stems = list(dict.fromkeys(map(_stem, files)))
    if task == "translate" or len(stems) == 1:
        return stems[0]
    more = f"+{len(stems) - MAX_NAMED}-more" if len(stems) > MAX_NAMED else ""
    return "+".join(stems[:MAX_NAMED]) + more


def _stem(path: str) -> str:
    """`newstest` for `data/newstest.en.gz`."""
    return Path(path).name.partition(".")[0] or "test"


def seen_in_train(
    held_out: HeldOutSet, records: Sequence[Record], train: TrainingText
) -> list[bool] | None:
    """For each text, whether it also occurs in train; None where train is missing."""
    if train.corpus is None:
        return None
    if held_out.is_train:
        return [True] * len(records)
    # A set of its own may not share text with dev either: the best weights were chosen on it.
    is_part_of_train = held_out.rows is not None
    train_records = train.records() if is_part_of_train else iter(train.corpus.usable_records())
    if train.corpus.line_range is not None:  # a text is a whole file, and train a part of it
        whole_files = replace(train.corpus, line_range=None)
        train_records = chain(train_records, whole_files.usable_records())
    return find_overlap(train_records, records)


def find_parts(seen: Sequence[bool] | None, count: int) -> tuple[list[int], list[Sequence[int]]]:
    """The clean rows, which do not occur in train, and the parts of the set that are scored.

    The parts are all rows, then the clean ones where they are some of the rows, but not all.
    """
    clean = [i for i, known in enumerate(seen or ()) if not known]
    parts: list[Sequence[int]] = [range(count)]
    if 0 < len(clean) < count:
        parts.append(clean)
    return clean, parts
