"""heed from Python: what the commands do, as objects."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from heed.config import SECTIONS, DecodeConfig, Recipe
from heed.data.tokenizer import BOS, Tokenizer
from heed.decode.pipe import too_long
from heed.decode.search import Search
from heed.decode.texts import Scribe, Translation, strategy
from heed.errors import ConfigError, RunError, nearest
from heed.models import LanguageModel as Predictor
from heed.models import Translator as Model
from heed.probe.maps import CrossMap, cross_map
from heed.runs import Run
from heed.train import engine
from heed.train.command import free_folder

STREAMED = 64
"""Lines read ahead of a stream and translated side by side."""
TRAINED_BY = ("model", "train", "tokenizer", "data", "decode")
"""Where `train` looks for a key that it is told, in this order."""
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
M = TypeVar("M", Model, Predictor)


class Translator:
    """A trained translator: text in, text out. With more models, an ensemble of them."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, recipe: Recipe, *, others: Sequence[Model] = ()
    ) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self.models = [model, *others]
        self._scribes: dict[str, Scribe] = {}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *others: str | Path,
        device: str = "auto",
        precision: str = "float32",
    ) -> Translator:
        """The translator that a run trained; of several runs, the mean of what they say."""
        model, tokenizer, recipe = _load(folder, Model, device, precision)
        more = []
        for other in others:
            another, its_own, _ = _load(other, Model, device, precision)
            if its_own.fingerprint() != tokenizer.fingerprint():
                raise RunError(
                    f"its tokenizer is not that of {folder}, so they cannot write together.",
                    where=str(other),
                    todo="Train it on the same pieces: `[init] from` takes another run's.",
                )
            more.append(another)
        return cls(model, tokenizer, recipe, others=more)

    @classmethod
    def train(
        cls,
        *,
        train: Sequence[str | Path],
        dev: Sequence[str | Path] = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        **settings: Any,
    ) -> Translator:
        """Train on two files, or a table, and load what came of it.

        `settings` are a recipe's keys: layers=4, position="rope", epochs=10. A key that several
        sections have, is that of `model`, else of `train`.
        """
        files = {"train": [str(path) for path in train], "dev": [str(path) for path in dev]}
        tables: dict[str, Any] = {"task": "translate", "seed": seed, "data": files}
        for key, value in settings.items():
            tables.setdefault(_section_of(key), {})[key] = value
        folder = Path(run) if run is not None else free_folder("translate")
        engine.start(Recipe.of(tables), folder, device=device, console=Console(file=sys.stderr))
        return cls.load(folder, device=device)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[str]:
        """One translation a text, in order; what is blank stays empty.

        `settings` are keys of a recipe's `[decode]`: beam=5, length_penalty=0.6.
        """
        found = self.translations(list(texts), **settings)
        long = [i for i, one in enumerate(found) if one.parts > 1]
        if long:
            warnings.warn(f"text {long[0] + 1}: {too_long(found[long[0]])}", stacklevel=2)
        return [one.text for one in found]

    def translations(
        self,
        texts: Sequence[str],
        *,
        nbest: int = 1,
        alignments: bool = False,
        first: int = 0,
        **settings: Any,
    ) -> list[Translation]:
        """The same with scores, further translations and alignments.

        `first` is the number of the first text: what it samples depends on it.
        """
        return self.scribe(nbest, alignments, **settings).translate(texts, first=first)

    def scribe(self, nbest: int = 1, alignments: bool = False, **settings: Any) -> Scribe:
        """What translates by these settings, kept for the next time."""
        decode = DecodeConfig(**(self.recipe.decode.model_dump() | settings))
        key = f"{decode.model_dump_json()} {nbest} {alignments}"
        if key not in self._scribes:
            self._scribes[key] = Scribe(
                self.models,
                self.tokenizer,
                decode,
                longest=self.recipe.data.max_length - 1,
                nbest=nbest,
                alignments=alignments,
            )
        return self._scribes[key]

    def stream(self, lines: Iterable[str], **settings: Any) -> Iterator[str]:
        """Translations as the lines come, a few at a time, in constant memory."""
        lines, first = iter(lines), 0
        while chunk := list(islice(lines, STREAMED)):
            yield from (one.text for one in self.translations(chunk, first=first, **settings))
            first += len(chunk)

    def attention(self, text: str, translation: str | None = None) -> CrossMap:
        """Where the model looks while it writes this translation (its own, unless given one)."""
        written = self.translate([text])[0] if translation is None else translation
        return cross_map(self.model, self.tokenizer, text, written)


class LanguageModel:
    """A trained language model: it goes on where a prompt ends."""

    def __init__(self, model: Predictor, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str = "auto", precision: str = "float32"
    ) -> LanguageModel:
        """The language model that a run trained."""
        model, tokenizer, recipe = _load(folder, Predictor, device, precision)
        if not model.causal:
            raise RunError("a masked language model does not write.", where=str(folder))
        return cls(model, tokenizer, recipe)

    def generate(
        self,
        prompts: Sequence[str] = ("",),
        *,
        most: int = 100,
        samples: int = 1,
        first: int = 0,
        **settings: Any,
    ) -> list[list[str]]:
        """For each prompt `samples` texts that begin with it, `most` new tokens long at most."""
        told = {"sample": True} | settings
        decode = DecodeConfig(**(self.recipe.decode.model_dump() | told))
        search = Search([self.model], strategy(decode, samples), batch_size=decode.batch_size)
        begun = [[BOS, *ids] for ids in self.tokenizer.encode_batch(prompts)]
        numbers = range(first, first + len(begun))
        written = search.go_on(begun, most=most, numbers=numbers)
        return [
            self.tokenizer.decode_batch([[*prompt, *one.ids] for one in several])
            for prompt, several in zip(begun, written, strict=True)
        ]


def load(folder: str | Path, *, device: str = "auto") -> Translator | LanguageModel:
    """Whatever the run in this folder is."""
    task = Run.open(Path(folder)).recipe().task
    if task == "translate":
        return Translator.load(folder, device=device)
    if task == "generate":
        return LanguageModel.load(folder, device=device)
    raise RunError(f"a run that was trained to {task} has no object yet.", where=str(folder))


def _load(
    folder: str | Path, kind: type[M], device: str, precision: str
) -> tuple[M, Tokenizer, Recipe]:
    """A run's model, where it is of the kind that is needed."""
    if precision not in PRECISIONS:
        raise ConfigError([f"precision cannot be {precision!r}: use {' or '.join(PRECISIONS)}."])
    model, tokenizer, recipe = engine.load(Path(folder), device=device)
    if not isinstance(model, kind):
        needed = "translate" if kind is Model else "generate"
        raise RunError(
            f"this run was trained to {recipe.task}, not to {needed}.", where=str(folder)
        )
    return model.to(PRECISIONS[precision]), tokenizer, recipe


def _section_of(key: str) -> str:
    """The section of a recipe that has this key."""
    known = {name: kind.keys() for name, kind in SECTIONS.items() if name in TRAINED_BY}
    for section in TRAINED_BY:
        if key in known[section]:
            return section
    every = [name for names in known.values() for name in names]
    raise ConfigError([f"There is no key {key!r}.{nearest(key, every)}"])
