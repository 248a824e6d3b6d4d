"""A run that dies in the middle, and what is left of a run to compare with one that did not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heed.data.batching.batch import Batch
from heed.runs.run import Run
from heed.train.loader import Loader

TESTS = Path(__file__).resolve().parent
FOUND = os.pathsep.join([str(TESTS.parent), str(TESTS)])
"""The PYTHONPATH of processes that a test launches: heed, and what lies beside the tests."""


class Killed(BaseException):
    """Stands for the moment a process dies."""


@contextmanager
def dies_at(step: int) -> Iterator[None]:
    """Training in this block dies when it asks for this update's batches; if not, the test fails.

    After the block training lives again, so that the run can be resumed.
    """
    walk = Loader.iterate

    def dying(self: Loader, start: int, stop: int) -> Iterator[list[Batch]]:
        for number, batches in enumerate(walk(self, start, stop), start):
            if number == step:
                raise Killed
            yield batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "iterate", dying)
        with pytest.raises(Killed):
            yield


@contextmanager
def asked_at(step: int, number: int) -> Iterator[None]:
    """Training in this block is sent a signal when it asks for this update's batches."""
    walk = Loader.iterate

    def asking(self: Loader, start: int, stop: int) -> Iterator[list[Batch]]:
        for at, batches in enumerate(walk(self, start, stop), start):
            if at == step:
                os.kill(os.getpid(), number)
            yield batches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "iterate", asking)
        yield


def outcome(run: Path | Run) -> tuple[bytes, list[dict[str, Any]]]:
    """The weights' bytes of a run or its folder, and what was measured, the clock apart."""
    run = run if isinstance(run, Run) else Run(run)
    lines = run.metrics()
    for line in lines:
        line.pop("time")
    return run.weights_path.read_bytes(), lines
