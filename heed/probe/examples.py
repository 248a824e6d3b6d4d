"""Examples of a held-out set as a model reads them, streamed in batches of similar length.

An example is what one forward pass reads of a text: a sentence pair, a text to classify, or a
window of at most `data.max_length` tokens of a language model's text. Memory is that of one chunk
of examples, whatever the size of the set.

Shapes: b examples, n tokens, m source tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from heed.config import Recipe
from heed.data.batching.padding import pad_sequences
from heed.data.corpus import Record
from heed.data.corpus.lines import read_lines
from heed.data.token_store import class_index
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError, make_printable
from heed.evaluate.held_out_set import HeldOutSet, TrainingText, find_set, find_training_text
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.models.inference import position_limit
from heed.pipelines.classify import ClassificationPipeline, Text
from heed.probe.text_trace import count_traceable
from heed.runs.labels import Classes
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS

Links = frozenset[tuple[int, int]]
"""(source word, target word), counted from 0."""
CHUNK = 1024
"""Examples that are sorted by length together."""
MAX_TOKENS = 1 << 12
"""Tokens of a batch, padding included."""


@dataclass(frozen=True)
class Example:
    """What a model reads of one text, and what it is to predict."""

    ids: list[int]
    """The tokens that are read, special tokens included; of a translator, by its decoder."""
    targets: list[int]
    """The token after each of these, or the one class of a text."""
    texts: tuple[str, ...]
    source: list[int] = field(default_factory=list)
    """The source that a translator's encoder reads, with its end token."""
    links: Links | None = None
    """The gold alignment of a whole sentence pair, where there is one."""
    is_whole: bool = True
    """Whether all of the text was read; a longer one is cut."""
    begins_text: bool = True
    """Whether this is the first window of its text."""

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.ids), len(self.source))


@dataclass(frozen=True)
class Inputs:
    """A batch of examples as tensors, padded on the right."""

    examples: list[Example]
    ids_bn: Tensor
    real_bn: Tensor
    source_bm: Tensor | None = None
    source_real_bm: Tensor | None = None

    @classmethod
    def pad(cls, examples: list[Example], padding: int, device: torch.device) -> Inputs:
        """The tensors of these examples on a device."""
        ids_bn, real_bn = _pad([one.ids for one in examples], padding, device)
        if not examples[0].source:
            return cls(examples, ids_bn, real_bn)
        source = _pad([one.source for one in examples], padding, device)
        return cls(examples, ids_bn, real_bn, *source)


@dataclass
class ProbeSet:
    """A loaded run, and the held-out set that it is probed on."""

    run: Run
    model: Model
    tokenizer: Tokenizer
    recipe: Recipe
    held_out: HeldOutSet
    train: TrainingText
    gold: Path | None = None
    """A file of gold alignments, a line for each sentence pair (0-0 1-2)."""
    limit: int | None = None
    """Texts to read; None for all."""
    classes: Classes | None = None

    @property
    def is_causal(self) -> bool:
        """Whether the decoder, or the only stack, attends to earlier tokens alone."""
        return isinstance(self.model, Translator) or (
            isinstance(self.model, LanguageModel) and self.model.causal
        )

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens that the model reads here."""
        limit = None
        if not isinstance(self.model, Classifier):
            limit = position_limit([self.model])
        length = self.recipe.data.max_length
        return length if limit is None else min(length, limit)

    def records(self) -> Iterator[Record]:
        """The texts of the set, in order, up to the limit."""
        rows = None if self.held_out.rows is None else set(self.held_out.rows.tolist())
        records = enumerate(self.held_out.corpus.usable_records())
        chosen = (record for i, record in records if rows is None or i in rows)
        return islice(chosen, self.limit)

    def examples(self) -> Iterator[Example]:
        """The examples of the set, in order."""
        encode = self._encoder()
        records = self._records_with_links()
        while chunk := list(islice(records, CHUNK)):
            yield from encode([record for record, _ in chunk], [links for _, links in chunk])

    def batches(self) -> Iterator[Inputs]:
        """The examples in batches: sorted by length within each chunk."""
        examples = self.examples()
        while chunk := list(islice(examples, CHUNK)):
            yield from self.batches_of(chunk)

    def batches_of(self, examples: Sequence[Example]) -> Iterator[Inputs]:
        """These examples in batches of similar length."""
        device, padding = next(self.model.parameters()).device, self.tokenizer.specials.pad
        remaining = sorted(examples, key=lambda one: -one.length)
        while remaining:
            longest = remaining[0].length
            count = max(1, min(MAX_TOKENS // longest, count_traceable(self.model, longest)))
            batch, remaining = remaining[:count], remaining[count:]
            yield Inputs.pad(batch, padding, device)

    def _records_with_links(self) -> Iterator[tuple[Record, Links | None]]:
        if self.gold is None:
            yield from ((record, None) for record in self.records())
            return
        lines, number = read_lines(str(self.gold)), 0
        for record in self.records():
            line: str | None = None
            while number < record.place.line:
                line, number = next(lines, None), number + 1
            if line is None:
                raise DataError(
                    f"this file ends before line {record.place.line:,}, and there are more pairs.",
                    where=make_printable(str(self.gold)),
                    todo="Give one line of links for every line of the two texts.",
                )
            yield record, parse_links(line, record.texts, f"{self.gold}:{number}")

    def _encoder(self) -> Callable[[list[Record], list[Links | None]], Iterator[Example]]:
        if isinstance(self.model, Translator):
            return self._encode_pairs
        return self._encode_labeled if isinstance(self.model, Classifier) else self._encode_text

    def _encode_pairs(self, records: list[Record], links: list[Links | None]) -> Iterator[Example]:
        specials, room = self.tokenizer.specials, self.max_length - 1
        sources = self.tokenizer.encode_batch([record.texts[0] for record in records])
        targets = self.tokenizer.encode_batch([record.texts[1] for record in records])
        for record, gold, source, target in zip(records, links, sources, targets, strict=True):
            is_whole = max(len(source), len(target)) <= room
            yield Example(
                [specials.bos, *target[:room]],
                [*target, specials.eos][: room + 1],
                record.texts,
                [*source[:room], specials.eos],
                gold if is_whole else None,
                is_whole,
            )

    def _encode_labeled(
        self, records: list[Record], links: list[Links | None]
    ) -> Iterator[Example]:
        classes = cast("Classes", self.classes)
        pipeline = ClassificationPipeline(
            cast("Classifier", self.model), self.tokenizer, classes, max_length=self.max_length
        )
        texts: list[Text] = [
            (record.texts[0], record.texts[1]) if record.texts[1:] else record.texts[0]
            for record in records
        ]
        indices = {name: i for i, name in enumerate(classes.names)}
        for record, ids in zip(records, pipeline.input_ids(texts), strict=True):
            target, is_whole = class_index(record, indices), self._is_whole(ids, record.texts)
            yield Example(ids, [target], record.texts, is_whole=is_whole)

    def _is_whole(self, ids: list[int], texts: tuple[str, ...]) -> bool:
        """Whether a classifier reads all of a text, or of both texts of a pair."""
        if len(ids) < self.max_length:
            return True
        tokens = sum(len(self.tokenizer.encode(text)) for text in texts)
        return tokens + len(texts) + 1 <= self.max_length  # begin, separator and end

    def _encode_text(self, records: list[Record], links: list[Links | None]) -> Iterator[Example]:
        """Windows over each text; one of a masked language model predicts its own tokens."""
        specials, window = self.tokenizer.specials, self.max_length
        encoded = self.tokenizer.encode_batch([record.texts[0] for record in records])
        for record, ids in zip(records, encoded, strict=True):
            whole = [specials.bos, *ids, specials.eos]
            inputs, targets = (whole[:-1], whole[1:]) if self.is_causal else (whole, whole)
            for start in range(0, len(inputs), window):
                part = slice(start, start + window)
                begins = start == 0
                yield Example(inputs[part], targets[part], record.texts, begins_text=begins)


def open_probe_set(
    folder: Path,
    *,
    split: str | None = None,
    test: Sequence[str] = (),
    gold: Path | None = None,
    limit: int | None = None,
    device: str = "auto",
    weights: str = BEST_WEIGHTS,
) -> ProbeSet:
    """Load a run, and open the set to probe it on: dev, unless a split or files are named."""
    if limit is not None and limit < 1:
        raise ConfigError([f"--limit is {limit}: read at least one text."])
    model, tokenizer, recipe = load_run(folder, device=device, weights=weights)
    run = Run.open(folder)
    train = find_training_text(run, recipe)
    held_out = find_set(recipe, train, split=split if test else split or "dev", test=test)
    classes = Classes.require(run) if recipe.task == "classify" else None
    if gold is None and not test and recipe.data.synthetic is not None:
        gold = _generated_links(held_out)
    elif gold is not None:
        _check_gold(gold, recipe, held_out)
    return ProbeSet(
        run, model, tokenizer, recipe, held_out, train, gold=gold, limit=limit, classes=classes
    )


def parse_links(line: str, texts: Sequence[str], where: str) -> Links:
    """Links in the Pharaoh format (`0-0 1-2`: source word, target word, counted from 0)."""
    sizes = [len(text.split()) for text in texts]
    links = set()
    for link in line.split():
        source, dash, target = link.partition("-")
        is_link = dash and source.isdecimal() and target.isdecimal()
        if not is_link or int(source) >= sizes[0] or int(target) >= sizes[1]:
            raise DataError(
                f"{link!r} links no words of this pair of {sizes[0]} and {sizes[1]} words.",
                where=make_printable(where),
                todo="Write source-target, counting the words between white space from 0: 0-0 1-2.",
            )
        links.add((int(source), int(target)))
    return frozenset(links)


def _check_gold(gold: Path, recipe: Recipe, held_out: HeldOutSet) -> None:
    if recipe.task != "translate":
        raise ConfigError([f"--gold is for translators; this run's task is {recipe.task!r}."])
    if held_out.corpus.layout is not None:
        raise ConfigError(["--gold needs a set of two plain text files, a line for each pair."])
    if not gold.is_file():
        raise DataError("there is no such file.", where=make_printable(str(gold)))


def _generated_links(held_out: HeldOutSet) -> Path | None:
    """The gold alignments that were generated together with a set of sentence pairs."""
    path = Path(held_out.corpus.paths[0]).with_suffix(".align")
    return path if len(held_out.corpus.paths) == 2 and path.is_file() else None


def _pad(sequences: list[list[int]], padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    arrays = [np.array(ids, np.int64) for ids in sequences]
    ids, real = pad_sequences(arrays, max(map(len, sequences)), padding)
    return ids.to(device), real.to(device)
