"""Kernels in Triton. Import nothing from here where there is no Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function for the GPU, or make it a part of another one that is."""
    return triton.jit(function)
