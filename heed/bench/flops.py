"""Floating-point operations of a training step, counted from the model's shape.

A matrix of p weights takes 2p operations per vector in the forward pass and twice that in the
backward pass: 6p. Attention scores and weighted sums take 4 n m w for n queries, m keys and total
head width w, 12 n m w with the backward pass; under a causal mask half of that is needed.
Recomputation inside kernels is not counted. Norms, activations and positions are not counted
either: they are no matrix products, and small.
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
"""Operations of forward and backward pass: per weight and vector; per query, key and width."""


@dataclass(frozen=True)
class Operations:
    """The operations of one forward and backward pass over a batch."""

    matrices: int
    attention: int
    """Attention without a causal mask."""
    causal: int
    """Causal attention, counted as if every key were visible."""

    @property
    def needed(self) -> float:
        """The operations that are needed: half of causal attention."""
        return self.matrices + self.attention + self.causal / 2

    @property
    def in_full(self) -> int:
        """Causal attention counted in full, as nanoGPT and PaLM count."""
        return self.matrices + self.attention + self.causal


def count_operations(model: Model, shape: BatchShape) -> Operations:
    """The operations of a training step on a batch of this shape; padding counts as tokens."""
    n, m, texts = shape.length, shape.source_length or 0, shape.batch_size
    meets = {"target": n, "source": m, "text": 1}
    matrices = sum(weights * meets[side] for side, weights in _weight_matrices(model))
    attention = {True: 0, False: 0}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            causal = not module.crosses and _is_causal(model, name)
            queries, keys = _query_and_key_lengths(name, n, m)
            attention[causal] += queries * keys * module.heads * module.head_width
        elif isinstance(module, LSTMStack) and hasattr(module, "query"):
            attention[False] += n * m * module.width
    return Operations(
        MATRIX * texts * matrices,
        ATTENTION * texts * attention[False],
        ATTENTION * texts * attention[True],
    )


def _weight_matrices(model: Model) -> Iterator[tuple[str, int]]:
    """Every weight matrix: the sequence whose vectors it multiplies, and its number of weights."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield _sequence_of(model, name), module.weight.numel()
        elif isinstance(module, nn.LSTM):
            sizes = (p.numel() for n, p in module.named_parameters() if n.startswith("weight"))
            yield _sequence_of(model, name), sum(sizes)
    if not isinstance(model, Classifier) and model.head.own is None:
        yield "target", model.head.weight.numel()


def _sequence_of(model: Model, name: str) -> str:
    """The sequence whose vectors a matrix multiplies: source, target, or one vector per text."""
    if ".starts." in name or (isinstance(model, Classifier) and name.startswith("head")):
        return "text"
    if name.startswith("encoder.") or name.endswith(".cross.kv"):
        return "source"
    return "target"


def _query_and_key_lengths(name: str, n: int, m: int) -> tuple[int, int]:
    """The numbers of queries and keys of an attention module."""
    if name.startswith("encoder."):
        return m, m
    return (n, m) if name.endswith(".cross") else (n, n)


def _is_causal(model: Model, name: str) -> bool:
    stack = model.get_submodule(name.split(".")[0])
    return bool(getattr(stack, "causal", False))
