"""heed from Python: what the commands do, as objects."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from rich.console import Console

from heed import models
from heed.config import SECTIONS, Recipe
from heed.data.corpus import Files, names_of
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import engine_choice
from heed.decode.settings import merge_decode_config
from heed.errors import ConfigError, DataError, HeedWarning, RunError, nearest
from heed.few import kept
from heed.metrics.perplexity import TokenLosses, token_losses
from heed.pipelines.classify import ClassificationPipeline, Label, Text, check_text_kind
from heed.pipelines.generate import GenerationPipeline, OnText
from heed.pipelines.line_io import require_iterable, require_texts
from heed.pipelines.translate import Translation, TranslationPipeline
from heed.probe.attention_maps import CrossMap, cross_map
from heed.runs.labels import Calibration, Classes
from heed.runs.run import Run
from heed.train import run as engine
from heed.train.prepare.class_weights import classes_in
from heed.train.prepare.setup import open_corpora
from heed.train.resolve import free_folder

if TYPE_CHECKING:
    from heed.decode.ctranslate2_engine import CTranslate2Engine

STREAMED = 64
"""Lines read ahead of a stream and translated side by side."""
TRAINED_BY = ("model", "train", "tokenizer", "data", "decode")
"""Where `train` looks for a key that it is told, in this order."""
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
M = TypeVar("M", models.Translator, models.LanguageModel, models.Classifier)
KINDS: dict[str, type[torch.nn.Module]] = {
    "translate": models.Translator,
    "generate": models.LanguageModel,
    "classify": models.Classifier,
}
"""The model of each task."""


class Translator:
    """A trained translator: text in, text out. With more models, an ensemble of them."""

    def __init__(
        self,
        model: models.Translator,
        tokenizer: Tokenizer,
        recipe: Recipe,
        *,
        others: Sequence[models.Translator] = (),
        served: CTranslate2Engine | None = None,
    ) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self.models, self.served = [model, *others], served
        self.both = recipe.data.bidirectional
        """Whether the models translate either way."""
        self.longest = recipe.data.max_length
        """Tokens of a text that all of the models read."""
        self._scribes: dict[str, TranslationPipeline] = {}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *others: str | Path,
        device: str = "auto",
        precision: str = "float32",
        engine: str = "heed",
    ) -> Translator:
        """The translator that a run trained; of several runs, the mean of what they say.

        `engine` is who writes: heed itself, or "ctranslate2" where that is installed.
        """
        engine_choice.check_engine(engine, models=1 + len(others))
        own = precision if engine == engine_choice.HEED else "float32"
        model, tokenizer, recipe = _load(folder, models.Translator, device, own)
        more, trained_on = [], [recipe.data]
        for other in others:
            another, its_own, trained_by = _load(other, models.Translator, device, precision)
            if its_own.fingerprint() != tokenizer.fingerprint():
                raise RunError(
                    f"its tokenizer is not that of {folder}, so they cannot write together.",
                    where=str(other),
                    todo="Train it on the same pieces: `[init] from` takes another run's.",
                )
            more.append(another)
            trained_on.append(trained_by.data)
        told = {"device": device, "precision": precision}
        served = engine_choice.load_engine(
            engine, model, tokenizer, max_source=recipe.data.max_length, **told
        )
        found = cls(model, tokenizer, recipe, others=more, served=served)
        found.both = all(data.bidirectional for data in trained_on)
        found.longest = min(data.max_length for data in trained_on)
        return found

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        **settings: Any,
    ) -> Translator:
        """Train on two files, or a table, and load what came of it.

        `settings` are a recipe's keys: layers=4, position="rope", epochs=10. A key that several
        sections have, is that of `model`, else of `train`.
        """
        folder = trained("translate", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[str]:
        """One translation a text, in order; what is blank stays empty.

        `settings` are keys of a recipe's `[decode]`: beam=5, length_penalty=0.6. With
        `reverse=True` a run that was trained with `data.bidirectional` translates the other way.
        """
        found = self.translations(require_texts(texts), **settings)
        long = [i for i, one in enumerate(found) if one.parts > 1]
        if long:
            told = f"text {long[0] + 1}: {found[long[0]].split_warning}"
            warnings.warn(told, HeedWarning, stacklevel=2)
        return [one.text for one in found]

    def translations(
        self,
        texts: Sequence[str],
        *,
        nbest: int = 1,
        alignments: bool = False,
        reverse: bool = False,
        first: int = 0,
        **settings: Any,
    ) -> list[Translation]:
        """The same with scores, further translations and alignments.

        `first` is the number of the first text: what it samples depends on it.
        """
        asked, scribe = require_texts(texts), self.scribe(nbest, alignments, reverse, **settings)
        return scribe.translate(asked, first=first)

    def scribe(
        self, nbest: int = 1, alignments: bool = False, reverse: bool = False, **settings: Any
    ) -> TranslationPipeline:
        """What translates by these settings, kept for the next time."""
        if reverse and not self.both:
            what = "was not trained with data.bidirectional = true and translates one way only."
            raise ConfigError([f"This run {what}"])
        if reverse and self.served is not None:
            raise ConfigError(["Only heed's own engine translates in reverse: leave --engine out."])
        decode = merge_decode_config(self.recipe.decode, settings)
        return kept(
            self._scribes,
            f"{decode.model_dump_json()} {nbest} {alignments} {reverse}",
            lambda: TranslationPipeline(
                self.models,
                self.tokenizer,
                decode,
                max_source=self.longest - 1,
                nbest=nbest,
                alignments=alignments,
                search=None if self.served is None else self.served.search(decode, nbest),
                reverse=reverse,
            ),
        )

    def stream(self, lines: Iterable[str], **settings: Any) -> Iterator[str]:
        """Translations as the lines come, a few at a time, in constant memory."""
        lines, first = iter(require_iterable(lines)), 0
        while chunk := list(islice(lines, STREAMED)):
            yield from (one.text for one in self.translations(chunk, first=first, **settings))
            first += len(chunk)

    def attention(self, text: str, translation: str | None = None) -> CrossMap:
        """Where the model looks while it writes this translation (its own, unless given one)."""
        written = self.translate([text])[0] if translation is None else translation
        return cross_map(self.model, self.tokenizer, text, written)


class LanguageModel:
    """A trained language model: it goes on where a prompt ends."""

    def __init__(self, model: models.LanguageModel, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self._authors: dict[str, GenerationPipeline] = {}

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str = "auto", precision: str = "float32"
    ) -> LanguageModel:
        """The language model that a run trained."""
        model, tokenizer, recipe = _load(folder, models.LanguageModel, device, precision)
        if not model.causal:
            raise RunError("a masked language model does not write.", where=str(folder))
        return cls(model, tokenizer, recipe)

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        **settings: Any,
    ) -> LanguageModel:
        """Train on plain text, and load what came of it; `settings` are a recipe's keys."""
        folder = trained("generate", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def generate(
        self,
        prompts: Sequence[str] = ("",),
        *,
        length: int = 100,
        samples: int = 1,
        stop: Sequence[str] = (),
        first: int = 0,
        cut_prompt: bool = False,
        on_text: OnText | None = None,
        **settings: Any,
    ) -> list[list[str]]:
        """For each prompt `samples` texts that begin with it, `length` new tokens long at most.

        `settings` are keys of a recipe's `[decode]`: temperature=0.8, top_p=0.9, seed=3. Tokens are
        drawn unless `beam` or `sample=False` is given, or the recipe has a beam. The other
        arguments are those of `GenerationPipeline.generate`.
        """
        found = self.author(**settings).generate(
            require_texts(prompts),
            length=length,
            samples=samples,
            stop=require_texts(stop),
            first=first,
            cut_prompt=cut_prompt,
            on_text=on_text,
        )
        return [[one.whole for one in several] for several in found]

    def author(self, **settings: Any) -> GenerationPipeline:
        """What writes by these settings; unless they or the recipe have a beam, by chance."""
        searched = self.recipe.decode.beam > 1 or {"beam", "sample"} & settings.keys()
        told = settings if searched else {"sample": True} | settings
        decode = merge_decode_config(self.recipe.decode, told)
        longest = self.recipe.data.max_length
        return kept(
            self._authors,
            decode.model_dump_json(),
            lambda: GenerationPipeline(self.model, self.tokenizer, decode, context=longest),
        )

    def judge(self, texts: Sequence[str], *, stride: int | None = None) -> list[TokenLosses]:
        """The loss of every token of each text, its end mark last."""
        ids, window = self.tokenizer.encode_batch(require_texts(texts)), self.recipe.data.max_length
        marks = self.tokenizer.specials
        return token_losses(self.model, ids, window=window, stride=stride, specials=marks)


class Classifier:
    """A trained classifier: text in, labels out."""

    def __init__(
        self,
        model: models.Classifier,
        tokenizer: Tokenizer,
        recipe: Recipe,
        classes: Classes,
        *,
        temperature: float = 1.0,
    ) -> None:
        self.model, self.tokenizer, self.recipe, self.classes = model, tokenizer, recipe, classes
        self.labeller = ClassificationPipeline(
            model,
            tokenizer,
            classes,
            max_length=recipe.data.max_length,
            temperature=temperature,
        )

    @classmethod
    def load(
        cls, folder: str | Path, *, device: str = "auto", precision: str = "float32"
    ) -> Classifier:
        """The classifier that a run trained, its probabilities as they were calibrated, if so."""
        model, tokenizer, recipe = _load(folder, models.Classifier, device, precision)
        run = Run.open(Path(folder))
        fitted = Calibration.read(run)
        temperature = 1.0 if fitted is None else fitted.temperature
        return cls(model, tokenizer, recipe, _classes(run, recipe), temperature=temperature)

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        **settings: Any,
    ) -> Classifier:
        """Train on a table of texts and labels, and load what came of it.

        `settings` are a recipe's keys: layers=1, pooling="max", class_weights="balanced".
        """
        folder = trained("classify", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def classify(self, texts: Iterable[Text]) -> list[str]:
        """The label of each text, in order; of pairs, `texts` are pairs. What is blank has none."""
        return [label.name or "" for label in self._labels(texts)]

    def probabilities(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """How likely each class is, text by text; for a blank one there is nothing to say."""
        return [label.probabilities for label in self._labels(texts)]

    def _labels(self, texts: Iterable[Text]) -> list[Label]:
        asked = require_texts(texts, pairs=True)
        check_text_kind(self.classes, asked)
        return self.labeller.classify(asked)


def load(folder: str | Path, *, device: str = "auto") -> Translator | LanguageModel | Classifier:
    """Whatever the run in this folder is."""
    task = Run.open(Path(folder)).recipe().task
    if task == "translate":
        return Translator.load(folder, device=device)
    if task == "generate":
        return LanguageModel.load(folder, device=device)
    return Classifier.load(folder, device=device)


def _classes(run: Run, recipe: Recipe) -> Classes:
    """What a run tells apart; one made before that was kept must still have its training text."""
    try:
        return Classes.read(run) or classes_in(run, open_corpora(recipe)["train"])
    except DataError as error:
        return classes_in(run, None, str(error))


def trained(
    task: str,
    train: Files,
    dev: Files,
    run: str | Path | None,
    seed: int,
    device: str,
    settings: Mapping[str, Any],
) -> Path:
    """The folder of a run trained on files, by a recipe's keys."""
    files = {"train": names_of(train), "dev": names_of(dev)}
    tables: dict[str, Any] = {"task": task, "seed": seed, "data": files}
    for key, value in settings.items():
        told = names_of(value) if key in ("test", "text") else value
        tables.setdefault(_section_of(key), {})[key] = told
    folder = Path(run) if run is not None else free_folder(task)
    engine.start(Recipe.of(tables), folder, device=device, console=Console(file=sys.stderr))
    return folder


def _load(
    folder: str | Path, kind: type[M], device: str, precision: str
) -> tuple[M, Tokenizer, Recipe]:
    """A run's model, where it is of the kind that is needed."""
    if precision not in PRECISIONS:
        raise ConfigError([f"precision cannot be {precision!r}: use {' or '.join(PRECISIONS)}."])
    model, tokenizer, recipe = engine.load(Path(folder), device=device)
    if not isinstance(model, kind):
        needed = next(task for task, one in KINDS.items() if one is kind)
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
