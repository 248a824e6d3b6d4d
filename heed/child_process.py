"""Processes that heed starts: they import this heed, and all that this process can import."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder that this package is in."""


def child_environment(**variables: str) -> dict[str, str]:
    """The environment of a child process that imports this heed, with these variables set."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
