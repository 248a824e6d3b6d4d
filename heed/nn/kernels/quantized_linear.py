"""Linear layers with int8 weights on a CPU, for decoding.

A weight is stored as W ≈ s ∘ Q: integers Q from -127 to 127 and one scale s for each output. An
input row x is rounded the same way as it arrives, by its own largest number, so that a row's result
never depends on the other rows:

    W x + b ≈ a/127 · s ∘ (Q · round(127 x / a)) + b,    a = max |x|

The product of integers is exact, in 32 bits. A kernel in C computes all of it in one pass, where it
can be compiled (`int8_blocks.py`); elsewhere oneDNN multiplies, and torch rounds and scales.

Shapes: f numbers out, w numbers in, r rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock

import torch
from torch import Tensor, nn

from heed.errors import ConfigError
from heed.nn.kernels.int8_blocks import PackedLinear, int8_library
from heed.nn.kernels.prepacked_weights import linear_layers

LEVELS = 127
"""The largest integer of an input, and of a weight where the CPU adds products in 32 bits."""
FEW_LEVELS = 63
"""The largest integer of a weight on a CPU without VNNI instructions: it adds two products in 16
bits, with inputs from 0 to 255, and those hold no more."""
SMALLEST = 1e-30
"""The smallest scale: a row of zeros stays one."""


class Int8Weights:
    """The linear layers of models as int8 copies, quantized once, used within `in_use`."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        check_int8()
        self.library = int8_library()
        """The kernels in C; None where torch computes."""
        self.packed: dict[object, PackedLinear] = {}
        """The layers that the kernels in C compute, by module."""
        self._layers: list[tuple[object, str, Callable[[Tensor], Tensor]]] = []
        run: Callable[[Tensor], Tensor]
        for model in models:
            for owner, name, weight, bias in linear_layers(model):
                if weight.shape[1] == 1:  # torch 2.13 multiplies integers of single columns wrongly
                    continue
                if self.library is None:
                    run = partial(_linear, *quantize(weight, weight_levels()), bias)
                else:
                    integers_wf, scales_f = quantize(weight, LEVELS)
                    run = PackedLinear(self.library, integers_wf.t(), scales_f, bias)
                    self.packed[owner] = run
                self._layers.append((owner, name, run))
        self._lock, self._users = Lock(), 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context in which the models compute with int8 weights, in all threads."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                for owner, name, run in self._layers:
                    setattr(owner, name, run)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    for owner, name, _ in self._layers:
                        vars(owner).pop(name, None)


def check_int8(device: torch.device | None = None) -> None:
    """Raise an error where int8 weights cannot be used: on a GPU, or without oneDNN."""
    if device is not None and device.type != "cpu":
        raise ConfigError(
            [f"precision int8 is for a CPU, not for {device.type}: use bf16, or device cpu."]
        )
    # Torch's own product of integers takes a hundred times as long. The operation is private.
    if not (torch.backends.mkldnn.is_available() and hasattr(torch, "_int_mm")):
        raise ConfigError(["precision int8 needs torch with oneDNN: use float32 or bf16 here."])


@cache
def weight_levels() -> int:
    """The largest integer of a weight with which this CPU's products are exact: 127 or 63."""
    ones = torch.ones(1, 64)
    is_exact = _linear(*quantize(ones, LEVELS), None, ones).item() > 63.99
    return LEVELS if is_exact else FEW_LEVELS


def quantize(weight_fw: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """A weight as integers [w, f], and what its products with integers are multiplied by [f]."""
    weight_fw = weight_fw.detach().float()
    scales_f = (weight_fw.abs().amax(dim=1) / levels).clamp_min_(SMALLEST)
    integers_fw = (weight_fw / scales_f[:, None]).round_().to(torch.int8)
    return integers_fw.t(), scales_f / LEVELS


def _linear(integers_wf: Tensor, scales_f: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """W x + b, each row of x quantized by its own largest number."""
    x_rw = x.reshape(-1, x.shape[-1])
    largest_r1 = x_rw.abs().amax(dim=1, keepdim=True).clamp_min_(SMALLEST)
    rounded_rw = x_rw.mul(LEVELS / largest_r1).round_().to(torch.int8)
    out_rf = torch._int_mm(rounded_rw, integers_wf).float().mul_(largest_r1)
    if bias is None:
        out_rf.mul_(scales_f)
    else:
        torch.addcmul(bias, out_rf, scales_f, out=out_rf)
    return out_rf.view(*x.shape[:-1], -1)
