"""One row of attention in stages: scores, scale, bias, mask, softmax, with their numbers.

    weights = softmax(q kᵀ · scale + bias), masked        (Vaswani et al. 2017, equation 1)

The queries and keys are those of the model's own pass over the text: what enters a layer is
recorded, and projected once more. So the stages recompose to the weights that the pass returned.

Shapes: b batch, n queries, m keys, h heads, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.arrays import Floats
from heed.errors import DataError
from heed.models import Model
from heed.models.inference import evaluating
from heed.nn.attention import AttentionContext, MultiHeadAttention, repeat_heads
from heed.nn.lstm import LSTMStack
from heed.nn.positions import Position
from heed.probe.patch import Head, attention_sites, check_head
from heed.probe.text_trace import InputTokens, trace_batch


@dataclass(frozen=True)
class RowStages:
    """What one head computes for one query, stage by stage."""

    head: Head
    row: int
    scores: Floats
    """[m]: the products of the query with every key; a rotation of both has happened before."""
    scale: float
    bias: Floats | None
    """[m]: what the position encoding adds; None where it has no bias."""
    visible: NDArray[np.bool_]
    """[m]: False where the mask hides a key."""
    weights: Floats
    """[m]: the weights that the model's pass returned."""
    is_rotated: bool
    """Whether the position encoding rotated queries and keys (RoPE)."""

    @property
    def scaled(self) -> Floats:
        """[m]: the scores times the scale."""
        return self.scores * self.scale

    @property
    def biased(self) -> Floats:
        """[m]: the scaled scores with the bias added."""
        return self.scaled if self.bias is None else self.scaled + self.bias

    @property
    def softmax(self) -> Floats:
        """[m]: the softmax of the visible scores; zeros where nothing is visible."""
        return self.exponentials / max(self.total, np.finfo(np.float64).tiny)

    @property
    def largest(self) -> float:
        """The largest visible score, which the softmax subtracts first; 0 where there is none."""
        return float(self.biased[self.visible].max(initial=-np.inf)) if self.visible.any() else 0.0

    @property
    def exponentials(self) -> Floats:
        """[m]: exp(score − largest) of the visible scores, and 0 of the others."""
        return np.where(self.visible, np.exp(np.minimum(self.biased - self.largest, 0.0)), 0.0)

    @property
    def total(self) -> float:
        """The sum of the exponentials, by which each of them is divided."""
        return float(self.exponentials.sum())

    @property
    def deviation(self) -> float:
        """How far the recomposed softmax is from the model's weights, at most."""
        return float(np.abs(self.softmax - self.weights).max(initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """The stages for JSON; a score that the mask hides is null after the mask."""
        masked = [
            float(score) if seen else None
            for score, seen in zip(self.biased, self.visible, strict=True)
        ]
        return {
            "kind": self.head.kind,
            "layer": self.head.layer,
            "head": self.head.head,
            "row": self.row,
            "scores": self.scores.tolist(),
            "scale": self.scale,
            "scaled": self.scaled.tolist(),
            "bias": None if self.bias is None else self.bias.tolist(),
            "biased": self.biased.tolist(),
            "visible": self.visible.tolist(),
            "masked": masked,
            "largest": self.largest,
            "exponentials": self.exponentials.tolist(),
            "total": self.total,
            "weights": self.weights.tolist(),
            "deviation": self.deviation,
            "is_rotated": self.is_rotated,
        }


def row_stages(
    model: Model, read: InputTokens, source: InputTokens | None, head: Head, row: int
) -> RowStages:
    """The stages of one query of one head over a text; a translator needs the source."""
    head = check_head(model, head)
    site = attention_sites(model)[head.kind, head.layer]
    with evaluating(model), _record(site) as recorded:
        trace = trace_batch(model, [read], [] if source is None else [source])
        layers: Sequence[Tensor] = getattr(trace, head.kind)
        weights_nm = layers[head.layer][0, head.head]
        if not 0 <= row < len(weights_nm):
            raise DataError(
                f"there is no row {row + 1}: {head.kind} attention has {len(weights_nm)} queries.",
                todo=f"Choose 1 to {len(weights_nm)}.",
            )
        return recorded.stages(head, row, weights_nm[row])


class _Recorder:
    """What entered one attention layer in its last pass."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self.attention = attention
        self.inputs: tuple[Tensor, AttentionContext, Position] | None = None

    def hooks(self) -> Iterator[Any]:
        def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.inputs = inputs[0], inputs[1], inputs[2]

        yield self.attention.register_forward_pre_hook(record)

    def stages(self, head: Head, row: int, weights_m: Tensor) -> RowStages:
        if self.inputs is None:
            raise ValueError("The layer was not run.")
        attention, (x_bnw, context, position) = self.attention, self.inputs
        heads = attention.project(x_bnw, context, position)
        bias = context.shared.bias(position, heads.q_bhnd, attention.scale, attention.kept_heads)
        dense = bias.dense()
        if dense is not None:
            m = context.k_positions.shape[1]
            dense = dense.expand(1, attention.heads, x_bnw.shape[1], m)[0, head.head, row]
        q, k, _ = heads.rotated()
        return _build_stages(
            head,
            row,
            q[0, head.head, row],
            repeat_heads(k, attention.heads)[0, head.head],
            scale=attention.scale,
            bias_m=dense,
            visible=context.visible(),
            weights_m=weights_m,
            is_rotated=type(position).rotate is not Position.rotate,
        )


@dataclass
class _LstmRecorder:
    """The query and the source of an LSTM decoder's one attention head, in its last pass."""

    stack: LSTMStack
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def hooks(self) -> Iterator[Any]:
        def record_source(
            module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
        ) -> None:
            self.tensors["memory"] = options["memory"]

        def record_query(module: nn.Module, inputs: tuple[Any, ...], q_bnw: Tensor) -> None:
            self.tensors["query"] = q_bnw

        yield self.stack.register_forward_pre_hook(record_source, with_kwargs=True)
        yield self.stack.query.register_forward_hook(record_query)

    def stages(self, head: Head, row: int, weights_m: Tensor) -> RowStages:
        query_d = self.tensors["query"][0, row]
        return _build_stages(
            head,
            row,
            query_d,
            self.tensors["memory"][0],
            scale=len(query_d) ** -0.5,
            bias_m=None,
            visible=None,
            weights_m=weights_m,
            is_rotated=False,
        )


@contextmanager
def _record(site: nn.Module) -> Iterator[_Recorder | _LstmRecorder]:
    """Record what enters an attention layer for as long as the context lasts."""
    recorder = (
        _LstmRecorder(site)
        if isinstance(site, LSTMStack)
        else _Recorder(cast("MultiHeadAttention", site))
    )
    handles = list(recorder.hooks())
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()


def _build_stages(
    head: Head,
    row: int,
    query_d: Tensor,
    keys_md: Tensor,
    *,
    scale: float,
    bias_m: Tensor | None,
    visible: Tensor | None,
    weights_m: Tensor,
    is_rotated: bool,
) -> RowStages:
    seen = np.ones(len(weights_m), bool)
    if visible is not None:
        n, m = visible.shape[-2:]
        seen = visible.expand(1, 1, n, m)[0, 0, row].cpu().numpy()
    return RowStages(
        head,
        row,
        _to_numpy(keys_md @ query_d),
        float(scale),
        None if bias_m is None else _to_numpy(bias_m),
        np.asarray(seen, bool),
        _to_numpy(weights_m),
        is_rotated,
    )


def _to_numpy(x: Tensor) -> Floats:
    return np.asarray(x.to(torch.float64).cpu().numpy())
