"""Settings for all tests: one thread, which is fastest for tiny models, and a repeatable search."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile(
    "heed", deadline=None, derandomize=True, database=None, max_examples=25, print_blob=False
)
settings.load_profile("heed")
