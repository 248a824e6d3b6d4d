"""Kernels in Triton. Import nothing from here where there is no Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

COUNTS = (
    *("r", "n", "size", "own_size", "ahead", "reach", "offsets"),
    *("batch", "blocks", "tiles", "many", "parts"),
    *("heads", "first_heads", "second_heads", "places_b", "plan_b", "visible_b", "visible_n"),
)
"""What kernels call numbers that say no more than where something ends, or how often it is there.
Triton compiles anew for a number that is 1 or a multiple of 16; that pays for steps in memory."""
ANYWHERE = ("scales",)
"""Tensors that may begin anywhere: read one number at a time, they need no address that is round,
for which Triton compiles anew, too."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for the GPU, or make it a part of another one that is.

    All that it uses is to be defined before it.
    """
    made = triton.jit(function, do_not_specialize=COUNTS, do_not_specialize_on_alignment=ANYWHERE)
    if hasattr(made, "cache_key"):
        # What Triton calls a kernel on disk depends on which of its parts were asked for their own
        # names before (3.6). Asked at once, and again when all of them were, it is always the same.
        _ = made.cache_key
        made.hash = None
        _ = made.cache_key
    return made
