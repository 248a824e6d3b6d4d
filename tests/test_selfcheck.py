"""`heed selfcheck` runs what it says and finds it to hold."""

from __future__ import annotations

import json

import pytest
import torch
from test_cli import heed

from heed.device import wants_bf16
from heed.selfcheck import describe_machine


@pytest.mark.slow  # trains in every way that it compares
def test_everything_holds_on_this_machine() -> None:
    answer = heed("selfcheck", "--json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    checks = json.loads(answer.stdout)
    assert {check["claim"] for check in checks} >= {
        "fused = plain",
        "cached = uncached",
        "resumed = unbroken",
        "two ranks = one",
    }
    assert all(check["holds"] and check["ran"] for check in checks)


@pytest.mark.parametrize("able", [{}, {"amx_bf16": True}])
def test_the_reported_precision_is_what_training_uses(
    able: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    description = " ".join(describe_machine())
    assert ("bfloat16" in description) == wants_bf16("auto", torch.device("cpu")) == bool(able)
    assert ("float32" in description) != ("bfloat16" in description)
