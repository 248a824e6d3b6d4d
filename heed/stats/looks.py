"""Declared looks: seeds are added after looking, and the level holds over all looks together.

A study may declare before training that it looks at its results after so many seeds, and stops or
trains more. Each look is then judged at one smaller level, the same for all (Pocock 1977): 0.0221
each for three looks, so that at most 5% of studies ever claim a difference that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
"""The level of each of 1 to 10 equally spaced looks, for 0.05 over all (Pocock 1977)."""


@dataclass(frozen=True)
class Look:
    """One of the looks that a study declared."""

    number: int
    seeds: int
    declared: tuple[int, ...]
    """The numbers of seeds at which the study looks."""
    level: float
    """The level of this look: the chance of a false finding at it alone."""

    def __str__(self) -> str:
        if len(self.declared) == 1:
            return f"One look, at {self.seeds} seeds, at the level {self.level:g}."
        places = ", ".join(map(str, self.declared))
        return (
            f"Look {self.number} of {len(self.declared)} (at {places} seeds), each at the level "
            f"{self.level:.4f} (Pocock), 0.05 over all looks."
        )


def find_look(declared: Sequence[int], seeds: int) -> Look | None:
    """The declared look at so many seeds; None where none was declared there."""
    places = tuple(sorted(set(declared)))
    if seeds not in places:
        return None
    return Look(places.index(seeds) + 1, seeds, places, pocock_level(len(places)))


def pocock_level(looks: int) -> float:
    """The level of each of so many looks that gives 0.05 over all (Pocock 1977)."""
    if not 1 <= looks <= len(LEVELS):
        raise ValueError(f"levels are known for 1 to {len(LEVELS)} looks, not {looks}")
    return LEVELS[looks - 1]
