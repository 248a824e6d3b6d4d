"""Attention maps that the lab has computed, kept for the page that reads them head by head.

A page of 512 tokens, 12 layers and 12 heads has 151 MB of weights. So it gets one head at a time as
float32, and all heads together as small pictures of one byte a pixel.

Shapes: h heads, n queries, m keys; p pictures, r and c their rows and columns of pixels.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import DataError
from heed.files import to_json
from heed.lab.error_responses import NOT_FOUND, StatusError

if TYPE_CHECKING:
    from heed.probe.attention_maps import AttentionMap, AttentionMaps
    from heed.probe.text_trace import InputTokens

    Inputs = tuple[InputTokens, InputTokens | None]

MAX_BYTES = 1 << 30
"""Bytes of weights that are kept; the least recently used maps are dropped beyond it."""
MOST_INPUTS = 64
"""Texts whose tokens are kept."""
PIXELS = 48
"""A picture has at most so many pixels on a side."""
LEVELS, HIDDEN = 254, 255
"""The level of a weight of one, and that of a pixel whose cells are all hidden by the mask."""
MEAN = "mean"
"""In place of a head: the mean of the heads of a layer."""

Bytes = NDArray[np.uint8]


class StoredMaps:
    """Maps by key, at most so many bytes of them."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._maps: OrderedDict[str, AttentionMaps] = OrderedDict()
        """Least recently used first."""
        self._inputs: OrderedDict[str, Inputs] = OrderedDict()
        self._lock = Lock()

    def add(self, key: str, maps: AttentionMaps) -> None:
        """Keep maps; those that are used last make room for them."""
        with self._lock:
            self._maps[key] = maps
            self._maps.move_to_end(key)
            while len(self._maps) > 1 and self.size() > self.max_bytes:
                self._maps.popitem(last=False)

    def get_or_compute(self, key: str, compute: Callable[[], AttentionMaps]) -> AttentionMaps:
        """The maps of a key, computed now if they are not kept."""
        with self._lock:
            maps = self._maps.get(key)
            if maps is not None:
                self._maps.move_to_end(key)
                return maps
        maps = compute()
        self.add(key, maps)
        return maps

    def get_inputs(self, key: str, compute: Callable[[], Inputs]) -> Inputs:
        """The tokens of a text, read now if they are not kept: a translation takes a search."""
        with self._lock:
            if key in self._inputs:
                self._inputs.move_to_end(key)
                return self._inputs[key]
        inputs = compute()
        with self._lock:
            self._inputs[key] = inputs
            if len(self._inputs) > MOST_INPUTS:
                self._inputs.popitem(last=False)
        return inputs

    def require(self, key: str) -> AttentionMaps:
        """The maps of a key; an error if they are no longer kept."""
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key]
        what = "these maps are no longer in memory."
        raise StatusError(what, status=NOT_FOUND, where=key, todo="Ask for them again.")

    def size(self) -> int:
        """Bytes of the weights that are kept."""
        return sum(4 * one.cells for maps in self._maps.values() for one in maps.maps)


def build_key(*parts: Any) -> str:
    """A short name for what maps are made of: the same parts have the same name."""
    return sha256(to_json([str(part) for part in parts]).encode()).hexdigest()[:24]


def describe_maps(maps: AttentionMaps, key: str) -> dict[str, Any]:
    """The maps for JSON without their weights: tokens, layers, heads, and what the mask hides."""
    described = [one.describe_axes() | {"visible": pack_visible(one)} for one in maps.maps]
    names = ("run", "task", "weights", "text", "target")
    return {"key": key, **{name: getattr(maps, name) for name in names}, "maps": described}


def pack_visible(attention: AttentionMap) -> str:
    """The mask [n, m] as bits, row after row without gaps, in base64."""
    return base64.b64encode(np.packbits(attention.visible).tobytes()).decode()


def head_weights(attention: AttentionMap, layer: int, head: int | str) -> NDArray[np.float32]:
    """[n, m]: the weights of one head, or the mean over a layer's heads."""
    if not 0 <= layer < len(attention.weights) or not len(attention.weights[layer]):
        what = f"there is no layer {layer + 1} with heads of {attention.kind} attention."
        raise DataError(what, todo=f"It has {len(attention.weights)} layers.")
    weights_hnm = attention.weights[layer]
    if head == MEAN:
        return attention.mean_over_heads(layer)
    if not isinstance(head, int) or not 0 <= head < len(weights_hnm):
        what = f"layer {layer + 1} of {attention.kind} attention has no such head."
        raise DataError(what, todo=f"Choose 0 to {len(weights_hnm) - 1}, or mean.")
    return weights_hnm[head]


def draw_pictures(attention: AttentionMap, *, by_row: bool = False) -> Bytes:
    """[p, r, c]: a picture of every head and, after each layer's heads, of their mean.

    A pixel has the largest weight of its cells, so that no peak is lost. With `by_row` a weight is
    the share of the largest one in its row. A layer of one head has no mean.
    """
    rows, columns = (_first_cells(len(axis)) for axis in (attention.queries, attention.keys))
    visible_rm = np.logical_or.reduceat(attention.visible, rows, axis=0)
    hidden_rc = ~np.logical_or.reduceat(visible_rm, columns, axis=1)
    pictures = []
    for layer, weights_hnm in enumerate(attention.weights):
        if not len(weights_hnm):
            continue
        maps = [weights_hnm]
        if len(weights_hnm) > 1:
            maps.append(attention.mean_over_heads(layer)[None])
        for shares_hnm in maps:
            if by_row:
                limits = shares_hnm.max(axis=2, keepdims=True)
                shares_hnm = (shares_hnm / np.where(limits > 0, limits, 1)).astype(np.float32)
            pooled = np.maximum.reduceat(shares_hnm, rows, axis=1)
            pooled = np.maximum.reduceat(pooled, columns, axis=2)
            levels = np.rint(LEVELS * np.clip(pooled, 0, 1)).astype(np.uint8)
            levels[hidden_rc & (pooled == 0)] = HIDDEN
            pictures.append(levels)
    return np.concatenate(pictures)


def _first_cells(count: int) -> NDArray[np.int64]:
    """The first cell of each pixel along an axis of `count` cells."""
    pixel_of_cell = np.arange(count) * min(PIXELS, count) // max(1, count)
    return np.flatnonzero(np.diff(pixel_of_cell, prepend=-1))
