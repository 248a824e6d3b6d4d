"""Progress: what counts into the speed, and what a terminal and a pipe show."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from heed.train.progress import ProgressBar, format_duration


def test_evaluations_count_neither_into_the_speed_nor_into_the_time_left() -> None:
    with ProgressBar(Console(quiet=True), total=4) as progress:
        time.sleep(0.02)
        progress.advance(1, 1000)
        speed, left = progress.tokens_per_second(), progress.seconds_left()
        with progress.evaluation():
            time.sleep(0.5)
            assert progress.tokens_per_second() == pytest.approx(speed, rel=0.5)
        assert progress.tokens_per_second() == pytest.approx(speed, rel=0.5)
        assert progress.seconds_left() == pytest.approx(left, rel=0.5)
    assert left > 0


def test_a_pipe_is_not_silent_for_long() -> None:
    """Between the lines of metrics, while training and while evaluating."""
    out = io.StringIO()
    with ProgressBar(Console(file=out), total=9, line_seconds=0.05) as progress:
        progress.advance(3, 100)
        time.sleep(0.2)
        with progress.evaluation() as evaluation:
            evaluation.show("evaluating dev", 2, 7)
            time.sleep(0.2)
    lines = out.getvalue().splitlines()
    assert any(line.startswith("step 3/9  ") and "tokens/s" in line for line in lines)
    assert "step 3/9  evaluating dev: 2/7" in lines


def test_a_pipe_with_lines_of_its_own_gets_no_others() -> None:
    out = io.StringIO()
    with ProgressBar(Console(file=out), total=9) as progress:
        progress.advance(1, 100)
        progress.show_training(1, {"loss": 2.0, "accuracy": 0.5})
    (line,) = out.getvalue().splitlines()
    assert line.startswith("step 1/9  loss 2.000  accuracy 50.0%")


def test_a_terminal_shows_a_bar_while_evaluating() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with ProgressBar(console, total=9) as progress, progress.evaluation() as evaluation:
        evaluation.show("evaluating dev", 2, 7)
        time.sleep(0.3)
    assert "evaluating dev" in out.getvalue()
    assert "2/7" in out.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(9.4, "9 s"), (300, "5 min"), (9000, "2.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
