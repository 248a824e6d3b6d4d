"""Text in, labels out: what a classifier says of texts or pairs, line by line.

Shapes: n texts, k classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.batching.batch import padded
from heed.data.corpus.text_files import escaped
from heed.data.token_store import joined
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError, RunError
from heed.files import to_json
from heed.models import Classifier
from heed.pipelines.line_io import Lines, write_line
from heed.runs.labels import Classes

BATCH = 128
"""Texts read side by side."""
Text = str | tuple[str, str]
"""One text, or a pair."""


@dataclass(frozen=True)
class Label:
    """What a classifier says of a text; of a blank one, nothing."""

    text: str
    name: str | None
    probabilities: dict[str, float]
    cut: bool = False
    """Whether the text was longer than the model reads."""

    @property
    def probability(self) -> float | None:
        """How sure it is."""
        return None if self.name is None else self.probabilities[self.name]

    def line(self, *, probabilities: bool = False) -> str:
        """The label, and after tabs every class with its probability; nothing for a blank text."""
        cells = [escaped(self.name or "")]
        if probabilities:
            cells += [f"{escaped(name)}={p:.4f}" for name, p in self.probabilities.items()]
        return "\t".join(cells)

    def facts(self, *, probabilities: bool = False) -> dict[str, Any]:
        """The same for a program."""
        found = {"text": self.text, "label": self.name, "probability": self.probability}
        return found | ({"probabilities": self.probabilities} if probabilities else {})


class ClassificationPipeline:
    """Says of texts which class they are of, and how likely each is."""

    def __init__(
        self,
        model: Classifier,
        tokenizer: Tokenizer,
        classes: Classes,
        *,
        longest: int,
        temperature: float = 1.0,
    ) -> None:
        """`longest` is how many tokens the model reads, those around the text included."""
        self.model, self.tokenizer, self.classes = model, tokenizer, classes
        self.longest, self.temperature = max(3, longest), temperature

    def logits(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """[n, k] what the model makes of each text; none of them may be blank."""
        return self._logits(self._encoded(texts))

    def _logits(self, encoded: Sequence[list[int]]) -> NDArray[np.float64]:
        ids = [self._read(one) for one in encoded]
        out = np.empty((len(ids), len(self.classes.names)))
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # little padding
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            for first in range(0, len(order), BATCH):
                rows = order[first : first + BATCH]
                longest = len(ids[rows[-1]])
                fill = self.tokenizer.specials.pad
                read, mask = padded([np.array(ids[i]) for i in rows], longest, fill)
                said = self.model(read.to(device), mask=mask.to(device))
                out[rows] = said.double().cpu().numpy()
        return out

    def label(self, lines: Sequence[str], *, first: int = 0) -> list[Label]:
        """One label a line, in order; a pair has a tab between its texts.

        `first` is how many lines went before.
        """
        texts = [self._parted(line, first + i + 1) for i, line in enumerate(lines)]
        return self.labels(texts, lines)

    def labels(self, texts: Sequence[Text], lines: Sequence[str] | None = None) -> list[Label]:
        """One label a text; `lines` are the texts as they came in."""
        told = [" ⇥ ".join(_parts(text)) for text in texts] if lines is None else lines
        asked = [i for i, text in enumerate(texts) if all(map(str.strip, _parts(text)))]
        ids = self._encoded([texts[i] for i in asked])
        chances = dict(zip(asked, self._chances(ids), strict=True))
        cut = dict(zip(asked, (len(one) + 2 > self.longest for one in ids), strict=True))
        found = []
        for i, line in enumerate(told):
            if i not in chances:
                found.append(Label(line, None, {}))
                continue
            names = self.classes.names
            by_name = dict(zip(names, chances[i].tolist(), strict=True))
            found.append(Label(line, names[int(chances[i].argmax())], by_name, cut[i]))
        return found

    def _chances(self, ids: Sequence[list[int]]) -> NDArray[np.float64]:
        """[n, k] probabilities: the softmax of the logits over the temperature."""
        scaled = self._logits(ids) / self.temperature
        odds = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def _encoded(self, texts: Sequence[Text]) -> list[list[int]]:
        parts = [_parts(text) for text in texts]
        flat = iter(self.tokenizer.encode_batch([part for several in parts for part in several]))
        marks = self.tokenizer.specials
        return [joined([next(flat) for _ in several], marks) for several in parts]

    def _read(self, ids: list[int]) -> list[int]:
        """A text as training shows it: between BOS and EOS, which stand even where it is cut."""
        marks = self.tokenizer.specials
        return [marks.bos, *ids[: self.longest - 2], marks.eos]

    def _parted(self, line: str, number: int) -> Text:
        """A line as the run's texts are: whole, or two texts with a tab between."""
        if not self.classes.pairs:
            return line
        first, *others = line.split("\t")
        if not line.strip():
            return ("", "")
        if len(others) != 1:
            raise DataError(
                f"this line has {len(others)} tabs, and this run tells pairs of texts apart.",
                where=f"line {number}",
                todo="Write two texts with one tab between.",
            )
        return first, others[0]


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def check_kind(classes: Classes, texts: Sequence[Text]) -> None:
    """Texts for a run that learnt from texts, pairs for one that learnt from pairs."""
    for number, text in enumerate(texts, 1):
        if classes.pairs == isinstance(text, str):
            needed = "pairs of texts" if classes.pairs else "single texts"
            raise RunError(f"text {number}: this run was trained on {needed}.")


def pump(
    lines: Lines,
    labeller: ClassificationPipeline,
    *,
    probabilities: bool,
    as_json: bool,
    out: BinaryIO,
    say: Callable[[str], None],
) -> None:
    """Classify groups of lines as they come, and write one line for each."""
    count = cut = 0
    for group in lines:
        for label in labeller.label(group, first=count):
            count += 1
            cut += label.cut
            if as_json:
                told = to_json(label.facts(probabilities=probabilities))
            else:
                told = label.line(probabilities=probabilities)
            write_line(out, told)
        out.flush()
    if cut:
        say(f"{cut:,} of {count:,} texts are longer than this model reads; the rest was left out.")
