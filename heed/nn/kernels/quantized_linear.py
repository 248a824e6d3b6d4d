"""Linear layers with int8 weights on an x86 CPU (FBGEMM), for decoding.

A weight is stored as W ≈ s ∘ Q: integers Q from -127 to 127 and one scale s for each output. An
input row x is rounded the same way as it arrives, by its own largest number, so that a row's result
never depends on the other rows:

    W x + b ≈ a/127 · s ∘ (Q · round(127 x / a)) + b,    a = max |x|

The product of integers is exact, in 32 bits.

Shapes: f numbers out, w numbers in, r rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from heed.errors import ConfigError
from heed.nn.kernels.prepacked_weights import linear_layers

ENGINE = "fbgemm"
PACK, RUN = "linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32"
LEVELS = 127
"""The largest integer of a weight, and of an input where the CPU adds products in 32 bits."""
FEW_LEVELS = 63
"""The largest integer of an input on a CPU without VNNI instructions: it adds two products in 16
bits, which hold no more."""
SMALLEST = torch.finfo(torch.float32).tiny
"""The smallest scale: a row of zeros stays one."""


class Int8Weights:
    """The linear layers of models as int8 copies, quantized once, used within `in_use`."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        check_int8()
        self._layers = [
            (owner, name, partial(_linear, _operation(), _pack(weight), bias, input_levels()))
            for model in models
            for owner, name, weight, bias in linear_layers(model)
        ]
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
    """Raise an error where int8 weights cannot be used: on a GPU, or on a CPU without FBGEMM."""
    if device is not None and device.type != "cpu":
        raise ConfigError(
            [f"precision int8 is for a CPU, not for {device.type}: use bf16, or device cpu."]
        )
    # torch's own quantized modules are built on these operations; the second is private.
    has_ops = all(hasattr(torch.ops.quantized, name) for name in (PACK, RUN))
    if ENGINE not in torch.backends.quantized.supported_engines or not has_ops:
        raise ConfigError(
            ["precision int8 needs torch with FBGEMM, on an x86 CPU: use float32 or bf16 here."]
        )


@cache
def input_levels() -> int:
    """The largest integer of an input that this CPU multiplies exactly: 127 or 63."""
    weight, row = torch.ones(1, 64), torch.ones(1, 64)
    is_exact = _linear(_operation(), _pack(weight), None, LEVELS, row).item() > 63.99
    return LEVELS if is_exact else FEW_LEVELS


def _operation() -> Callable[..., Tensor]:
    """FBGEMM's product of an input, which it quantizes by a given scale, and a packed weight."""
    operation: Callable[..., Tensor] = getattr(torch.ops.quantized, RUN)
    # torch's wrapper looks for Python objects among the arguments: half the time of a small call.
    return getattr(operation, "_op", operation)


def _pack(weight_fw: Tensor) -> Any:
    """Quantize a weight, each output by its own scale, and pack it for FBGEMM."""
    weight_fw = weight_fw.detach().float()
    scales_f = (weight_fw.abs().amax(dim=1) / LEVELS).clamp_min_(SMALLEST)
    zeros_f = torch.zeros_like(scales_f, dtype=torch.long)
    with warnings.catch_warnings():
        # Quantized tensors are to leave torch. FBGEMM's weights are still packed from no other.
        warnings.filterwarnings("ignore", message=".*quantize_per_channel", category=UserWarning)
        quantized = torch.quantize_per_channel(weight_fw, scales_f, zeros_f, 0, torch.qint8)
    pack: Callable[..., Any] = getattr(torch.ops.quantized, PACK)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        return pack(quantized, None)
    finally:
        torch.backends.quantized.engine = before


def _linear(
    run: Callable[..., Tensor], packed: Any, bias: Tensor | None, levels: int, x_rw: Tensor
) -> Tensor:
    """W x + b, each row of x quantized by its own largest number."""
    largest_r1 = x_rw.abs().amax(dim=-1, keepdim=True).clamp_min_(SMALLEST)
    # Inputs are unsigned for FBGEMM: it subtracts the zero point's share again.
    out_rf = run(x_rw / largest_r1, 1 / levels, levels + 1, packed)
    if bias is None:
        return out_rf.mul_(largest_r1)
    return torch.addcmul(bias, out_rf, largest_r1, out=out_rf)
