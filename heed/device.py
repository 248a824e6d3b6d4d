"""Choice of the device and of the precision of the forward pass; memory, and a lack of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch

from heed.errors import ConfigError

CPU_MEMORY_ERRORS = (
    "DefaultCPUAllocator",
    "could not create a primitive",
    "can't start new thread",
    "Cannot allocate memory",
)
"""What torch's allocator, oneDNN, Python and safetensors say where a CPU's memory ran out."""


def choose_device(name: str) -> torch.device:
    """The torch device of this name; `auto` is a GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError([f"There is no device {name!r}: use auto, cpu or cuda."])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(["device cuda is not available, torch sees no GPU here: use cpu."])
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError([f"There is no device {name!r}: GPUs are cuda:0 to cuda:{count - 1}."])
    return device


def total_memory() -> int | None:
    """Bytes of this machine's memory, or fewer where a limit is set; None where that is unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if limit == resource.RLIM_INFINITY else min(total, limit)


def peak_memory(device: torch.device) -> int | None:
    """Peak memory in bytes: of the GPU by torch, else of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere


def wants_bf16(precision: str, device: torch.device) -> bool:
    """Whether the forward pass is in bfloat16; `auto` is where the device is fast at it."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # A CPU without these instructions converts every operand to float32 and every result back.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory ran out. On a CPU, torch raises a plain RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in CPU_MEMORY_ERRORS)
