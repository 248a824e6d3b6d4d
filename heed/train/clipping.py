"""Clip the gradient of a step, decide whether it is finite, and count the step.

A step's gradient is that of its sum of losses. What is clipped is the gradient of the mean over all
targets. Both divisions are one, which the optimizer does while it reads the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from heed.nn.kernels import adamw_cpu
from heed.nn.kernels.availability import on_gpu
from heed.train.counters import STEP, TARGETS, Counters
from heed.train.distributed.sharding import full_tensor
from heed.train.optimizers.address_tables import AddressTables
from heed.train.optimizers.fused_adamw import can_fuse


class Clipping:
    """The norm of the gradient, and what follows from it: on a GPU by two launches."""

    def __init__(self, clip: float, max_skipped: int) -> None:
        """`clip`: the largest norm of a gradient, 0 for any; `max_skipped`: as `Limits` has it."""
        self.clip, self.max_skipped = clip, max_skipped
        self._tables = AddressTables()

    def finish_step(self, grads: Sequence[Tensor], counters: Counters) -> tuple[Tensor, Tensor]:
        """What to divide gradients by, and whether they are finite; the counters count the step."""
        if grads and on_gpu(grads[0]) and can_fuse(grads):
            return self._finish_by_kernels(grads, counters)
        norm = full_tensor(_norm(grads))
        # A copy in any dtype: the counters set theirs to zero.
        finite, targets = norm.isfinite(), counters.sums[STEP, TARGETS].to(norm.dtype, copy=True)
        divisor = targets
        if self.clip:
            divisor = targets * ((norm / targets + 1e-6) / self.clip).clamp(min=1.0)
        counters.finish_step(finite, self.max_skipped)
        return divisor, finite

    def _finish_by_kernels(
        self, grads: Sequence[Tensor], counters: Counters
    ) -> tuple[Tensor, Tensor]:
        from heed.nn.kernels.triton import adamw, gradient_norm

        self._tables.reserve(1, len(grads), grads[0])

        def plan(sizes: list[int]) -> Tensor:
            return adamw.plan_chunks(sizes, gradient_norm.CHUNK)

        return gradient_norm.finish_step(
            self._tables.find([grads]),
            self._tables.find_plan(grads, plan),
            counters.sums,
            counters.counts,
            clip=self.clip,
            max_skipped=self.max_skipped,
        )


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients: on a CPU by one call."""
    if grads and grads[0].device.type == "cpu" and can_fuse(grads):
        return adamw_cpu.norm(grads)
    return nn.utils.get_total_norm(grads)
