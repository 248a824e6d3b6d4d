"""Ctrl-C and SIGTERM, taken gently: the step in hand is finished and saved first.

SIGTERM comes from a scheduler, or from a machine that is shut down; among several ranks from
torchrun, which passes it on from whoever stops it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from heed.errors import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While this context lasts the first signal is a request, and the second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self.code = STOPPED
        """What the process is to exit with: 128 and the number of the signal."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
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
        self.asked, self.code = True, 128 + number
        signal.signal(number, self._before[number])
