"""Weights prepacked for a CPU's matrix kernels (oneDNN), for inference.

A kernel that multiplies few rows spends much of its time on reordering the weights. Where many such
products follow, as in decoding, the weights are reordered once before them.

Shapes: f numbers out, w numbers in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heed.nn.kernels.linear import Linear, OutputLinear

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
"""oneDNN keeps a compiled kernel for each shape of a product, 1,024 by default, each of hundreds of
kilobytes. Decoding has other shapes in every batch. It reads this at the first product."""
PLAIN = (nn.Linear, Linear, OutputLinear)
"""Layers that compute W x + b and nothing else. One with a LoRA adapter has another class."""
DTYPES = (torch.float32, torch.bfloat16)
PACK, RUN = "_reorder_linear_weight", "_linear_pointwise"


@runtime_checkable
class OutputHead(Protocol):
    """The output projection of a model, whose weight may be the embedding's."""

    bias: Tensor | None

    @property
    def weight(self) -> Tensor: ...

    def project(self, x: Tensor, /) -> Tensor: ...


@contextmanager
def prepack_weights(models: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which the linear layers of these models use prepacked weights, where possible.

    Do not train meanwhile: the prepacked weights are copies. Packing takes about a millisecond per
    million weights, and their memory once more. Layers that are packed already stay as they are.
    """
    with ExitStack() as after:
        for model in models:
            for owner, name, weight, bias in linear_layers(model):
                if name in vars(owner) or not _can_pack(weight):
                    continue
                setattr(owner, name, partial(_linear, _pack(weight), bias))
                after.callback(vars(owner).pop, name, None)
        yield


def linear_layers(model: nn.Module) -> Iterator[tuple[object, str, Tensor, Tensor | None]]:
    """Each linear layer: its module, the name of its method, weight [f, w] and bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module) in PLAIN:
            yield module, "forward", module.weight, module.bias
        elif isinstance(module, OutputHead):
            yield module, "project", module.weight, module.bias


def _can_pack(weight: Tensor) -> bool:
    fits = weight.device.type == "cpu" and weight.dtype in DTYPES
    has_mkldnn = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    # torch's compiler packs weights by these operations. They are private: torch may drop them.
    has_ops = all(hasattr(torch.ops.mkldnn, name) for name in (PACK, RUN))
    return fits and has_mkldnn and has_ops and not torch.is_autocast_enabled("cpu")


def _pack(weight: Tensor) -> Tensor:
    pack: Callable[..., Tensor] = getattr(torch.ops.mkldnn, PACK)
    return pack(weight.detach(), None)


def _linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """W x + b."""
    run: Any = getattr(torch.ops.mkldnn, RUN)
    out: Tensor = run(x, weight, bias, "none", [], "")
    return out
