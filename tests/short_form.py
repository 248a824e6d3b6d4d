"""The short form of a robustness benchmark: a few breaks, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_short_form(module: str, *options: str) -> str:
    """Run a module of benchmarks/robustness and return its output; an error if a break did harm."""
    answer = subprocess.run(
        [sys.executable, "-m", f"robustness.{module}", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout
