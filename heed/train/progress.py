"""Progress of training: a live bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from heed.runs.history import display_set_name
from heed.terminal import print_message
from heed.train.counters import Means

LINE_SECONDS = 30.0
"""The longest silence in a pipe, in seconds."""
LEAST_BAR = 6
"""Columns of a terminal that details leave to the bar and its margins."""


class ProgressBar:
    """Progress of one run, as a context: `advance` after each step, `print` for a line.

    Tokens a second and the time left count neither evaluations nor, once there is a second step,
    the first one, which may build kernels.
    """

    def __init__(
        self, console: Console, *, total: int, start: int = 0, line_seconds: float = LINE_SECONDS
    ) -> None:
        self.console, self.total = console, total
        self.live = console.is_terminal
        self._clock, self._first, self._step = Stopwatch(), start, start
        self._tokens = 0
        self._after_first: tuple[float, int, int] | None = None
        self._means: Means = {"loss": None, "accuracy": None}
        self._stage: str | None = None
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[details]}"),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self._bar = self._progress.add_task("training", total=total, completed=start, details="")
        self._started = time.monotonic()
        self._line_seconds, self._last_line = line_seconds, self._started
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._print_regularly, daemon=True)

    def __enter__(self) -> ProgressBar:
        self._started = time.monotonic()
        self._clock.start()
        self._progress.start()
        if not self.live:
            self._lines.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if not self.live:
            self._lines.join()
        self._progress.stop()

    def advance(self, step: int, tokens: int) -> None:
        """Show that this step, over so many tokens, padding included, is done."""
        self._tokens += tokens
        self._step = step
        if self._after_first is None:
            self._after_first = (self._clock.seconds(), self._tokens, step)
        if self.live:
            self._progress.update(self._bar, completed=step, details=self._details())

    def seconds_since_start(self) -> float:
        """Seconds since training started or was resumed, with evaluations."""
        return time.monotonic() - self._started

    def tokens_per_second(self) -> float:
        """Tokens a second while training, without evaluations."""
        seconds, tokens, _ = self._measured()
        return tokens / seconds

    def seconds_left(self) -> float:
        """Seconds of training to the last step, without evaluations."""
        seconds, _, steps = self._measured()
        return seconds / max(1, steps) * (self.total - self._step)

    def _measured(self) -> tuple[float, int, int]:
        """Seconds, tokens and steps after the first step, or of that step while it is alone."""
        now = (self._clock.seconds(), self._tokens, self._step)
        start = self._after_first or (0.0, 0, self._first)
        if start[2] == self._step:
            start = (0.0, 0, self._first)
        seconds, tokens, steps = (end - begin for end, begin in zip(now, start, strict=True))
        return max(1e-9, seconds), int(tokens), int(steps)

    def _speed(self) -> str:
        if self._step == self._first:
            return "in the first step, which may build kernels"
        duration = format_duration(self.seconds_left())
        return f"{self.tokens_per_second():,.0f} tokens/s  {duration} of training left"

    def _details(self) -> str:
        """What stands beside the bar: as much as leaves it a part of the terminal's width."""
        if self._step == self._first:
            return ""
        loss, accuracy = _format_means(self._means)
        speed = f"{self.tokens_per_second():,.0f} tokens/s"
        left = format_duration(self.seconds_left())
        others = f"training  {self.total}/{self.total} "
        room = self.console.width - len(others) - LEAST_BAR
        details = ([loss, accuracy, speed, left], [loss, speed, left], [loss, left], [left])
        texts = [f"{'  '.join(parts)} left" for parts in details]
        return next((text for text in texts if len(text) <= room), "")

    def show_training(self, step: int, means: Means) -> None:
        """Show the mean loss and accuracy of the last steps."""
        self._means = means
        if not self.live:
            losses = "  ".join(_format_means(means))
            self.print(f"step {step}/{self.total}  {losses}  {self._speed()}")

    @contextmanager
    def evaluation(self) -> Iterator[Evaluation]:
        """A context in which training's clock stands still; its bar replaces that of training."""
        details = f"step {self._step}/{self.total}"
        self._progress.update(self._bar, visible=False)
        bar = self._progress.add_task("evaluating", total=None, details=details)
        try:
            with self._clock.paused():
                yield Evaluation(self, bar)
        finally:
            self._progress.remove_task(bar)
            self._progress.update(self._bar, visible=True)
            self._stage = None

    def show_stage(self, bar: Any, stage: str, done: int, total: int) -> None:
        """Show how many parts of an evaluation's stage are done."""
        self._stage = f"{stage}: {done}/{total}"
        self._progress.update(bar, description=stage, completed=done, total=total)

    def show_evaluation(self, step: int, epoch: int, train: Means, sets: dict[str, Any]) -> None:
        """Print an evaluation: the loss while training, and every evaluated set.

        It is one line, or on a terminal that is too narrow, one line for each set.
        """
        metrics = {"training": " ".join(_format_means(train))}
        for name, values in sets.items():
            bleu = f" BLEU {values['bleu']:.1f}" if "bleu" in values else ""
            metrics[display_set_name(name)] = f"{' '.join(_format_means(values))}{bleu}"
        head = f"epoch {epoch}  step {step}"
        line = f"{head}  " + "  ·  ".join(" ".join(part) for part in metrics.items())
        if self.live and len(line) > self.console.width:
            widest = max(map(len, metrics))
            line = "\n".join([head, *(f"  {n:<{widest}}  {text}" for n, text in metrics.items())])
        self.print(line)

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._last_line = time.monotonic()
        print_message(self.console, text)

    def _print_regularly(self) -> None:
        """In a pipe, print where training is whenever it has been silent for long."""
        while not self._ended.wait(
            max(0.01, self._last_line + self._line_seconds - time.monotonic())
        ):
            if time.monotonic() - self._last_line >= self._line_seconds:
                self.print(f"step {self._step}/{self.total}  {self._stage or self._speed()}")


class Evaluation:
    """The progress of one evaluation: one stage after another."""

    def __init__(self, progress: ProgressBar, bar: Any) -> None:
        self.progress, self.bar = progress, bar

    def show(self, stage: str, done: int, total: int) -> None:
        """Show how many parts of this stage are done."""
        self.progress.show_stage(self.bar, stage, done, total)


class Stopwatch:
    """Seconds since its start, without pauses."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._paused_at: float | None = None

    def start(self) -> None:
        """Start from zero."""
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Seconds since the start, without pauses."""
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context that is not counted."""
        self._paused_at = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - self._paused_at
            self._paused_at = None


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _format_means(means: Means) -> tuple[str, str]:
    """Loss and accuracy as text; a dash where there are none."""
    loss, accuracy = means["loss"], means["accuracy"]
    return (
        "loss –" if loss is None else f"loss {loss:.3f}",
        "accuracy –" if accuracy is None else f"accuracy {accuracy:.1%}",
    )
