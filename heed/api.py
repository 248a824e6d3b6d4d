"""heed from Python: Translator, LanguageModel, Classifier and `load`.

Only `train` imports the training code, and only when it is called.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from heed import models
from heed.config import SECTIONS, Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import engine_choice
from heed.decode.settings import merge_decode_config
from heed.errors import ConfigError, HeedWarning, RunError, nearest
from heed.pipelines.line_io import require_iterable, require_texts
from heed.pipelines.lru import LruCache
from heed.pipelines.translate import Translation, TranslationPipeline
from heed.plugins import PluginFiles, load_plugins
from heed.runs.load import load_run
from heed.runs.run import BEST_WEIGHTS, Run

if TYPE_CHECKING:
    from heed.data.corpus import Files
    from heed.decode.ctranslate2_engine import CTranslate2Engine
    from heed.metrics.perplexity import TokenLosses
    from heed.pipelines.classify import Label, Text
    from heed.pipelines.generate import GenerationPipeline, OnText
    from heed.probe.attention_maps import AttentionMaps
    from heed.probe.hidden_states import Floats, HiddenStates
    from heed.probe.text_trace import InputTokens, TextTrace
    from heed.runs.labels import Classes

STREAM_LINES = 64
"""Lines that `Translator.stream` reads ahead and translates as one batch."""
TRAINING_SECTIONS = ("model", "train", "tokenizer", "data", "decode")
"""The recipe sections in which `train` looks up a keyword argument, in this order."""
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
M = TypeVar("M", models.Translator, models.LanguageModel, models.Classifier)
MODEL_CLASSES: dict[str, type[torch.nn.Module]] = {
    "translate": models.Translator,
    "generate": models.LanguageModel,
    "classify": models.Classifier,
}
"""The model class of each task."""


@dataclass(frozen=True)
class Origin:
    """Where a loaded model comes from: the name of its run, and which of its weights."""

    run: str = ""
    weights: str = BEST_WEIGHTS

    def label(self, maps: AttentionMaps) -> AttentionMaps:
        """The maps with their origin."""
        return replace(maps, run=self.run, weights=self.weights)


class Translator:
    """A trained translator: text in, text out. With several models, an ensemble."""

    _origin = Origin()

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
        self.bidirectional = recipe.data.bidirectional
        """Whether all models translate in both directions."""
        self.max_length = recipe.data.max_length
        """The longest sequence, in tokens, that all models read."""
        self._pipelines = LruCache[TranslationPipeline]()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *others: str | Path,
        device: str = "auto",
        precision: str = "float32",
        engine: str = "heed",
        weights: str = BEST_WEIGHTS,
        plugin: PluginFiles = None,
    ) -> Translator:
        """Load the translator of a run; several runs form an ensemble that averages predictions.

        `engine` is "heed", or "ctranslate2" if that is installed. `weights` are "best", "last" or
        a step. `plugin` names the Python file of a run that was trained with one.
        """
        load_plugins(plugin)
        engine_choice.check_engine(engine, models=1 + len(others))
        # CTranslate2 converts float32 weights to its precision itself.
        model_precision = precision if engine == engine_choice.HEED else "float32"
        model, tokenizer, recipe = _load(
            folder, models.Translator, device, model_precision, weights
        )
        other_models, data = [], [recipe.data]
        for other in others:
            other_model, other_tokenizer, other_recipe = _load(
                other, models.Translator, device, precision, weights
            )
            if other_tokenizer.fingerprint() != tokenizer.fingerprint():
                raise RunError(
                    f"its tokenizer differs from that of {folder}; an ensemble shares one.",
                    where=str(other),
                    todo="Train it with the same tokenizer: `[init] from` takes another run's.",
                )
            other_models.append(other_model)
            data.append(other_recipe.data)
        served = engine_choice.load_engine(
            engine,
            model,
            tokenizer,
            max_source=recipe.data.max_length,
            device=device,
            precision=precision,
        )
        translator = cls(model, tokenizer, recipe, others=other_models, served=served)
        translator.bidirectional = all(section.bidirectional for section in data)
        translator.max_length = min(section.max_length for section in data)
        translator._origin = Origin(Path(folder).name, weights)
        return translator

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        plugin: PluginFiles = None,
        **settings: Any,
    ) -> Translator:
        """Train on two parallel files, or a table, and load the result.

        `settings` are recipe keys: layers=4, position="rope", epochs=10. A key that several
        sections have is taken as `model`'s, else as `train`'s.
        """
        load_plugins(plugin)
        folder = _train_run("translate", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def translate(self, texts: Iterable[str], **settings: Any) -> list[str]:
        """Translate texts: one translation per text, in order; a blank text stays empty.

        `settings` are keys of a recipe's `[decode]`: beam=5, length_penalty=0.6. With
        `reverse=True` a run trained with `data.bidirectional` translates in the other direction.
        """
        translations = self.translations(require_texts(texts), **settings)
        split = [i for i, translation in enumerate(translations) if translation.parts > 1]
        if split:
            message = f"text {split[0] + 1}: {translations[split[0]].split_warning}"
            warnings.warn(message, HeedWarning, stacklevel=2)
        return [translation.text for translation in translations]

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
        """Translate texts, with scores, n-best lists and word alignments.

        `first` is the number of the first text: it seeds the sampling of each text.
        """
        pipeline = self.pipeline(nbest, alignments, reverse, **settings)
        return pipeline.translate(require_texts(texts), first=first)

    def pipeline(
        self, nbest: int = 1, alignments: bool = False, reverse: bool = False, **settings: Any
    ) -> TranslationPipeline:
        """The translation pipeline for these settings; recently used ones are reused."""
        if reverse and not self.bidirectional:
            what = "was not trained with data.bidirectional = true and translates one way only."
            raise ConfigError([f"This run {what}"])
        if reverse and self.served is not None:
            raise ConfigError(["Only heed's own engine translates in reverse: omit --engine."])
        decode = merge_decode_config(self.recipe.decode, settings)
        return self._pipelines.get(
            f"{decode.model_dump_json()} {nbest} {alignments} {reverse}",
            lambda: TranslationPipeline(
                self.models,
                self.tokenizer,
                decode,
                max_source=self.max_length - 1,
                nbest=nbest,
                alignments=alignments,
                search=None if self.served is None else self.served.search(decode, nbest),
                reverse=reverse,
            ),
        )

    def stream(self, lines: Iterable[str], **settings: Any) -> Iterator[str]:
        """Translate lines as they arrive, a few at a time, in constant memory."""
        lines, first = iter(require_iterable(lines)), 0
        while chunk := list(islice(lines, STREAM_LINES)):
            yield from (one.text for one in self.translations(chunk, first=first, **settings))
            first += len(chunk)

    def inputs(
        self, text: str, translation: str | None = None, **settings: Any
    ) -> tuple[InputTokens, InputTokens]:
        """The tokens that the decoder reads of a translation (default: its own), and the source's.

        `settings` are those of `translate`.
        """
        from heed.probe.text_trace import translation_inputs

        source, target = translation_inputs(self.pipeline(**settings), text, translation)
        return target, source

    def attention(
        self, text: str, translation: str | None = None, **settings: Any
    ) -> AttentionMaps:
        """Every attention weight over a text and a translation (default: the model's own).

        `settings` are those of `translate`. The weights of an ensemble are its first model's.
        """
        from heed.probe.attention_maps import map_inputs

        inputs = self.inputs(text, translation, **settings)
        return self._origin.label(map_inputs(self.model, *inputs))

    def hidden(self, text: str, translation: str | None = None, **settings: Any) -> HiddenStates:
        """The vectors of every layer over a text and a translation (default: the model's own)."""
        from heed.probe.hidden_states import HiddenStates

        return HiddenStates.from_trace(self.trace(text, translation, **settings))

    def embed(self, texts: Iterable[str]) -> Floats:
        """One vector per source text [texts, width]: the mean of the encoder's last vectors."""
        from heed.probe.hidden_states import embed_inputs
        from heed.probe.text_trace import source_input

        limit, pad = self.max_length - 1, self.tokenizer.specials.pad
        inputs = [
            source_input(self.tokenizer, text, max_source=limit) for text in require_texts(texts)
        ]
        return embed_inputs(self.model, inputs, pad=pad)

    def trace(self, text: str, translation: str | None = None, **settings: Any) -> TextTrace:
        """A forward pass over a translation (default: the model's own), with all weights inside."""
        from heed.probe.text_trace import trace_inputs

        return trace_inputs(self.model, *self.inputs(text, translation, **settings))


class LanguageModel:
    """A trained language model: it continues prompts. A masked one can only be looked into."""

    _origin = Origin()

    def __init__(self, model: models.LanguageModel, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self._pipelines = LruCache["GenerationPipeline"]()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        precision: str = "float32",
        weights: str = BEST_WEIGHTS,
        plugin: PluginFiles = None,
    ) -> LanguageModel:
        """Load the language model of a run."""
        load_plugins(plugin)
        model, tokenizer, recipe = _load(folder, models.LanguageModel, device, precision, weights)
        language_model = cls(model, tokenizer, recipe)
        language_model._origin = Origin(Path(folder).name, weights)
        return language_model

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        plugin: PluginFiles = None,
        **settings: Any,
    ) -> LanguageModel:
        """Train on plain text and load the result; `settings` are recipe keys."""
        load_plugins(plugin)
        folder = _train_run("generate", train, dev, run, seed, device, settings)
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
        """Continue each prompt: `samples` texts that begin with it, of at most `length` new tokens.

        `settings` are keys of a recipe's `[decode]`: temperature=0.8, top_p=0.9, seed=3. Tokens are
        sampled unless `beam` or `sample=False` is given, or the recipe sets a beam. The other
        parameters are those of `GenerationPipeline.generate`.
        """
        continuations = self.pipeline(**settings).generate(
            require_texts(prompts),
            length=length,
            samples=samples,
            stop=require_texts(stop),
            first=first,
            cut_prompt=cut_prompt,
            on_text=on_text,
        )
        return [[one.whole for one in prompt_samples] for prompt_samples in continuations]

    def pipeline(self, **settings: Any) -> GenerationPipeline:
        """The generation pipeline for these settings; it samples unless a beam is set."""
        from heed.pipelines.generate import GenerationPipeline

        if not self.model.causal:
            raise RunError("a masked language model cannot generate text.", where=self._origin.run)
        searches = self.recipe.decode.beam > 1 or {"beam", "sample"} & settings.keys()
        decode = merge_decode_config(
            self.recipe.decode, settings if searches else {"sample": True} | settings
        )
        context = self.recipe.data.max_length
        return self._pipelines.get(
            decode.model_dump_json(),
            lambda: GenerationPipeline(self.model, self.tokenizer, decode, context=context),
        )

    def token_losses(self, texts: Sequence[str], *, stride: int | None = None) -> list[TokenLosses]:
        """The loss of every token of each text, <eos> included."""
        from heed.metrics.perplexity import token_losses

        ids, window = self.tokenizer.encode_batch(require_texts(texts)), self.recipe.data.max_length
        specials = self.tokenizer.specials
        return token_losses(self.model, ids, window=window, stride=stride, specials=specials)

    def inputs(self, text: str) -> tuple[InputTokens, None]:
        """The tokens that the model reads of a prompt, special tokens included."""
        from heed.probe.text_trace import language_model_input

        limit = self.recipe.data.max_length  # of a masked language model, which has no pipeline
        if self.model.causal:
            limit = self.pipeline().prompt_limit
        return language_model_input(self.model, self.tokenizer, text, limit=limit), None

    def attention(self, text: str) -> AttentionMaps:
        """Every attention weight over a text as `generate` reads it as a prompt."""
        from heed.probe.attention_maps import map_inputs

        return self._origin.label(map_inputs(self.model, *self.inputs(text)))

    def hidden(self, text: str) -> HiddenStates:
        """The vectors of every layer over a text as a prompt."""
        from heed.probe.hidden_states import HiddenStates

        return HiddenStates.from_trace(self.trace(text))

    def embed(self, texts: Iterable[str]) -> Floats:
        """One vector per text [texts, width]: the mean of the last layer's vectors."""
        from heed.probe.hidden_states import embed_inputs

        inputs = [self.inputs(text)[0] for text in require_texts(texts)]
        return embed_inputs(self.model, inputs, pad=self.tokenizer.specials.pad)

    def trace(self, text: str) -> TextTrace:
        """A forward pass over a text as a prompt, with all weights inside."""
        from heed.probe.text_trace import trace_inputs

        return trace_inputs(self.model, *self.inputs(text))


class Classifier:
    """A trained classifier: text in, labels out."""

    _origin = Origin()

    def __init__(
        self,
        model: models.Classifier,
        tokenizer: Tokenizer,
        recipe: Recipe,
        classes: Classes,
        *,
        temperature: float = 1.0,
    ) -> None:
        from heed.pipelines.classify import ClassificationPipeline

        self.model, self.tokenizer, self.recipe, self.classes = model, tokenizer, recipe, classes
        self.pipeline = ClassificationPipeline(
            model,
            tokenizer,
            classes,
            max_length=recipe.data.max_length,
            temperature=temperature,
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        precision: str = "float32",
        weights: str = BEST_WEIGHTS,
        plugin: PluginFiles = None,
    ) -> Classifier:
        """Load the classifier of a run; its probabilities use the run's calibration, if any.

        `weights` are "best", "last" or a step; the calibration is of the best ones alone.
        """
        from heed.runs.labels import Calibration, Classes

        load_plugins(plugin)
        model, tokenizer, recipe = _load(folder, models.Classifier, device, precision, weights)
        run = Run.open(Path(folder))
        calibration = Calibration.read(run) if weights == BEST_WEIGHTS else None
        temperature = 1.0 if calibration is None else calibration.temperature
        classes = Classes.require(run)
        classifier = cls(model, tokenizer, recipe, classes, temperature=temperature)
        classifier._origin = Origin(Path(folder).name, weights)
        return classifier

    @classmethod
    def train(
        cls,
        *,
        train: Files,
        dev: Files = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        plugin: PluginFiles = None,
        **settings: Any,
    ) -> Classifier:
        """Train on a table of texts and labels, and load the result.

        `settings` are recipe keys: layers=1, pooling="max", class_weights="balanced".
        """
        load_plugins(plugin)
        folder = _train_run("classify", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def classify(self, texts: Iterable[Text]) -> list[str]:
        """The label of each text (or text pair), in order; a blank text has the label ""."""
        return [label.name or "" for label in self._labels(texts)]

    def probabilities(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """The probability of each class, for each text; empty for a blank text."""
        return [label.probabilities for label in self._labels(texts)]

    def trace(self, text: Text) -> TextTrace:
        """A forward pass over a text (or pair) as `classify` reads it, with all weights inside.

        Its logits are those before calibration.
        """
        from heed.probe.text_trace import trace_inputs

        return trace_inputs(self.model, *self.inputs(text))

    def inputs(self, text: Text) -> tuple[InputTokens, None]:
        """The tokens that the model reads of a text (or pair), special tokens included."""
        from heed.pipelines.classify import check_text_kind
        from heed.probe.text_trace import classifier_input

        check_text_kind(self.classes, [text])
        return classifier_input(self.pipeline, text), None

    def attention(self, text: Text) -> AttentionMaps:
        """Every attention weight over a text (or pair) as `classify` reads it."""
        from heed.probe.attention_maps import map_inputs

        return self._origin.label(map_inputs(self.model, *self.inputs(text)))

    def hidden(self, text: Text) -> HiddenStates:
        """The vectors of every layer over a text (or pair) as `classify` reads it."""
        from heed.probe.hidden_states import HiddenStates

        return HiddenStates.from_trace(self.trace(text))

    def embed(self, texts: Iterable[Text]) -> Floats:
        """One vector per text [texts, width]: the pooled one, from which it is classified."""
        from heed.probe.hidden_states import embed_inputs

        inputs = [self.inputs(text)[0] for text in require_texts(texts, pairs=True)]
        return embed_inputs(self.model, inputs, pad=self.tokenizer.specials.pad)

    def _labels(self, texts: Iterable[Text]) -> list[Label]:
        from heed.pipelines.classify import check_text_kind

        inputs = require_texts(texts, pairs=True)
        check_text_kind(self.classes, inputs)
        return self.pipeline.classify(inputs)


def load(
    folder: str | Path,
    *,
    device: str = "auto",
    weights: str = BEST_WEIGHTS,
    plugin: PluginFiles = None,
) -> Translator | LanguageModel | Classifier:
    """Load the model of a run, as the class of its task.

    `weights` are "best", "last" or a step. `plugin` names the Python file of a run that was
    trained with one.
    """
    load_plugins(plugin)
    task = Run.open(Path(folder)).recipe().task
    if task == "translate":
        return Translator.load(folder, device=device, weights=weights)
    if task == "generate":
        return LanguageModel.load(folder, device=device, weights=weights)
    return Classifier.load(folder, device=device, weights=weights)


def _load(
    folder: str | Path, kind: type[M], device: str, precision: str, weights: str
) -> tuple[M, Tokenizer, Recipe]:
    """Load a run's model, tokenizer and recipe; an error if the run has another task."""
    if precision not in PRECISIONS:
        raise ConfigError([f"precision cannot be {precision!r}: use {' or '.join(PRECISIONS)}."])
    model, tokenizer, recipe = load_run(Path(folder), device=device, weights=weights)
    if not isinstance(model, kind):
        task = next(task for task, one in MODEL_CLASSES.items() if one is kind)
        raise RunError(f"this run was trained to {recipe.task}, not to {task}.", where=str(folder))
    return model.to(PRECISIONS[precision]), tokenizer, recipe


# ------------------------------------------------------------------------------------- training


def _train_run(
    task: str,
    train: Files,
    dev: Files,
    run: str | Path | None,
    seed: int,
    device: str,
    settings: Mapping[str, Any],
) -> Path:
    """Train a run on files with these recipe keys; returns its folder."""
    from heed.data.corpus import file_names
    from heed.terminal import PlainConsole
    from heed.train import run as train_run
    from heed.train.resolve import free_folder

    files = {"train": file_names(train), "dev": file_names(dev)}
    tables: dict[str, Any] = {"task": task, "seed": seed, "data": files}
    for key, value in settings.items():
        tables.setdefault(_section_of(key), {})[key] = (
            file_names(value) if key in ("test", "text") else value
        )
    folder = Path(run) if run is not None else free_folder(task)
    train_run.start(Recipe.of(tables), folder, device=device, console=PlainConsole(file=sys.stderr))
    return folder


def _section_of(key: str) -> str:
    """The recipe section that has this key."""
    keys = {name: kind.keys() for name, kind in SECTIONS.items() if name in TRAINING_SECTIONS}
    for section in TRAINING_SECTIONS:
        if key in keys[section]:
            return section
    every_key = [name for names in keys.values() for name in names]
    raise ConfigError([f"There is no key {key!r}.{nearest(key, every_key)}"])
