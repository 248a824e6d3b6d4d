"""Ctrl-C, taken gently: the step in hand is finished and saved first.

Among several ranks SIGTERM is the same request: torchrun passes it on from whoever stops it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While this context lasts the first Ctrl-C is a request, and the second one stops at once."""

    def __init__(self, *, terminate: bool = False) -> None:
        """`terminate`: SIGTERM asks too."""
        self.asked = False
        self._signals = [signal.SIGINT, *([signal.SIGTERM] if terminate else [])]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in self._signals}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, self._before[number])
