"""Questions about the machine that only kernels ask: device, compiler, captured graph."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

HAS_TRITON = find_spec("triton") is not None


def on_gpu_device(device: torch.device) -> bool:
    """Whether Triton kernels run on this device."""
    return HAS_TRITON and device.type == "cuda"


def on_gpu(x: Tensor) -> bool:
    """Whether a Triton kernel can read this tensor."""
    return on_gpu_device(x.device)


def on_cpu(x: Tensor) -> bool:
    """Whether a kernel in C can read this tensor: fake tensors, a subclass, have no memory."""
    return type(x) in (Tensor, nn.Parameter) and x.is_cpu


def may_compute_in_c(x: Tensor) -> bool:
    """Whether a kernel in C may compute with this tensor.

    A compiler sees torch's operations alone, and so does a dispatch mode, such as one that counts
    operations.
    """
    return not torch.compiler.is_compiling() and on_cpu(x) and not is_in_torch_dispatch_mode()


def trains_on_cpu(x: Tensor) -> bool:
    """Whether a kernel in C may compute with this tensor, and gradients may be needed."""
    return torch.is_grad_enabled() and may_compute_in_c(x)


def read_maximum(x: Tensor, *, training: bool) -> int | None:
    """The largest number of a tensor; None where the host must not or need not read it.

    Reading waits for the GPU. Training does not wait: its batches are checked when they are made.
    A compiler and a graph capture cannot wait. On a CPU, indexing itself checks its bounds.
    """
    if training or torch.compiler.is_compiling() or x.device.type == "cpu" or x.numel() == 0:
        return None
    return None if torch.cuda.is_current_stream_capturing() else int(x.max())
