"""What all benchmarks share."""

from __future__ import annotations

import os

import pytest
from common import ROOT, environment


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
