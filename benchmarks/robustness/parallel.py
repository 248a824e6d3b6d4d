"""Share work among forked processes: torch is imported once, in the parent."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_in_parallel(jobs: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function with 0, 1, … in as many forked processes; what they return, as JSON."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / str(number) for number in range(jobs)]
        children = [_fork_worker(work, number, path) for number, path in enumerate(paths)]
        for child in children:
            os.waitpid(child, 0)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _fork_worker(work: Callable[[int], Any], number: int, path: Path) -> int:
    """Fork a process that writes what `work` returns to a file; its number."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            path.write_text(json.dumps(work(number)), encoding="utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child
