"""Where tests of Triton kernels run: on a GPU, or without one in Triton's interpreter.

The interpreter is slow: it runs only with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os

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
