"""16-bit copies of the weights and biases of linear layers, all made by one launch.

Under autocast torch narrows every parameter by a kernel of its own, and most of these kernels are
too short to fill a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from heed.nn.kernels.availability import on_gpu

_current: ContextVar[Mapping[Tensor, Tensor] | None] = ContextVar("weight_copies", default=None)


class WeightCopies:
    """bfloat16 copies of weights, to be read while `refreshed` lasts."""

    def __init__(self, weights: list[Tensor]) -> None:
        self._copies = {w: torch.empty_like(w, dtype=torch.bfloat16) for w in weights}

    @property
    def weights(self) -> list[Tensor]:
        """The weights that have a copy."""
        return list(self._copies)

    @classmethod
    def of_linear_layers(cls, model: nn.Module | None) -> WeightCopies:
        """Copies of the float32 parameters of a model's linear layers that are on a GPU."""
        modules = () if model is None else model.modules()
        layers = [module for module in modules if isinstance(module, nn.Linear)]
        # An adapted weight (LoRA) is computed anew whenever it is read.
        weights = (layer._parameters.get(name) for layer in layers for name in ("weight", "bias"))
        found = (w for w in weights if w is not None and w.dtype == torch.float32 and on_gpu(w))
        return cls(list(dict.fromkeys(found)))

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        """Copy the weights now; until the end of this context `narrow` returns the copies."""
        if not self._copies:
            yield
            return
        with torch.no_grad():
            torch._foreach_copy_(list(self._copies.values()), self.weights)
        token = _current.set(self._copies)
        try:
            yield
        finally:
            _current.reset(token)


def narrow(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in this dtype: its copy, where there is one now."""
    copies = _current.get()
    copy = None if copies is None else copies.get(weight)
    return weight.to(dtype) if copy is None or copy.dtype != dtype else copy
