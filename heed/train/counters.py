"""Counters of a run, kept on the device: losses, correct predictions, targets, skipped steps."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.train.distributed.ranks import SINGLE, World

STEP, RECENT, EPOCH = range(3)
"""Rows of the sums: the current step, since the last line of metrics, since the last evaluation."""
LOSS, CORRECT, TARGETS = range(3)
"""Columns of the sums: losses, correct predictions, targets."""
STEPS, SKIPPED, IN_A_ROW, FAILED_AT = range(4)
"""The counts: steps, skipped steps, steps skipped in a row, and the step at which too many in a row
were skipped (-1: none)."""

Means = dict[str, float | None]
"""Mean loss and accuracy while training; None if every step was skipped."""


class Counters:
    """Sums and counts that stay on the device: only reading them waits for a GPU.

    Each rank sums its own losses and correct predictions; all ranks count the targets of all.
    """

    def __init__(self, device: torch.device, world: World = SINGLE) -> None:
        self.world = world
        self.sums = torch.zeros(3, 3, dtype=torch.float64, device=device)
        self.counts = torch.tensor([0, 0, 0, -1], device=device)

    def start_step(self, targets: int) -> None:
        """Begin a step over this many targets."""
        self.sums[STEP, TARGETS].fill_(targets)

    def pass_step(self) -> None:
        """Count a step that has no targets."""
        self.counts[STEPS] += 1

    def add(self, loss: Tensor, correct: Tensor) -> None:
        """Add one micro-batch of the step."""
        step = self.sums[STEP]
        step[LOSS].add_(loss)
        step[CORRECT].add_(correct)

    def finish_step(self, finite: Tensor, max_skipped: int) -> None:
        """Count the step, or count it as skipped if its gradient was not finite."""
        if finite.device.type == "cpu":
            self._finish_on_host(bool(finite), max_skipped)
        else:
            self._finish_on_device(finite, max_skipped)

    def _finish_on_device(self, finite: Tensor, max_skipped: int) -> None:
        """`finish_step` without reading a number."""
        self.sums[RECENT:] += torch.where(finite, self.sums[STEP], 0.0)
        self.sums[STEP].zero_()
        skipped = (~finite).long()
        in_a_row = (self.counts[IN_A_ROW] + skipped) * skipped
        fails = (in_a_row > max_skipped) & (self.counts[FAILED_AT] < 0)
        failed_at = torch.where(fails, self.counts[STEPS], self.counts[FAILED_AT])
        old = self.counts
        new = [old[STEPS] + 1, old[SKIPPED] + skipped, in_a_row, failed_at]
        self.counts.copy_(torch.stack(new))

    def _finish_on_host(self, finite: bool, max_skipped: int) -> None:
        """`finish_step` in few operations, where reading a number waits for nothing."""
        if finite:
            self.sums[RECENT:] += self.sums[STEP]
        self.sums[STEP].zero_()
        steps, skipped, in_a_row, failed_at = self.counts.tolist()
        in_a_row = 0 if finite else in_a_row + 1
        if in_a_row > max_skipped and failed_at < 0:
            failed_at = steps
        self.counts.copy_(torch.tensor([steps + 1, skipped + (not finite), in_a_row, failed_at]))

    def take_means(self, row: int) -> Means:
        """Mean loss and accuracy of RECENT or EPOCH, and reset that row.

        Both are None if every step was skipped.
        """
        loss, correct, targets = self.sum_over_ranks()[row].tolist()
        self.sums[row].zero_()
        if not targets:
            return {"loss": None, "accuracy": None}
        return {"loss": loss / targets, "accuracy": correct / targets}

    def sum_over_ranks(self) -> Tensor:
        """The sums over all ranks; a collective call."""
        if not self.world.is_distributed:
            return self.sums
        sums = self.sums.cpu().clone()
        sums[:, :TARGETS] = self.world.all_reduce(sums[:, :TARGETS].contiguous())
        return sums

    def restore(self, sums: Tensor, counts: Tensor) -> None:
        """Continue from the sums over all ranks, which rank 0 takes as its own."""
        self.sums.copy_(sums)
        self.counts.copy_(counts)
        if not self.world.is_first:
            self.sums[:, :TARGETS] = 0.0

    @property
    def skipped(self) -> int:
        """Steps skipped because the gradient was not finite."""
        return int(self.counts[SKIPPED])

    @property
    def failed_at(self) -> int | None:
        """The step at which too many in a row were skipped; None if there is none."""
        step = int(self.counts[FAILED_AT])
        return None if step < 0 else step
