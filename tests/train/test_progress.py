"""Progress: what counts into the speed, and what a terminal and a pipe show."""

from __future__ import annotations

import io
import re
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


def test_a_slow_first_step_does_not_count_into_the_time_left() -> None:
    """It builds kernels; what is left does not."""
    with ProgressBar(Console(quiet=True), total=100) as progress:
        time.sleep(1.0)
        progress.advance(1, 1000)
        assert progress.seconds_left() > 90
        for step in (2, 3):
            time.sleep(0.02)
            progress.advance(step, 1000)
        assert progress.seconds_left() < 40
        assert progress.tokens_per_second() > 2500


def test_before_the_first_step_ends_no_time_left_is_promised() -> None:
    out = io.StringIO()
    with ProgressBar(Console(file=out), total=9, line_seconds=0.05):
        time.sleep(0.2)
    assert "step 0/9  in the first step, which may build kernels" in out.getvalue().splitlines()


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


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_a_narrow_terminal_cuts_no_number(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The details become fewer, the total and the bar stay."""
    monkeypatch.setattr(ProgressBar, "tokens_per_second", lambda _: 15133.0)
    monkeypatch.setattr(ProgressBar, "seconds_left", lambda _: 90.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    with ProgressBar(console, total=1000) as progress:
        progress.show_training(308, {"loss": 0.539, "accuracy": 0.886})
        progress.advance(308, 5_000_000)
        time.sleep(0.3)
    [line, *_] = [one for one in re.split(r"[\r\n]", out.getvalue()) if "loss" in one]
    assert "308/1000" in line
    assert "━" in line
    assert "…" not in line
    assert line.rstrip().endswith("90 s left")
    assert ("accuracy 88.6%" in line) == (width >= 80)


def show_epoch(console: Console) -> list[str]:
    """The lines of an evaluation of four sets."""
    means: dict[str, float | None] = {"loss": 6.759, "accuracy": 0.074}
    sets = dict.fromkeys(("dev", "obama", "hbush", "wbush"), means)
    ProgressBar(console, total=9).show_evaluation(23, 1, means, sets)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_narrow_terminal_has_a_line_for_each_set() -> None:
    lines = show_epoch(Console(file=io.StringIO(), force_terminal=True, width=80))
    assert [line.split()[0] for line in lines] == [
        "epoch",
        "training",
        "dev",
        "obama",
        "hbush",
        "wbush",
    ]
    assert {line.index("loss") for line in lines[1:]} == {12}


def test_a_pipe_has_a_line_for_each_evaluation() -> None:
    (line,) = show_epoch(Console(file=io.StringIO()))
    assert line.startswith("epoch 1  step 23  training loss 6.759 accuracy 7.4%  ·  dev loss 6.759")


@pytest.mark.parametrize(("seconds", "text"), [(9.4, "9 s"), (300, "5 min"), (9000, "2.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
