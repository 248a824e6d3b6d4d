"""The classification pipeline: texts or pairs of texts to labels with probabilities.

Shapes: n texts, k classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batching.padding import pad_sequences
from heed.data.corpus.lines import escape_tsv
from heed.data.token_store import join_pair
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import batch_plan
from heed.errors import DataError, RunError
from heed.files import to_json
from heed.models import Classifier
from heed.models.inference import evaluating, nan_error
from heed.pipelines.line_io import LineResult
from heed.runs.labels import Classes

BATCH = 128
"""Texts per batch."""
Text = str | tuple[str, str]
"""One text, or a pair."""


@dataclass(frozen=True)
class Label:
    """The predicted class of a text and the probability of every class; none for a blank text."""

    text: str
    name: str | None
    probabilities: dict[str, float]
    cut: bool = False
    """Whether the text was longer than the model's limit."""

    @property
    def probability(self) -> float | None:
        """The probability of the predicted class."""
        return None if self.name is None else self.probabilities[self.name]

    def line(self, *, probabilities: bool = False) -> str:
        """The label, then tab-separated probabilities if requested; empty for a blank text."""
        cells = [escape_tsv(self.name or "")]
        if probabilities:
            cells += [f"{escape_tsv(name)}={p:.4f}" for name, p in self.probabilities.items()]
        return "\t".join(cells)

    def to_dict(self, *, probabilities: bool = False) -> dict[str, Any]:
        """The fields for JSON."""
        fields = {"text": self.text, "label": self.name, "probability": self.probability}
        return fields | ({"probabilities": self.probabilities} if probabilities else {})


class ClassificationPipeline:
    """Classifies texts, with calibrated probabilities if a temperature was fitted."""

    def __init__(
        self,
        model: Classifier,
        tokenizer: Tokenizer,
        classes: Classes,
        *,
        max_length: int,
        temperature: float = 1.0,
    ) -> None:
        """`max_length` is how many tokens the model reads, begin and end token included."""
        self.model, self.tokenizer, self.classes = model, tokenizer, classes
        self.max_length, self.temperature = max(3, max_length), temperature
        self.sizes = batch_plan.StateSizes(bucketed=False)

    def make_batch_invariant(self) -> None:
        """Pad texts and batches to fixed sizes.

        On a CPU, with weights that the caller prepacked (`prepack_weights`), the probabilities of a
        text then do not depend on what is classified beside it.
        """
        self.sizes = batch_plan.StateSizes(bucketed=False, fixed_lengths=True)

    def logits(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """The logits of each text [n, k]; none of the texts may be blank."""
        return self.logits_of_ids(self._encode(texts))

    def input_ids(self, texts: Sequence[Text]) -> list[list[int]]:
        """The ids that the model reads of each text: cut to its limit, between begin and end."""
        return [self._model_input(ids) for ids in self._encode(texts)]

    def logits_of_ids(self, encoded: Sequence[list[int]]) -> NDArray[np.float64]:
        """The logits of encoded texts [n, k], without begin and end token."""
        inputs = [self._model_input(ids) for ids in encoded]
        logits_nk = np.empty((len(inputs), len(self.classes.names)))
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            for length, rows in self._batches([*map(len, inputs)]):
                padded = rows + rows[:1] * (self.sizes.slots(len(rows)) - len(rows))
                pad = self.tokenizer.specials.pad
                ids, mask = pad_sequences([np.array(inputs[i]) for i in padded], length, pad)
                logits = self.model(ids.to(device), mask=mask.to(device))
                logits_nk[rows] = logits.double().cpu().numpy()[: len(rows)]
        if not np.isfinite(logits_nk).all():
            raise nan_error([self.model], "no class can be chosen")
        return logits_nk

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """The rows of each batch and the length they are padded to: of similar length."""
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        if not self.sizes.fixed_lengths:
            for first in range(0, len(order), BATCH):
                rows = order[first : first + BATCH]
                yield lengths[rows[-1]], rows
            return
        for size, group in groupby(order, key=lambda i: self.sizes.padded_length(lengths[i])):
            same = list(group)
            for first in range(0, len(same), BATCH):
                yield size, same[first : first + BATCH]

    def classify_lines(self, lines: Sequence[str], *, first: int = 0) -> list[Label]:
        """One label per line, in order; the texts of a pair are separated by a tab.

        `first` is how many lines came before.
        """
        texts = [self.parse_line(line, first + i + 1) for i, line in enumerate(lines)]
        return self.classify(texts, lines)

    def classify(self, texts: Sequence[Text], lines: Sequence[str] | None = None) -> list[Label]:
        """One label per text; `lines` are the texts as they came in."""
        shown = [" ⇥ ".join(text_parts(text)) for text in texts] if lines is None else lines
        filled = [i for i, text in enumerate(texts) if all(map(str.strip, text_parts(text)))]
        encoded = self._encode([texts[i] for i in filled])
        probabilities = dict(zip(filled, self._probabilities(encoded), strict=True))
        cut = dict(zip(filled, (len(ids) + 2 > self.max_length for ids in encoded), strict=True))
        labels = []
        for i, line in enumerate(shown):
            if i not in probabilities:
                labels.append(Label(line, None, {}))
                continue
            names = self.classes.names
            by_name = dict(zip(names, probabilities[i].tolist(), strict=True))
            labels.append(Label(line, names[int(probabilities[i].argmax())], by_name, cut[i]))
        return labels

    def _probabilities(self, encoded: Sequence[list[int]]) -> NDArray[np.float64]:
        """[n, k]: the softmax of the logits divided by the temperature."""
        scaled = self.logits_of_ids(encoded) / self.temperature
        powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def _encode(self, texts: Sequence[Text]) -> list[list[int]]:
        parts_of = [text_parts(text) for text in texts]
        flat = iter(self.tokenizer.encode_batch([part for parts in parts_of for part in parts]))
        specials = self.tokenizer.specials
        return [join_pair([next(flat) for _ in parts], specials) for parts in parts_of]

    def _model_input(self, ids: list[int]) -> list[int]:
        """Ids as in training: between begin and end token, which stay if the text is cut."""
        specials = self.tokenizer.specials
        return [specials.bos, *ids[: self.max_length - 2], specials.eos]

    def parse_line(self, line: str, number: int) -> Text:
        """A line as one text, or as a pair if the run was trained on pairs."""
        if not self.classes.pairs:
            return line
        first, *others = line.split("\t")
        if not line.strip():
            return ("", "")
        if len(others) != 1:
            raise DataError(
                f"this line has {len(others)} tabs, but this run classifies pairs of texts.",
                where=f"line {number}",
                todo="Write two texts with one tab between.",
            )
        return first, others[0]


def text_parts(text: Text) -> tuple[str, ...]:
    """The one text, or the two of a pair."""
    return (text,) if isinstance(text, str) else text


def check_text_kind(classes: Classes, texts: Sequence[Text]) -> None:
    """Raise an error for single texts where a run was trained on pairs, and for the opposite."""
    for number, text in enumerate(texts, 1):
        if classes.pairs == isinstance(text, str):
            needed = "pairs of texts" if classes.pairs else "single texts"
            raise RunError(f"text {number}: this run was trained on {needed}.")


@dataclass
class ClassificationLines:
    """The line task of `heed classify`: labels lines, and counts those that were too long."""

    pipeline: ClassificationPipeline
    probabilities: bool = False
    json: bool = False
    classified: int = 0
    cut: int = 0

    def run(self, lines: Sequence[str], *, first: int) -> Iterator[LineResult]:
        """One label per line."""
        for label in self.pipeline.classify_lines(lines, first=first):
            self.classified += 1
            self.cut += label.cut
            if self.json:
                yield LineResult([to_json(label.to_dict(probabilities=self.probabilities))])
            else:
                yield LineResult([label.line(probabilities=self.probabilities)])

    def summary(self) -> str | None:
        """How many texts were longer than the model's limit."""
        if not self.cut:
            return None
        share = f"{self.cut:,} of {self.classified:,} texts"
        return f"{share} are longer than this model reads; the rest of them was ignored."
