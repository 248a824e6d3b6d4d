"""Ctrl-C, SIGTERM and SIGHUP while training: the current step is finished and saved first.

SIGTERM comes from a scheduler or from a shutdown; among several ranks it comes from torchrun, which
forwards the signal that stopped it. SIGHUP comes when the terminal is closed. Under `nohup` it is
ignored, and stays so.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from heed.errors import STOPPED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)
"""The signal of a closed terminal; Windows has none."""


class Interrupt:
    """A context in which the first signal requests a stop, and the second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.exit_code = STOPPED
        """Exit code of the process: 128 plus the number of the signal."""
        self._previous: dict[int, Any] = {}
        self._terminals = [handle for handle in (1, 2) if os.isatty(handle)]

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            numbers = [*SIGNALS]
            if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
                numbers.append(HANGUP)
            self._previous = {number: signal.signal(number, self._request) for number in numbers}
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
        if number == HANGUP:
            self._leave_terminals()

    def _leave_terminals(self) -> None:
        """Send output nowhere: the terminal is gone, and writing to it would be an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for handle in self._terminals:
            os.dup2(nowhere, handle)
        os.close(nowhere)
