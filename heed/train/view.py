"""What a person sees of training: a live bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class View:
    """Progress of one run. Use it as a context; `step` after each update, `say` for a line."""

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

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def step(self, step: int, tokens: int) -> None:
        """One more update is done, over so many tokens."""
        self._tokens += tokens
        self._progress.update(self._bar, completed=step)

    def rate(self) -> float:
        """Tokens a second since the start."""
        return self._tokens / max(1e-9, time.monotonic() - self._began)

    def measured(self, step: int, means: dict[str, float]) -> None:
        """New means of the training loss."""
        shown = {"loss": f"{means['loss']:.3f}", "accuracy": f"{means['accuracy']:.1%}"}
        self._progress.update(
            self._bar,
            rate=f"{self.rate():,.0f}",
            loss=shown["loss"],
            accuracy=shown["accuracy"],
        )
        if not self.live:
            spent = time.monotonic() - self._began
            left = spent / max(1, step - self._first) * (self.total - step)
            self.say(
                f"step {step}/{self.total}  loss {shown['loss']}  accuracy {shown['accuracy']}  "
                f"{self.rate():,.0f} tokens/s  {left:.0f} s left"
            )

    def evaluated(
        self, step: int, epoch: int, train: dict[str, float], sets: dict[str, Any]
    ) -> None:
        """One line an evaluation, train beside the other sets."""
        parts = [f"train loss {train['loss']:.3f} accuracy {train['accuracy']:.1%}"]
        parts += [
            f"{name} loss {values['loss']:.3f} accuracy {values['accuracy']:.1%}"
            + (f" BLEU {values['bleu']:.1f}" if "bleu" in values else "")
            for name, values in sets.items()
        ]
        self.say(f"epoch {epoch}  step {step}  " + "  ·  ".join(parts))

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
