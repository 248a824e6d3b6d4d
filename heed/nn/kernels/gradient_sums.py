"""Column sums that come with a gradient, from the kernel that wrote it.

The gradient of a linear layer's bias is the sum over all tokens of the gradient of its output. The
kernel that computes the latter holds it in registers: to add it up there saves reading it again.
Autograd passes on the gradient alone, so its sums are an attribute of that tensor. Where autograd
adds other gradients to it, or copies it, there are none, and the layer computes them.
"""

from __future__ import annotations

from torch import Tensor

SUMS = "heed_column_sums"
"""The attribute: partial sums, and the version of the tensor that they belong to."""


def wants_sums(output: Tensor) -> bool:
    """Whether the gradient of this tensor will be summed: a linear layer with a bias computed it.

    A function of autograd says so by `ctx.sums_gradient`.
    """
    return bool(getattr(output.grad_fn, "sums_gradient", False))


def attach_sums(gradient: Tensor, sums_pw: Tensor) -> None:
    """Let a gradient [..., w] carry its partial column sums [p, w] in float32."""
    setattr(gradient, SUMS, (sums_pw, gradient._version))


def attached_sums(gradient: Tensor) -> Tensor | None:
    """The partial sums that a gradient carries; None where it has none, or was changed since."""
    sums_pw, version = getattr(gradient, SUMS, (None, None))
    return sums_pw if version == gradient._version else None
