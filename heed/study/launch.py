"""Launch a process in a session of its own, with all that it prints in a log."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from heed.files import make_folder


def launch_process(
    command: Sequence[str],
    log: Path | BinaryIO,
    environment: Mapping[str, str] | None = None,
    *,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Launch a command; Ctrl-C on the terminal of this process does not reach it.

    `log` is a file to append to, by its path or open already. `environment` is that of the process,
    by default the one of this process. `inherited` are open files that the process has, too.
    """
    if isinstance(log, Path):
        make_folder(log.parent)
    with log.open("ab") if isinstance(log, Path) else nullcontext(log) as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**(os.environ if environment is None else environment), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            pass_fds=inherited,
        )
