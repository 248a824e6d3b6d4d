"""AdamW and Adam in one pass over memory: two launches for a parameter group, one call on a CPU.

torch's fused kernels are slower, and write divided gradients back. The state is torch's: a
checkpoint of one loads into the other.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from heed.nn.kernels import adamw_cpu
from heed.nn.kernels.availability import on_gpu

CACHED_TABLES = 64
"""Most tables of addresses that eager steps keep. Allocators repeat addresses, so few differ."""
RESERVED_TABLES = 256
"""Tables per parameter group for which captured steps have host memory: one per batch shape."""
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


class AddressTables:
    """Tables of tensors' addresses on the device, by which one launch reaches many tensors.

    Gradients are allocated anew at each step, so that addresses change.

    An eager step looks for a table with its addresses, and else makes one. Its host memory is not
    written again: the copy to the device may not have run yet. torch frees pinned memory only
    after the copies that read it.

    A captured step copies its table again at every replay, from the same host memory to the same
    device memory. Both live as long as the optimizer, and belong to that step alone: a table of an
    eager step could be dropped, and one of another graph is not filled until that graph runs.
    """

    def __init__(self) -> None:
        self._eager: OrderedDict[object, Tensor] = OrderedDict()
        self._plans: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[tuple[Tensor, Tensor]] = []
        self._reserve: list[Tensor] = []

    def reserve(self, groups: Sequence[dict[str, Any]], rows: int) -> None:
        """Allocate host memory for captured steps, which should allocate none.

        Pinning memory is among the calls that may end a capture.
        """
        like = next(parameter for group in groups for parameter in group["params"])
        if self._reserve or self._captured or not _is_real_gpu(like) or _is_capturing(like):
            return
        columns = max(len(group["params"]) for group in groups)
        size = RESERVED_TABLES * len(groups), rows * columns
        self._reserve = list(torch.empty(size, dtype=torch.int64, pin_memory=True))

    def find(self, rows: Sequence[Sequence[Tensor]]) -> Tensor:
        """The table [rows, n] of the addresses of n tensors per row."""
        like = rows[0][0]
        addresses = [tensor.data_ptr() for row in rows for tensor in row]
        if _is_capturing(like):
            host = self._fill_reserved(addresses, like)
            return self._upload_captured(host, like).view(len(rows), -1)
        # Memory that one stream frees may be in use on another: each has its own tables.
        stream = torch.cuda.current_stream(like.device).cuda_stream if _is_real_gpu(like) else 0
        key = stream, *addresses
        table = self._eager.get(key)
        if table is None:
            host = _pin(torch.tensor(addresses, dtype=torch.int64), like)
            self._eager[key] = table = host.to(like.device, non_blocking=True)
            if len(self._eager) > CACHED_TABLES:
                self._eager.popitem(last=False)
        else:
            self._eager.move_to_end(key)
        return table.view(len(rows), -1)

    def find_plan(self, params: Sequence[Tensor], make: Callable[[list[int]], Tensor]) -> Tensor:
        """What `make` returns for the sizes of these parameters, on their device."""
        sizes = [parameter.numel() for parameter in params]
        key = tuple(sizes)
        if key not in self._plans:
            plan = _pin(make(sizes), params[0])
            if _is_capturing(params[0]):  # Filled at replays alone: of no use to other steps.
                return self._upload_captured(plan, params[0])
            self._plans[key] = plan.to(params[0].device)
        return self._plans[key]

    def _fill_reserved(self, addresses: list[int], like: Tensor) -> Tensor:
        values = torch.tensor(addresses, dtype=torch.int64)
        if not self._reserve or len(self._reserve[-1]) < len(values):
            return _pin(values, like)
        return self._reserve.pop()[: len(values)].copy_(values)

    def _upload_captured(self, host: Tensor, like: Tensor) -> Tensor:
        table = host.to(like.device, non_blocking=True)
        self._captured.append((host, table))
        return table


def _is_real_gpu(tensor: Tensor) -> bool:
    """False without a GPU, as in ahead-of-time compilation: its tensors have no memory."""
    return tensor.device.type == "cuda" and not tensor.is_meta


def _is_capturing(tensor: Tensor) -> bool:
    """Whether work on this tensor's device is captured by a CUDA graph, not done."""
    return _is_real_gpu(tensor) and torch.cuda.is_current_stream_capturing()


def _pin(host: Tensor, like: Tensor) -> Tensor:
    """Host memory that a GPU copies from by itself."""
    return host.pin_memory() if _is_real_gpu(like) else host


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
            self._tables.reserve(self.param_groups, adamw.ROWS)
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
