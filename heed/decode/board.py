"""The tensors of texts that are being written side by side.

On a board stand b texts with k hypotheses each and room for l tokens. No tensor of a board changes
its shape or place, so a step over it can be captured and replayed. Between steps there is one move:
the texts that go on are copied to another board, a smaller one where some are finished, a longer
one where there is no room left.

Shapes: b texts, k hypotheses a text, l tokens there is room for, p cells of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class Growth:
    """Which axis of a tensor has cells for what is written, and how many a token takes."""

    axis: int
    cells: int = 1


Kept = dict[str, tuple[Tensor, Growth | None]]
"""Tensors for a board, and how they grow, if they do."""


class Board:
    """Tensors by name, each with one row a text, or one row that all texts share."""

    def __init__(
        self, tensors: dict[str, Tensor], growth: dict[str, Growth], *, size: int, room: int
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
        self._prompt_1p = torch.arange(prompt, device=device)[None]
        self._steps_1c = torch.arange(room, device=device).repeat_interleave(lanes)[None]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def key(self) -> Key:
        """What tells boards of different sizes apart."""
        return tuple((name, tuple(x.shape), x.dtype) for name, x in self.tensors.items())

    def moved(self, rows: Tensor, size: int, room: int) -> Board:
        """These texts on a board of another size. A seat that no text has is done with."""
        tensors = {}
        for name, x in self.tensors.items():
            added = [0] * x.dim()
            if x.shape[0] == self.size:
                x, added[0] = x.index_select(0, rows), size - len(rows)
            if name in self.growth:
                added[self.growth[name].axis] += (room - self.room) * self.growth[name].cells
            ends = [end for more in reversed(added) for end in (0, more)]
            tensors[name] = F.pad(x, ends, value=name == "done")
        board = Board(tensors, self.growth, size=size, room=room)
        board.at.copy_(self.at)
        board.cells.copy_(self.cells)
        return board

    def blank(self) -> Board:
        """A board of this size on which nothing is written yet."""
        tensors = {name: torch.zeros_like(x) for name, x in self.tensors.items()}
        tensors["offset"].fill_(1)
        return Board(tensors, self.growth, size=self.size, room=self.room)

    def take(self, other: Board) -> None:
        """Become a copy of a board of the same size."""
        for mine, its in zip(self._all(), other._all(), strict=True):
            mine.copy_(its)

    def _all(self) -> list[Tensor]:
        return [*self.tensors.values(), self.at, self.cells]

    def bytes(self) -> int:
        """How much memory it holds."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def places(self) -> Tensor:
        """The position of every cell [b or 1, c]: of the prompt, then of what is written."""
        offset = self.tensors["offset"]
        prompt = self._prompt_1p.expand(offset.shape[0], -1)
        return torch.cat([prompt, offset + self._steps_1c], dim=1)

    def see_self(self) -> None:
        """Let each hypothesis see the token it is about to read."""
        self.tensors["seen"].index_copy_(2, self.cells, self.eye_bkk)

    def write(self, tokens_bk: Tensor, parents_bk: Tensor) -> None:
        """Note the next token of each hypothesis, and which hypothesis it goes on from."""
        self.tensors["ids"].copy_(tokens_bk)
        self.tensors["tokens"].index_copy_(1, self.at, tokens_bk[:, None])
        self.tensors["parents"].index_copy_(1, self.at, parents_bk[:, None])

    def note(self, now_bk: Tensor, **results: Tensor) -> None:
        """Keep the results of the hypotheses that end now."""
        for name, new in results.items():
            kept = self.tensors[f"out.{name}"]
            kept.copy_(torch.where(now_bk, new, kept))

    def follow(self, parents_bk: Tensor) -> None:
        """Each hypothesis has the past of the one it goes on from."""
        self.tensors["seen"].copy_(picked(self.tensors["seen"], parents_bk))


def picked(x_bk: Tensor, parents_bk: Tensor) -> Tensor:
    """For each hypothesis what its parent has."""
    index = parents_bk.reshape(*parents_bk.shape, *[1] * (x_bk.dim() - 2))
    return x_bk.gather(1, index.expand(-1, -1, *x_bk.shape[2:]))
