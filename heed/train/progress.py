"""Progress of training: a live bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from heed.train.counters import Means


class ProgressBar:
    """Progress of one run, as a context: `advance` after each step, `print` for a line."""

    def __init__(self, console: Console, *, total: int, start: int = 0) -> None:
        self.console, self.total = console, total
        self.live = console.is_terminal
        self._began, self._first = time.monotonic(), start
        self._tokens = 0
        self._progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("loss [cyan]{task.fields[loss]}[/]"),
            TextColumn("accuracy [cyan]{task.fields[accuracy]}[/]"),
            TextColumn("{task.fields[rate]} tokens/s"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self._bar = self._progress.add_task(
            "", total=total, completed=start, loss="–", accuracy="–", rate="–"
        )

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, step: int, tokens: int) -> None:
        """Show that this step, over so many tokens, is done."""
        self._tokens += tokens
        self._progress.update(self._bar, completed=step)

    def tokens_per_second(self) -> float:
        """Tokens a second since the start."""
        return self._tokens / max(1e-9, time.monotonic() - self._began)

    def show_training(self, step: int, means: Means) -> None:
        """Show the mean loss and accuracy of the last steps."""
        loss, accuracy = _format(means)
        rate = f"{self.tokens_per_second():,.0f}"
        self._progress.update(self._bar, rate=rate, loss=loss, accuracy=accuracy)
        if not self.live:
            elapsed = time.monotonic() - self._began
            left = elapsed / max(1, step - self._first) * (self.total - step)
            self.print(
                f"step {step}/{self.total}  loss {loss}  accuracy {accuracy}  "
                f"{rate} tokens/s  {left:.0f} s left"
            )

    def show_evaluation(self, step: int, epoch: int, train: Means, sets: dict[str, Any]) -> None:
        """Print one line an evaluation: train and every other set."""
        parts = []
        for name, values in [("train", train), *sets.items()]:
            loss, accuracy = _format(values)
            bleu = f" BLEU {values['bleu']:.1f}" if "bleu" in values else ""
            parts.append(f"{name} loss {loss} accuracy {accuracy}{bleu}")
        self.print(f"epoch {epoch}  step {step}  " + "  ·  ".join(parts))

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _format(means: Means) -> tuple[str, str]:
    """Loss and accuracy as text; a dash where there are none."""
    loss, accuracy = means["loss"], means["accuracy"]
    return (
        "–" if loss is None else f"{loss:.3f}",
        "–" if accuracy is None else f"{accuracy:.1%}",
    )
