"""File permissions, read-only folders, full disks, and strict JSON."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from heed.cli.common import print_json
from heed.cli.main import main
from heed.config import Recipe
from heed.export import export
from heed.files import (
    DRAFT,
    OS_ERRORS,
    cache_root,
    delete_drafts,
    describe_os_error,
    draft_folder,
    lock_file,
    naming_path,
    to_json,
    write_atomic,
)
from heed.metrics.perplexity import LossCounts, perplexity_metrics
from heed.runs.results_file import save_result
from heed.runs.run import Run
from heed.train import run as train_run

ROOT = Path(__file__).resolve().parents[1]
FULL = Path("/dev/full")
SMALL = {"layers": 1, "width": 16, "heads": 2, "position": "sinusoidal", "norm_place": "post"}
CAPABILITIES, OVERRIDE = 0x20080522, 0b110
"""The version of Linux's capability structure; CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders of other systems differ")
on_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def recipe(home: Path) -> Recipe:
    lines = [" ".join("abcdefgh"[i % 8] for i in range(n, n + 5)) for n in range(40)]
    for side in ("en", "fr"):
        (home / f"a.{side}").write_text("\n".join(lines) + "\n")
    return Recipe.of(
        {
            "task": "translate",
            "data": {"train": [str(home / "a.en"), str(home / "a.fr")]},
            "tokenizer": {"kind": "word"},
            "model": SMALL,
            "train": {"steps": 3, "batch_size": 16, "average_checkpoints": 2, "evaluate_every": 1},
        }
    )


@pytest.fixture(scope="module")
def written(home: Path, recipe: Recipe) -> Path:
    """The recipe as a file."""
    (home / "recipe.toml").write_text(recipe.toml())
    return home / "recipe.toml"


@pytest.fixture(autouse=True)
def own_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEED_CACHE", str(home / "cache"))
    monkeypatch.delenv("HEED_DEBUG", raising=False)


@contextmanager
def masked(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def run(home: Path, recipe: Recipe) -> Path:
    """A finished run, made with a umask that lets the group read."""
    with pytest.MonkeyPatch.context() as patch, masked(0o027):
        patch.setenv("HEED_CACHE", str(home / "cache"))
        train_run.start(recipe, home / "run", device="cpu", console=Console(quiet=True))
    return home / "run"


# --------------------------------------------------------------------------- permissions


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


def assert_shared(folder: Path, umask: int) -> None:
    """All files and folders have the permissions that the umask gives."""
    for name, mode in modes(folder).items():
        whole = 0o777 if (folder / name).is_dir() else 0o666
        assert oct(mode) == oct(whole & ~umask), name


def test_files_of_a_run_follow_the_umask(run: Path, home: Path) -> None:
    assert any("checkpoints" in name for name in modes(run))
    assert_shared(run, 0o027)
    assert_shared(cache_root(), 0o027)


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_exported_files_follow_the_umask(run: Path, tmp_path: Path, umask: int) -> None:
    with masked(umask):
        export(run, tmp_path / "out", to="hf")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert_shared(tmp_path / "out", umask)


@given(umask=st.sampled_from([0o000, 0o002, 0o022, 0o027, 0o077]), content=st.binary())
def test_an_atomic_write_follows_the_umask(umask: int, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name, masked(umask):
        write_atomic(Path(name) / "whole", content)
        (Path(name) / "plain").write_bytes(content)
        found = {path.name: path for path in Path(name).iterdir()}
        assert set(found) == {"whole", "plain"}
        assert found["whole"].read_bytes() == content
        assert len({path.stat().st_mode for path in found.values()}) == 1


# ------------------------------------------------------------------ read-only folders


@contextmanager
def somebody() -> Iterator[None]:
    """Drop root's capability to write anywhere; files that root owns stay readable."""
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    version, rights = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert library.capget(version, rights) == 0
    before, rights[0] = rights[0], rights[0] & ~OVERRIDE  # the first are those in effect
    assert library.capset(version, rights) == 0
    try:
        yield
    finally:
        rights[0] = before
        assert library.capset(version, rights) == 0


@pytest.fixture
def closed(home: Path) -> Iterator[Path]:
    """A read-only folder."""
    folder = home / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def refused(
    words: list[str | Path], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The error message of a command, which is one line."""
    patch.setattr(sys, "argv", ["heed", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end, somebody():
        main()
    stderr = capsys.readouterr().err
    assert end.value.code == 2, stderr
    assert stderr.startswith("heed: ")
    assert stderr.count("\n") == 1
    return stderr


@pytest.mark.parametrize("command", ["train", "train without --run", "demo", "export"])
def test_a_read_only_folder_is_an_error(
    command: str,
    run: Path,
    written: Path,
    closed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(closed)
    words: dict[str, list[str | Path]] = {
        "train": ["train", written, "--run", closed / "a" / "b"],
        "train without --run": ["train", written],
        "demo": ["demo", "--run", closed],
        "export": ["export", run, closed / "a"],
    }
    message = refused(words[command], monkeypatch, capsys)
    assert "no permission to open or write" in message
    assert "Name another place" in message
    assert not [*closed.iterdir()]


@pytest.mark.parametrize("command", ["report", "plot", "plot --csv"])
def test_a_file_that_cannot_be_written_is_named_with_its_flag(
    command: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, tuple[list[str | Path], str, str]] = {
        "report": (["report", run], f"{run}/report.html", "--out"),
        "plot": (["plot", "."], "dev-loss-by-step.png", "--out"),
        "plot --csv": (["plot", ".", "--csv", "a.csv"], "a.csv", "--csv"),
    }
    mode = run.stat().st_mode
    monkeypatch.chdir(run)
    run.chmod(0o555)
    try:
        message = refused(words[command][0], monkeypatch, capsys)
    finally:
        run.chmod(mode)
    _, file, flag = words[command]
    assert message.startswith(f"heed: {file}: you have no permission to open or write this.")
    assert f"Name another place with {flag}" in message


def test_a_run_in_a_read_only_folder_is_not_resumed(
    recipe: Recipe, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = Run.create(home / "begun", recipe)
    begun.folder.chmod(0o555)
    message = refused(["resume", begun.folder], monkeypatch, capsys)
    assert str(begun.folder) in message


def test_a_read_only_cache_is_named_and_leaves_no_run(
    written: Path,
    home: Path,
    closed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened = home / "open"
    opened.mkdir()
    monkeypatch.setenv("HEED_CACHE", str(closed / "cache"))
    words: list[str | Path] = ["train", written, "--run", opened / "run"]
    message = refused(words, monkeypatch, capsys)
    assert str(closed / "cache") in message
    assert "Set HEED_CACHE" in message
    assert not [*opened.iterdir()]


@pytest.mark.parametrize("command", ["train", "demo"])
def test_a_path_through_a_file_is_an_error(
    command: str,
    written: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words: list[str | Path] = [command, *([written] if command == "train" else [])]
    message = refused([*words, "--run", "/dev/null/x"], monkeypatch, capsys)
    assert "/dev/null/x: a part of this path is a file" in message


def test_an_export_does_not_replace_the_current_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    message = refused(["export", run, ".", "--to", "hf"], monkeypatch, capsys)
    assert "Name a new one, such as model." in message
    assert not [*(tmp_path / "in").iterdir()]


# ------------------------------------------------------------------------------------ drafts


def test_drafts_are_deleted_once_their_process_is_gone(tmp_path: Path) -> None:
    for name in ("file-1", "folder"):
        draft = tmp_path / f"{DRAFT}{name}"
        draft.touch() if "file" in name else (draft / "deep").mkdir(parents=True)
    (tmp_path / "kept").touch()
    with draft_folder(tmp_path) as alive:
        delete_drafts(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {alive.name, "kept"}
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("content")
    (tmp_path / "lock").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic") as error, lock_file(tmp_path / "lock"):
        pass
    described = describe_os_error(error.value)
    assert described is not None
    assert "symbolic link" in described.what
    assert (tmp_path / "outside").read_text() == "content"


# -------------------------------------------------------------------------- full disks


@on_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["recipes"], ["translate", "RUN", "a b"], ["runs", "RUN"]])
def test_output_on_a_full_disk_is_an_error(words: list[str], unbuffered: str, run: Path) -> None:
    with FULL.open("w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "heed", *(str(run) if w == "RUN" else w for w in words)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert answer.returncode == 2
    assert answer.stderr.startswith("heed: standard output, or")
    assert "the disk is full." in answer.stderr
    assert answer.stderr.count("\n") == 1


@on_full
def test_metrics_on_a_full_disk_are_an_error(
    recipe: Recipe,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = Run.create(home / "stuck", recipe)
    begun.metrics_path.symlink_to(FULL)
    monkeypatch.setattr(Run, "_read_metrics_lines", lambda run: [])
    monkeypatch.setattr(Run, "truncate_metrics", lambda run, lines: None)
    monkeypatch.setattr("heed.runs.run.refuse_unsafe_entries", lambda folder: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # as oneself
    message = refused(["resume", begun.folder, "--device", "cpu"], monkeypatch, capsys)
    assert f"{begun.metrics_path}: the disk is full." in message


@on_full
def test_an_error_without_a_path_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with (
        pytest.raises(OSError, match="No space") as full,
        naming_path(path),
        FULL.open("w") as file,
    ):
        file.write("x")
    assert full.value.errno == errno.ENOSPC
    assert full.value.filename == str(path)


def test_errors_name_the_final_path_instead_of_the_temporary_one(tmp_path: Path) -> None:
    path, other = tmp_path / "folder" / "file", tmp_path / "folder" / "other"
    for draft in (path.with_name(".file-1"), path.with_name(".draft") / "deep"):
        with pytest.raises(FileNotFoundError) as gone, naming_path(path):
            draft.read_bytes()
        assert gone.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as gone, naming_path(path):
        other.read_bytes()
    assert gone.value.filename == str(other)


@given(number=st.sampled_from([*OS_ERRORS, errno.EIO, errno.ELOOP]), name=st.text(min_size=1))
def test_every_error_about_a_file_has_a_message(number: int, name: str) -> None:
    error = describe_os_error(OSError(number, os.strerror(number), name))
    assert error is not None
    assert error.where == name
    assert error.what.endswith(".")
    assert error.todo


def test_errors_about_no_file_are_not_described() -> None:
    assert describe_os_error(ConnectionError("reset")) is None
    assert describe_os_error(OSError("something else")) is None


# ------------------------------------------------------------------------------ strict JSON


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def strict(text: str) -> Any:
    """Parse standard JSON only: NaN and Infinity are errors."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(value=values)
def test_only_numbers_that_are_not_finite_are_lost(value: Any) -> None:
    assert strict(to_json(value)) == without_infinities(value)
    assert strict(to_json((value,), indent=1)) == [without_infinities(value)]
    assert "\n" not in to_json(value)


def test_infinite_perplexity_is_null_when_printed_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word with a loss of 1,000 nats, saved beside an older result with Infinity."""
    infinite = perplexity_metrics([LossCounts(1e3, 1, 1, 2, 0, 0, 0)] * 12) | {"resamples": 5}
    assert math.isinf(infinite["perplexity"])
    print_json(infinite)
    assert strict(capsys.readouterr().out)["perplexity"] is None
    (tmp_path / "evaluation.json").write_text('{"dev": {"loss": Infinity}}')
    save_result(tmp_path, "test", infinite)
    found = strict((tmp_path / "evaluation.json").read_text())
    assert found["dev"]["loss"] is None
    assert found["test"] == without_infinities(infinite)


def test_an_empty_variable_names_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HEED_CACHE", "")
    assert cache_root() == tmp_path / "heed"
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
