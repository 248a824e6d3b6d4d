"""What the output layer computes in 8 bits, in plain torch: rounded factors, float32 products."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from gpu_marks import INTERPRETED
from torch import Tensor

from heed.nn.kernels.fp8_cross_entropy import GRADIENT_FACTOR, compute_scale

IGNORED = -100


class Outcome(NamedTuple):
    """The sum of losses, correct predictions, and gradients of inputs and weights."""

    total: Tensor
    correct: Tensor
    dx: Tensor
    d_weight: Tensor


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor in float8_e4m3fn, and the scale by which it is multiplied again."""
    scale = compute_scale(x)
    return (x.float() * scale.reciprocal()).to(torch.float8_e4m3fn), scale


def logits_gradient(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """softmax - (1 - s) · onehot - s/v in float32, and zeros for ignored targets."""
    counted = targets != IGNORED
    d = torch.softmax(logits.float(), dim=-1) - smoothing / logits.shape[-1]
    rows = counted.nonzero()[:, 0]
    d[rows, targets[rows]] -= 1 - smoothing
    return d.where(counted[:, None], 0.0)


def fp8_reference(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0) -> Outcome:
    """Cross-entropy of a linear layer whose three matrix products have 8-bit factors."""
    x, weight = x.detach(), weight.detach().to(x.dtype)
    (x8, x_scale), (weight8, weight_scale) = quantized(x), quantized(weight)
    logits = (x8.float() @ weight8.float().mT * (x_scale * weight_scale)).bfloat16()
    total = torch.nn.functional.cross_entropy(
        logits.float(), targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    correct = (logits.float().argmax(dim=-1) == targets).sum()
    d8 = (logits_gradient(logits, targets, smoothing) * GRADIENT_FACTOR).to(torch.float8_e5m2)
    d = d8.float() / GRADIENT_FACTOR
    dx = d @ weight8.float() * weight_scale
    d_weight = d.mT @ x8.float() * x_scale
    return Outcome(total, correct, dx.to(x.dtype), d_weight)


def exact_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0
) -> list[Tensor]:
    """Loss and gradients of x and weight in float64."""
    parts = [part.detach().double().requires_grad_() for part in (x, weight)]
    total = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(*parts),
        targets,
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return [total, *torch.autograd.grad(total, parts)]


def round_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Triton's interpreter round to 8 bits to nearest even, as torch and a GPU do.

    Its own rounding loses the carry into the exponent.
    """
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    convert = interpreter._convert_float
    kinds = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}

    def rounded(data, given, wanted, mode):  # type: ignore[no-untyped-def]
        if wanted.name not in kinds or given.name != "fp32":
            return convert(data, given, wanted, mode)
        values = torch.from_numpy(data.copy()).to(kinds[wanted.name])
        return values.view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
