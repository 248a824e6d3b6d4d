"""The parts of a model that a recipe names: position encodings and head merges.

Names and one-line descriptions of the built-in parts stand here, free of torch, so that recipes,
help and error messages can list them. Their classes register themselves when `heed.nn` is
imported. A user's own class registers under a new name, by decorator or by call:

    @heed.register
    class Decay(Position):
        name = "decay"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from heed.errors import HeedError, nearest

Part = TypeVar("Part", bound=type)


class Registry(Mapping[str, Any]):
    """Classes by the name that a recipe uses. `registry[name]` imports the built-in module."""

    def __init__(self, kind: str, declared: Mapping[str, str], *, module: str, base: str) -> None:
        self.kind, self.module, self.base = kind, module, base
        self.declared = dict(declared)
        """The built-in names and what each is, in one line."""
        self.classes: dict[str, type] = {}
        """The classes registered so far: the built-in ones once their module is imported."""

    def register(self, cls: Part) -> Part:
        """Register a class under its `name`; usable as a decorator."""
        name, built_in = vars(cls).get("name"), cls.__module__ == self.module
        if not self.accepts(cls):
            raise HeedError(
                f"{cls.__qualname__} is no {self.kind}: it does not inherit from {self.base}.",
                todo=f"Write: from {self.module} import {self.base}.",
            )
        if not isinstance(name, str) or not name.isidentifier():
            raise HeedError(
                f"{self.kind} {cls.__qualname__} has no usable name: {name!r}.",
                todo='Give the class one, as a recipe will write it: name = "decay".',
            )
        if built_in and name not in self.declared:
            raise HeedError(
                f"{self.kind} {name!r} of {self.module} is not declared.",
                todo="Add its name and a one-line description to heed/config/registry.py.",
            )
        if name in self.classes or (name in self.declared and not built_in):
            raise HeedError(
                f"There is a {self.kind} {name!r} already, so {cls.__qualname__} cannot have it.",
                todo="Give the class another name.",
            )
        self.classes[name] = cls
        return cls

    def accepts(self, cls: type) -> bool:
        """Whether a class inherits from this registry's base class."""
        bases = [(base.__module__, base.__qualname__) for base in cls.__mro__]
        return (self.module, self.base) in bases

    def names(self) -> tuple[str, ...]:
        """Every name that a recipe may use: the built-in ones, then those registered by users."""
        return (*self.declared, *(name for name in self.classes if name not in self.declared))

    def describe(self, name: str) -> str:
        """One line about a part: the declared one, or the first line of its docstring."""
        if name in self.declared:
            return self.declared[name]
        return (self.classes[name].__doc__ or "").strip().partition("\n")[0]

    def complaint(self, name: str) -> str | None:
        """Why a recipe cannot have this name; None where it can."""
        if name in self.names():
            return None
        return (
            f"{self.kind} cannot be {name!r}: it is one of {', '.join(self.names())}."
            f"{nearest(name, self.names())} A {self.kind} of your own is loaded with --plugin FILE."
        )

    def __getitem__(self, name: str) -> Any:
        """The class of this name."""
        if name not in self.classes and name in self.declared:
            import_module(self.module)
        return self.classes[name]

    def __contains__(self, name: object) -> bool:
        """Whether a recipe may use this name. Imports nothing."""
        return name in self.declared or name in self.classes

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())


POSITIONS = Registry(
    "position",
    {
        "sinusoidal": "sines and cosines added to the token vectors (Vaswani et al. 2017)",
        "learned": "a learned vector for each position, up to max_positions (Gehring et al. 2017)",
        "shaw": "a learned vector for each clipped distance, added to the key (Shaw et al. 2018)",
        "t5": "a learned bias for each bucket of distances and each head (Raffel et al. 2020)",
        "alibi": "a bias that falls linearly with distance, by head (Press et al. 2022)",
        "rope": "queries and keys rotated by their position (Su et al. 2021)",
        "none": "no position encoding: only the causal mask orders tokens",
    },
    module="heed.nn.positions",
    base="Position",
)
MERGES = Registry(
    "merge",
    {
        "concat": "the heads side by side (Vaswani et al. 2017)",
        "shuffle": "the heads in a random order at every training call; their mean at inference",
        "shift": "the heads side by side, each in the place of the next",
        "reweight": "each head scaled by its share of the heads' norms",
    },
    module="heed.nn.merges",
    base="Merge",
)
REGISTRIES = (POSITIONS, MERGES)


def register(cls: Part) -> Part:
    """Register a position encoding or a head merge under its `name`; usable as a decorator."""
    for registry in REGISTRIES:
        if registry.accepts(cls):
            return registry.register(cls)
    bases = " or ".join(f"{registry.module}.{registry.base}" for registry in REGISTRIES)
    raise HeedError(
        f"{cls.__qualname__} is neither a position nor a merge.", todo=f"Inherit from {bases}."
    )
