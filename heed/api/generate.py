"""The Python class of language models: train, load, generate, evaluate, look inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed import models
from heed.api import LruCache, Origin, TrainedModel, int8_weights, load_model
from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.settings import merge_decode_config
from heed.errors import RunError
from heed.pipelines.line_io import require_text, require_texts
from heed.plugins import PluginFiles, load_plugins
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.data.in_memory import Data
    from heed.decode.search_trace import OnStep
    from heed.evaluate.evaluation_result import EvaluationResult
    from heed.metrics.perplexity import TokenLosses
    from heed.nn.kernels.quantized_linear import Int8Weights
    from heed.pipelines.generate import GenerationPipeline, OnText
    from heed.probe.attention_maps import AttentionMaps
    from heed.probe.decoded_text import DecodedText
    from heed.probe.hidden_states import Floats, HiddenStates
    from heed.probe.text_trace import InputTokens, TextTrace


class LanguageModel(TrainedModel):
    """A trained language model: it continues prompts. A masked one can only be looked into."""

    model: models.LanguageModel

    def __init__(
        self,
        model: models.LanguageModel,
        tokenizer: Tokenizer,
        recipe: Recipe,
        *,
        int8: Int8Weights | None = None,
    ) -> None:
        self.model, self.tokenizer, self.recipe = model, tokenizer, recipe
        self.int8 = int8
        """Weights that generation uses; None for the model's own."""
        self.batch_invariant = False
        """Whether pipelines give a prompt the same result, whatever is decoded beside it."""
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
        """Load the language model of a run; with precision int8, on a CPU, to generate with it.

        Losses, attention and hidden states are always those of the model's own weights.
        """
        load_plugins(plugin)
        model, tokenizer, recipe = load_model(
            folder, models.LanguageModel, device, precision, weights
        )
        int8 = int8_weights(precision, [model] if model.causal else [])
        language_model = cls(model, tokenizer, recipe, int8=int8)
        language_model._origin = Origin(Path(folder), weights)
        return language_model

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
    ) -> LanguageModel:
        """Train on files of plain text or a list of texts, and load the result.

        A list is written into the run folder. `settings` are recipe keys: layers=4, epochs=10.
        """
        from heed.train.python_arguments import train_from_arguments

        load_plugins(plugin)
        folder = train_from_arguments("generate", train, dev, run, seed, device, settings)
        return cls.load(folder, device=device)

    def evaluate(
        self,
        test: Data | None = None,
        *,
        split: str | None = None,
        name: str | None = None,
        metric: str | Sequence[str] | None = None,
        groups: str | None = None,
        window: int | None = None,
        stride: int | None = None,
    ) -> EvaluationResult:
        """Measure the run's perplexity as `heed evaluate` does, and save the result in the run.

        `test` is files, or a list of texts that is kept under `name`; else `split` names a set of
        the recipe: by default test, or dev. `metric` chooses what `repr` and `rows` show. A
        `window` has so many tokens, and begins `stride` tokens after the one before.
        """
        options = {"split": split, "groups": groups, "window": window, "stride": stride}
        return self._evaluate(test, name, metric, **options)

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

    def trace_decoding(
        self,
        prompt: str = "",
        *,
        length: int = 100,
        prefix: Sequence[int] = (),
        alternatives: int = 10,
        on_step: OnStep | None = None,
        **settings: Any,
    ) -> DecodedText:
        """Continue a prompt with every step: probabilities, alternatives, the tree of a beam.

        The continuation begins with the ids of `prefix`, which count in `length`. `on_step` gets
        the new nodes of each step, and an exception of it ends the search. `settings` are those of
        `generate`.
        """
        from heed.probe.decoded_text import decode_continuation

        return decode_continuation(
            self.pipeline(**settings),
            prompt,
            length=length,
            prefix=prefix,
            alternatives=alternatives,
            on_step=on_step,
        )

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
            lambda: GenerationPipeline(
                self.model,
                self.tokenizer,
                decode,
                context=context,
                batch_invariant=self.batch_invariant,
                int8=self.int8,
            ),
        )

    def token_losses(
        self, texts: Sequence[str], *, window: int | None = None, stride: int | None = None
    ) -> list[TokenLosses]:
        """The loss of every token of each text, <eos> included; a window is data.max_length."""
        from heed.metrics.perplexity import token_losses

        ids = self.tokenizer.encode_batch(require_texts(texts))
        window = self.recipe.data.max_length if window is None else window
        specials = self.tokenizer.specials
        return token_losses(self.model, ids, window=window, stride=stride, specials=specials)

    def inputs(self, text: str) -> tuple[InputTokens, None]:
        """The tokens that the model reads of a prompt, special tokens included."""
        from heed.probe.text_trace import language_model_input

        require_text(text)
        limit = self.recipe.data.max_length  # of a masked language model, which has no pipeline
        if self.model.causal:
            limit = self.pipeline().prompt_limit
        return language_model_input(self.model, self.tokenizer, text, limit=limit), None

    def attention(self, text: str) -> AttentionMaps:
        """Every attention weight over a text as `generate` reads it as a prompt."""
        from heed.probe.attention_maps import map_inputs

        require_text(text, blank=False)
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
