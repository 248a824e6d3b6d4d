"""Decode settings: flags over a recipe's `[decode]` section, and the strategy they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heed.config import DecodeConfig
from heed.config.base import MAX_BEAM
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.strategy import Strategy
from heed.errors import ConfigError

SAMPLING_KEYS = ("sample", "temperature", "top_k", "top_p", "min_p", "seed")


def decode_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that set a key of `[decode]`. Any sampling flag turns sampling on."""
    keys = DecodeConfig.keys()
    settings = {name: flags[name] for name in keys if flags.get(name) is not None}
    if any(name in settings for name in SAMPLING_KEYS):
        settings = {"sample": True} | settings
    return settings


def merge_decode_config(recipe: DecodeConfig, settings: Mapping[str, Any]) -> DecodeConfig:
    """Settings over those of a recipe. `beam` turns sampling off; `sample` sets the beam to 1."""
    implied: dict[str, Any] = {}
    if "beam" in settings:
        implied = {"sample": False}
    elif settings.get("sample"):
        implied = {"beam": 1}
    return DecodeConfig(**(recipe.model_dump() | implied | dict(settings)))


def build_strategy(settings: DecodeConfig, nbest: int, sampler: type[Sample] = Sample) -> Strategy:
    """The strategy that these settings describe, returning `nbest` hypotheses per input.

    `sampler` is the class that samples, if they describe sampling.
    """
    if not 1 <= nbest <= MAX_BEAM:
        raise ConfigError([f"nbest cannot be {nbest}: ask for 1 to {MAX_BEAM:,}."])
    if settings.sample:
        return sampler(
            nbest,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seed=settings.seed,
            length_penalty=settings.length_penalty,
        )
    if nbest > settings.beam:
        raise ConfigError(
            [f"nbest {nbest} is more than a beam of {settings.beam} returns: widen the beam."]
        )
    if settings.beam == 1 and not settings.coverage_penalty:
        return Greedy(length_penalty=settings.length_penalty)
    return Beam(
        settings.beam,
        nbest=nbest,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        early_stop=settings.early_stop,
    )
