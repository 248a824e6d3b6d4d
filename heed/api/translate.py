"""The Python class of translators: train, load, translate, evaluate, look inside."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed import models
from heed.api import LruCache, Origin, TrainedModel, int8_weights, load_model
from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import engine_choice
from heed.decode.settings import merge_decode_config
from heed.errors import ConfigError, HeedWarning, RunError
from heed.pipelines.line_io import require_iterable, require_text, require_texts
from heed.pipelines.translate import Translation, TranslationPipeline
from heed.plugins import PluginFiles, load_plugins
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.data.in_memory import Data
    from heed.decode.ctranslate2_engine import CTranslate2Engine
    from heed.decode.search_trace import OnStep
    from heed.evaluate.evaluation_result import EvaluationResult
    from heed.nn.kernels.quantized_linear import Int8Weights
    from heed.probe.attention_maps import AttentionMaps
    from heed.probe.decoded_text import DecodedText
    from heed.probe.hidden_states import Floats, HiddenStates
    from heed.probe.text_trace import InputTokens, TextTrace

STREAM_LINES = 64
"""Lines that `Translator.stream` reads ahead and translates as one batch."""


class Translator(TrainedModel):
    """A trained translator: text in, text out. With several models, an ensemble."""

    model: models.Translator

    def __init__(
        self,
        model: models.Translator,
        tokenizer: Tokenizer,
        recipe: Recipe,
        *,
        others: Sequence[models.Translator] = (),
        served: CTranslate2Engine | None = None,
        int8: Int8Weights | None = None,
    ) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self.models, self.served = [model, *others], served
        self.int8 = int8
        """Weights that heed's own search decodes with; None for the models' own."""
        self.bidirectional = recipe.data.bidirectional
        """Whether all models translate in both directions."""
        self.max_length = recipe.data.max_length
        """The longest sequence, in tokens, that all models read."""
        self.batch_invariant = False
        """Whether pipelines give a text the same result, whatever is decoded beside it."""
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

        `engine` is "heed", or "ctranslate2" if that is installed. `precision` is float32, bf16 or,
        on a CPU, int8: then decoding alone uses int8 weights. `weights` are "best", "last" or
        a step. `plugin` names the Python file of a run that was trained with one.
        """
        load_plugins(plugin)
        engine_choice.check_engine(engine, models=1 + len(others))
        # CTranslate2 converts float32 weights to its precision itself.
        model_precision = precision if engine == engine_choice.HEED else "float32"
        model, tokenizer, recipe = load_model(
            folder, models.Translator, device, model_precision, weights
        )
        other_models, data = [], [recipe.data]
        for other in others:
            other_model, other_tokenizer, other_recipe = load_model(
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
        int8 = int8_weights(model_precision, [model, *other_models])
        translator = cls(model, tokenizer, recipe, others=other_models, served=served, int8=int8)
        translator.bidirectional = all(section.bidirectional for section in data)
        translator.max_length = min(section.max_length for section in data)
        translator._origin = Origin(Path(folder), weights)
        return translator

    @classmethod
    def train(
        cls,
        *,
        train: Data,
        dev: Data = (),
        run: str | Path | None = None,
        seed: int = 0,
        device: str = "auto",
        plugin: PluginFiles = None,
        **settings: Any,
    ) -> Translator:
        """Train on two parallel files, a table or two lists of texts, and load the result.

        Lists, `(sources, targets)` or pairs, are written into the run folder. `settings` are recipe
        keys: layers=4, position="rope", epochs=10. A key that several sections have is taken as
        `model`'s, else as `train`'s.
        """
        from heed.train.python_arguments import train_from_arguments

        load_plugins(plugin)
        folder = train_from_arguments("translate", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def evaluate(
        self,
        test: Data | None = None,
        *,
        split: str | None = None,
        name: str | None = None,
        metric: str | Sequence[str] | None = None,
        groups: str | None = None,
        bootstrap: int = 1000,
        **settings: Any,
    ) -> EvaluationResult:
        """Score the run's translations as `heed evaluate` does, and save the result in the run.

        `test` is files, or lists `(sources, references)` that are kept under `name`; else `split`
        names a set of the recipe: by default test, or dev. `metric` is bleu, chrf or ter, or
        several. `settings` are keys of a recipe's `[decode]`: beam=5.
        """
        if len(self.models) > 1:
            what = "an ensemble is not evaluated: load one run, or score its translations"
            raise ConfigError([f"{what} (heed score)."])
        options = {"split": split, "groups": groups, "resamples": bootstrap, "decode": settings}
        return self._evaluate(test, name, metric, **options)

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
                batch_invariant=self.batch_invariant,
                int8=self.int8,
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

        for one in (text, *([] if translation is None else [translation])):
            require_text(one)
        source, target = translation_inputs(self.pipeline(**settings), text, translation)
        return target, source

    def attention(
        self, text: str, translation: str | None = None, **settings: Any
    ) -> AttentionMaps:
        """Every attention weight over a text and a translation (default: the model's own).

        `settings` are those of `translate`. The weights of an ensemble are its first model's.
        """
        from heed.probe.attention_maps import map_inputs

        require_text(text, blank=False)
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

    def trace_decoding(
        self,
        text: str,
        *,
        prefix: Sequence[int] = (),
        max_tokens: int | None = None,
        alternatives: int = 10,
        on_step: OnStep | None = None,
        **settings: Any,
    ) -> DecodedText:
        """Translate a text with every step: probabilities, alternatives, the tree of a beam.

        The translation begins with the ids of `prefix`; `max_tokens` limits it. `on_step` gets the
        new nodes of each step, and an exception of it ends the search. `settings` are those of
        `translate`.
        """
        from heed.probe.decoded_text import decode_translation

        return decode_translation(
            self.pipeline(**settings),
            text,
            prefix=prefix,
            max_tokens=max_tokens,
            alternatives=alternatives,
            on_step=on_step,
        )

    def _describe(self) -> str:
        engine = "" if self.served is None else ", served by CTranslate2"
        ensemble = f"ensemble of {len(self.models)}, the first " if len(self.models) > 1 else ""
        return f"{ensemble}{super()._describe()}{engine}"
