"""What there is to know of a class of `transformers` to read and write its folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heed.config import ModelConfig
from heed.models import Backbone, Classifier, LanguageModel, Model, Translator
from heed.models.huggingface.folder import Facts
from heed.models.huggingface.name_map import Place, Table, modules, place, under
from heed.models.huggingface.reparameterize import Draft, Form

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Theirs, and ours."""
KINDS: Mapping[str | None, type] = {
    "translate": Translator,
    "classify": Classifier,
    "generate": LanguageModel,
    None: Backbone,
}

AnyModel = Model | Backbone
Shape = Callable[[Facts, Set[str]], dict[str, Any]]
"""From what config.json says, and the names of all weights, to the keys of a `ModelConfig`."""


@dataclass(frozen=True)
class Architecture:
    """One class: what it is here, where its weights are, and how its config.json is read."""

    name: str
    family: str
    """What config.json calls `model_type`."""
    task: str | None
    """Ours; None for a class without a head."""
    prefix: str
    """What the names of the body begin with, in a class with a head."""
    body: Table
    head: Table
    shape: Shape
    describe: Callable[[Draft], dict[str, Any]]
    """The way back: what config.json is to say of a model."""
    forms: tuple[Form, ...] = ()
    """What to make of a model of ours so that this class can hold it."""
    causal: bool = False
    """Whether a language model, or one without a head, sees only what came before."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Weights that may be the same as others, which a folder then holds once or twice."""
    computed: Mapping[str, Callable[[ModelConfig], Tensor]] = field(default_factory=dict)
    """Tables that a folder may hold and no one learns, and how they are made."""
    idle: str = r"(?!)"
    """Names of what a folder may hold beside, and this class does not use."""

    def place(self, parameter: str, *, full: bool = False) -> Place | None:
        """Where a parameter of ours is kept, by names without the prefix, or by those in full."""
        inside = full and self.task is not None
        body = under(self.prefix, self.body) if inside else self.body
        return place({**body, **self.head}, parameter)

    def plain(self, name: str) -> str:
        """A name as the tables write it, by whichever class and in whatever year it was saved."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        return name.removeprefix(self.prefix)

    def finds(self, names: Set[str]) -> int:
        """How many modules of this class are among these names."""
        known = modules({**self.body, **self.head})
        return sum(f"{module}.weight" in names for module in known)

    def holds(self, model: AnyModel) -> bool:
        """Whether a model is of this kind, whatever its shape."""
        looks = getattr(model, "causal", self.causal)
        return isinstance(model, KINDS[self.task]) and looks == self.causal


def word_for(activation: str, known: Mapping[str, str] = ACTIVATIONS) -> str | None:
    """Theirs for ours, if they have it."""
    return next((word for word, ours in known.items() if ours == activation), None)
