"""Tables of tensors' addresses on a GPU, by which one launch of a kernel reaches many tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CACHED_TABLES = 64
"""Most tables that eager steps keep. Allocators repeat addresses, so few differ."""
RESERVED_TABLES = 256
"""Captured steps for which there is memory: one per batch shape."""
ALIGNMENT = 2
"""Tables begin at multiples of so many numbers, 16 bytes: for another address Triton compiles the
kernels that read them anew."""


class AddressTables:
    """Tables of tensors' addresses on the device.

    Gradients are allocated anew at each step, so that addresses change.

    An eager step looks for a table with its addresses, and else makes one. Its host memory is not
    written again: the copy to the device may not have run yet. torch frees pinned memory only
    after the copies that read it.

    The addresses of a captured step never change. Its table is copied once, while the step is
    captured, on another stream: synchronize before the first replay. Its memory lives as long as
    these tables, and belongs to that step alone: a table of an eager step could be dropped, and
    memory of the capture's own is written by replays alone. Where none is reserved, every replay
    copies the table again.
    """

    def __init__(self) -> None:
        self._eager: OrderedDict[object, Tensor] = OrderedDict()
        self._plans: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[tuple[Tensor, Tensor]] = []
        self._reserve: list[tuple[Tensor, Tensor]] = []
        self._stream: torch.cuda.Stream | None = None

    def reserve(self, per_step: int, numbers: int, like: Tensor) -> None:
        """Allocate memory for the tables of captured steps, each of so many numbers.

        A capture should allocate none: pinning memory is among the calls that may end it.
        """
        if self._reserve or self._captured or not _is_real_gpu(like) or _is_capturing(like):
            return
        size = RESERVED_TABLES * per_step, -(-numbers // ALIGNMENT) * ALIGNMENT
        host = torch.empty(size, dtype=torch.int64, pin_memory=True)
        table = torch.empty(size, dtype=torch.int64, device=like.device)
        self._reserve = list(zip(host, table, strict=True))
        self._stream = torch.cuda.Stream(like.device)

    def find(self, rows: Sequence[Sequence[Tensor]]) -> Tensor:
        """The table [rows, n] of the addresses of n tensors per row."""
        like = rows[0][0]
        addresses = [tensor.data_ptr() for row in rows for tensor in row]
        if _is_capturing(like):
            return self._copy_captured(addresses, like).view(len(rows), -1)
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
                return self._copy_at_replays(plan, params[0])
            self._plans[key] = plan.to(params[0].device)
        return self._plans[key]

    def _copy_captured(self, addresses: list[int], like: Tensor) -> Tensor:
        values = torch.tensor(addresses, dtype=torch.int64)
        if not self._reserve or len(self._reserve[-1][0]) < len(values):
            return self._copy_at_replays(_pin(values, like), like)
        host, table = (part[: len(values)] for part in self._reserve.pop())
        host.copy_(values)
        with torch.cuda.stream(self._stream):
            table.copy_(host, non_blocking=True)
        self._captured.append((host, table))
        return table

    def _copy_at_replays(self, host: Tensor, like: Tensor) -> Tensor:
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
