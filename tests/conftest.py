"""Settings for all tests: one thread, which is fastest for tiny models, and a repeatable search.

The whole suite is shared by the processors there are, where pytest-xdist is installed; a few named
files are not worth the start of its workers. `-n 0` is one process, whatever is asked.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

import pytest
import torch
from browser import chromium
from gpu_marks import INTERPRETED, index_by_item
from hypothesis import settings
from labs import tiny_lab, tiny_runs
from scored_texts import files, own_cache, run, text, texts

from heed.files import cache_root

__all__ = ["chromium", "files", "own_cache", "run", "text", "texts", "tiny_lab", "tiny_runs"]

MOST_WORKERS = 4
"""Each holds torch and a few small models."""


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing when a signal comes."""


torch.set_num_threads(1)
# A job in a shell's background ignores Ctrl-C, and one under `nohup` a closed terminal. Commands
# that tests start would inherit that: what has a handler here is the default in a new program.
for ignored in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, ignore)
# Tests have caches of their own. Kernels in C need not be compiled for each of them.
os.environ.setdefault("HEED_KERNEL_CACHE", str(cache_root() / "kernels"))
settings.register_profile(
    "heed", deadline=None, derandomize=True, database=None, max_examples=25, print_blob=False
)
settings.load_profile("heed")


def pytest_configure() -> None:
    """Let kernels with loops run in Triton's interpreter, whatever the version of NumPy."""
    if INTERPRETED:
        index_by_item()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the whole suite, file by file: the tests of a file often share a trained model."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    works = "PYTEST_XDIST_WORKER" in os.environ  # a worker has none of its own
    if whole and not works and getattr(config.option, "numprocesses", 0) is None:
        config.option.numprocesses = min(MOST_WORKERS, os.cpu_count() or 1)
        config.option.dist = "loadfile"
