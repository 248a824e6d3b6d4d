"""The loop: an update, then whatever is due. No callbacks; what happens is what is written here."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.errors import HeedError, StoppedError
from heed.runs import Run
from heed.score.objective import loss
from heed.train import checkpoint
from heed.train.feed import Feed
from heed.train.interrupt import Interrupt
from heed.train.ledger import Ledger
from heed.train.optim import set_lr
from heed.train.schedules import Schedule
from heed.train.setup import Parts
from heed.train.state import State, Sums
from heed.train.view import View


class Loop:
    """One run, from wherever its state stands to its end."""

    def __init__(
        self, parts: Parts, state: State, run: Run, feed: Feed, schedule: Schedule, steps: int
    ) -> None:
        self.parts, self.state, self.run = parts, state, run
        self.feed, self.schedule, self.steps = feed, schedule, steps
        self.settings = parts.recipe.train
        self.ledger = Ledger(parts, state, run, feed)

    def train(self, view: View) -> None:
        """Update until the last step, or until nothing gets better, or until told to stop."""
        state, settings, ledger = self.state, self.settings, self.ledger
        evaluate_every = settings.evaluate_every or self.feed.steps_per_epoch
        checkpoint_every = settings.checkpoint_every or evaluate_every
        state.model.train()
        with Interrupt() as interrupt:
            for batches in self.feed.walk(state.step, self.steps):
                self.update(batches)
                view.step(state.step, sum(batch.tokens for batch in batches))
                if self._due(settings.log_every):
                    ledger.log(settings.lr * self.schedule(state.step - 1), view)
                if self._due(evaluate_every):
                    ledger.evaluate(view)
                if self._due(checkpoint_every) or interrupt.asked:
                    ledger.save()
                if interrupt.asked:
                    raise StoppedError(
                        f"Stopped at step {state.step}; nothing is lost.",
                        todo=f"Go on with: heed resume {self.run.folder}",
                    )
                if settings.patience is not None and state.worse >= settings.patience:
                    view.say(f"No better for {state.worse} evaluations: stopping early.")
                    break

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.steps

    def update(self, batches: list[Batch]) -> None:
        """One optimizer step over the mean loss of all targets in these batches."""
        state, settings, device = self.state, self.settings, self.parts.device
        count = max(1, sum(batch.count for batch in batches))
        set_lr(state.optimizer, settings.lr, self.schedule(state.step))
        sums = Sums.zero(device)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=self.parts.bf16):
                part = loss(self.parts.model, batch, label_smoothing=settings.label_smoothing)
            (part.total / count).backward()
            sums.add(part.total.detach(), part.right, part.count)
        weights = [p for p in self.parts.model.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(weights, settings.clip or math.inf)
        if self._finite(norm, batches):
            state.optimizer.step()
            state.recent.add(sums.total, sums.right, sums.count)
            state.epoch.add(sums.total, sums.right, sums.count)
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.update_ema()

    def _finite(self, norm: Tensor, batches: list[Batch]) -> bool:
        """Whether the update may be made; too many in a row that may not end the run."""
        state = self.state
        if math.isfinite(float(norm)):
            state.skipped_in_row = 0
            return True
        state.skipped += 1
        state.skipped_in_row += 1
        if state.skipped_in_row <= self.settings.skip_limit:
            return False
        path = self.run.folder / f"batch-{state.step}.safetensors"
        checkpoint.write_tensors(path, {f"{i}.ids": b.ids for i, b in enumerate(batches)})
        texts = [row for batch in batches for row in batch.rows]
        raise HeedError(
            f"the loss was not finite in {state.skipped_in_row} updates in a row, the last at step "
            f"{state.step}, over texts {', '.join(map(str, texts[:8]))}…",
            where=str(self.run.folder),
            todo=f"Lower train.lr or train.clip. The batch is kept in {path.name}.",
        )
