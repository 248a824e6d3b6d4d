"""The Python class of classifiers: train, load, classify, evaluate, look inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed import models
from heed.api import Origin, TrainedModel, load_model
from heed.config import Recipe
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.pipelines.line_io import require_text, require_texts
from heed.plugins import PluginFiles, load_plugins
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.data.in_memory import Data
    from heed.evaluate.evaluation_result import EvaluationResult
    from heed.pipelines.classify import Label, Text
    from heed.probe.attention_maps import AttentionMaps
    from heed.probe.hidden_states import Floats, HiddenStates
    from heed.probe.text_trace import InputTokens, TextTrace
    from heed.runs.labels import Classes

CLASSES_SHOWN = 5
"""Class names in the `repr` of a classifier."""


class Classifier(TrainedModel):
    """A trained classifier: text in, labels out."""

    model: models.Classifier

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
        model, tokenizer, recipe = load_model(folder, models.Classifier, device, precision, weights)
        run = Run.open(Path(folder))
        calibration = Calibration.read(run) if weights == BEST_WEIGHTS else None
        temperature = 1.0 if calibration is None else calibration.temperature
        classes = Classes.require(run)
        classifier = cls(model, tokenizer, recipe, classes, temperature=temperature)
        classifier._origin = Origin(Path(folder), weights)
        return classifier

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
    ) -> Classifier:
        """Train on a table, or on lists of texts and labels, and load the result.

        Lists, `(texts, labels)` or pairs, are written into the run folder. `settings` are recipe
        keys: layers=1, pooling="max", class_weights="balanced".
        """
        from heed.train.python_arguments import train_from_arguments

        load_plugins(plugin)
        folder = train_from_arguments("classify", train, dev, run, seed, device, settings)
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
        baseline: bool = False,
    ) -> EvaluationResult:
        """Score the run's labels as `heed evaluate` does, and save the result in the run.

        `test` is files, or lists `(texts, labels)` that are kept under `name`; else `split` names a
        set of the recipe: by default test, or dev. `metric` chooses what `repr` and `rows` show.
        `baseline` also scores baselines that are trained on the same text.
        """
        options = {"split": split, "groups": groups, "resamples": bootstrap, "baseline": baseline}
        return self._evaluate(test, name, metric, **options)

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

        check_text_kind(self.classes, [require_text(text, pairs=True)])
        return classifier_input(self.pipeline, text), None

    def attention(self, text: Text) -> AttentionMaps:
        """Every attention weight over a text (or pair) as `classify` reads it."""
        from heed.probe.attention_maps import map_inputs

        require_text(text, pairs=True, blank=False)
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

    def _describe(self) -> str:
        names = list(self.classes.names)
        more = ", …" if len(names) > CLASSES_SHOWN else ""
        shown = ", ".join(names[:CLASSES_SHOWN])
        return f"{super()._describe()}; {len(names)} classes: {shown}{more}"
