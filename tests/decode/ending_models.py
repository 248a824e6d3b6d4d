"""Random models that generate the end token often enough to test decoding with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from support import VARIANTS, new_language_model, new_translator

from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator


@cache
def ending_translator(variant: str, seed: int = 0) -> Translator:
    """A translator whose end token wins now and then; a random one's hardly ever does."""
    changes = VARIANTS[variant] | {"tie_embeddings": False, "cross_position": True}
    model = new_translator(**changes)
    _raise_end_token(model, seed)
    return model


@cache
def ending_language_model(variant: str) -> LanguageModel:
    """A language model whose end token wins now and then."""
    model = new_language_model(**VARIANTS[variant] | {"tie_embeddings": False})
    _raise_end_token(model, 0)
    return model


def _raise_end_token(model: Translator | LanguageModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        weight = model.head.weight
        weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
        weight[EOS] *= 3


@torch.no_grad()
def fresh_logprob(model: Translator, source: Sequence[int], ids: Sequence[int], cut: bool) -> float:
    """The log-probability of a finished hypothesis, by one forward pass without a cache."""
    target = [*ids] if cut else [*ids, EOS]
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *target[:-1]]]))[0]
    return float(logits.double().log_softmax(dim=-1)[range(len(target)), target].sum())
