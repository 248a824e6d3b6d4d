"""Weights laid out for a CPU's matrix kernels, for as long as nothing learns.

A kernel that multiplies few rows spends much of its time on putting the weights into the order it
reads them in. Where many such products follow, as in decoding, that is done once, before all.

Shapes: f numbers out, w numbers in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heed.nn.embedding import OutputLinear
from heed.nn.kernels.linear import Linear

PLAIN = (nn.Linear, Linear, OutputLinear)
"""Maps that do nothing but W x + b. One with an adapter is of another class."""
DTYPES = (torch.float32, torch.bfloat16)
PACK, RUN = "_reorder_linear_weight", "_linear_pointwise"


@runtime_checkable
class Head(Protocol):
    """The last map of a model, whose weight may be the embedding's."""

    bias: Tensor | None

    @property
    def weight(self) -> Tensor: ...

    def project(self, x: Tensor, /) -> Tensor: ...


@contextmanager
def packed(models: Iterable[nn.Module]) -> Iterator[None]:
    """While this lasts, the maps of these models read packed weights, where that can be.

    Nothing may learn meanwhile: what is read is a copy. It costs about a millisecond a million
    weights, and their memory once more.
    """
    with ExitStack() as after:
        for model in models:
            for place, name, weight, bias in _maps(model):
                if not _can(weight):
                    continue
                setattr(place, name, partial(_linear, _pack(weight), bias))
                after.callback(vars(place).pop, name, None)
        yield


def _maps(model: nn.Module) -> Iterator[tuple[object, str, Tensor, Tensor | None]]:
    """Each map: where it stands, the name of the method that maps, weight [f, w] and bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module) in PLAIN:
            yield module, "forward", module.weight, module.bias
        elif isinstance(module, Head):
            yield module, "project", module.weight, module.bias


def _can(weight: Tensor) -> bool:
    here = weight.device.type == "cpu" and weight.dtype in DTYPES
    kernels = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    # The operations that torch's own compiler packs weights by; they are not promised to stay.
    known = all(hasattr(torch.ops.mkldnn, name) for name in (PACK, RUN))
    return here and kernels and known and not torch.is_autocast_enabled("cpu")


def _pack(weight: Tensor) -> Tensor:
    pack: Callable[..., Tensor] = getattr(torch.ops.mkldnn, PACK)
    return pack(weight.detach(), None)


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """W x + b."""
    run: Any = getattr(torch.ops.mkldnn, RUN)
    out: Tensor = run(x, weight, bias, "none", [], "")
    return out
