"""What a process knows of torchrun before torch is imported: whether it is one of several ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from heed.errors import HeedError

REPORT_SECONDS = 10.0
"""Seconds that a rank gives another to report an error. torchrun ends it before."""


def is_torchrun() -> bool:
    """Whether torchrun started several processes."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_rank0() -> bool:
    """Whether this is the rank that writes files and to the console; without torchrun it is."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def rank0_error_only() -> Iterator[None]:
    """Before there is a process group: an error that all ranks have is reported by rank 0."""
    try:
        yield
    except HeedError:
        if is_torchrun() and not is_rank0():
            time.sleep(REPORT_SECONDS)  # torchrun ends this rank once rank 0 has reported
        raise
