"""What is worth keeping for the next time, and never more than a few of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
MOST = 4
"""Ways to write by other settings that are kept: each holds what it captured on a GPU."""


def kept(known: dict[str, T], key: str, make: Callable[[], T]) -> T:
    """What is known by this key, or is made now and known from now on.

    For one too many, the one goes that was used longest ago.
    """
    found = known.pop(key) if key in known else make()
    known[key] = found
    if len(known) > MOST:
        del known[next(iter(known))]
    return found
