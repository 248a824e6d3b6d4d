"""The loop: an update, then whatever is due. No callbacks; what happens is what is written here."""

from __future__ import annotations

from heed.data.batching.batch import Batch
from heed.errors import STOPPED, HeedError, StoppedError
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train.interrupt import Interrupt
from heed.train.loader import Feed
from heed.train.optimizers.build import set_lr
from heed.train.optimizers.schedules import Schedule
from heed.train.prepare.setup import TrainingSetup
from heed.train.progress import View
from heed.train.recorder import Ledger
from heed.train.step import Step


class Loop:
    """One run, from wherever its state stands to its end."""

    def __init__(
        self, parts: TrainingSetup, step: Step, run: Run, feed: Feed, schedule: Schedule, steps: int
    ) -> None:
        self.parts, self.step, self.state, self.run = parts, step, step.state, run
        self.feed, self.schedule, self.steps = feed, schedule, steps
        self.settings, self.world = parts.recipe.train, self.state.world
        self.ledger = Ledger(parts, self.state, run, feed)

    def train(self, view: View) -> None:
        """Update until the last step, or until nothing gets better, or until told to stop."""
        state, settings, ledger = self.state, self.settings, self.ledger
        evaluate_every = settings.evaluate_every or self.feed.steps_per_epoch
        checkpoint_every = settings.checkpoint_every or evaluate_every
        state.model.train()
        if self._gives_up(view):  # a run that stopped early, and died before its last weights
            return
        with Interrupt() as interrupt:
            for batches in self.feed.walk(state.step, self.steps):
                self.update(batches)
                asked = self.world.any(interrupt.asked)
                tokens = sum(batch.tokens for batch in batches) * self.world.size
                view.step(state.step, tokens)
                if self._due(settings.log_every) or state.device.type == "cpu":
                    self._stop_if_not_finite()  # to ask a GPU is to wait for it
                if self._due(settings.log_every):
                    ledger.log(settings.lr * self.schedule(state.step - 1), view)
                if self._due(evaluate_every):
                    ledger.evaluate(view)
                if self._due(checkpoint_every) or asked:
                    ledger.save()
                if asked:
                    raise StoppedError(
                        f"Stopped at step {state.step}; nothing is lost.",
                        todo=f"Go on with: {self.world.command} resume {self.run.folder}",
                        code=STOPPED if self.world.several else interrupt.code,
                    )
                if self._gives_up(view):
                    break

    def _gives_up(self, view: View) -> bool:
        """Whether nothing got better for too long; says so."""
        worse, patience = self.state.worse, self.settings.patience
        if patience is None or worse < patience:
            return False
        view.say(f"No better for {worse} evaluations: stopping early.")
        return True

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.steps

    def update(self, batches: list[Batch]) -> None:
        """One optimizer step over the mean loss of all targets in these batches."""
        set_lr(self.state.optimizer, self.settings.lr, self.schedule(self.state.step))
        self.step(batches)

    def _stop_if_not_finite(self) -> None:
        """End a run whose last updates were all skipped, with the batch that came too much."""
        failed_at = self.state.tally.failed_at
        if failed_at is None:
            return
        batches = self.feed.micro_batches(failed_at)
        path = self.run.folder / f"batch-{failed_at}.safetensors"
        if self.world.first:
            checkpoint.write_tensors(path, {f"{i}.ids": b.ids for i, b in enumerate(batches)})
        texts = [row for batch in batches for row in batch.rows]
        raise HeedError(
            f"the loss was not finite in {self.settings.max_skipped_steps + 1} steps in a row, "
            "the last "
            f"at step {failed_at + 1}, over texts {', '.join(map(str, texts[:8]))}…",
            where=str(self.run.folder),
            todo=f"Lower train.lr, or set train.clip. The batch is kept in {path.name}.",
        )
