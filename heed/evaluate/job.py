"""Options of `heed evaluate`, and the job that the evaluation of each task works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heed.arrays import Floats
from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import Record
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.evaluate.held_out_set import HeldOutSet, TrainingText
from heed.evaluate.text_columns import token_columns, word_columns
from heed.models import Model
from heed.runs.item_counts import (
    BLOCK,
    GROUP,
    IN_TRAIN,
    TEXT,
    ItemCounts,
    hash_texts,
    in_train_column,
    write_items,
)
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS
from heed.stats.bootstrap import RESAMPLES
from heed.terminal import Say


@dataclass(frozen=True)
class Options:
    """Options of `heed evaluate`."""

    split: str | None = None
    test: Sequence[str] = ()
    metrics: Sequence[str] = ()
    """Metrics of translations; all by default."""
    resamples: int = RESAMPLES
    sentences: Path | None = None
    """An additional file for every translation with its score."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `[decode]` to change: beam=5."""
    baseline: bool = False
    """Whether to compare a classifier with baselines trained on the same text."""
    calibrate: bool | None = None
    """True to fit the temperature of a classifier's probabilities on dev first, False to delete it,
    None to use the run's own."""
    groups: str | None = None
    """The group of each text: a column of the tables, or a file with a name for each line."""
    header: bool | None = None
    """Whether the first row of a table names its columns; by default as the recipe has it."""
    text: Sequence[str] = ()
    """Texts to score token by token, instead of a set."""
    window: int | None = None
    """Tokens that a language model reads at once; data.max_length by default."""
    stride: int | None = None
    """Tokens between two windows over a long text; half a window by default."""
    weights: str = BEST_WEIGHTS
    """Which weights of the run: "best", "last" or a step."""
    run_name: str | None = None
    """How the result names the run; by its folder by default."""
    sample: int | None = None
    """Evaluate only so many texts, evenly chosen, to see how long an evaluation takes."""


@dataclass(frozen=True)
class Job:
    """A loaded run and the texts to score it on."""

    run: Run
    model: Model
    tokenizer: Tokenizer
    recipe: Recipe
    train: TrainingText
    held_out: HeldOutSet
    records: Sequence[Record]
    seen: Sequence[bool] | None
    """For each text, whether it also occurs in train; None where that is unknown."""
    parts: Sequence[Sequence[int]]
    """Rows of `records`: the whole set, then its clean part, if that differs."""
    batches: BucketedBatches
    """The texts as batches; their rows are those of the set's token store."""
    options: Options
    notify: Say
    groups: Sequence[int] | None = None
    """The number of each text's group (talk, document); None where groups are not known."""
    name_suffix: str = ""
    """What is appended to names of sets: another window, weights that are not the best ones."""
    checkpoint: dict[str, Any] | None = None
    """The weights: their step, and how they were chosen."""
    writers: list[Callable[[Job], None]] = field(default_factory=list)
    """Functions that write to the run folder. They run last, because the folder may not be
    writable; and they get this job again, because another evaluation may have taken its name."""

    def in_train_cell(self, row: int) -> str:
        """Whether a text also occurs in train, as a cell of a table: yes, no or unknown (empty)."""
        return "" if self.seen is None else "yes" if self.seen[row] else "no"

    def save_items(
        self,
        columns: Mapping[str, Floats],
        *,
        signatures: Mapping[str, str] | None = None,
        classes: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        text_of_block: Sequence[int] | None = None,
    ) -> None:
        """Save the item counts with the other results, and what describes the texts in numbers.

        `text_of_block` gives the text of each item, where items are blocks of a text.
        """
        items = len(next(iter(columns.values())))
        text_of_item = range(items) if text_of_block is None else text_of_block
        seen = None if self.seen is None else [self.seen[i] for i in text_of_item]
        groups = {}
        if self.groups is not None:
            groups[GROUP] = np.array([self.groups[i] for i in text_of_item], dtype=np.float64)
        texts = [(*record.texts, record.label or "") for record in self.records]
        sources = [record.texts[0] for record in self.records]
        blocks = np.bincount(text_of_item, minlength=len(sources)).tolist()
        described = word_columns(sources, blocks, self.train.word_frequencies)
        if text_of_block is None:
            described |= token_columns(sources, self.tokenizer)
        counts = ItemCounts(
            task=self.recipe.task,
            set_name=self.held_out.name,
            text_hash=hash_texts(texts),
            columns={**columns, **described, IN_TRAIN: in_train_column(seen, items), **groups},
            signatures=dict(signatures or {}),
            classes=tuple(classes),
            unit=TEXT if text_of_block is None else BLOCK,
            checkpoint=self.checkpoint,
            settings=dict(settings or {}),
        )
        self.writers.append(partial(_write_items, counts=counts))


def _write_items(job: Job, counts: ItemCounts) -> None:
    write_items(job.run.folder, replace(counts, set_name=job.held_out.name))
