"""The short form of studies on a hostile machine: a few kills, damaged files, two runners."""

from __future__ import annotations

import pytest
from short_form import run_short_form


@pytest.mark.slow
def test_kills() -> None:
    """A study whose runner, trial or both are killed ends as one that was not."""
    assert "'breaks': 3" in run_short_form("study_kills", "--kills", "3", "--only", "grid")


@pytest.mark.slow
def test_two_runners_and_a_clock_that_jumps() -> None:
    """A second runner is refused, and no clock changes a result or spends a budget."""
    scenes = ("--only", "two runners", "--only", "jumping clock")
    assert "'breaks': 4" in run_short_form("study_damage", *scenes)
