"""Kernels in C: compiled by the machine's own compiler when they are first needed, and kept.

A source is compiled once for each content, set of flags and kind of CPU. The library stays in
$HEED_KERNEL_CACHE, or else in `kernels` in the cache folder, for its owner alone. One that another
user could have written, or that is damaged, is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from heed.files import cache_root, write_atomic

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC")
PATIENCE = 120
"""Seconds that the compiler may take; it needs about one."""


class CompilerError(Exception):
    """A C source could not be compiled or loaded here; the message says why."""


def load_library(source: Path, flags: Sequence[str]) -> CDLL:
    """The library of a C source, compiled now if it was not before."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CompilerError(f"there is no C compiler ({', '.join(COMPILERS)}).")
    headers = sorted(source.parent.glob("*.h"))
    content = b"".join(path.read_bytes() for path in (source, *headers))
    settings = repr((compiler, FLAGS, tuple(flags), cpu_instructions()))
    key = hashlib.sha256(settings.encode() + content).hexdigest()
    # Absolute, because the loader looks for a name without a folder among the system's libraries.
    folder = Path(os.environ.get("HEED_KERNEL_CACHE") or cache_root() / "kernels").absolute()
    kept = folder / f"{source.stem}-{key[:32]}.so"
    if _is_sound(kept):
        with suppress(OSError):  # compiled on another system, whose libraries this one lacks
            return CDLL(str(kept))
    with TemporaryDirectory() as draft:
        built = Path(draft) / kept.name
        _compile(compiler, source, flags, built)
        # A cache folder that cannot be written or loaded from: compile again next time.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, _with_checksum(built.read_bytes()))
            kept.chmod(0o500)
            return CDLL(str(kept))
        try:
            return CDLL(str(built))
        except OSError as error:
            raise CompilerError(f"compiled {source.name} cannot be loaded: {error}.") from error


def cpu_instructions() -> tuple[str, ...]:
    """The sets of instructions that this CPU has, as Linux lists them; elsewhere none."""
    return tuple((_cpu_field("flags") or _cpu_field("Features")).split())


def cpu_vendor() -> str:
    """Who made this CPU, as Linux names them ("AuthenticAMD"); elsewhere nothing."""
    return _cpu_field("vendor_id")


@cache
def _cpu_field(name: str) -> str:
    """A field of the first CPU in Linux's list."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return line.partition(":")[2].strip()


def _with_checksum(content: bytes) -> bytes:
    """A library with its checksum at its end, where the loader does not look."""
    return content + hashlib.sha256(content).digest()


def _is_sound(library: Path) -> bool:
    """Whether this user wrote the file, no one else can, and it is whole: half would crash."""
    try:
        status = library.lstat()
        is_own = status.st_uid == os.getuid() and not status.st_mode & 0o022
        if not (is_own and stat.S_ISREG(status.st_mode)):
            return False
        content = library.read_bytes()
    except OSError:
        return False
    return content == _with_checksum(content[: -hashlib.sha256().digest_size])


def _compile(compiler: str, source: Path, flags: Sequence[str], target: Path) -> None:
    command = [compiler, *FLAGS, *flags, "-o", str(target), str(source), "-lm"]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{compiler} failed: {error}") from error
    if answer.returncode:
        first = next(iter(answer.stderr.strip().splitlines()), f"exit code {answer.returncode}")
        raise CompilerError(f"{compiler} failed: {first}")
