"""The training loop: a step, then whatever is due. Its one callback follows an evaluation."""

from __future__ import annotations

from heed.data.batching.batch import Batch
from heed.errors import STOPPED, HeedError, StoppedError
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train.interrupt import Interrupt
from heed.train.loader import Loader
from heed.train.optimizers.build import set_lr
from heed.train.optimizers.schedules import Schedule
from heed.train.prepare.setup import TrainingSetup
from heed.train.progress import ProgressBar
from heed.train.recorder import EvaluationHook, Recorder
from heed.train.step import Step


class Loop:
    """The loop of one run, from its state's step to the last."""

    def __init__(
        self,
        setup: TrainingSetup,
        step: Step,
        run: Run,
        loader: Loader,
        schedule: Schedule,
        steps: int,
    ) -> None:
        self.setup, self.step, self.state, self.run = setup, step, step.state, run
        self.loader, self.schedule, self.steps = loader, schedule, steps
        self.settings, self.world = setup.recipe.train, self.state.world
        self.recorder = Recorder(setup, self.state, run, loader)

    def train(self, progress: ProgressBar, after_evaluation: EvaluationHook | None = None) -> None:
        """Train to the last step, until early stopping, or until interrupted.

        `after_evaluation` gets the step, the last step and the scores. An error that it raises ends
        the training before the checkpoint, so a resumed run evaluates there again.
        """
        state, settings, recorder = self.state, self.settings, self.recorder
        state.model.train()
        if self._stops_early(progress):  # it had stopped early, and was killed before its end
            return
        if state.step == 0:
            self._save_snapshot_if_due()
        with Interrupt() as interrupt:
            for batches in self.loader.iterate(state.step, self.steps):
                self.update(batches)
                state.tokens += self.loader.tokens
                interrupted = self.world.any(interrupt.requested)
                cells = sum(batch.cells for batch in batches) * self.world.size
                progress.advance(state.step, cells)
                if self._is_due(settings.log_every) or state.device.type == "cpu":
                    self._stop_if_not_finite()  # waits for a GPU
                if self._is_due(settings.log_every):
                    recorder.log(settings.lr * self.schedule(state.step - 1), progress)
                if self._is_due(self.evaluate_every):
                    scores = recorder.evaluate(progress)
                    if after_evaluation is not None:
                        after_evaluation(state.step, self.steps, scores)
                self._save_snapshot_if_due()  # before the checkpoint: a resumed run has it
                if self._is_due(self.checkpoint_every) or interrupted:
                    recorder.save()
                if interrupted:
                    raise StoppedError(
                        f"Stopped at step {state.step}; nothing is lost.",
                        todo=f"Continue with: {self.world.command} resume {self.run.folder}",
                        code=STOPPED if self.world.is_distributed else interrupt.exit_code,
                    )
                if self._stops_early(progress):
                    break

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations: an epoch by default."""
        return self.settings.evaluate_every or self.loader.steps_per_epoch

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints: as many as between evaluations by default."""
        return self.settings.checkpoint_every or self.evaluate_every

    def update(self, batches: list[Batch]) -> None:
        """One optimizer step on the mean loss over all targets of these batches.

        Without a target nothing changes. With BPE dropout a text may end before its last window,
        which then has nothing to predict; a small batch may consist of such windows.
        """
        if not any(batch.count for batch in batches):
            self.state.pass_step()
            return
        set_lr(self.state.optimizer, self.settings.lr, self.schedule(self.state.step))
        self.step(batches)

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.steps

    def _save_snapshot_if_due(self) -> None:
        """Save a snapshot every so many steps, at step 0 and at the last, an early one too."""
        every = self.settings.snapshot_every
        if every is not None and (self._is_due(every) or self._is_out_of_patience()):
            self.recorder.save_snapshot()

    def _is_out_of_patience(self) -> bool:
        """Whether `train.patience` evaluations have passed without improvement."""
        patience = self.settings.patience
        return patience is not None and self.state.evals_since_best >= patience

    def _stops_early(self, progress: ProgressBar) -> bool:
        """Whether training is to stop before its last step; prints it."""
        if not self._is_out_of_patience():
            return False
        evaluations = self.state.evals_since_best
        progress.print(f"No improvement for {evaluations} evaluations: stopping early.")
        return True

    def _stop_if_not_finite(self) -> None:
        """End a run whose last steps were all skipped, and save the batch of the last one."""
        failed_at = self.state.counters.failed_at
        if failed_at is None:
            return
        batches = self.loader.micro_batches(failed_at)
        path = self.run.folder / f"batch-{failed_at + 1}.safetensors"
        if self.world.is_first:
            checkpoint.write_tensors(path, {f"{i}.ids": b.ids for i, b in enumerate(batches)})
        rows = [str(row) for batch in batches for row in batch.rows]
        raise HeedError(
            f"the loss was not finite in {self.settings.max_skipped_steps + 1} steps in a row, the "
            f"last at step {failed_at + 1}, over examples {', '.join(rows[:8])}…",
            where=str(self.run.folder),
            todo="Train a new run with a lower train.lr, or with train.clip. The batch is saved in "
            f"{path}.",
        )
