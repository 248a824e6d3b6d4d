"""Training, evaluation and import that are killed at some file operations end as unbroken ones.

`benchmarks/robustness/kills.py` kills at every one.
"""

from __future__ import annotations

import pytest
from short_form import run_short_form


@pytest.mark.slow  # every kill is a training more
@pytest.mark.parametrize(("command", "first", "every"), [("train", 23, 240), ("import", 9, 40)])
def test_a_killed_command_given_again_leaves_what_an_unbroken_one_does(
    command: str, first: int, every: int
) -> None:
    output = run_short_form(
        "kills", "--only", command, "--first", str(first), "--every", str(every)
    )
    assert "'breaks'" in output
