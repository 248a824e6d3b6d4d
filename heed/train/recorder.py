"""What a run records while it trains: metrics, evaluations, the best weights, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from heed.checksums import BLANK, KEY, seal_text
from heed.config.checks import find_unknown_metric
from heed.config.train import LAST
from heed.errors import ConfigError, HeedError, RunError
from heed.files import flush_file, flush_folder, to_json
from heed.models import Model, Translator
from heed.models.weights import read_weights
from heed.runs.best_weights import chosen_evaluation, score_key
from heed.runs.history import flatten_metrics
from heed.runs.run import Run
from heed.runs.weight_files import BEST, SNAPSHOT
from heed.runs.weight_files import RECENT as RECENT_WEIGHTS
from heed.train import checkpoint
from heed.train.counters import EPOCH, RECENT
from heed.train.loader import Loader
from heed.train.prepare.setup import TrainingSetup
from heed.train.progress import ProgressBar
from heed.train.state import State
from heed.train.trackers import Tracker, open_trackers
from heed.train.validate import greedy_bleu, validate

Scores = dict[str, dict[str, float]]
"""The metrics of every set."""
EvaluationHook = Callable[[int, int, Scores], None]
"""What follows an evaluation: it gets the step, the last step and the scores of every set."""


class Recorder:
    """Writes a run's metrics, evaluations, best weights and checkpoints."""

    def __init__(self, setup: TrainingSetup, state: State, run: Run, loader: Loader) -> None:
        self.setup, self.state, self.run, self.loader = setup, state, run, loader
        self.settings, self.world = setup.recipe.train, state.world
        self.trackers: list[Tracker] = []
        complaints = list(find_unknown_metric(self.settings.best_metric, setup.sets, setup.pairs))
        if complaints:
            raise ConfigError(complaints)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Send metrics to the recipe's trackers as well, within this context.

        Only training enters it: a dry run or a benchmark sends nothing.
        """
        if not (self.settings.track and self.world.is_first):
            yield
            return
        with open_trackers(self.settings.track, self.run) as opened:
            self.trackers = opened
            yield

    def log(self, lr: float, progress: ProgressBar) -> None:
        """Write a line of metrics: the training loss since the last line."""
        counters = self.state.counters
        means = counters.take_means(RECENT)
        self._write("train", means | {"lr": lr, "skipped": counters.skipped}, progress)
        progress.show_training(self.state.step, means)

    def evaluate(self, progress: ProgressBar) -> Scores:
        """Evaluate every set with the weights that would be saved, and save them if best."""
        state = self.state
        seen = state.counters.take_means(EPOCH)
        with state.evaluation_model() as model:
            scores = self.world.broadcast(lambda: self._evaluate_sets(model, progress))
        self._write("evaluate", {"seen": seen, **scores}, progress)
        progress.show_evaluation(state.step, self.loader.epoch(state.step - 1) + 1, seen, scores)
        is_best = self._update_best(scores)
        state.evals_since_best = 0 if is_best else state.evals_since_best + 1
        averages = self.settings.average_checkpoints > 1
        if is_best:
            state.best_step = state.step
        if averages:
            steps = [*state.recent_steps, state.step]
            state.recent_steps = steps[-self.settings.average_checkpoints :]
        weights = state.weights() if is_best or averages else {}
        if not self.world.is_first:
            return scores
        if is_best:
            checkpoint.save_weights(self.run.checkpoints, BEST, state.step, weights)
        if averages:
            checkpoint.save_weights(self.run.checkpoints, RECENT_WEIGHTS, state.step, weights)
        self.prune()
        return scores

    def _evaluate_sets(self, model: nn.Module, progress: ProgressBar) -> Scores:
        setup = self.setup
        with progress.evaluation() as evaluation:
            scores = {
                name: validate(
                    cast(Model, model),
                    batches,
                    device=setup.device,
                    bf16=setup.bf16,
                    max_batches=self.settings.evaluate_batches,
                    on_batch=partial(evaluation.show, f"evaluating {name}"),
                )
                for name, batches in setup.sets.items()
            }
            for name, pairs in setup.pairs.items():
                evaluation.show(f"translating {name}", 0, len(pairs))
                scores[name]["bleu"] = greedy_bleu(
                    cast(Translator, model),
                    setup.tokenizer,
                    pairs,
                    setup.recipe.decode,
                    max_length=setup.recipe.data.max_length,
                )
        return scores

    def _update_best(self, scores: Scores) -> bool:
        """Whether these scores are the best so far; if so, store them as the best."""
        state = self.state
        if self.settings.best_metric == LAST:
            return True
        name, _, metric = self.settings.best_metric.partition("/")
        value, best = scores[name][metric], state.best
        is_best = best is None or score_key(value, metric) > score_key(best, metric)
        if is_best:
            state.best = value
        return is_best

    def choose_weights(self, progress: ProgressBar) -> dict[str, Tensor]:
        """The final weights: the best, or the average of the last ones where that is better.

        Called on rank 0 alone.
        """
        folder, state = self.run.checkpoints, self.state
        if state.best_step is None:
            raise RunError("its best weights are missing.", where=str(folder))
        todo = f"Run `heed resume {self.run.folder}`: it goes back to a checkpoint before that."
        best = read_weights(checkpoint.weights_path(folder, BEST, state.best_step), todo=todo)
        if self.settings.average_checkpoints > 1:
            average = checkpoint.average_recent(folder, state.recent_steps, todo=todo)
            with self.state.with_weights(average) as model:
                scores = self._evaluate_sets(model, progress)
            is_best = self._update_best(scores)
            self._write("average", {"kept": is_best, **scores}, progress)
            if self.settings.best_metric != LAST:
                better = "better" if is_best else "not better"
                progress.print(f"The average of the last weights is {better}.")
            best = average if is_best else best
        self._refuse_nan(best)
        return best

    def _refuse_nan(self, weights: dict[str, Tensor]) -> None:
        """Refuse to finish a run whose weights, or the losses of these weights, are not finite."""
        broken = next((name for name, one in weights.items() if not is_finite(one)), None)
        best = self.settings.best_metric
        evaluation = chosen_evaluation(self.run.metrics(), best) or {}
        name = best.partition("/")[0]
        loss = evaluation.get(name, {}).get("loss", 0.0)
        if broken is None and loss is not None and math.isfinite(loss):
            return
        lr = self.settings.lr
        raise HeedError(
            f"training ended in NaN: {broken or f'{name}/loss'} is not a finite number.",
            where=str(self.run.folder),
            todo=f"Train a new run with a lower train.lr than {lr:g}, or with train.clip.",
        )

    def save(self) -> None:
        """Save a checkpoint; the metrics that it counts are on the disk before it is."""
        tensors, numbers = self.state.state_tensors()
        if self.world.is_first:
            self.flush()
            checkpoint.save(self.run.checkpoints, self.state.step, tensors, numbers)
            self.prune()
        self.world.barrier()

    def save_snapshot(self) -> None:
        """Save the weights that would be evaluated, as the snapshot of this step."""
        weights = self.state.weights()
        if self.world.is_first:
            checkpoint.save_weights(self.run.snapshots, SNAPSHOT, self.state.step, weights)

    def flush(self) -> None:
        """Flush the metrics to the disk: once a checkpoint, since once a line would be slow."""
        try:
            if self.run.metrics_path.exists():
                flush_file(self.run.metrics_path)
                flush_folder(self.run.folder)
        except OSError as error:
            raise checkpoint.disk_error(error, self.run.metrics_path) from error

    def prune(self) -> None:
        """Delete checkpoints and weights that no longer have a use."""
        settings = self.settings
        checkpoint.prune(
            self.run.checkpoints, settings.keep_checkpoints, average=settings.average_checkpoints
        )

    def _write(self, event: str, values: dict[str, Any], progress: ProgressBar) -> None:
        """Append a line of metrics; values that depend on the clock are under `time`."""
        state = self.state
        line = {"event": event, "step": state.step, "epoch": self.loader.epoch(state.step - 1) + 1}
        line["tokens"] = state.tokens
        clock: dict[str, Any] = {"unix": round(time.time(), 3)}
        clock["seconds"] = round(progress.seconds_since_start(), 3)
        clock["tokens_per_second"] = round(progress.tokens_per_second(), 1)
        clock[KEY] = BLANK
        state.lines += 1
        if not self.world.is_first:
            return
        try:
            with self.run.metrics_path.open("a", encoding="utf-8") as file:
                text = to_json(line | values | {"time": clock})
                file.write(seal_text(text) + "\n")
        except OSError as error:
            raise checkpoint.disk_error(error, self.run.metrics_path) from error
        for tracker in self.trackers:
            tracker.log(state.step, flatten_metrics(event, values))


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: NaN is both ends of a range that contains it.

    `tensor.isfinite().all()` writes three tensors of this size, which takes ten times as long.
    """
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())
