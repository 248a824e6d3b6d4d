"""Gradients of parameters on a stream of their own, beside those of activations.

In the backward pass the gradient of one layer's input is all that the layer before it waits for.
The gradients of its parameters are needed at the end of the pass only. Where a batch is small, a
matrix product fills a part of a GPU, and the two can share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_current: ContextVar[ParameterStream | None] = ContextVar("parameter_stream", default=None)


class ParameterStream:
    """A CUDA stream that computes gradients of parameters and adds them to their `grad`.

    Autograd would read a gradient on the stream of the backward pass, where it is not ready. So
    layers give it none for these parameters, and `join` comes before `grad` is read. A parameter
    must not have another use whose gradient autograd adds: the two would race. So a table that is
    also the output layer's weight is served in both uses, or in none.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._read: list[Tensor] = []
        """What the stream may still read: its memory must not be used again before `join`."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Layers called in this context compute gradients of their parameters on this stream."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def run(self, compute: Callable[[], T], reads: Sequence[Tensor]) -> T:
        """What `compute` returns, on this stream alone; it reads or writes the tensors `reads`."""
        self._stream.wait_stream(torch.cuda.current_stream())
        self._read += reads
        with torch.cuda.stream(self._stream), torch.no_grad():
            return compute()

    def add_gradients(
        self,
        parameters: Sequence[Tensor | None],
        compute: Callable[[], Sequence[Tensor | None]],
        reads: Sequence[Tensor],
    ) -> None:
        """Add what `compute` returns to the parameters' gradients; it reads the tensors `reads`."""

        def add() -> None:
            for parameter, gradient in zip(parameters, compute(), strict=True):
                if parameter is None or gradient is None or not parameter.requires_grad:
                    continue
                if parameter.grad is None:
                    parameter.grad = gradient.to(parameter.dtype)
                else:
                    parameter.grad += gradient

        self.run(add, reads)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Join after a pass; also after one that fails, so that nothing is left of it."""
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # A capture that has failed takes no more work.
                self.join()
            raise
        self.join()

    def join(self) -> None:
        """Let the current stream wait until all gradients are there, if any were computed.

        A captured graph must not wait for a stream that has no part in it.
        """
        if self._read:
            try:
                torch.cuda.current_stream().wait_stream(self._stream)
            finally:
                self._read.clear()


def parameter_stream(*parameters: Tensor | None) -> ParameterStream | None:
    """The active stream, if it can serve these parameters; None where autograd has to.

    A parameter that is computed from others (LoRA) passes its gradient on.
    """
    stream = _current.get()
    if stream is None or not all(p is None or p.is_leaf for p in parameters):
        return None
    return stream
