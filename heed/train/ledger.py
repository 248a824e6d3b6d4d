"""What a run writes down while it trains: metrics, evaluations, the best weights, checkpoints."""

from __future__ import annotations

import json
import time
from typing import Any

from heed.errors import ConfigError, nearest
from heed.runs import Run
from heed.score.evaluation import evaluate
from heed.train import checkpoint
from heed.train.feed import Feed
from heed.train.setup import Parts
from heed.train.state import State, Sums
from heed.train.view import View

FALLING = ("loss", "perplexity")
"""Metrics that are better when lower."""
METRICS = ("loss", "perplexity", "accuracy")


class Ledger:
    """The books of one run."""

    def __init__(self, parts: Parts, state: State, run: Run, feed: Feed) -> None:
        self.parts, self.state, self.run, self.feed = parts, state, run, feed
        self.settings = parts.recipe.train
        known = [f"{name}/{metric}" for name in parts.sets for metric in METRICS]
        if self.settings.best not in known:
            hint = nearest(self.settings.best, known)
            options = ", ".join(known)
            message = f"best cannot be {self.settings.best!r}: it is one of {options}.{hint}"
            raise ConfigError([f"[train] {message}"])

    def log(self, lr: float, view: View) -> None:
        """A line of metrics: the training loss since the last one."""
        means = self.state.recent.means()
        self._line("train", means | {"lr": lr, "skipped": self.state.skipped}, view)
        self.state.recent = Sums.zero(self.parts.device)
        view.measured(self.state.step, means)

    def evaluate(self, view: View) -> None:
        """Score every set with the weights that would be kept, and keep them if they are best."""
        state, parts = self.state, self.parts
        train = state.epoch.means()
        state.epoch = Sums.zero(parts.device)
        with state.averaged():
            sets = {
                name: evaluate(
                    parts.model,
                    batches,
                    device=parts.device,
                    bf16=parts.bf16,
                    at_most=self.settings.evaluate_batches,
                )
                for name, batches in parts.sets.items()
            }
        self._line("evaluate", {"train": train, **sets}, view)
        view.evaluated(state.step, self.feed.epoch(state.step - 1) + 1, train, sets)
        self._keep_best(sets)

    def _keep_best(self, sets: dict[str, dict[str, float]]) -> None:
        state = self.state
        name, _, metric = self.settings.best.partition("/")
        value = sets[name][metric]
        better = state.best is None or (
            value < state.best if metric in FALLING else value > state.best
        )
        if not better:
            state.worse += 1
            return
        state.best, state.best_step, state.worse = value, state.step, 0
        self.run.checkpoints.mkdir(exist_ok=True)
        checkpoint.write_tensors(self.run.checkpoints / "best.safetensors", state.weights())

    def save(self) -> None:
        """A checkpoint of this very moment."""
        checkpoint.save(self.run.checkpoints, self.state.step, *self.state.pieces())
        checkpoint.prune(self.run.checkpoints, self.settings.keep)

    def _line(self, event: str, values: dict[str, Any], view: View) -> None:
        """Append a line of metrics; what hangs on the clock stands under `time`."""
        state = self.state
        line = {"event": event, "step": state.step, "epoch": self.feed.epoch(state.step - 1) + 1}
        clock = {"unix": round(time.time(), 3), "tokens_per_second": round(view.rate(), 1)}
        with self.run.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | values | {"time": clock}) + "\n")
        state.lines += 1
