"""What all benchmarks share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from common import ROOT, environment
from gpu_tests import format_result, main, read_lines, run_pytest


@pytest.mark.parametrize("inherited", [[], ["one"], ["one", "two"]])
def test_a_process_finds_this_checkout_and_what_we_find(
    inherited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(inherited))
    monkeypatch.delenv("HEED_CACHE", raising=False)
    variables = environment(HEED_CACHE="here")
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(ROOT), *inherited]
    assert variables["HEED_CACHE"] == "here"
    assert os.environ.items() - {("PYTHONPATH", os.environ["PYTHONPATH"])} <= variables.items()


GPU_TESTS = """
import time
import pytest

pytestmark = pytest.mark.gpu

def test_passes(): ...
def test_fails(): assert 1 == 2, "for a reason"
def test_is_skipped(): pytest.skip("no GPU")
def test_takes_too_long(): time.sleep(100)
def test_never_begins(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_what_gpu_tests_did_before_their_time_was_up_is_kept(tmp_path: Path, workers: int) -> None:
    path, lines = tmp_path / "test_some.py", tmp_path / "lines"
    path.write_text(GPU_TESTS, encoding="utf-8")
    run_pytest([str(path)], workers, lines, 15.0)
    result = read_lines(lines)
    assert result["counts"] == {"passed": 1, "failed": 1, "skipped": 1, "not run": 2}
    (failure,) = result["failures"]
    assert failure["test"].endswith("test_fails")
    assert "for a reason" in failure["message"]
    result |= {"seconds": 15.0, "workers": 1}
    result["machine"] = dict.fromkeys(("commit", "gpu", "python"), "?") | {"versions": {}}
    text = format_result(result)
    assert text.startswith("GPU tests: 1 passed, 1 failed, 1 skipped, 2 not run in 15 s")
    assert "test_fails: AssertionError: for a reason" in text


def test_gpu_tests_without_a_gpu_keep_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "test_some.py", tmp_path / "out"
    skipped = "import pytest\n@pytest.mark.gpu\ndef test_it(): pytest.skip('no GPU')\n"
    path.write_text(skipped, encoding="utf-8")
    command = ["gpu_tests.py", str(path), "--out", str(out), "--workers", "0"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="no GPU was found"):
        main()
    assert not out.exists()
