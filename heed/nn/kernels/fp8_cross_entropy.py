"""The output linear layer and its cross-entropy, with matrix products in 8-bit floating point.

Inputs and weights are divided by a scale each, so that the largest is the largest number of
float8_e4m3fn, and rounded to it. Logits are bfloat16. Their gradient lies in [-1, 1]: times a power
of two it is rounded to float8_e5m2, which has smaller numbers and fewer digits. Products are summed
in float32. Scales stay on the device, so nothing waits for the host.

The GPU's 8-bit products read both factors along the dimension that is summed. So inputs, weights
and the gradient of logits are written twice, row by row and transposed.

Shapes: n rows, r rows of a chunk, v vocabulary, w width; where they are padded, with padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heed.nn.kernels.availability import HAS_TRITON

MIN_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with 8-bit floating point products."""
MAX_LOGITS = 2**30
"""Logits to hold at once: four gigabytes with both forms of their gradient. Every chunk adds its
product to the weights' gradient in a pass of its own, so chunks are larger than in bfloat16."""
E4M3_MAX = 448.0
"""The largest number of float8_e4m3fn."""
MIN_SCALE = 2.0**-100
"""The scale of a tensor of zeros: neither it nor its inverse is zero or infinite."""
GRADIENT_FACTOR = 2.0**15
"""Factor of the gradient of logits in float8_e5m2, whose largest number is 57,344."""
VOCAB_MULTIPLE, MULTIPLE = 64, 16
"""8-bit products need multiples of 16 along both dimensions; the vocabulary is aligned as in
bfloat16."""
FAST_LOGITS, FAST_GRADIENTS = True, False
"""Whether products are summed in the tensor cores alone, with fewer digits and sooner. Sums over
the vocabulary and over rows are too long for that."""


def find_obstacle(
    device: torch.device, dtype: torch.dtype, w: int, *, biased: bool = False, trained: bool = True
) -> str | None:
    """Why an output layer is not computed in 8 bits; None where it is.

    `dtype` is that of its products otherwise, `w` its width, `trained` whether both its inputs and
    its weights need gradients.
    """
    if device.type != "cuda":
        return f"8-bit products need a GPU, and this device is a {device.type.upper()}"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        have, need = (".".join(map(str, each)) for each in (capability, MIN_CAPABILITY))
        return f"8-bit products need compute capability {need}, and this GPU has {have}"
    if not HAS_TRITON:
        return "Triton is missing"
    if dtype != torch.bfloat16:
        return "8-bit products are for training in bf16"
    if w % MULTIPLE:
        return f"its width {w} is not a multiple of {MULTIPLE}"
    if biased:
        return "it has a bias"
    return None if trained else "its inputs or its weights are frozen"


def fp8_cross_entropy(
    x_nw: Tensor,
    weight_vw: Tensor,
    targets_n: Tensor,
    losses_n: Tensor,
    correct_n: Tensor,
    ignore_index: int,
    smoothing: float,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Write each row's loss and whether it is correct; return the gradients of x and weight.

    Chunks have `rows` rows. The gradient of x has its dtype, that of the weight is float32.
    """
    from heed.nn.kernels.triton.cross_entropy import chunk_cross_entropy
    from heed.nn.kernels.triton.fp8_cross_entropy import logits_gradient, quantize

    (n, w), v = x_nw.shape, len(weight_vw)
    padded_n, padded_v = round_up(n, MULTIPLE), round_up(v, VOCAB_MULTIPLE)
    rows = min(round_up(rows, MULTIPLE), padded_n)
    weight_vw = weight_vw.to(x_nw.dtype)
    x_scale, weight_scale = compute_scale(x_nw), compute_scale(weight_vw)
    d_scale = torch.full_like(x_scale, 1 / GRADIENT_FACTOR)
    x_nw, x_wn = quantize(x_nw, x_scale.reciprocal(), padded_n)
    weight_vw, weight_wv = quantize(weight_vw, weight_scale.reciprocal(), padded_v)

    logits_rv = losses_n.new_empty(rows, padded_v, dtype=torch.bfloat16)
    levels_r = losses_n.new_empty(rows)
    d_logits = logits_rv.new_empty(2, rows * padded_v, dtype=torch.float8_e5m2)
    dx_nw = logits_rv.new_empty(padded_n, w)
    d_weight_vw = losses_n.new_empty(padded_v, w)
    product_vw = torch.empty_like(d_weight_vw) if rows < padded_n else d_weight_vw
    for start in range(0, padded_n, rows):
        chunk = slice(start, start + rows)
        x_rw, x_wr = x_nw[chunk], x_wn[:, chunk]
        r = len(x_rw)
        d_rv, d_vr = (
            d_logits[i, : r * padded_v].view(shape)
            for i, shape in enumerate(((r, padded_v), (padded_v, r)))
        )
        _multiply(x_rw, weight_vw, x_scale, weight_scale, logits_rv[:r], fast=FAST_LOGITS)
        real = slice(start, min(start + r, n))  # Rows that only pad have no target.
        targets_r, losses_r, correct_r = targets_n[real], losses_n[real], correct_n[real]
        settings = (ignore_index, smoothing)
        logits = logits_rv[: len(targets_r), :v]
        chunk_cross_entropy(logits, targets_r, losses_r, correct_r, *settings, False, levels_r)
        logits_gradient(logits_rv[:r], targets_r, levels_r, d_rv, d_vr, v, *settings)
        _multiply(d_rv, weight_wv, d_scale, weight_scale, dx_nw[chunk], fast=FAST_GRADIENTS)
        product = d_weight_vw if start == 0 else product_vw
        _multiply(d_vr, x_wr, d_scale, x_scale, product, fast=FAST_GRADIENTS)
        if start > 0:
            d_weight_vw.add_(product_vw)
    return dx_nw[:n], d_weight_vw[:v]


def compute_scale(x: Tensor) -> Tensor:
    """The number that x is divided by before it is rounded to float8_e4m3fn.

    An infinite or undefined element makes it infinite or undefined, and so the loss.
    """
    largest = torch.linalg.vector_norm(x, ord=float("inf"), dtype=torch.float32)
    return (largest / E4M3_MAX).clamp(min=MIN_SCALE)


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple that is at least this size."""
    return -(-size // multiple) * multiple


def _multiply(
    a_ik: Tensor, b_jk: Tensor, a_scale: Tensor, b_scale: Tensor, out_ij: Tensor, *, fast: bool
) -> None:
    """out = a bᵀ, both multiplied by their scales."""
    torch._scaled_mm(
        a_ik,
        b_jk.mT,
        scale_a=a_scale,
        scale_b=b_scale,
        out_dtype=out_ij.dtype,
        use_fast_accum=fast,
        out=out_ij,
    )
