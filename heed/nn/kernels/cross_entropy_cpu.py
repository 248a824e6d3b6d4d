"""Cross-entropy of a chunk of logits on a CPU, row by row within the cache (`c/cross_entropy.c`).

Torch's steps for it (`chunk_cross_entropy` of `linear_cross_entropy.py`) each pass over the whole
chunk, and take five times as long. Logits are float32, or bfloat16 that a row's buffer holds in
float32 while it is computed.

Shapes: r rows of a chunk, v vocabulary, t threads.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, c_float, c_int32, c_int64, c_void_p
from functools import cache, partial

import torch
from torch import Tensor

from heed.nn.kernels.cpu_library import cpu_library

MIN_NUMBERS = 2**13
"""With fewer logits one thread is faster than several."""
DTYPES = (torch.float32, torch.bfloat16)


@cache
def load_kernel() -> Callable[..., Tensor] | None:
    """`chunk_cross_entropy` with its library; None where the library cannot be compiled."""
    library = cpu_library("cross_entropy")
    if library is None:
        return None
    function = library.chunk_cross_entropy
    pointers, sizes = [c_void_p] * 4, [c_int64] * 3
    function.argtypes = [c_void_p, c_int64, *pointers, *sizes, c_float, c_int32, c_int32]
    function.restype = c_int64
    return partial(chunk_cross_entropy, library)


def chunk_cross_entropy(
    library: CDLL,
    logits_rv: Tensor,
    targets_r: Tensor,
    losses_r: Tensor,
    correct_r: Tensor,
    ignore_index: int,
    smoothing: float,
    gradient: bool = True,
) -> Tensor:
    """Write each row's loss and whether its prediction is correct; return the logits' gradient.

    The gradient, if it is wanted, is computed in the place of the logits.
    """
    if targets_r.device.type != "cpu" or targets_r.shape != logits_rv.shape[:1]:
        described = f"{[*targets_r.shape]} on {targets_r.device}"
        raise ValueError(f"Targets {described} for {len(logits_rv)} rows of logits on the CPU.")
    (rows, v), targets_r = logits_rv.shape, targets_r.long().contiguous()
    threads = torch.get_num_threads() if logits_rv.numel() >= MIN_NUMBERS else 1
    is_narrow = logits_rv.dtype == torch.bfloat16
    buffer_tv = logits_rv.new_empty(threads, v, dtype=torch.float32) if is_narrow else None
    outside = library.chunk_cross_entropy(
        logits_rv.data_ptr(),
        logits_rv.stride(0),
        *(x.data_ptr() for x in (targets_r, losses_r, correct_r)),
        None if buffer_tv is None else buffer_tv.data_ptr(),
        *(rows, v, ignore_index),
        smoothing,
        gradient,
        threads,
    )
    if outside:
        raise IndexError(f"{outside} targets are not in the vocabulary, which has {v} tokens.")
    return logits_rv
