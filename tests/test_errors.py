"""Errors: what the Hugging Face hub reports, in words of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import heed

from heed.errors import describe_hub_error, first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one"), "one"),
        (ValueError(), "ValueError"),
        (AssertionError("\n"), "AssertionError"),
    ],
)
def test_an_error_has_a_first_line_even_without_a_message(error: Exception, line: str) -> None:
    assert first_line(error) == line


class ConnectError(Exception):
    """As an HTTP library names it."""


class GatedRepoError(Exception):
    """As the hub names it."""


class DatasetNotFoundError(Exception):
    """As `datasets` names it."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectError("[Errno -2] Name or service not known"), "cannot be reached"),
        (GatedRepoError("401"), "refuses access"),
        (DatasetNotFoundError("x"), "not on the hub"),
        (ValueError("no such split.\nUse another"), "no such split."),
        (ValueError(), "ValueError."),
    ],
)
def test_a_hub_error_is_a_sentence(error: Exception, said: str) -> None:
    wrapper = RuntimeError("Got: ConnectError") if isinstance(error, ConnectError) else error
    if wrapper is not error:
        wrapper.__cause__ = error
    what, todo = describe_hub_error(wrapper)
    assert said in what
    assert "Got:" not in what
    assert what.endswith(".")
    assert todo.endswith(".")


def test_a_model_that_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network, and without waiting for one."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    answer = heed("import", "nobody/nothing", "--run", str(tmp_path / "run"))
    assert answer.returncode == 2
    assert "the hub cannot be reached, and there is no copy of it here" in answer.stderr
    assert not (tmp_path / "run").exists()
