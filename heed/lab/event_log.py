"""Events of the lab with a cursor: a client that reconnects gets every event since its last one."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Any

MOST_EVENTS = 20_000
"""Events that are remembered. A page that was away for longer reads everything again."""
CURSOR = re.compile(r"([0-9a-f]{12})-([0-9]{1,15})")


@dataclass(frozen=True)
class Event:
    """One change: its number, its kind, and what changed, as JSON values."""

    number: int
    kind: str
    data: dict[str, Any]


class EventLog:
    """The last events, numbered from 1. Cursors of another log, as before a restart, are unknown.

    A cursor is `LOG-NUMBER`, with the number of the last event that was seen.
    """

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._name = token_hex(6)
        self._events: deque[Event] = deque(maxlen=most)
        self._last = 0
        self._lock = Lock()

    def add(self, kind: str, data: dict[str, Any]) -> None:
        """Add an event."""
        with self._lock:
            self._last += 1
            self._events.append(Event(self._last, kind, data))

    @property
    def last(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._last

    @property
    def size(self) -> int:
        """How many events are remembered."""
        return len(self._events)

    def cursor(self, number: int | None = None) -> str:
        """The cursor after an event, by default the last one."""
        return f"{self._name}-{self._last if number is None else number}"

    def find(self, cursor: str | None) -> int | None:
        """The number of the last event that was seen; None if events after it are forgotten.

        Without a cursor it is the last event: a new client is sent the events that follow.
        """
        if cursor is None:
            return self._last
        match = CURSOR.fullmatch(cursor)
        if match is None or match[1] != self._name:
            return None
        number = int(match[2])
        oldest = self._last - len(self._events)
        return number if oldest <= number <= self._last else None

    def since(self, number: int) -> list[Event]:
        """The events after this one, in order."""
        with self._lock:
            return [event for event in self._events if event.number > number]
