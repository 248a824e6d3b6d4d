"""The key-value cache of decoding, so that each step attends without recomputing the past.

A `Cache` belongs to one decoding of one batch. It also holds what is known of the tokens so far
(which are real, their positions and segments), so that a step needs only the new ones, and the
encoded source, so that it is encoded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from heed.nn.kernels import dispatch
from heed.nn.tokens import Tokens

FIRST_CAPACITY = 64


class LayerCache:
    """Keys and values of one attention layer, in buffers that double when they are full."""

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[Tensor] = []

    @property
    def filled(self) -> bool:
        """Whether it holds anything yet."""
        return self.length > 0

    def append(self, k_bgnd: Tensor, v_bgnd: Tensor) -> tuple[Tensor, Tensor]:
        """Add these, and return all keys and values so far."""
        added = k_bgnd.shape[2]
        needed = self.length + added
        if not self._buffers:  # no larger than they are: a source's keys never grow
            self._buffers, self.length = [k_bgnd.contiguous(), v_bgnd.contiguous()], added
            return self.read()
        if needed > self._buffers[0].shape[2]:
            self._grow(k_bgnd, max(needed, 2 * self.length, FIRST_CAPACITY))
        for buffer, new in zip(self._buffers, (k_bgnd, v_bgnd), strict=True):
            buffer[:, :, self.length : needed] = new
        self.length = needed
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far."""
        k, v = (buffer[:, :, : self.length] for buffer in self._buffers)
        return k, v

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: the hypotheses that a beam keeps, say."""
        self._buffers = [buffer.index_select(0, rows) for buffer in self._buffers]

    def _grow(self, like: Tensor, capacity: int) -> None:
        b, g, _, d = like.shape
        fresh = [like.new_empty(b, g, capacity, d) for _ in range(2)]
        for new, old in zip(fresh, self._buffers, strict=False):
            new[:, :, : self.length] = old[:, :, : self.length]
        self._buffers = fresh


class FixedLayerCache(LayerCache):
    """Keys and values in tensors of fixed address and size, so that a step can be captured.

    New ones are written at `cells`, a tensor that the caller advances. The caller's mask must say
    which keys count.
    """

    def __init__(self, k_bgmd: Tensor, v_bgmd: Tensor, cells: Tensor | None = None) -> None:
        super().__init__()
        self._buffers, self.length, self.cells = [k_bgmd, v_bgmd], k_bgmd.shape[2], cells

    def append(self, k_bgnd: Tensor, v_bgnd: Tensor) -> tuple[Tensor, Tensor]:
        """Write these into their cells, and return all keys and values."""
        if self.cells is None:
            raise ValueError("This cache is read-only: it was built without cells.")
        dispatch.write_cells((k_bgnd, v_bgnd), self._buffers, self.cells)
        return self.read()


@dataclass
class Cache:
    """Everything a model keeps between decoding steps. Create one, pass it to every call."""

    layers: dict[str, LayerCache] = field(default_factory=dict)
    states: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The recurrent baseline's state, by layer."""
    tokens: Tokens | None = None
    memory: Tensor | None = None
    memory_tokens: Tokens | None = None
    """The encoded source and its tokens."""

    def layer(self, name: str) -> LayerCache:
        """The cache of one attention layer, created on first use."""
        return self.layers.setdefault(name, LayerCache())

    def extend(self, new: Tokens) -> Tokens:
        """Add new tokens, and return all tokens so far."""
        self.tokens = new if self.tokens is None else self.tokens.followed_by(new)
        return self.tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers.values():
            layer.select(rows)
        for name, (h, c) in self.states.items():
            self.states[name] = (h.index_select(1, rows), c.index_select(1, rows))
        if self.tokens is not None:
            self.tokens = self.tokens.select(rows)
        if self.memory is not None:
            self.memory = self.memory.index_select(0, rows)
        if self.memory_tokens is not None:
            self.memory_tokens = self.memory_tokens.select(rows)
