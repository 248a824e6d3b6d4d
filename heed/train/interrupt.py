"""Ctrl-C and SIGTERM while training: the current step is finished and saved first.

SIGTERM comes from a scheduler or from a shutdown; among several ranks it comes from torchrun, which
forwards the signal that stopped it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from heed.errors import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """A context in which the first signal requests a stop, and the second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.exit_code = STOPPED
        """Exit code of the process: 128 plus the number of the signal."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested, self.exit_code = True, 128 + number
        signal.signal(number, self._previous[number])
