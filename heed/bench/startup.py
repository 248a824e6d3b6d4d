"""Where the time goes before the first update, part by part.

Training has no clock in it. To measure its parts as they are, and not a copy of them, the functions
that make them are wrapped for the while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from heed.bench.timing import process_age
from heed.train import run
from heed.train.prepare import setup

STAGES: dict[str, list[tuple[ModuleType, str]]] = {
    "read and check": [(setup, "open_corpora"), (setup, "_see_the_doctor")],
    "tokenizer": [(setup, "tokenizer_for")],
    "store": [(setup, "_batches"), (run, "Feed")],
    "model": [(setup, "build_model")],
    # torch loads its compiler, of which optimizers use a part, when first asked for either.
    "optimizer": [(run, "build_optimizer")],
    "capture": [(run, "build_step")],
}
"""Which functions make which part."""


class Startup:
    """Seconds from the start of the process, by part; what no part claims is `other`."""

    def __init__(self) -> None:
        """What came before this moment are imports, torch's for the most part."""
        self.parts: dict[str, float] = {"imports": process_age()}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done within counts for this part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - began
            self.parts[name] = self.parts.get(name, 0.0) + taken

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count every part of training's own beginning."""
        with ExitStack() as stack:
            for stage, places in STAGES.items():
                for module, name in places:
                    stack.enter_context(self._wrapped(module, name, stage))
            yield

    @contextmanager
    def _wrapped(self, module: ModuleType, name: str, stage: str) -> Iterator[None]:
        whole: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            with self.part(stage):
                return whole(*arguments, **named)

        setattr(module, name, counted)
        try:
            yield
        finally:
            setattr(module, name, whole)

    def finished(self) -> dict[str, float]:
        """All parts in their order, and the total until now."""
        total = process_age()
        order = ["imports", "device", *STAGES, "first update"]
        parts = {name: self.parts.get(name, 0.0) for name in order}
        return parts | {"other": max(0.0, total - sum(parts.values())), "total": total}
