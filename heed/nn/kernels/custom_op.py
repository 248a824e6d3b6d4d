"""Kernel launchers as operators that autograd and torch.compile know.

A launcher is a Python function that allocates outputs and launches Triton kernels.
`register_op` makes it an operator: torch.compile cannot look into it and only computes its output
shapes. `DifferentiableOp` adds gradients. Under torch.compile it calls the operators; otherwise it
calls the launchers through an autograd.Function, because calling an operator costs 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import function

Launcher = Callable[..., Any]
Backward = Callable[..., Any]


def once_differentiable(backward: Backward) -> Backward:
    """torch's decorator of a backward pass that cannot be differentiated itself.

    Gradients are seldom differentiated: the contexts of torch's decorator are for that case alone.
    """
    guarded = function.once_differentiable(backward)

    @wraps(backward)
    def run(ctx: Any, *d_outputs: Any) -> Any:
        asked = torch.is_grad_enabled()
        return guarded(ctx, *d_outputs) if asked else backward(ctx, *d_outputs)

    return run


@dataclass(frozen=True)
class Kernel:
    """A launcher, and what torch must know of it to treat it as an operator."""

    name: str
    schema: str
    """Inputs and outputs in torch's schema language: "(Tensor x, float scale) -> Tensor"."""
    launch: Launcher
    fake: Launcher
    """Returns empty outputs of the right shapes for the same inputs."""
    launch_eager: Launcher | None = None
    """Used instead of `launch` outside torch.compile. Its outputs may share memory, which an
    operator's must not."""


def register_op(kernel: Kernel) -> Any:
    """Register the operator torch.ops.heed.<name>; returns a function that calls it."""
    op = torch.library.custom_op(
        f"heed::{kernel.name}", kernel.launch, mutates_args=(), schema=kernel.schema
    )
    op.register_fake(kernel.fake)
    return op


class DifferentiableOp:
    """A forward kernel whose gradients are computed by `differentiate`.

    `save(ctx, inputs, outputs)` stores what the backward pass needs. `differentiate(ctx, launch,
    *d_outputs)` returns one gradient or None for each input; it calls `launch` to run the backward
    kernel: the operator under torch.compile, else the launcher. Only the first
    `differentiable_outputs` outputs have gradients. It can be differentiated once.
    """

    def __init__(
        self,
        forward: Kernel,
        backward: Kernel | None,
        *,
        save: Callable[[Any, tuple[Any, ...], Any], None],
        differentiate: Callable[..., tuple[Any, ...]],
        differentiable_outputs: int = 1,
    ) -> None:
        self._op = register_op(forward)
        backward_op: Any = self._op if backward is forward else None
        if backward is not None and backward is not forward:
            backward_op = register_op(backward)
        torch.library.register_autograd(
            f"heed::{forward.name}",
            lambda ctx, *d_outputs: differentiate(ctx, backward_op, *d_outputs),
            setup_context=lambda ctx, inputs, output: save(ctx, inputs, output),
        )
        launch_forward = forward.launch_eager or forward.launch
        launch_backward = None if backward is None else backward.launch_eager or backward.launch

        class Eager(torch.autograd.Function):
            """The launchers, called directly."""

            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                outputs = launch_forward(*inputs)
                save(ctx, inputs, outputs)
                # Torch would make gradients of zeros for all outputs that have none, each as large
                # as its output. Of one differentiable output that is never needed.
                ctx.set_materialize_grads(differentiable_outputs > 1)
                ctx.num_inputs = len(inputs)
                if not isinstance(outputs, Tensor):
                    ctx.mark_non_differentiable(*outputs[differentiable_outputs:])
                return outputs

            @staticmethod
            @once_differentiable
            def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
                if d_outputs[0] is None and differentiable_outputs == 1:
                    return (None,) * ctx.num_inputs
                return differentiate(ctx, launch_backward, *d_outputs)

        self._eager: Any = Eager.apply

    def __call__(self, *inputs: Any) -> Any:
        """Run the forward kernel on these inputs, given in the order of its schema."""
        run = self._op if torch.compiler.is_compiling() else self._eager
        return run(*inputs)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...] = ()) -> None:
    """Save all inputs for the backward pass, tensors or not, and these outputs."""
    ctx.save_for_backward(*outputs, *(x for x in inputs if isinstance(x, Tensor)))
    ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]


def saved_inputs(ctx: Any) -> tuple[list[Tensor], list[Any]]:
    """The outputs and the inputs that `save_inputs` saved."""
    saved = list(ctx.saved_tensors)
    count = len(saved) - sum(other is None for other in ctx.others)
    tensors = iter(saved[count:])
    inputs = [next(tensors) if other is None else other[0] for other in ctx.others]
    return saved[:count], inputs
