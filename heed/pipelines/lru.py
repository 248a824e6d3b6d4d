"""An LRU cache of pipelines: a repeated call with the same settings reuses captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
SIZE = 4
"""Pipelines kept, each for other decoding settings: on a GPU each holds its captured graphs."""


class LruCache(Generic[T]):
    """The `SIZE` most recently used values by key; a further one evicts the least recently used.

    `functools.lru_cache` on a method would keep its object alive; this lives inside the object.
    """

    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        """Least recently used first."""

    def get(self, key: str, build: Callable[[], T]) -> T:
        """The value of a key, built now if it is not cached."""
        value = self.values.pop(key) if key in self.values else build()
        self.values[key] = value
        if len(self.values) > SIZE:
            del self.values[next(iter(self.values))]
        return value
