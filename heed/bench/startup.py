"""Start-up time of training: seconds from the start of the process to the first step, by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from heed.bench.timing import process_age

STAGES = ("read and check", "tokenizer", "store", "model", "optimizer", "capture")
"""The stages that `prepare` and `build_loop` mark, in their order."""


class Startup:
    """Seconds of each stage; time outside of all stages is `other`."""

    def __init__(self) -> None:
        """Time before this moment is spent on imports, most of it on torch's."""
        self.parts: dict[str, float] = {"imports": process_age()}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time spent in this context to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self.parts[name] = self.parts.get(name, 0.0) + seconds

    def finished(self) -> dict[str, float]:
        """All stages in order, and the total so far."""
        total = process_age()
        order = ["imports", "device", *STAGES, "first update"]
        parts = {name: self.parts.get(name, 0.0) for name in order}
        return parts | {"other": max(0.0, total - sum(parts.values())), "total": total}
