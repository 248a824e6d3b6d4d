"""Atomic writes, locks, the cache folder, strict JSON, messages for operating-system errors.

What is written here is under a draft name first (`.draft-…`), is flushed to the disk, and then gets
its final name. A crash or a power cut leaves it whole or absent, and at worst a draft beside it. A
draft is locked while its process lives, so `delete_drafts` knows which ones are abandoned.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from heed.errors import DataError, HeedError

MAX_DEPTH = 100
"""Lists and objects inside each other in a JSON file of a stranger."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_FILE = "this is neither a file nor a folder, but a pipe, a socket or a device."
OS_ERRORS = {
    errno.EACCES: "you have no permission to open or write this.",
    errno.EPERM: "you have no permission to open or write this.",
    errno.EROFS: "this file system is read-only.",
    errno.ENOENT: "there is no such file or folder.",
    errno.ENOTDIR: "a part of this path is a file, not a folder.",
    errno.EISDIR: "this is a folder, not a file.",
    errno.EEXIST: "there is something else here already.",
    errno.ENOTEMPTY: "there is something else here already.",
    errno.ELOOP: "this is a symbolic link, which is not followed here.",
    errno.ENXIO: NO_FILE,
} | dict.fromkeys(DISK_FULL, "the disk is full.")
"""The message for each error number of the operating system."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""The flag that makes opening a symbolic link an error; 0 on a system without it."""
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | NO_FOLLOW
"""How the file of a lock is opened."""
DRAFT = ".draft-"
"""Prefix of names of files and folders that are still being written."""


def cache_root() -> Path:
    """Cache folder: $HEED_CACHE, or `heed` in the user's cache folder."""
    if path := os.environ.get("HEED_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "heed"


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Make an `OSError` raised in this block name `path`.

    It would otherwise name the temporary file beside `path` (a name that begins with a dot), or no
    file at all, as the error of a full disk does.
    """
    try:
        yield
    except OSError as error:
        named = path if error.filename is None else Path(str(error.filename))
        beside = named.is_relative_to(path.parent) and named != path.parent
        temporary = beside and named.relative_to(path.parent).parts[0].startswith(".")
        if error.errno is None or not (temporary or error.filename is None):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a crash or power cut it is complete or absent.

    The draft is opened like any new file, under a unique name, so that its permissions follow the
    umask.
    """
    data = content.encode() if isinstance(content, str) else content
    with naming_path(path):
        draft, file = _open_draft(path)
        try:
            with file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if os.name != "posix":  # there an open file cannot be renamed
                    file.close()
                draft.replace(path)
            flush_folder(path.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _open_draft(path: Path) -> tuple[Path, BinaryIO]:
    """Create a draft of a file, and lock it."""
    while True:
        draft = path.with_name(f"{DRAFT}{path.name}-{token_hex(6)}")
        file = draft.open("xb")
        if _lock_draft(file.fileno(), draft):
            return draft, file
        file.close()


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty folder for files that are not complete yet; it is deleted on exit."""
    draft, handle = _make_draft_folder(parent)
    try:
        yield draft
    finally:
        _close_folder(handle)
        shutil.rmtree(draft, ignore_errors=True)


def _make_draft_folder(parent: Path) -> tuple[Path, int]:
    """Make a draft folder, and lock it."""
    while True:
        draft = parent / f"{DRAFT}{token_hex(6)}"
        draft.mkdir()
        with suppress(FileNotFoundError):  # deleted at once, see `_lock_draft`
            handle = _open_folder(draft)
            if _lock_draft(handle, draft):
                return draft, handle
            _close_folder(handle)


def _lock_draft(handle: int, draft: Path) -> bool:
    """Lock a new draft; False where another process deleted it before it was locked."""
    return try_lock(handle, wait=True) is None or _is_open_at(handle, draft)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill and then pass to `publish`; leftovers are deleted on exit."""
    if folder.name in ("", ".."):  # the current folder or its parent cannot be replaced by a rename
        todo = f"Name a new one, such as {folder / 'model'}."
        raise HeedError("this folder cannot be written as a whole.", where=str(folder), todo=todo)
    make_folder(folder.parent)
    delete_drafts(folder.parent)
    with naming_path(folder), draft_folder(folder.parent) as outer:
        inner = outer / folder.name
        inner.mkdir()
        yield inner


def publish(draft: Path, final: Path) -> None:
    """Flush a draft, a file or a whole folder, to the disk, then give it its final name."""
    for folder, _, names in os.walk(draft):
        for name in names:
            flush_file(Path(folder) / name)
        flush_folder(Path(folder))
    if draft.is_file():
        flush_file(draft)
    draft.replace(final)
    flush_folder(final.parent)


def check_writable(path: Path | None, flag: str = "--out") -> None:
    """Raise an error if a file cannot be written at this path, before anything slow begins.

    `flag` is the option of the command that names the file.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise DataError("there is no such folder.", where=str(path.parent), todo="Make it first.")
    if path.is_dir():
        raise DataError("this is a folder.", where=str(path), todo="Name a file to write.")
    target = path if path.exists() else path.parent
    is_effective = os.access in os.supports_effective_ids
    if not os.access(target, os.W_OK, effective_ids=is_effective):
        code = errno.EROFS if _is_read_only(target) else errno.EACCES
        todo = f"Name another place with {flag}, or check your permissions here."
        raise DataError(OS_ERRORS[code], where=str(path), todo=todo)


def _is_read_only(path: Path) -> bool:
    """Whether the file system of an existing path is mounted read-only."""
    return os.name == "posix" and bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def make_folder(folder: Path) -> bool:
    """Make a folder and its parents, flushed to the disk; whether it is a new one."""
    if folder.is_dir():
        return False
    if not folder.parent.exists():
        make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False  # another process was faster
    flush_folder(folder.parent)
    return True


def delete_folder(folder: Path) -> None:
    """Delete a folder; a crash leaves a draft at worst, never a part of it under its name."""
    draft = folder.with_name(f"{DRAFT}{token_hex(6)}")
    folder.rename(draft)
    shutil.rmtree(draft)


def is_draft(path: Path) -> bool:
    """Whether a file or folder was never completed, by its name."""
    return path.name.startswith(DRAFT)


def delete_drafts(folder: Path) -> None:
    """Delete the drafts in a folder whose processes were killed; those of others stay."""
    for draft in folder.glob(f"{DRAFT}*"):
        with suppress(OSError):  # a process that may write here deletes it
            if draft.is_symlink():
                draft.unlink()
            elif draft.is_dir():
                _delete_draft_folder(draft)
            else:
                with draft.open("r+b") as file:
                    if try_lock(file.fileno()):
                        draft.unlink()


def _delete_draft_folder(draft: Path) -> None:
    handle = _open_folder(draft)
    try:
        if try_lock(handle):
            shutil.rmtree(draft)
    finally:
        _close_folder(handle)


# ------------------------------------------------------------------------------------ the disk


def flush_file(path: Path) -> None:
    """Flush the content of a file to the disk, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk: new, renamed and deleted ones."""
    if os.name == "posix":
        flush_file(folder)


def _open_folder(folder: Path) -> int:
    """An open folder, to lock it; -1 where folders cannot be opened."""
    return os.open(folder, os.O_RDONLY) if os.name == "posix" else -1


def _close_folder(handle: int) -> None:
    if handle >= 0:
        os.close(handle)


# ------------------------------------------------------------------------------------ reading


def open_regular(path: Path, *, follow_links: bool = True, append: bool = False) -> BinaryIO:
    """Open a file of a stranger's folder: an `OSError` for a pipe, a socket or a device.

    To open a named pipe waits until another process writes to it, and a device may have no end.
    Without `follow_links`, a symbolic link is an `OSError`, too. With `append`, the file is made
    where it is absent, and what is written goes to its end.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if append else os.O_RDONLY
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | (0 if follow_links else NO_FOLLOW), 0o666)
    try:
        require_regular(path, os.fstat(handle))
        return os.fdopen(handle, "ab" if append else "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, *, follow_links: bool = True) -> bytes:
    """The content of a file that is opened by `open_regular`."""
    with open_regular(path, follow_links=follow_links) as file:
        return file.read()


def require_regular(path: Path, status: os.stat_result | None = None) -> None:
    """Raise an `OSError` for what is no regular file; for files that another library opens."""
    mode = (path.stat() if status is None else status).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, NO_FILE[:-1], str(path))


# -------------------------------------------------------------------------------------- locks


def try_lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed; False where another process has it.

    None where the file system has no locks, as some network file systems.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def lock_file(path: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Hold the lock of a file, which is created where absent; yields what `try_lock` returns."""
    while True:
        handle = os.open(path, LOCK_FLAGS, 0o666)
        try:
            locked = try_lock(handle, wait=wait)
            if locked and not _is_open_at(handle, path):
                continue  # it was deleted while this process waited
            yield locked
            return
        finally:
            os.close(handle)


def locked_inodes() -> frozenset[int] | None:
    """The inodes of all files that processes of this machine hold locked, read from Linux's list.

    None where there is no such list. Asking for a lock instead would keep it from the process that
    wants it at that instant. Device numbers are not compared: the list has others for overlays.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    held = (line.split() for line in lines if "->" not in line)  # an arrow: waiting for the lock
    return frozenset(int(fields[5].rpartition(":")[2]) for fields in held if len(fields) > 5)


def _is_open_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


# ----------------------------------------------------------------------------- errors and JSON


def describe_os_error(
    error: OSError, *, where: str | None = None, todo: str | None = None
) -> HeedError | None:
    """The `HeedError` for an `OSError` about a file or folder; None for any other error.

    `where` is used when the error names no file; `todo` replaces the default advice.
    """
    where = where if error.filename is None else str(error.filename)
    if where is None:
        return None
    what = OS_ERRORS.get(error.errno or 0, f"{error.strerror or error}.")
    default = "Name another place, or check your permissions here."
    if error.errno in DISK_FULL:
        default = "Free some space, or name another place; then try again."
    return HeedError(what, where=where, todo=todo or default)


def to_json(value: object, *, indent: int | None = None) -> str:
    """Strict JSON, on one line unless indented. Numbers that are not finite become null.

    JSON does not ask for escapes of lone surrogates and of some control characters, but no stream
    can encode the former, and a terminal obeys the latter.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _finite(value: Any) -> Any:
    """A copy with None for every float that is infinite or NaN."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def require_shallow(content: object) -> None:
    """Raise a RecursionError for JSON that Python may read but not write again."""
    level = [content]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise RecursionError
