"""Queries, keys and values by head, and what all layers of a pass share of a position encoding.

A rotation is left to the kernel where it can rotate queries and keys while it reads them.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heed.nn.kernels.availability import on_gpu
from heed.nn.kernels.position_bias import KeptHeadsBias, PositionBias, TilePlans
from heed.nn.kernels.position_forms import form_of
from heed.nn.kernels.rotary import rotate as rotate_parts
from heed.nn.kernels.rotary import rotate_by_tables
from heed.nn.positions import Position


class PendingRotation:
    """A rotation of queries and keys: applied by a kernel as it reads them, or before it."""

    def __init__(self, position: Position, q_positions: Tensor, k_positions: Tensor) -> None:
        self.position, self.q_positions, self.k_positions = position, q_positions, k_positions
        self._tables: tuple[Tensor, Tensor] | None = None

    def apply(self, q_bhnd: Tensor, k_bgmd: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated."""
        if on_gpu(q_bhnd) or torch.compiler.is_compiling():
            return rotate(self.position, q_bhnd, k_bgmd, self.q_positions, self.k_positions)
        q_table, k_table = self.tables()
        if q_table is k_table:
            q_bhnd, k_bgmd = _rotate_by_table([q_bhnd, k_bgmd], q_table)
        else:
            (q_bhnd,) = _rotate_by_table([q_bhnd], q_table)
            (k_bgmd,) = _rotate_by_table([k_bgmd], k_table)
        return q_bhnd, k_bgmd

    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines for queries and for keys, each [b or 1, n, 2, d/2], made once."""
        if torch.compiler.is_compiling():
            return self._make()  # Stored, they would make layers differ for the compiler.
        if self._tables is None:
            self._tables = self._make()
        return self._tables

    def _make(self) -> tuple[Tensor, Tensor]:
        q_table = self._table(self.q_positions)
        if self.k_positions is self.q_positions:
            return q_table, q_table
        return q_table, self._table(self.k_positions)

    def _table(self, positions_bn: Tensor) -> Tensor:
        frequencies = _fixed_frequencies(self.position)
        if frequencies is None:
            raise ValueError(f"{type(self.position).__name__} has no registered frequencies.")
        angles = positions_bn[..., None].float() * frequencies
        return torch.stack([angles.cos(), angles.sin()], dim=2)


class Heads(NamedTuple):
    """Queries, keys and values by head; `rotation` is still to be applied to queries and keys."""

    q_bhnd: Tensor
    k_bgmd: Tensor
    v_bgmd: Tensor
    rotation: PendingRotation | None = None

    def rotated(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with the rotation applied."""
        if self.rotation is None:
            return self.q_bhnd, self.k_bgmd, self.v_bgmd
        return *self.rotation.apply(self.q_bhnd, self.k_bgmd), self.v_bgmd


class SharedPosition:
    """What all layers of one pass share of a position encoding: rotation, bias and tile plans.

    Nothing is added here under torch.compile: an object that changes from layer to layer would
    make the layers compile separately.
    """

    def __init__(self, q_positions: Tensor, k_positions: Tensor) -> None:
        self.q_positions, self.k_positions = q_positions, k_positions
        self.plans = TilePlans(q_positions, k_positions)
        self._rotation: PendingRotation | None = None
        self._bias: PositionBias | None = None

    def heads(
        self,
        q_bhnd: Tensor,
        k_bgmd: Tensor,
        v_bgmd: Tensor,
        position: Position,
        k_positions: Tensor,
    ) -> Heads:
        """These heads, rotated by the encoding: now, or later by a kernel that has its form."""
        if type(position).rotate is Position.rotate:
            return Heads(q_bhnd, k_bgmd, v_bgmd)
        if position.bias_uses_query or _fixed_frequencies(position) is None:
            q, k = rotate(position, q_bhnd, k_bgmd, self.q_positions, k_positions)
            return Heads(q, k, v_bgmd)
        return Heads(q_bhnd, k_bgmd, v_bgmd, self.rotation(position, k_positions))

    def rotation(self, position: Position, k_positions: Tensor) -> PendingRotation:
        """The rotation by this encoding, of new keys at `k_positions`."""
        shared = self._rotation
        if shared is not None and shared.position is position and shared.k_positions is k_positions:
            return shared
        rotation = PendingRotation(position, self.q_positions, k_positions)
        if not torch.compiler.is_compiling():
            self._rotation = rotation
        return rotation

    def self_rotation(self, position: Position) -> PendingRotation | None:
        """The rotation of queries and keys of the same tokens; None where no table has it."""
        shared = self._rotation
        if shared is not None and shared.position is position:
            return shared if shared.k_positions is self.q_positions else None
        if position.bias_uses_query or self.k_positions is not self.q_positions:
            return None
        known = _fixed_frequencies(position) is not None
        return self.rotation(position, self.k_positions) if known else None

    def bias(
        self,
        position: Position,
        q_bhnd: Tensor | None = None,
        scale: float = 1.0,
        kept_heads: Tensor | None = None,
    ) -> PositionBias:
        """The encoding's bias: one for all layers, unless it depends on their queries.

        `kept_heads` are those that a pruned layer has; the bias of its queries has no others.
        """
        places = position, self.q_positions, self.k_positions
        if position.bias_uses_query:
            return PositionBias(*places, q_bhnd=q_bhnd, scale=scale, plans=self.plans)
        if self._bias is not None and self._bias.position is position:
            bias = self._bias
        else:
            bias = PositionBias(*places, plans=self.plans)
            if not torch.compiler.is_compiling():
                self._bias = bias
        return bias if kept_heads is None else KeptHeadsBias(bias, kept_heads)


def rotate(
    position: Position, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries and keys rotated by an encoding: by its registered form, else by its own formula."""
    frequencies = _fixed_frequencies(position)
    # For a CPU a compiler finds the fewest passes over memory by itself.
    plain = torch.compiler.is_compiling() and not on_gpu(q_positions)
    if frequencies is None or plain:
        return position.rotate(q_bhnd, k_bgmd, q_positions, k_positions)
    if k_positions is q_positions:
        q_bhnd, k_bgmd = _rotate_all([q_bhnd, k_bgmd], q_positions, frequencies)
        return q_bhnd, k_bgmd
    (q_bhnd,) = _rotate_all([q_bhnd], q_positions, frequencies)
    (k_bgmd,) = _rotate_all([k_bgmd], k_positions, frequencies)
    return q_bhnd, k_bgmd


def _fixed_frequencies(position: Position) -> Tensor | None:
    """The frequencies of a form; None where they learn, for no kernel computes their gradient."""
    frequencies = form_of(position).frequencies(position)
    return None if frequencies is None or frequencies.requires_grad else frequencies


def _rotate_by_table(parts: list[Tensor], table_bn2d: Tensor) -> list[Tensor]:
    """Tensors [b, heads, n, d] rotated by a table of cosines and sines [b or 1, n, 2, d/2]."""
    cos, sin = table_bn2d[:, None].unbind(dim=3)
    return rotate_by_tables(parts, cos, sin)


def _rotate_all(parts: list[Tensor], positions_bn: Tensor, frequencies: Tensor) -> list[Tensor]:
    """Tensors [b, heads, n, d], each pair (i, i + d/2) rotated by position · frequency."""
    if on_gpu(positions_bn):
        return rotate_parts(parts, positions_bn, frequencies)
    angles = positions_bn[:, None, :, None].float() * frequencies
    return rotate_by_tables(parts, angles.cos(), angles.sin())
