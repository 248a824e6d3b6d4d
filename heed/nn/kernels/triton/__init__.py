"""Triton sources of the kernels. Importing them needs Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

COUNTS = (
    *("r", "n", "size", "own_size", "ahead", "reach", "offsets"),
    *("batch", "blocks", "tiles", "many", "parts"),
    *(
        "heads",
        "first_heads",
        "second_heads",
        "positions_b",
        "plan_b",
        "visible_b",
        "visible_n",
    ),
)
"""Names of kernel parameters that are sizes or counts. Triton compiles a kernel anew for a number
that is 1 or a multiple of 16, which pays for strides but not for these."""
ANYWHERE = ("scales",)
"""Names of tensors that need no aligned address, because they are read one number at a time.
Triton would compile anew for an aligned one."""


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator: compile a function for the GPU, or for use in another kernel.

    Everything it uses must be defined before it.
    """
    jitted = triton.jit(function, do_not_specialize=COUNTS, do_not_specialize_on_alignment=ANYWHERE)
    if hasattr(jitted, "cache_key"):
        # In Triton 3.6 a kernel's cache key depends on which of the functions it calls computed
        # theirs before. Computed at once, and again after all of those, it is always the same.
        _ = jitted.cache_key
        jitted.hash = None
        _ = jitted.cache_key
    return jitted
