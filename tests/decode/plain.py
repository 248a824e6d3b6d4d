"""Decoding as a course would write it: one text at a time, no cache, every formula in the open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from support import VARIANTS, new_language_model, new_translator
from torch import Tensor

from heed.data.tokenizers.tokenizer import BOS, EOS
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator

Next = Callable[[list[int]], Tensor]
"""What is written so far, to the log-probability of every token that may follow."""


@cache
def ending_translator(variant: str, seed: int = 0) -> Translator:
    """A translator whose end mark wins now and then, as a random one's hardly ever does."""
    changes = VARIANTS[variant] | {"tie_embeddings": False, "cross_position": True}
    model = new_translator(**changes)
    _louder_end(model, seed)
    return model


@cache
def ending_language_model(variant: str) -> LanguageModel:
    """The same for a language model."""
    model = new_language_model(**VARIANTS[variant] | {"tie_embeddings": False})
    _louder_end(model, 0)
    return model


def _louder_end(model: Translator | LanguageModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        weight = model.head.weight
        weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
        weight[EOS] *= 3


def translating(model: Translator, source: Sequence[int]) -> Next:
    """What a translator says, from a fresh forward pass."""

    @torch.no_grad()
    def following(written: list[int]) -> Tensor:
        logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *written]]))
        return logits[0, -1].log_softmax(dim=-1)

    return following


def continuing(model: LanguageModel, prompt: Sequence[int]) -> Next:
    """What a language model says."""

    @torch.no_grad()
    def following(written: list[int]) -> Tensor:
        return model(torch.tensor([[*prompt, *written]]))[0, -1].log_softmax(dim=-1)

    return following


def greedy(following: Next, limit: int) -> tuple[list[int], float]:
    """The likeliest token, again and again."""
    written: list[int] = []
    total = 0.0
    while len(written) < limit:
        shares = following(written)
        token = int(shares.argmax())
        total += float(shares[token])
        if token == EOS:
            break
        written.append(token)
    return written, total


def beam(
    following: Next, width: int, limit: int, *, penalty: float = 1.0, early_stop: bool = False
) -> list[tuple[float, list[int]]]:
    """Score and tokens of the best hypotheses, by the rules that `heed.decode.beam` states.

    Those that the limit cut stand behind those that ended.
    """
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        ways = [
            (total + share, [*written, token])
            for total, written in running
            for token, share in enumerate(following(written).tolist())
        ]
        ways = sorted(ways, key=lambda way: -way[0])[: 2 * width]
        for total, written in ways[:width]:
            if written[-1] == EOS:
                ended.append((total / length**penalty, written[:-1]))
        ended = sorted(ended, key=lambda way: -way[0])[:width]
        running = [way for way in ways if way[1][-1] != EOS][:width]
        best = running[0][0] / length**penalty
        if len(ended) == width and (early_stop or best <= ended[-1][0]):
            break
    else:
        ended += [(total / limit**penalty, written) for total, written in running]
    return ended[:width]


@torch.no_grad()
def fresh_logprob(model: Translator, source: Sequence[int], ids: Sequence[int], cut: bool) -> float:
    """The log-probability of a finished text, by one fresh forward pass."""
    said = [*ids] if cut else [*ids, EOS]
    logits = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *said[:-1]]]))[0]
    return float(logits.double().log_softmax(dim=-1)[range(len(said)), said].sum())
