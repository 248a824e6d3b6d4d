"""Intercept a process's own file operations below a folder: every open, write, rename, flush.

`Watch.install` replaces the functions of `os` and `io` in this process, which is a child made for
one command. A listener is called before each operation, and may end the process there; an observer
is called after it. Files that safetensors writes are two operations: before, and half-written.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save, save_file

Listener = Callable[[str, Path], None]
"""Called with the kind of an operation and its path."""
Observer = Callable[[str, Path, Path | None], None]
"""Called with the kind of an operation, its path, and the new path of a rename."""
WRITING = frozenset("wax+")
PATH_FIRST = ("mkdir", "rmdir", "unlink", "remove")
RENAMES = ("rename", "replace")


def ignore(*_: object) -> None:
    """Listen to nothing."""


class Watch:
    """The file operations of this process below a folder."""

    def __init__(self, root: Path, *, before: Listener = ignore, after: Observer = ignore) -> None:
        self.root, self.before, self.after = root.resolve(), before, after

    def install(self) -> None:
        """Replace the functions; there is no way back, so call it in a child."""
        from heed.models import weights

        self._real_open, self._real_unlink = io.open, os.unlink
        replaced: list[tuple[Any, str, Any]] = [
            (io, "open", self._open),
            (builtins, "open", self._open),
            (os, "open", self._wrap_os_open(os.open)),
            (os, "fsync", self._wrap_fsync(os.fsync)),
            (weights, "save_file", self._wrap_save_file(save_file)),
            *((os, name, self._wrap_path(name, getattr(os, name))) for name in PATH_FIRST),
            *((os, name, self._wrap_rename(getattr(os, name))) for name in RENAMES),
        ]
        for module, name, function in replaced:
            setattr(module, name, function)

    def path_below(self, path: Any, folder: int | None = None) -> Path | None:
        """The absolute path, if it is below the watched folder; `folder` is an open one."""
        if isinstance(path, int):
            name = Path(f"/proc/self/fd/{path}").readlink()
        else:
            base = Path.cwd() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
            name = Path(os.path.normpath(base / os.fsdecode(path)))
        return name if name.is_relative_to(self.root) else None

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = None if isinstance(file, int) else self.path_below(file)
        if path is None or not WRITING & set(mode):
            return self._real_open(file, mode, *args, **kwargs)
        return self._open_watched(path, mode, *args, **kwargs)

    def _open_watched(
        self,
        path: Path,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        existed = path.exists()
        self.before("open", path)
        raw = _WatchedFile(self, path, mode.replace("b", "").replace("t", ""))
        self.after("open" if existed else "create", path, None)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def _wrap_os_open(self, real: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(real)
        def watched(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            below = self.path_below(path, kwargs.get("dir_fd")) if flags & os.O_CREAT else None
            if below is None or below.exists():
                return real(path, flags, *args, **kwargs)
            self.before("create", below)
            handle = real(path, flags, *args, **kwargs)
            self.after("create", below, None)
            return handle

        return watched

    def _wrap_fsync(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(real)
        def watched(file: Any) -> None:
            below = self.path_below(file if isinstance(file, int) else file.fileno())
            if below is not None:
                self.before("fsync", below)
            real(file)
            if below is not None:
                self.after("fsync", below, None)

        return watched

    def _wrap_path(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def watched(path: Any, *args: Any, **kwargs: Any) -> None:
            below = self.path_below(path, kwargs.get("dir_fd"))
            if below is not None:
                self.before(kind, below)
            real(path, *args, **kwargs)
            if below is not None:
                self.after("unlink" if kind == "remove" else kind, below, None)

        return watched

    def _wrap_rename(self, real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def watched(source: Any, target: Any, **kwargs: Any) -> None:
            old, new = self.path_below(source), self.path_below(target)
            if old is not None:
                self.before("rename", old)
            real(source, target, **kwargs)
            if old is not None:
                self.after("rename", old, new)

        return watched

    def _wrap_save_file(self, real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def watched(tensors: Any, file: Path, metadata: Any = None) -> None:
            path = self.path_below(file)
            if path is not None:
                self.before("write", path)
                draft = path.with_name(".tmpTorn")  # safetensors' own is named likewise
                with self._real_open(draft, "wb") as torn:
                    content = save(tensors, metadata)
                    torn.write(content[: len(content) // 2])
                self.before("torn", draft)
                self._real_unlink(draft)
            real(tensors, file, metadata)
            if path is not None:
                self.after("replace", path, None)

        return watched


class _WatchedFile(io.FileIO):
    """A file whose writes are operations: before, and half-written."""

    def __init__(self, watch: Watch, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._watch, self._path = watch, path

    def write(self, data: Any) -> int:
        """Write in two halves."""
        view = memoryview(data).cast("B")
        self._watch.before("write", self._path)
        half = len(view) // 2
        written = super().write(view[:half]) if half else 0
        if half:
            self._watch.after("write", self._path, None)
            self._watch.before("torn", self._path)
        written += super().write(view[half:])
        self._watch.after("write", self._path, None)
        return written


def kill_at(number: int) -> Listener:
    """A listener that kills this process before its operation of this number, counted from 0."""
    count = 0

    def listen(kind: str, path: Path) -> None:
        nonlocal count
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    return listen
