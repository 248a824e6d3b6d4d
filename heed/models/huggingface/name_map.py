"""Name maps: where `transformers` stores each weight of heed, and in which layout.

A name map has a line for each module of heed. `{}` stands for the layer number. The value is the
module of `transformers`, or how several of its modules make one of heed:

    {"stack.blocks.{}.attention.out": "encoder.layer.{}.attention.output.dense"}

The weight or bias of heed's module is then the weight or bias of theirs. A line may also name a
single parameter, for a parameter that belongs to no module there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class WeightLocation:
    """Where `transformers` stores one weight of heed, and in which layout."""

    names: tuple[str, ...]
    """Their weight names. If there are several, heed's weight is their rows concatenated."""
    transposed: bool = False
    """Whether they store a matrix as [in, out]."""
    row: bool = False
    """Whether they store a vector as a matrix of one row."""

    def shapes(self, size: torch.Size) -> list[torch.Size]:
        """The shapes of their weights if heed's weight has this shape."""
        rows, *rest = size
        parts = [torch.Size([rows // len(self.names), *rest])] * len(self.names)
        if self.row:
            return [torch.Size([1, *part]) for part in parts]
        return [part[::-1] for part in parts] if self.transposed else parts

    def to_heed(self, theirs: Iterable[Tensor]) -> Tensor:
        """heed's weight, made of theirs."""
        parts = [
            x[0] if self.row else x.mT if self.transposed and x.dim() == 2 else x for x in theirs
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def from_heed(self, ours: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Their weights by name, made of heed's."""
        for name, part in zip(self.names, ours.chunk(len(self.names)), strict=True):
            if self.row:
                part = part[None]
            elif self.transposed and part.dim() == 2:
                part = part.mT
            yield name, part.contiguous()


NameMap = Mapping[str, str | WeightLocation]


def concatenated(*names: str) -> WeightLocation:
    """Several modules of theirs whose rows, concatenated, are one module of heed."""
    return WeightLocation(names)


def transposed(name: str) -> WeightLocation:
    """A module that stores its matrix as [in, out]."""
    return WeightLocation((name,), transposed=True)


def one_row(name: str) -> WeightLocation:
    """A vector that is stored as a matrix of one row."""
    return WeightLocation((name,), row=True)


def locate(name_map: NameMap, parameter: str) -> WeightLocation | None:
    """Where a parameter of heed is stored; None if the name map does not have it."""
    number = LAYER_NUMBER.search(parameter)
    for name in (parameter, LAYER_NUMBER.sub("{}", parameter, count=1)):
        module, _, kind = name.rpartition(".")
        entry = name_map.get(name) or name_map.get(module)
        if entry is None:
            continue
        suffix = "" if name in name_map else f".{kind}"
        location = WeightLocation((entry,)) if isinstance(entry, str) else entry
        names = (theirs.format(number[0] if number else "") + suffix for theirs in location.names)
        return WeightLocation(tuple(names), location.transposed, location.row)
    return None


def with_prefix(
    theirs: str, name_map: NameMap, *, ours: str = ""
) -> dict[str, str | WeightLocation]:
    """A name map with a prefix on every name of theirs, and of heed's: for a nested module."""
    return {
        ours + name: theirs + entry
        if isinstance(entry, str)
        else WeightLocation(tuple(theirs + one for one in entry.names), entry.transposed, entry.row)
        for name, entry in name_map.items()
    }


def first_layer_modules(name_map: NameMap) -> list[str]:
    """All modules of theirs in a name map, those of a layer for the first layer only."""
    entries = (x.names if isinstance(x, WeightLocation) else (x,) for x in name_map.values())
    return [name.format(0) for names in entries for name in names]
