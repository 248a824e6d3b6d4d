"""Attention maps layer by layer: each layer is there as soon as the forward pass has computed it.

A page that shows one head of the first layer need not wait for the last one. The weights are those
of `map_inputs`, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from heed.models import Model
from heed.models.inference import nan_error
from heed.nn.lstm import LSTMStack
from heed.probe.attention_maps import (
    AttentionMaps,
    Floats,
    has_no_nan,
    label_maps,
    no_attention_error,
)
from heed.probe.patch import attention_sites, list_heads
from heed.probe.text_trace import InputTokens, trace_batch

Place = tuple[str, int]
"""A kind of attention, and a layer."""


def outline_maps(
    model: Model, read: InputTokens, source: InputTokens | None = None
) -> AttentionMaps:
    """The maps of a text before its forward pass: tokens, layers and heads; all weights are NaN.

    The weights of a layer that is not computed yet take no memory.
    """
    n, m = len(read.ids), len((source or read).ids)
    sizes = {"encoder": (m, m), "decoder": (n, n), "cross": (n, m)}
    heads = list_heads(model)
    if not heads:
        raise no_attention_error(model)
    weights: dict[str, list[Floats]] = {}
    for kind, layer in attention_sites(model):
        count = sum((head.kind, head.layer) == (kind, layer) for head in heads)
        empty = np.broadcast_to(np.float32(np.nan), (count, *sizes[kind]))
        weights.setdefault(kind, []).append(empty)
    return label_maps(model, weights, read, source)


def fill_maps(
    model: Model,
    maps: AttentionMaps,
    read: InputTokens,
    source: InputTokens | None,
    on_layer: Callable[[str, int], None],
) -> None:
    """Run the forward pass; `on_layer` is called with each kind and layer when its weights are in.

    `maps` are those of `outline_maps`.
    """
    by_kind = {one.kind: one for one in maps.maps}
    filled: set[Place] = set()

    def fill(kind: str, layer: int, weights_bhnm: Tensor) -> None:
        if not has_no_nan(weights_bhnm):
            raise nan_error([model], "it has no attention maps")
        if kind in by_kind:
            by_kind[kind].weights[layer] = weights_bhnm[0].float().cpu().numpy()
        filled.add((kind, layer))
        on_layer(kind, layer)

    with _watch_weights(model, fill):
        trace = trace_batch(model, [read], [] if source is None else [source])
    for kind, layer in attention_sites(model):
        if (kind, layer) not in filled:  # an LSTM's, whose steps attend one after the other
            fill(kind, layer, getattr(trace, kind)[layer])


@contextmanager
def _watch_weights(model: Model, fill: Callable[[str, int, Tensor], None]) -> Iterator[None]:
    """Call `fill` with the weights [b, h, n, m] of each layer as soon as it has attended."""

    def watch(kind: str, layer: int, site: nn.Module) -> Any:
        def note(module: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            fill(kind, layer, output[1])

        return site.register_forward_hook(note)

    handles = [
        watch(*place, site)
        for place, site in attention_sites(model).items()
        if not isinstance(site, LSTMStack)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
