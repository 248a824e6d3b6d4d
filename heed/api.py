"""heed from Python: what the commands do, as objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from heed.config import Recipe
from heed.data.tokenizer import Tokenizer
from heed.decode import greedy
from heed.errors import RunError
from heed.models import Translator as Model
from heed.probe.maps import CrossMap, cross_map
from heed.train import engine

STREAMED = 64
"""Lines read ahead of a pipe and translated side by side."""


class Translator:
    """A trained translator: text in, text out."""

    def __init__(self, model: Model, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> Translator:
        """The translator that a run trained."""
        model, tokenizer, recipe = engine.load(Path(folder), device=device)
        if not isinstance(model, Model):
            raise RunError(
                f"this run was trained to {recipe.task}, not to translate.", where=str(folder)
            )
        return cls(model, tokenizer, recipe)

    def translate(self, texts: Iterable[str]) -> list[str]:
        """One translation a text, in order; what is blank stays empty."""
        texts = list(texts)
        full = [i for i, text in enumerate(texts) if text.strip()]
        settings, out = self.recipe.decode, [""] * len(texts)
        limit = self.recipe.data.max_length - 1
        written = greedy.translate(
            self.model,
            [ids[:limit] for ids in self.tokenizer.encode_batch([texts[i] for i in full])],
            max_ratio=settings.max_ratio,
            max_extra=settings.max_extra,
            batch_size=settings.batch_size,
        )
        for i, text in zip(full, self.tokenizer.decode_batch(written), strict=True):
            out[i] = " ".join(text.split())
        return out

    def stream(self, lines: Iterable[str]) -> Iterator[str]:
        """Translations as the lines come, a few at a time, in constant memory."""
        lines = iter(lines)
        while chunk := list(islice(lines, STREAMED)):
            yield from self.translate(chunk)

    def attention(self, text: str, translation: str | None = None) -> CrossMap:
        """Where the model looks while it writes this translation (its own, unless given one)."""
        written = self.translate([text])[0] if translation is None else translation
        return cross_map(self.model, self.tokenizer, text, written)
