"""One update: forward and backward over its micro-batches, clip, move, average.

Nothing here asks the device for a number, so the host runs ahead of a GPU, and the whole of it can
be captured (`heed.train.execution.cuda_graphs`). Whether the gradient is finite is decided where
it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.train.distributed.sharding import apart, whole
from heed.train.optimizers.build import move
from heed.train.state import NOW, State


@dataclass(frozen=True)
class Limits:
    """What an update may not pass."""

    clip: float
    """Largest norm of the gradient; 0 is none."""
    skip: int
    """How many updates in a row may be skipped because the gradient was not finite."""
    halve: bool = False
    """Whether a batch that does not fit into memory may be learnt from in parts."""


class Step:
    """Updates a run's state by batches, one kernel after another."""

    def __init__(self, objective: nn.Module, state: State, limits: Limits, *, bf16: bool) -> None:
        """`objective` is an `Objective`, or what stands for one: replicated, sharded."""
        self.objective, self.state, self.limits, self.bf16 = objective, state, limits, bf16
        self.weights = list(state.model.parameters())  # to look for them takes longer than a norm

    def __call__(self, batches: list[Batch]) -> None:
        """One update over the mean loss of all targets in these batches."""
        self.state.begin(max(1, sum(batch.count for batch in batches)))
        try:
            *early, last = pieces(batches, self.state.pieces_of_batch)
            for batch in early:
                with apart(self.objective):
                    self.learn(batch)
            self.learn(last)
        except torch.OutOfMemoryError:
            most = max(len(batch.ids) for batch in batches)
            if not self.limits.halve or self.state.pieces_of_batch >= most:
                raise
        else:
            self.move()
            self.state.step += 1
            return
        # Outside of `except`, which would keep what did not fit.
        self.forget()
        self.state.halve()
        self(batches)

    def learn(self, batch: Batch) -> None:
        """Add one micro-batch's share to the gradient."""
        tally = self.state.tally
        with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.bf16):
            total, right = self.objective(batch)
        (total / tally.sums[NOW, 2].to(total.dtype)).backward()
        tally.add(total.detach(), right)

    def move(self) -> None:
        """Clip the gradient to its largest norm, move the weights, forget the gradient."""
        state, clip = self.state, self.limits.clip
        norm = self.norm()
        finite = norm.isfinite()
        divisor = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else torch.ones_like(norm)
        move(state.optimizer, divisor, finite)
        state.update_ema()
        state.tally.settle(finite, self.limits.skip)
        self.forget()

    def norm(self) -> Tensor:
        """The Euclidean norm of the whole gradient."""
        return whole(nn.utils.get_total_norm(self.gradients()))

    def forget(self) -> None:
        """No gradient is left for the next update."""
        self.state.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[Tensor]:
        """The gradients there are."""
        return [p.grad for p in self.weights if p.grad is not None]


def pieces(batches: list[Batch], parts: int) -> Iterator[Batch]:
    """The batches, each cut into so many, to be learnt from one after another."""
    for batch in batches:
        yield from [batch] if parts == 1 else _cut(batch, parts)


def _cut(batch: Batch, parts: int) -> Iterator[Batch]:
    texts = len(batch.ids)
    size = -(-texts // parts)
    own = {name: t for name, t in batch.tensors().items() if len(t) == texts}
    for first in range(0, texts, size):
        part = slice(first, first + size)
        cut = {name: tensor[part] for name, tensor in own.items()}
        count = int((cut["targets"] != IGNORE_INDEX).sum())
        yield batch.with_tensors(cut, count=count, rows=batch.rows[part])
