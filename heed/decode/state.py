"""The tensors of texts that are being written side by side.

On a board stand b texts with k hypotheses each and room for l tokens. No tensor of a board changes
its shape or place, so a step over it can be captured and replayed. Between steps there is one move:
the texts that go on are copied to another board, a smaller one where some are finished, a longer
one where there is no room left.

Shapes: b texts, k hypotheses a text, l tokens there is room for, p cells of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class GrowAxis:
    """Which axis of a tensor has cells for what is written, and how many a token takes."""

    axis: int
    cells: int = 1


StateTensors = dict[str, tuple[Tensor, GrowAxis | None]]
"""Tensors for a board, and how they grow, if they do."""


class DecodeState:
    """Tensors by name, each with one row a text, or one row that all texts share."""

    def __init__(
        self, tensors: dict[str, Tensor], growth: dict[str, GrowAxis], *, size: int, room: int
    ) -> None:
        self.tensors, self.growth, self.size, self.room = tensors, growth, size, room
        seen_bkc = tensors["seen"]
        lanes, device = seen_bkc.shape[1], seen_bkc.device
        self.eye_bkk = torch.eye(lanes, dtype=torch.bool, device=device).expand(size, -1, -1)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        """How many tokens were written, in a tensor that captured steps can read."""
        prompt = seen_bkc.shape[2] - room * lanes
        self.cells = prompt + torch.arange(lanes, device=device)
        """Where the next keys and values of each hypothesis go."""
        self.no_cells, self.all_cells = (
            torch.full((1,), count, device=device) for count in (0, seen_bkc.shape[2])
        )
        self._prompt_1p = torch.arange(prompt, device=device)[None]
        self._steps_1c = torch.arange(room, device=device).repeat_interleave(lanes)[None]
        self.places_bc = self._places()
        """The position of every cell [b or 1, c]: of the prompt, then of what is written."""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def key(self, size: int, room: int) -> Key:
        """What tells boards of different sizes apart, for a board of that size for these texts."""
        return tuple(
            (name, self._shape(name, size, room), x.dtype) for name, x in self.tensors.items()
        )

    def blank(self, size: int, room: int) -> DecodeState:
        """A board of another size, for texts of this one, on which nothing is written yet."""
        tensors = {
            name: x.new_zeros(self._shape(name, size, room)) for name, x in self.tensors.items()
        }
        tensors["offset"].fill_(1)
        return DecodeState(tensors, self.growth, size=size, room=room)

    def kept(self, rows: list[int]) -> DecodeState:
        """These texts on the seats in front, in this order, in this board's own memory.

        Only those that change seats are copied: by `limits.seated` they are few.
        """
        taken = [seat for seat, row in enumerate(rows) if seat != row]
        seats, movers = (
            torch.tensor(some, dtype=torch.long, device=self.at.device)
            for some in (taken, [rows[seat] for seat in taken])
        )
        tensors = {}
        for name, x in self.tensors.items():
            if self._by_text(x):
                x.index_copy_(0, seats, x.index_select(0, movers))
                x = x[: len(rows)]
            tensors[name] = x
        board = DecodeState(tensors, self.growth, size=len(rows), room=self.room)
        board.at, board.cells = self.at, self.cells
        return board

    def take(self, other: DecodeState, rows: Tensor) -> None:
        """Seat these texts of another board. A seat that no text has is done with.

        What is not written yet stays as it was: nobody sees it.
        """
        self.tensors["seen"].zero_()
        self.tensors["done"].fill_(True)
        self.tensors["offset"].fill_(1)  # of an empty seat: what others left may lie far beyond
        for name, x in other.tensors.items():
            mine = self.tensors[name]
            if not other._by_text(x):
                mine.copy_(x)
                continue
            if name in self.growth:
                axis = self.growth[name].axis
                both = min(x.shape[axis], mine.shape[axis])
                x, mine = x.narrow(axis, 0, both), mine.narrow(axis, 0, both)
            torch.index_select(x, 0, rows, out=mine[: len(rows)])
        self.at.copy_(other.at)
        self.cells.copy_(other.cells)
        self.places_bc.copy_(self._places())

    def _by_text(self, x: Tensor) -> bool:
        return x.shape[0] == self.size

    def _shape(self, name: str, size: int, room: int) -> tuple[int, ...]:
        x = self.tensors[name]
        shape = list(x.shape)
        if self._by_text(x):
            shape[0] = size
        if name in self.growth:
            shape[self.growth[name].axis] += (room - self.room) * self.growth[name].cells
        return tuple(shape)

    def finished(self) -> Callable[[], list[bool]]:
        """Which texts are done with, for one who asks later; on a GPU, as it is now."""
        done = self.tensors["done"]
        if not done.is_cuda:
            return cast(Callable[[], list[bool]], done.tolist)
        copy, copied = done.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record(torch.cuda.current_stream(done.device))

        def told() -> list[bool]:
            copied.synchronize()
            return cast(list[bool], copy.tolist())

        return told

    def bytes(self) -> int:
        """How much memory it holds."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def _places(self) -> Tensor:
        offset = self.tensors["offset"]
        prompt = self._prompt_1p.expand(offset.shape[0], -1)
        return torch.cat([prompt, offset + self._steps_1c], dim=1)

    def of_unfinished(self, counts: Tensor) -> Tensor:
        """These counts [b or 1], but none for texts that are done with: a row each."""
        return torch.where(self.tensors["done"], self.no_cells, counts)

    def see_self(self) -> None:
        """Let each hypothesis see the token it is about to read."""
        self.tensors["seen"].index_copy_(2, self.cells, self.eye_bkk)

    def write(self, tokens_bk: Tensor, parents_bk: Tensor | None = None) -> None:
        """Note the next token of each hypothesis, and which it goes on from, if not from itself."""
        self.tensors["ids"].copy_(tokens_bk)
        self.tensors["tokens"].index_copy_(1, self.at, tokens_bk[:, None])
        if parents_bk is not None:
            self.tensors["parents"].index_copy_(1, self.at, parents_bk[:, None])

    def note(self, now_bk: Tensor, **results: Tensor) -> None:
        """Keep the results of the hypotheses that end now."""
        for name, new in results.items():
            kept = self.tensors[f"out.{name}"]
            torch.where(now_bk, new, kept, out=kept)

    def follow(self, parents_bk: Tensor) -> None:
        """Each hypothesis has the past of the one it goes on from."""
        self.tensors["seen"].copy_(picked(self.tensors["seen"], parents_bk))


def picked(x_bk: Tensor, parents_bk: Tensor) -> Tensor:
    """For each hypothesis what its parent has."""
    index = parents_bk.reshape(*parents_bk.shape, *[1] * (x_bk.dim() - 2))
    return x_bk.gather(1, index.expand(-1, -1, *x_bk.shape[2:]))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Rows of several tensors as those of one; what is shorter is filled up with zeros."""
    if len(parts) == 1:
        return parts[0]
    sizes = [max(x.shape[axis] for x in parts) for axis in range(1, parts[0].dim())]
    whole = parts[0].new_zeros(sum(len(x) for x in parts), *sizes)
    first = 0
    for x in parts:
        whole[(slice(first, first + len(x)), *map(slice, x.shape[1:]))] = x
        first += len(x)
    return whole
