"""One class of `transformers`: its weight names, and how to read and write its config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heed.config import ModelConfig
from heed.models import Backbone, Classifier, LanguageModel, Model, Translator
from heed.models.huggingface.folder import ConfigJson
from heed.models.huggingface.name_map import (
    NameMap,
    WeightLocation,
    first_layer_modules,
    locate,
    with_prefix,
)
from heed.models.huggingface.reparameterize import Draft, Reparameterization

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Activation names of `transformers`, and heed's names for them."""
MODEL_CLASSES: Mapping[str | None, type] = {
    "translate": Translator,
    "classify": Classifier,
    "generate": LanguageModel,
    None: Backbone,
}
"""heed's model class for each task; None is a model without a head."""

AnyModel = Model | Backbone
ConfigReader = Callable[[ConfigJson, Set[str]], dict[str, Any]]
"""From config.json and the names of all weights to the keys of a `ModelConfig`."""


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers`: its task in heed, its weight names and its config.json."""

    name: str
    model_type: str
    """The value of `model_type` in config.json."""
    task: str | None
    """heed's task; None for a class without a head."""
    prefix: str
    """The prefix of the body's weight names in a class that has a head."""
    body: NameMap
    head: NameMap
    read_config: ConfigReader
    write_config: Callable[[Draft], dict[str, Any]]
    """The inverse of `read_config`: the keys of config.json that describe a model."""
    reparameterizations: tuple[Reparameterization, ...] = ()
    """Changes to a heed model, with the same logits, that let this class hold it."""
    causal: bool = False
    """Whether a language model, or a model without a head, attends to earlier tokens only."""
    tied_weights: Mapping[str, str] = field(default_factory=dict)
    """Weights that may equal others: a folder may store both, or only one of the two."""
    computed: Mapping[str, Callable[[ModelConfig], Tensor]] = field(default_factory=dict)
    """Functions for tables that are computed, not learned; a folder may store them."""
    unused: str = r"(?!)"
    """A pattern for weights that a folder may store and this class does not use."""

    def locate(self, parameter: str, *, prefixed: bool = False) -> WeightLocation | None:
        """Where `transformers` stores a parameter of heed; names with the prefix on request."""
        inside = prefixed and self.task is not None
        body = with_prefix(self.prefix, self.body) if inside else self.body
        return locate({**body, **self.head}, parameter)

    def normalize_name(self, name: str) -> str:
        """A weight name as the name maps write it, whichever class or version saved it."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        return name.removeprefix(self.prefix)

    def count_modules(self, names: Set[str]) -> int:
        """How many modules of this class are among these weight names."""
        modules = first_layer_modules({**self.body, **self.head})
        return sum(f"{module}.weight" in names for module in modules)

    def has_type_of(self, model: AnyModel) -> bool:
        """Whether a model has this architecture's task and direction of attention."""
        causal = getattr(model, "causal", self.causal)
        return isinstance(model, MODEL_CLASSES[self.task]) and causal == self.causal


def activation_name(activation: str, names: Mapping[str, str] = ACTIVATIONS) -> str | None:
    """The name `transformers` has for an activation of heed; None if it has none."""
    return next((theirs for theirs, ours in names.items() if ours == activation), None)
