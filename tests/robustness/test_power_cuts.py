"""A power cut drops what was not flushed: a run goes on as if there had been none.

`benchmarks/robustness/power_cuts.py` cuts after every file operation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from robustness.disk import Disk, Loss
from short_form import run_short_form

ROOT = Path("/disk")
Operation = tuple[str, str, str | bytes | None]
"""Kind, path, and the new path or the content after it."""
UNFLUSHED: list[Operation] = [
    ("create", "draft", None),
    ("write", "draft", b"new"),
    ("rename", "draft", "file"),
]
ATOMIC: list[Operation] = [
    ("create", "draft", None),
    ("write", "draft", b"new"),
    ("fsync", "draft", None),
    ("rename", "draft", "file"),
    ("fsync", ".", None),
]
APPENDED: list[Operation] = [
    ("create", "lines", None),
    ("write", "lines", b"1\n2\n"),
    ("fsync", "lines", None),
    ("fsync", ".", None),
    ("write", "lines", b"1\n2\n3\n4\n"),
]


def disk_after(operations: list[Operation]) -> Disk:
    disk = Disk(ROOT)
    for kind, path, other in operations:
        new_path = ROOT / other if isinstance(other, str) else None
        disk.apply(kind, ROOT / path, new_path, other if isinstance(other, bytes) else None)
    return disk


@pytest.mark.parametrize(
    ("operations", "loss", "files"),
    [
        (UNFLUSHED, Loss.ALL, {}),
        (UNFLUSHED, Loss.CONTENT, {"file": b""}),
        (UNFLUSHED, Loss.ZEROS, {"file": b"\0\0\0"}),
        (ATOMIC[:3], Loss.ALL, {}),
        (ATOMIC[:4], Loss.CONTENT, {"file": b"new"}),
        *((ATOMIC, loss, {"file": b"new"}) for loss in Loss),
        (APPENDED, Loss.ALL, {"lines": b"1\n2\n"}),
        (APPENDED, Loss.ZEROS, {"lines": b"1\n2\n\0\0\0\0"}),
        ([*ATOMIC, ("unlink", "file", None)], Loss.ALL, {"file": b"new"}),
        ([*ATOMIC, ("unlink", "file", None), ("fsync", ".", None)], Loss.ALL, {}),
    ],
)
def test_the_simulated_disk_holds_what_was_flushed(
    operations: list[Operation], loss: Loss, files: dict[str, bytes]
) -> None:
    assert disk_after(operations).files_after_cut(loss, seed=0) == files


def test_the_files_of_a_renamed_folder_are_those_that_were_flushed() -> None:
    operations: list[Operation] = [
        ("mkdir", "draft", None),
        ("create", "draft/safe", None),
        ("write", "draft/safe", b"a"),
        ("fsync", "draft/safe", None),
        ("fsync", "draft", None),
        ("create", "draft/lost", None),
        ("rename", "draft", "folder"),
        ("fsync", ".", None),
    ]
    files = disk_after(operations).files_after_cut(Loss.ALL, seed=0)
    assert files == {"folder/": None, "folder/safe": b"a"}


@pytest.mark.slow
def test_a_run_goes_on_after_a_power_cut_as_if_there_had_been_none() -> None:
    output = run_short_form("power_cuts", "--first", "150", "--every", "150")
    assert "'breaks'" in output
