"""Operations that a training step of a model needs, counted from its shape.

A matrix of p weights takes 2p operations for each vector it meets on the way forward, and twice
that on the way back: 6p. The scores and the mix of attention take 4 n m w for n queries, m keys and
heads of w together, 12 n m w with the way back; under a causal mask half of it is needed. What a
kernel computes again to save memory is not counted, nor are norms, activations and positions: they
are no matrix products, and little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from heed.data.batching.length_buckets import BatchShape
from heed.models import Classifier, Model
from heed.nn.attention import MultiHeadAttention
from heed.nn.lstm import LSTMStack

MATRIX, ATTENTION = 6, 12
"""Operations forward and back: of a weight by vector, of a query by key by unit of width."""


@dataclass(frozen=True)
class Operations:
    """Of one forward and backward pass over a batch."""

    matrices: int
    attention: int
    """Of queries that see every key,"""
    causal: int
    """and of those that see the keys before them, as if they saw all."""

    @property
    def needed(self) -> float:
        """What must be computed: half of what a causal mask spans."""
        return self.matrices + self.attention + self.causal / 2

    @property
    def in_full(self) -> int:
        """With causal attention as if nothing were hidden: how nanoGPT and PaLM count."""
        return self.matrices + self.attention + self.causal


def operations(model: Model, shape: BatchShape) -> Operations:
    """What a step of this model needs for a batch of this shape, padding as any other token."""
    n, m, texts = shape.length, shape.source_length or 0, shape.batch_size
    meets = {"target": n, "source": m, "text": 1}
    matrices = sum(weights * meets[side] for side, weights in _matrices(model))
    attention = {True: 0, False: 0}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            causal = not module.crosses and _causal(model, name)
            queries, keys = _lengths(name, n, m)
            attention[causal] += queries * keys * module.heads * module.head_width
        elif isinstance(module, LSTMStack) and hasattr(module, "query"):
            attention[False] += n * m * module.width
    return Operations(
        MATRIX * texts * matrices,
        ATTENTION * texts * attention[False],
        ATTENTION * texts * attention[True],
    )


def _matrices(model: Model) -> Iterator[tuple[str, int]]:
    """Every matrix that vectors are multiplied by: whose vectors, and how many weights."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield _side(model, name), module.weight.numel()
        elif isinstance(module, nn.LSTM):
            sizes = (p.numel() for n, p in module.named_parameters() if n.startswith("weight"))
            yield _side(model, name), sum(sizes)
    if not isinstance(model, Classifier) and model.head.own is None:
        yield "target", model.head.weight.numel()


def _side(model: Model, name: str) -> str:
    """Whether a matrix meets the source's vectors, the target's, or one a text."""
    if ".starts." in name or (isinstance(model, Classifier) and name.startswith("head")):
        return "text"
    if name.startswith("encoder.") or name.endswith(".cross.kv"):
        return "source"
    return "target"


def _lengths(name: str, n: int, m: int) -> tuple[int, int]:
    """How many queries and keys an attention has."""
    if name.startswith("encoder."):
        return m, m
    return (n, m) if name.endswith(".cross") else (n, n)


def _causal(model: Model, name: str) -> bool:
    stack = model.get_submodule(name.split(".")[0])
    return bool(getattr(stack, "causal", False))
