"""Sinusoids of positions added to token vectors, as a GPU trains: one pass over memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


def add_sinusoids(x_bnw: Tensor, positions: Tensor, base: float, *, halves: bool) -> Tensor:
    """x + PE of the positions [b or 1, n]; their sines and cosines in pairs, or in halves."""
    run: Any = _AddSinusoids.apply
    return run(x_bnw, positions, base, halves)


class _AddSinusoids(Function):
    """The kernel as a differentiable function: the sum's gradient is that of x."""

    @staticmethod
    def forward(ctx: Any, x_bnw: Tensor, positions: Tensor, base: float, halves: bool) -> Tensor:
        from heed.nn.kernels.triton.sinusoids import add_sinusoids

        return add_sinusoids(x_bnw, positions, base, halves=halves)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None, None]:
        return d_out, None, None, None
