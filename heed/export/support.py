"""Which export formats can hold a recipe's model, what they need, and the commands that work."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from heed.config import Recipe
from heed.config.model import PRESET_TASKS
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS
from heed.errors import HeedError, install_command
from heed.export import onnx
from heed.models import build, ctranslate2_support
from heed.models.huggingface.save_pretrained import choose_architecture

EXTRAS = {"ctranslate2": "ctranslate2", "onnx": "onnx"}
"""The extra that installs what a format needs."""
PACKAGES = {"hf": (), "ctranslate2": ("ctranslate2",), "onnx": onnx.REQUIRED_PACKAGES}
PLACEHOLDER_SIZE = 8
"""Vocabulary and classes of a model that is built only to learn its parts."""


@dataclass(frozen=True)
class FormatSupport:
    """Whether one format can hold a model."""

    name: str  # the value of --to
    reasons: tuple[str, ...]  # why it cannot, as sentences
    missing: tuple[str, ...]  # packages that are not installed

    @property
    def install(self) -> str | None:
        """The command that installs what is missing."""
        return install_command(EXTRAS[self.name]) if self.missing else None


def find_formats(recipe: Recipe) -> list[FormatSupport]:
    """Every format, with what keeps it from holding the recipe's model."""
    reasons = {
        "hf": _transformers_reasons(recipe),
        "ctranslate2": _ctranslate2_reasons(recipe),
        "onnx": onnx.find_unsupported(recipe.model, causal=_is_generative(recipe)),
    }
    return [
        FormatSupport(name, tuple(why), tuple(p for p in PACKAGES[name] if find_spec(p) is None))
        for name, why in reasons.items()
    ]


def describe_formats(recipe: Recipe) -> str:
    """One line: the formats that hold the recipe's model, and the preset that transformers need."""
    formats = find_formats(recipe)
    parts = [
        f"--to {one.name}" + (f" (needs {one.install})" if one.missing else "")
        for one in formats
        if not one.reasons
    ]
    line = ", ".join(parts) or "no format"
    if formats[0].reasons and recipe.model.family == "transformer":
        line += f"; --to hf with model.preset={suggested_preset(recipe)}"
    return line


def suggested_preset(recipe: Recipe) -> str:
    """The preset of a recipe's task that a class of transformers can hold."""
    if recipe.task == "generate" and recipe.train.objective == "masked":
        return "bert"
    return next(name for name, tasks in PRESET_TASKS.items() if recipe.task in tasks)


def other_ways(recipe: Recipe, run: Path, folder: Path, failed: str) -> str:
    """The commands that export this run to the other formats, as advice in an error."""
    command = ["heed", "export", str(run), str(folder), "--to"]
    ways = [
        f"{_condition(one)}: {shlex.join([*command, one.name])}."
        for one in find_formats(recipe)
        if not one.reasons and one.name != failed
    ]
    advice = " ".join(ways) or "No other format holds it either."
    if failed == "hf" and recipe.model.family == "transformer":
        advice += f" For --to hf, train with --set model.preset={suggested_preset(recipe)}."
    return advice


def _condition(one: FormatSupport) -> str:
    """Whether a command that exports to a format works now, or after which installation."""
    if one.install is None:
        return "This works"
    return f"After {one.install} in the folder of heed's source this works"


def _transformers_reasons(recipe: Recipe) -> list[str]:
    causal = recipe.train.objective == "causal"
    with torch.device("meta"):
        model = build(
            recipe.task,
            recipe.model,
            vocab=PLACEHOLDER_SIZE,
            classes=PLACEHOLDER_SIZE if recipe.task == "classify" else None,
            causal=causal,
        )
        try:
            choose_architecture(model, DEFAULT_SPECIALS)
        except HeedError as error:
            return [error.what]
    return []


def _ctranslate2_reasons(recipe: Recipe) -> list[str]:
    if recipe.task != "translate":
        return [f"task {recipe.task!r}: only translators are exported to CTranslate2."]
    return ctranslate2_support.find_unsupported(recipe.model)


def _is_generative(recipe: Recipe) -> bool:
    masked = recipe.task == "generate" and recipe.train.objective == "masked"
    return recipe.task != "classify" and not masked
