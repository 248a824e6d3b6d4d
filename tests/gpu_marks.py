"""Where tests of Triton kernels run: on a GPU, or without one in Triton's interpreter.

The interpreter is slow: it runs only with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from heed.nn.kernels.availability import HAS_TRITON

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(
    not (CUDA or INTERPRETED), reason="neither a CUDA device nor interpreted"
)
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def index_by_item() -> None:
    """Have Triton's interpreter take the bounds of a loop from arrays of one number.

    It calls `int` on an array with dimensions. Before 2.4 NumPy warns; since then it is an error.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched
