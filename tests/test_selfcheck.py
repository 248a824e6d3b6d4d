"""`heed selfcheck` runs what it says and finds it to hold."""

from __future__ import annotations

import json

from test_cli import heed


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
