"""What a run writes down while it trains: metrics, evaluations, the best weights, checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from heed.config.checks import find_unknown_metric
from heed.errors import ConfigError, RunError
from heed.models import Model, Translator
from heed.models.weights import read_weights
from heed.runs.best_weights import score_key
from heed.runs.run import BEST, Run
from heed.train import checkpoint
from heed.train.dev_bleu import dev_bleu
from heed.train.loader import Feed
from heed.train.prepare.setup import TrainingSetup
from heed.train.progress import View
from heed.train.state import EPOCH, RECENT, State
from heed.train.trackers import Tracker, flat, open_trackers
from heed.train.validate import evaluate


class Ledger:
    """The books of one run."""

    def __init__(self, parts: TrainingSetup, state: State, run: Run, feed: Feed) -> None:
        self.parts, self.state, self.run, self.feed = parts, state, run, feed
        self.settings, self.world = parts.recipe.train, state.world
        self.trackers: list[Tracker] = []
        complaints = list(find_unknown_metric(self.settings.best_metric, parts.sets, parts.pairs))
        if complaints:
            raise ConfigError(complaints)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """While this lasts, metrics go to the trackers as well, which are closed however it ends.

        Only training asks for it: what merely tries a recipe leaves nothing elsewhere.
        """
        with open_trackers(self.settings.track if self.world.first else (), self.run) as opened:
            self.trackers = opened
            yield

    def log(self, lr: float, view: View) -> None:
        """A line of metrics: the training loss since the last one."""
        means = self.state.tally.means(RECENT)
        self._line("train", means | {"lr": lr, "skipped": self.state.tally.skipped}, view)
        view.measured(self.state.step, means)

    def evaluate(self, view: View) -> None:
        """Score every set with the weights that would be kept, and keep them if they are best."""
        state = self.state
        seen = state.tally.means(EPOCH)
        with state.averaged() as model:
            sets = self.world.once(lambda: self._scores(model))
        self._line("evaluate", {"seen": seen, **sets}, view)
        view.evaluated(state.step, self.feed.epoch(state.step - 1) + 1, seen, sets)
        better = self._better(sets)
        state.worse = 0 if better else state.worse + 1
        weights = state.weights() if better or self.settings.average_checkpoints > 1 else {}
        if not self.world.first:
            return
        if better:
            checkpoint.keep_weights(self.run.checkpoints, BEST, state.step, weights)
        if self.settings.average_checkpoints > 1:
            checkpoint.keep_weights(self.run.checkpoints, checkpoint.RECENT, state.step, weights)
        self._prune()

    def _scores(self, model: nn.Module) -> dict[str, dict[str, float]]:
        parts = self.parts
        scores = {
            name: evaluate(
                cast(Model, model),
                batches,
                device=parts.device,
                bf16=parts.bf16,
                at_most=self.settings.evaluate_batches,
            )
            for name, batches in parts.sets.items()
        }
        for name, pairs in parts.pairs.items():
            scores[name]["bleu"] = dev_bleu(
                cast(Translator, model),
                parts.tokenizer,
                pairs,
                parts.recipe.decode,
                max_length=parts.recipe.data.max_length,
            )
        return scores

    def _better(self, sets: dict[str, dict[str, float]]) -> bool:
        """Whether these scores are the best yet; if so they are from now on."""
        state = self.state
        name, _, metric = self.settings.best_metric.partition("/")
        value, best = sets[name][metric], state.best
        better = best is None or score_key(value, metric) > score_key(best, metric)
        if better:
            state.best = value
        return better

    def choose(self, view: View) -> dict[str, Tensor]:
        """The weights to keep: the best ones, or the mean of the last where that is better.

        Asked of the first rank alone.
        """
        best_path = self.run.best_path
        if best_path is None:
            raise RunError("its best weights are missing.", where=str(self.run.checkpoints))
        best = read_weights(best_path)
        if self.settings.average_checkpoints > 1:
            mean = checkpoint.mean_of_recent(
                self.run.checkpoints, self.settings.average_checkpoints
            )
            with self.state.from_weights(mean) as model:
                sets = self._scores(model)
            better = self._better(sets)
            self._line("average", {"kept": better, **sets}, view)
            view.say(f"The mean of the last weights is {'' if better else 'not '}better.")
            best = mean if better else best
        return best

    def save(self) -> None:
        """A checkpoint of this very moment."""
        tensors, facts = self.state.pieces()
        if self.world.first:
            checkpoint.save(self.run.checkpoints, self.state.step, tensors, facts)
            self._prune()
        self.world.barrier()

    def _prune(self) -> None:
        settings = self.settings
        checkpoint.prune(
            self.run.checkpoints, settings.keep_checkpoints, average=settings.average_checkpoints
        )

    def _line(self, event: str, values: dict[str, Any], view: View) -> None:
        """Append a line of metrics; what hangs on the clock stands under `time`."""
        state = self.state
        line = {"event": event, "step": state.step, "epoch": self.feed.epoch(state.step - 1) + 1}
        clock = {"unix": round(time.time(), 3), "tokens_per_second": round(view.rate(), 1)}
        state.lines += 1
        if not self.world.first:
            return
        try:
            with self.run.metrics_path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | values | {"time": clock}) + "\n")
        except OSError as error:
            raise checkpoint.disk_trouble(error, self.run.metrics_path) from error
        for tracker in self.trackers:
            tracker.log(state.step, flat(event, values))
