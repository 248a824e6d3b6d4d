"""Inference with a trained model: evaluation mode, its positions, outputs that are NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from heed.config import POSITIONS
from heed.errors import RunError
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) and inference mode (no autograd graph) for these models.

    Each model's own mode is restored on exit.
    """
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)


def position_limit(models: Sequence[Translator | LanguageModel]) -> int | None:
    """The number of positions that all these models have; None where it is unlimited."""
    configs = [model.config for model in models if model.config.family == "transformer"]
    limits = [POSITIONS[config.position].limit(config) for config in configs]
    return min((limit for limit in limits if limit is not None), default=None)


def nan_error(models: Sequence[nn.Module], consequence: str) -> RunError:
    """The error for an output that is NaN, with the first weight that is not finite."""
    weights = (named for model in models for named in model.named_parameters())
    broken = next((name for name, weight in weights if not weight.isfinite().all()), None)
    return RunError(
        f"the model's output is not a number (NaN), so {consequence}.",
        where=broken and f"weight {broken}",
        todo="Load it in float32; if that is the same, train it again with a lower train.lr.",
    )
