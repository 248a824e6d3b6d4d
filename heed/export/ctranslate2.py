"""Export a translator to CTranslate2: model.bin, config.json, vocabularies and tokenizer."""

from __future__ import annotations

from pathlib import Path

from heed.decode.engine_choice import check_installed
from heed.errors import ConfigError, RunError
from heed.models import Translator, ctranslate2_support
from heed.runs.load import load_run

WEIGHT_TYPES = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16")
"""The number types in which CTranslate2 can store weights."""


def export(run: Path, folder: Path, *, quantize: str | None = None) -> None:
    """Write a run's translator; `quantize` is the type of its weights (default: unchanged)."""
    check_installed("ctranslate2")
    if quantize is not None and quantize not in WEIGHT_TYPES:
        raise ConfigError(
            [f"quantize cannot be {quantize!r}: use one of {', '.join(WEIGHT_TYPES)}."]
        )
    model, tokenizer, recipe = load_run(run, device="cpu")
    if not isinstance(model, Translator):
        what = (
            f"this run was trained to {recipe.task}; only translators are exported to CTranslate2."
        )
        raise RunError(what, where=str(run))
    from heed.decode.ctranslate2_engine import convert

    if unsupported := ctranslate2_support.find_unsupported(model.config):
        raise RunError(" ".join(unsupported), where=str(run))
    convert(model, tokenizer, folder, max_source=recipe.data.max_length, quantization=quantize)
