"""AdamW and Adam in one pass over memory: two launches for a parameter group, one call on a CPU.

torch's fused kernels are slower, and write divided gradients back. The state is torch's: a
checkpoint of one loads into the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from heed.nn.kernels import adamw_cpu
from heed.nn.kernels.availability import on_gpu
from heed.train.optimizers.address_tables import AddressTables

PLAIN_TYPES = (Tensor, nn.Parameter)


def can_fuse(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernel takes these tensors: no shards, contiguous, float32, on one device.

    On a CPU it is compiled when it is first needed.
    """
    if not tensors:
        return False
    device = tensors[0].device
    if not on_gpu(tensors[0]) and (device.type != "cpu" or adamw_cpu.load_kernel() is None):
        return False
    return all(
        type(tensor) in PLAIN_TYPES
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.device == device
        and tensor.is_contiguous()
        for tensor in tensors
    )


class FusedAdam(Adam):
    """Adam by one kernel for all tensors of a group; torch's step for groups it does not take.

    `grad_scale` divides gradients, and where `found_inf` is not 0 a step changes nothing. This is
    torch's contract for scaled losses.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tables = AddressTables()
        self._checked: dict[int, list[Tensor]] = {}
        """State tensors of each group that the kernel of a CPU takes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, or load a state; captured steps still read their tables."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not hasattr(self, "_tables"):
            self._tables = AddressTables()
        self._checked = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        others: list[dict[str, Any]] = []
        for group in self.param_groups:
            trained = self._read_group(group)
            if trained is None:
                others.append(group)
            elif trained[0]:
                self._kernel_step(group, trained)
        if others:
            groups, self.param_groups = self.param_groups, others
            try:
                super().step()
            finally:
                self.param_groups = groups
        return loss

    def _read_group(self, group: dict[str, Any]) -> list[list[Tensor]] | None:
        """Parameters with a gradient, gradients, means, means of squares, and steps.

        None if the kernel does not take them.
        """
        if not group["fused"] or group["amsgrad"] or group["maximize"]:
            return None
        known = self._read_known(group)
        if known is not None:
            return known
        params, grads, means, squares, steps = rows = [list[Tensor]() for _ in range(5)]
        adam: Any = self
        adam._init_group(group, params, grads, means, squares, [], steps)
        # torch's fused step refuses a gradient with other strides than its parameter's on a GPU.
        rows[1] = [grad.contiguous() for grad in grads]
        return rows if all(can_fuse(row) for row in rows) or not params else None

    def _read_known(self, group: dict[str, Any]) -> list[list[Tensor]] | None:
        """`_read_group` on a CPU after the first step, with state tensors that were checked then.

        To check each of them again takes as long as the step of a small model.
        """
        params = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not params or params[0].device.type != "cpu":
            return None
        states, grads = [self.state[parameter] for parameter in params], [p.grad for p in params]
        if not all(states) or not can_fuse(params) or not can_fuse(grads):
            return None
        rows = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")]
        tensors, checked = [*rows[0], *rows[1], *rows[2]], self._checked.get(id(group), [])
        same = len(tensors) == len(checked) and all(map(operator.is_, tensors, checked))
        if not same and not all(map(can_fuse, rows)):
            return None
        self._checked[id(group)] = tensors
        return [params, grads, *rows]

    def _kernel_step(self, group: dict[str, Any], trained: list[list[Tensor]]) -> None:
        if on_gpu(trained[0][0]):
            self._gpu_step(group, trained)
        elif self.found_inf is None or not self.found_inf:
            adamw_cpu.update(
                trained,
                lr=float(group["lr"]),
                divisor=1.0 if self.grad_scale is None else float(self.grad_scale),
                betas=group["betas"],
                eps=group["eps"],
                decay=group["weight_decay"],
                decoupled=group["decoupled_weight_decay"],
            )

    def _gpu_step(self, group: dict[str, Any], trained: list[list[Tensor]]) -> None:
        from heed.nn.kernels.triton import adamw

        params, lr = trained[0], group["lr"]
        device, divisor, found_inf = params[0].device, self.grad_scale, self.found_inf
        if not (isinstance(lr, Tensor) and on_gpu(lr)):
            lr = torch.full((), float(lr), dtype=torch.float32, device=device)
        if divisor is None:
            divisor = torch.ones((), device=device)
        if found_inf is None:
            found_inf = torch.zeros((), device=device)
        if group["capturable"]:
            most = max(len(group["params"]) for group in self.param_groups)
            self._tables.reserve(len(self.param_groups), adamw.ROWS * most, params[0])
        adamw.update(
            self._tables.find(trained),
            self._tables.find_plan(params, adamw.plan_chunks),
            lr=lr,
            divisor=divisor,
            found_inf=found_inf,
            betas=group["betas"],
            eps=group["eps"],
            decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
        )


class FusedAdamW(FusedAdam, AdamW):
    """AdamW by one kernel for all tensors of a group; torch's step for groups it does not take."""
