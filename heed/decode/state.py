"""The decode state: all tensors of the inputs that are decoded side by side.

A state has a slot for each of b inputs, with k hypotheses per input and capacity for l tokens. No
tensor of a state changes its shape or address, so a step over it can be captured and replayed.
Between steps there is one change: the inputs that are not finished are moved to another state, with
fewer slots where some are finished, with more capacity where it is used up.

Shapes: b inputs, k hypotheses per input, l tokens of capacity, p prompt cells, c key-value cells
(p + l·k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

ShapeKey = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class GrowAxis:
    """The axis of a tensor that grows with the capacity, and how many cells a token takes on it."""

    axis: int
    cells: int = 1


StateTensors = dict[str, tuple[Tensor, GrowAxis | None]]
"""Named tensors for a decode state; those that grow with the capacity have a GrowAxis."""


class DecodeState:
    """Tensors by name, each with one row per slot, or with a single row that all slots share."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        grow_axes: dict[str, GrowAxis],
        *,
        slots: int,
        capacity: int,
    ) -> None:
        self.tensors, self.grow_axes, self.slots, self.capacity = (
            tensors,
            grow_axes,
            slots,
            capacity,
        )
        visible_bkc = tensors["visible"]
        beams, device = visible_bkc.shape[1], visible_bkc.device
        self.eye_bkk = torch.eye(beams, dtype=torch.bool, device=device).expand(slots, -1, -1)
        self.generated = torch.zeros(1, dtype=torch.long, device=device)
        """Number of tokens generated so far, in a tensor that captured steps can read."""
        prompt_cells = visible_bkc.shape[2] - capacity * beams
        self.next_cells = prompt_cells + torch.arange(beams, device=device)
        """The cells that the next keys and values of each hypothesis are written to."""
        self.no_cells, self.all_cells = (
            torch.full((1,), count, device=device) for count in (0, visible_bkc.shape[2])
        )
        self._prompt_positions_1p = torch.arange(prompt_cells, device=device)[None]
        self._steps_1c = torch.arange(capacity, device=device).repeat_interleave(beams)[None]
        self.cell_positions_bc = self._cell_positions()
        """The position of every cell [b or 1, c]: of the prompt, then of generated tokens."""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def shape_key(self, slots: int, capacity: int) -> ShapeKey:
        """The shapes that these tensors would have in a state with so many slots and capacity."""
        return tuple(
            (name, self._shape(name, slots, capacity), x.dtype) for name, x in self.tensors.items()
        )

    def new_blank(self, slots: int, capacity: int) -> DecodeState:
        """A blank state of another size, with tensors of the same names and dtypes."""
        tensors = {
            name: x.new_zeros(self._shape(name, slots, capacity))
            for name, x in self.tensors.items()
        }
        tensors["offset"].fill_(1)
        return DecodeState(tensors, self.grow_axes, slots=slots, capacity=capacity)

    def compact(self, rows: list[int]) -> DecodeState:
        """Move these inputs to the first slots, in this order, within the same memory.

        Only inputs that change slots are copied; `batch_plan.compact_order` makes them few.
        """
        moved = [slot for slot, row in enumerate(rows) if slot != row]
        targets, sources = (
            torch.tensor(indices, dtype=torch.long, device=self.generated.device)
            for indices in (moved, [rows[slot] for slot in moved])
        )
        tensors = {}
        for name, x in self.tensors.items():
            if self._is_per_slot(x) and moved:
                x.index_copy_(0, targets, x.index_select(0, sources))
            tensors[name] = x[: len(rows)] if self._is_per_slot(x) else x
        state = DecodeState(tensors, self.grow_axes, slots=len(rows), capacity=self.capacity)
        state.generated, state.next_cells = self.generated, self.next_cells
        return state

    def grow(self, capacity: int) -> DecodeState:
        """The same inputs with more capacity: only the tensors that grow are copied."""
        tensors = {}
        for name, x in self.tensors.items():
            if name in self.grow_axes:
                axis = self.grow_axes[name].axis
                tensors[name] = x.new_zeros(self._shape(name, self.slots, capacity))
                tensors[name].narrow(axis, 0, x.shape[axis]).copy_(x)
            else:
                tensors[name] = x.contiguous()  # hypotheses that shared a row may now differ
        state = DecodeState(tensors, self.grow_axes, slots=self.slots, capacity=capacity)
        state.generated, state.next_cells = self.generated, self.next_cells
        return state

    def copy_from(self, other: DecodeState, rows: Tensor) -> None:
        """Copy these inputs of another state to the first slots. Unused slots count as done.

        Cells beyond the generated tokens keep what they held: nothing sees them.
        """
        self.tensors["visible"].zero_()
        self.tensors["done"].fill_(True)
        self.tensors["offset"].fill_(1)  # an unused slot may hold an offset beyond all positions
        for name, x in other.tensors.items():
            target = self.tensors[name]
            if not other._is_per_slot(x):
                target.copy_(x)
                continue
            if name in self.grow_axes:
                axis = self.grow_axes[name].axis
                shared = min(x.shape[axis], target.shape[axis])
                x, target = x.narrow(axis, 0, shared), target.narrow(axis, 0, shared)
            torch.index_select(x, 0, rows, out=target[: len(rows)])
        self.generated.copy_(other.generated)
        self.next_cells.copy_(other.next_cells)
        self.cell_positions_bc.copy_(self._cell_positions())

    def _is_per_slot(self, x: Tensor) -> bool:
        return x.shape[0] == self.slots

    def _shape(self, name: str, slots: int, capacity: int) -> tuple[int, ...]:
        x = self.tensors[name]
        shape = list(x.shape)
        if self._is_per_slot(x):
            shape[0] = slots
        if name in self.grow_axes:
            grow = self.grow_axes[name]
            shape[grow.axis] += (capacity - self.capacity) * grow.cells
        return tuple(shape)

    def poll_done(self) -> Callable[[], list[bool]]:
        """Start reading which inputs are done; calling the result waits for the answer.

        On a GPU the answer is that of the moment of this call.
        """
        done = self.tensors["done"]
        if not done.is_cuda:
            return cast(Callable[[], list[bool]], done.tolist)
        copy, copied = done.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record(torch.cuda.current_stream(done.device))

        def wait() -> list[bool]:
            copied.synchronize()
            return cast(list[bool], copy.tolist())

        return wait

    def nbytes(self) -> int:
        """Memory that the tensors hold, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def _cell_positions(self) -> Tensor:
        offset = self.tensors["offset"]
        prompt = self._prompt_positions_1p.expand(offset.shape[0], -1)
        return torch.cat([prompt, offset + self._steps_1c], dim=1)

    def zero_if_done(self, counts: Tensor) -> Tensor:
        """These counts [b or 1] as one per input [b], 0 for inputs that are done."""
        return torch.where(self.tensors["done"], self.no_cells, counts)

    def show_own_cells(self) -> None:
        """Make the cell of the current token visible to its own hypothesis."""
        self.tensors["visible"].index_copy_(2, self.next_cells, self.eye_bkk)

    def append(self, tokens_bk: Tensor, parents_bk: Tensor | None = None) -> None:
        """Append a token to each hypothesis, and record its parent where it may be another one."""
        self.tensors["ids"].copy_(tokens_bk)
        self.tensors["tokens"].index_copy_(1, self.generated, tokens_bk[:, None])
        if parents_bk is not None:
            self.tensors["parents"].index_copy_(1, self.generated, parents_bk[:, None])

    def record(self, finished_bk: Tensor, **results: Tensor) -> None:
        """Store the results of the hypotheses that finish in this step."""
        for name, new in results.items():
            stored = self.tensors[f"out.{name}"]
            torch.where(finished_bk, new, stored, out=stored)

    def reorder(self, parents_bk: Tensor) -> None:
        """Give each hypothesis the visible past of its parent; keys and values stay in place."""
        self.tensors["visible"].copy_(gather_parents(self.tensors["visible"], parents_bk))


def gather_parents(x_bk: Tensor, parents_bk: Tensor) -> Tensor:
    """For each hypothesis the entry of its parent, along axis k."""
    index = parents_bk.reshape(*parents_bk.shape, *[1] * (x_bk.dim() - 2))
    return x_bk.gather(1, index.expand(-1, -1, *x_bk.shape[2:]))


def concat_padded(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis; other axes are padded with zeros to the largest size."""
    if len(parts) == 1:
        return parts[0]
    sizes = [max(x.shape[axis] for x in parts) for axis in range(1, parts[0].dim())]
    whole = parts[0].new_zeros(sum(len(x) for x in parts), *sizes)
    first = 0
    for x in parts:
        whole[(slice(first, first + len(x)), *map(slice, x.shape[1:]))] = x
        first += len(x)
    return whole
