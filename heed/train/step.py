"""One optimizer step: forward and backward over its micro-batches, clip, update, average.

Nothing here reads a number back from the device, so the host runs ahead of a GPU, and the whole
step can be captured (`heed.train.execution.cuda_graphs`). Whether the gradient is finite is decided
on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.device import is_out_of_memory
from heed.nn.kernels.parameter_gradients import ParameterStream
from heed.nn.kernels.weight_copies import WeightCopies
from heed.train.clipping import Clipping
from heed.train.distributed.sharding import no_sync
from heed.train.optimizers.build import step_optimizer
from heed.train.state import State


@dataclass(frozen=True)
class Limits:
    """Limits of a step."""

    clip: float
    """Maximum norm of the gradient; 0 turns clipping off."""
    max_skipped: int
    """Maximum steps in a row that are skipped because the gradient was not finite."""
    split_on_oom: bool = False
    """Whether a batch that does not fit into memory is split."""


class Step:
    """Optimizer steps on a run's state, executed eagerly."""

    def __init__(
        self,
        objective: nn.Module,
        state: State,
        limits: Limits,
        *,
        bf16: bool,
        copy_weights: bool = True,
    ) -> None:
        """`objective` is an `Objective`, possibly replicated or sharded.

        `copy_weights`: in bf16, narrow all weights at once (`WeightCopies`).
        """
        self.objective, self.state, self.limits, self.bf16 = objective, state, limits, bf16
        self.clipping = Clipping(limits.clip, limits.max_skipped)
        self.parameters = list(state.model.parameters())  # to collect them is slower than a norm
        # Sharded weights are gathered layer by layer: there is nothing to copy at the start.
        copies = copy_weights and bf16 and state.unsharded is None
        self.weight_copies = WeightCopies.of_linear_layers(state.model if copies else None)

    def __call__(self, batches: list[Batch]) -> None:
        """One step on the mean loss over all targets of these batches."""
        self.state.start_step(max(1, sum(batch.count for batch in batches)))
        try:
            *early, last = split_batches(batches, self.state.batch_splits)
            for batch in early:
                with no_sync(self.objective):
                    self.backward(batch)
            self.backward(last)
        except (RuntimeError, MemoryError) as error:
            largest = max(len(batch.ids) for batch in batches)
            can_split = self.limits.split_on_oom and self.state.batch_splits < largest
            if not (can_split and is_out_of_memory(error)):
                raise
        else:
            self.optimizer_step()
            self.state.step += 1
            return
        # Outside of `except`, whose traceback would keep the tensors that did not fit.
        self.zero_grad()
        self.state.double_batch_splits()
        self(batches)

    def backward(self, batch: Batch) -> None:
        """Add the gradient of one micro-batch's sum of losses."""
        autocast = torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.bf16)
        stream = self.parameter_stream(batch)
        with stream.joined() if stream else nullcontext():
            active = stream.active() if stream else nullcontext()
            with autocast, self.weight_copies.refreshed(), active:
                loss, correct = self.objective(batch)
            loss.backward()
        self.state.counters.add(loss.detach(), correct)

    def parameter_stream(self, batch: Batch) -> ParameterStream | None:
        """A stream for the gradients of parameters; launched one by one, kernels never overlap."""
        return None

    def optimizer_step(self) -> None:
        """Clip the gradient, update the weights and their average, clear the gradient."""
        state = self.state
        divisor, finite = self.clipping.finish_step(self.gradients(), state.counters)
        step_optimizer(state.optimizer, divisor, finite)
        state.update_ema()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Clear the gradient for the next step."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one."""
        return [p.grad for p in self.parameters if p.grad is not None]


def split_batches(batches: list[Batch], parts: int) -> Iterator[Batch]:
    """Split each batch into this many parts."""
    for batch in batches:
        yield from [batch] if parts == 1 else _split(batch, parts)


def _split(batch: Batch, parts: int) -> Iterator[Batch]:
    rows = len(batch.ids)
    size = -(-rows // parts)
    tensors = batch.row_tensors()
    for first in range(0, rows, size):
        part = slice(first, first + size)
        cut = {name: tensor[part] for name, tensor in tensors.items()}
        count = int((cut["targets"] != IGNORE_INDEX).sum())
        yield batch.with_tensors(cut, count=count, rows=batch.rows[part])
