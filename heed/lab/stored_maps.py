"""Attention maps that the lab computes, kept for the page that reads them head by head.

A page of 512 tokens, 12 layers and 12 heads has 151 MB of weights. So it gets one head at a time as
float32, and all heads together as small pictures of one byte a pixel. Maps are kept from the moment
at which their tokens are known; a reader waits for the layer that it wants.

Shapes: h heads, n queries, m keys; p pictures, r and c their rows and columns of pixels.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import DataError
from heed.files import to_json
from heed.lab.error_responses import NOT_FOUND, ClientLeftError, StatusError

if TYPE_CHECKING:
    from heed.probe.attention_maps import AttentionMap, AttentionMaps
    from heed.probe.text_trace import InputTokens

    Inputs = tuple[InputTokens, InputTokens | None]

MAX_BYTES = 1 << 30
"""Bytes of weights that are kept; the least recently used maps are dropped beyond it."""
MOST_INPUTS = 64
"""Texts whose tokens are kept."""
RETURN_SECONDS = 1.0
"""A page that drops a request sends the next one within this time, if it wants the same maps."""
PIXELS = 48
"""A picture has at most so many pixels on a side."""
LEVELS, HIDDEN = 254, 255
"""The level of a weight of one, and that of a pixel whose cells are all hidden by the mask."""
MEAN = "mean"
"""In place of a head: the mean of the heads of a layer."""

Bytes = NDArray[np.uint8]


class LayerProgress:
    """Which layers of maps are computed. A reader waits for one of them, or for all.

    With `can_stop`, the pass is stopped after its next layer when all readers have left before
    they got theirs.
    """

    def __init__(self, layers: Iterable[tuple[str, int]], *, can_stop: bool = False) -> None:
        self._layers: dict[tuple[str, int], Future[None]] = {layer: Future() for layer in layers}
        self._can_stop, self._readers = can_stop, 0
        self._left_at: float | None = None
        """When the last reader left that did not wait to the end; None since another came."""
        self._lock = Lock()

    def finish(self, kind: str, layer: int) -> None:
        """Note that a layer is computed; `ClientLeftError` where no reader wants the others."""
        self._layers[kind, layer].set_result(None)
        if self._can_stop and self._is_abandoned():
            raise ClientLeftError

    def fail(self, error: BaseException) -> None:
        """Note that the layers which are not computed never will be.

        A pass that was stopped, since its readers had left, is to be asked for again.
        """
        error = _lost() if isinstance(error, ClientLeftError) else error
        for layer in self._layers.values():
            if not layer.done():
                layer.set_exception(error)

    @property
    def has_failed(self) -> bool:
        """Whether a layer could not be computed."""
        return any(one.done() and one.exception() is not None for one in self._layers.values())

    def wait_for_all(self) -> None:
        """Block until all layers are computed; raises the error of one that could not be."""
        with self.reading():
            for layer in self._layers.values():
                layer.result()

    async def wait(self, kind: str, layer: int) -> None:
        """Wait until a layer is computed; raises the error if it could not be."""
        future = self._layers.get((kind, layer))
        if future is not None:
            with self.reading():
                # Shielded: a client that leaves must not cancel what others wait for.
                await asyncio.shield(asyncio.wrap_future(future))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context of a reader that wants further layers: meanwhile the pass is not stopped."""
        with self._lock:
            self._readers += 1
            self._left_at = None
        try:
            yield
        except (asyncio.CancelledError, ClientLeftError, GeneratorExit):
            self._left_at = time.monotonic()
            raise
        finally:
            with self._lock:
                self._readers -= 1

    def _is_abandoned(self) -> bool:
        left_at, has_readers = self._left_at, self._readers > 0
        is_over = left_at is not None and time.monotonic() - left_at >= RETURN_SECONDS
        return is_over and not has_readers


class StoredMaps:
    """Maps by key, at most so many bytes of them."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._maps: OrderedDict[str, AttentionMaps] = OrderedDict()
        """Least recently used first."""
        self._progress: dict[str, LayerProgress] = {}
        """Of the same maps; complete ones have a progress without layers."""
        self._inputs: OrderedDict[str, Inputs] = OrderedDict()
        self._lock = Lock()

    def add(self, key: str, maps: AttentionMaps, progress: LayerProgress | None = None) -> None:
        """Keep maps, complete or with their progress; those that are used last make room."""
        with self._lock:
            self._maps[key] = maps
            self._maps.move_to_end(key)
            self._progress[key] = progress or LayerProgress(())
            while len(self._maps) > 1 and self.size() > self.max_bytes:
                oldest, _ = self._maps.popitem(last=False)
                self._progress.pop(oldest)

    def find(self, key: str) -> tuple[AttentionMaps, LayerProgress] | None:
        """The maps of a key and their progress; None if there are none, or they failed."""
        with self._lock:
            if key not in self._maps or self._progress[key].has_failed:
                return None
            self._maps.move_to_end(key)
            return self._maps[key], self._progress[key]

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

    def require(self, key: str) -> tuple[AttentionMaps, LayerProgress]:
        """The maps of a key and their progress; an error if they are no longer kept.

        Both are returned at once: a later pass for the same key has other maps.
        """
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key], self._progress[key]
        raise _lost(key)

    def size(self) -> int:
        """Bytes of the weights that are kept."""
        return sum(4 * one.cells for maps in self._maps.values() for one in maps.maps)


def _lost(key: str | None = None) -> StatusError:
    what = "these maps are no longer in memory."
    return StatusError(what, status=NOT_FOUND, where=key, todo="Ask for them again.")


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
    """[p, r, c]: a picture of every head and, after each layer's heads, of their mean."""
    layers = range(len(attention.weights))
    return np.concatenate([draw_layer(attention, layer, by_row=by_row) for layer in layers])


def picture_shape(attention: AttentionMap) -> tuple[int, int, int]:
    """The shape (p, r, c) of the pictures, which is known before the weights are."""
    counts = [len(layer) for layer in attention.weights]
    rows, columns = (_first_cells(len(axis)) for axis in (attention.queries, attention.keys))
    return sum(count + (count > 1) for count in counts), len(rows), len(columns)


def draw_layer(attention: AttentionMap, layer: int, *, by_row: bool = False) -> Bytes:
    """[p, r, c]: the pictures of a layer's heads, then of their mean.

    A pixel has the largest weight of its cells, so that no peak is lost. With `by_row` a weight is
    the share of the largest one in its row. A layer of one head has no mean.
    """
    rows, columns = (_first_cells(len(axis)) for axis in (attention.queries, attention.keys))
    visible_rm = np.logical_or.reduceat(attention.visible, rows, axis=0)
    hidden_rc = ~np.logical_or.reduceat(visible_rm, columns, axis=1)
    weights_hnm = attention.weights[layer]
    maps = [weights_hnm]
    if len(weights_hnm) > 1:
        maps.append(attention.mean_over_heads(layer)[None])
    pictures = []
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
