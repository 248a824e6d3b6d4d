"""Name tables: where another library keeps each of our weights, and in what form.

A table has a line for each of our modules. `{}` stands for the number of a layer. What is beside
it is that library's module, or how several of its make one of ours:

    {"stack.blocks.{}.attention.out": "encoder.layer.{}.attention.output.dense"}

A weight or a bias of ours is then the weight or the bias of theirs. A line may also name one
parameter, where theirs is no module's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Place:
    """Where one weight of ours is kept."""

    names: tuple[str, ...]
    """Theirs; of several, ours is all their rows in a row."""
    turned: bool = False
    """Whether they keep a matrix as [in, out]."""
    row: bool = False
    """Whether they keep a vector as a matrix of one row."""

    def theirs(self, size: torch.Size) -> list[torch.Size]:
        """The shapes of their weights, where ours has this one."""
        rows, *rest = size
        parts = [torch.Size([rows // len(self.names), *rest])] * len(self.names)
        if self.row:
            return [torch.Size([1, *part]) for part in parts]
        return [part[::-1] for part in parts] if self.turned else parts

    def read(self, found: Iterable[Tensor]) -> Tensor:
        """Ours, from theirs."""
        parts = [x[0] if self.row else x.mT if self.turned and x.dim() == 2 else x for x in found]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def write(self, ours: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Theirs, from ours."""
        for name, part in zip(self.names, ours.chunk(len(self.names)), strict=True):
            if self.row:
                part = part[None]
            elif self.turned and part.dim() == 2:
                part = part.mT
            yield name, part.contiguous()


Table = Mapping[str, str | Place]


def stacked(*names: str) -> Place:
    """Several modules of theirs whose rows, in a row, are one of ours."""
    return Place(names)


def turned(name: str) -> Place:
    """A module that keeps its matrix as [in, out]."""
    return Place((name,), turned=True)


def one_row(name: str) -> Place:
    """A vector that is kept as a matrix of one row."""
    return Place((name,), row=True)


def place(table: Table, parameter: str) -> Place | None:
    """Where a parameter of ours is kept; None where the table does not say."""
    number = NUMBER.search(parameter)
    for name in (parameter, NUMBER.sub("{}", parameter, count=1)):
        module, _, kind = name.rpartition(".")
        found = table.get(name) or table.get(module)
        if found is None:
            continue
        suffix = "" if name in table else f".{kind}"
        found = Place((found,)) if isinstance(found, str) else found
        names = (there.format(number[0] if number else "") + suffix for there in found.names)
        return Place(tuple(names), found.turned, found.row)
    return None


def under(theirs: str, table: Table, *, ours: str = "") -> dict[str, str | Place]:
    """The same table, for a module that stands inside another under these names."""
    return {
        ours + name: theirs + found
        if isinstance(found, str)
        else Place(tuple(theirs + one for one in found.names), found.turned, found.row)
        for name, found in table.items()
    }


def modules(table: Table) -> list[str]:
    """All that a table names of theirs, in the first layer."""
    found = (x.names if isinstance(x, Place) else (x,) for x in table.values())
    return [name.format(0) for names in found for name in names]
