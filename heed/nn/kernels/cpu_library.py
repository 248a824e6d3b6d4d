"""Kernels in C for training on a CPU, in float32 (`c/`): fewer passes over memory than torch's.

They are written as plain loops, which the compiler turns into the vector instructions of this CPU.
Where there is no compiler, torch computes the same.
"""

from __future__ import annotations

import platform
import sys
from ctypes import CDLL
from functools import cache
from pathlib import Path

from heed.nn.kernels.c_library import CompilerError, load_library

FOLDER = Path(__file__).parent / "c"
FLAGS = (
    "-march=native",
    *(["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []),
    # torch's own library of threads is loaded already: the kernels share its threads.
    "-fopenmp",
    # As torch compiles its kernels: no errno, no traps. Infinities and NaN stay what they are.
    *("-fno-math-errno", "-fno-trapping-math"),
)


@cache
def cpu_library(name: str) -> CDLL | None:
    """The kernels of `c/<name>.c`; None where they cannot be compiled."""
    if sys.platform != "linux":
        return None
    try:
        return load_library(FOLDER / f"{name}.c", FLAGS)
    except (CompilerError, OSError):
        return None
