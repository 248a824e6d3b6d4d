"""The lab and the server need the packages of the extra `lab`: without them nothing is collected.

So the GPU tests run on a machine that has torch and few other packages.
"""

from __future__ import annotations

from importlib.util import find_spec

HAS_LAB = find_spec("fastapi") is not None
collect_ignore_glob = [] if HAS_LAB else ["*.py"]


def pytest_report_header() -> str:
    """Say what is left out, at the top of the output."""
    return "" if HAS_LAB else "tests/lab is left out: the extra `lab` is not installed"
