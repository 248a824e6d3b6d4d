"""Hidden states and embeddings of texts: the vectors of every layer, and one vector per text.

Shapes: l layers, n tokens, m source tokens, w model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heed.models import Classifier, Model, Translator
from heed.models.inference import evaluating
from heed.nn.tokens import Tokens
from heed.probe.text_trace import InputTokens, TextTrace, pad_batch

Floats = NDArray[np.float32]
BATCH_SIZE = 64
"""Texts in a forward pass."""


@dataclass(frozen=True, repr=False)
class HiddenStates:
    """The vectors inside a model over one text: those that enter the first layer, then each's."""

    tokens: list[str]
    """The tokens along n: the classified text, the prompt, or the translation."""
    encoder: Floats | None = None
    """[l + 1, n, w], of a translator [l + 1, m, w]."""
    decoder: Floats | None = None
    """[l + 1, n, w]."""
    source_tokens: list[str] | None = None
    """The tokens along m: the source of a translation."""

    @classmethod
    def from_trace(cls, trace: TextTrace) -> HiddenStates:
        """The hidden states of a trace of one text."""
        stacks = {name: _stack(layers) for name, layers in trace.hidden.items()}
        return cls(trace.tokens, **stacks, source_tokens=trace.source_tokens or None)

    def __repr__(self) -> str:
        sizes = [
            f"{name} {list(states.shape)}"
            for name, states in (("encoder", self.encoder), ("decoder", self.decoder))
            if states is not None
        ]
        return f"HiddenStates({', '.join(sizes)}: layers + 1, tokens, width)"


def _stack(layers: Sequence[Tensor]) -> Floats:
    return np.stack([layer[0].float().cpu().numpy() for layer in layers])


def embed_inputs(model: Model, inputs: Sequence[InputTokens], *, pad: int) -> Floats:
    """One vector [w] per text: of a classifier the one that its head reads, else the mean.

    The mean is over the last layer's vectors of all tokens: a translator's encoder, or a language
    model.
    """
    vectors = np.zeros((len(inputs), model.config.width), np.float32)
    order = sorted(range(len(inputs)), key=lambda i: len(inputs[i].ids))
    with evaluating(model):
        for first in range(0, len(order), BATCH_SIZE):
            rows = order[first : first + BATCH_SIZE]
            ids, real = pad_batch(model, [inputs[i] for i in rows], pad)
            vectors[rows] = _embed_batch(model, ids, real).float().cpu().numpy()
    return vectors


def _embed_batch(model: Model, ids_bn: Tensor, real_bn: Tensor | None) -> Tensor:
    if isinstance(model, Translator):
        x_bnw = model.encode(ids_bn, Tokens.of(ids_bn, mask=real_bn)).x_bnw
    else:
        x_bnw = model.states(ids_bn, mask=real_bn).x_bnw
    if isinstance(model, Classifier):
        return model.pool(x_bnw, real_bn)
    if real_bn is None:
        return x_bnw.mean(dim=1)
    return (x_bnw * real_bn[..., None]).sum(dim=1) / real_bn.sum(dim=1, keepdim=True)
