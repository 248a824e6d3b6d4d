"""The process that compiles a recipe's kernels ahead of time: `heed.train.precompile.start` starts
it.

It rehearses the recipe (`heed.train.precompile.dry_launch`). Whatever is launched, Triton asks a
hook before it
compiles. The hook forks, and answers that there is nothing to do. In the forked process it answers
otherwise: that one goes on, compiles its kernel into Triton's cache, under the very name that a
launch on the GPU will look for, and ends where the GPU would be needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from heed.config import Recipe
from heed.train.precompile.start import READY, for_writing

DIE_WITH_PARENT = 1
"""What Linux calls PR_SET_PDEATHSIG."""
NICE = 10
"""How far it stands back while a run learns."""
CAPABILITY = (75, 76)
"""What CUDA calls the two numbers of a GPU's compute capability."""


def main(parent: int, gpu: int) -> None:
    """Import what it takes, be told of a recipe, compile, and leave files that say so.

    First what training needs, which waits for an answer; then, out of its way, what writing needs.
    """
    die_with(parent)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever others print is no answer
    asked = _ask(gpu)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Torch would start threads for a GPU it sees.
    _without_compiler()
    from triton.runtime.cache import triton_key

    from heed.train.precompile.dry_launch import rehearse, rehearse_writing

    triton_key()  # Every kernel's name begins with it. Who is forked from now on knows it.
    capability, told = os.read(asked, 8).decode(), sys.stdin.read()
    os.wait()  # for the process that was asked, so that later only those that compile are left
    if capability and told:
        tables, forge = json.loads(told), CompileHook()
        recipe, stamp = Recipe.of(tables["recipe"]), Path(tables["stamp"])
        rehearse(recipe, int(capability), forge)
        forge.finish()
        stamp.touch()
        os.write(answer, READY)
        os.nice(NICE)
        rehearse_writing(recipe, int(capability), forge)
        forge.finish()
        for_writing(stamp).touch()


class CompileHook:
    """Has compiled what is launched, as many kernels at once as there are cores but one."""

    def __init__(self) -> None:
        self._own, self._running = os.getpid(), 0
        self._met: set[object] = set()
        self._most = max(1, len(os.sched_getaffinity(0)) - 1)
        if not self._forked():
            from triton.backends.nvidia.driver import CudaUtils

            _and_end(CudaUtils)

    def __call__(self, *, key: str, fn: Any, **rest: Any) -> bool:
        """Triton's hook: True tells it neither to compile nor to launch."""
        if os.getpid() != self._own:
            os._exit(1)  # The one kernel that this process is for could not be compiled.
        kernel = (fn.module, fn.name, key)
        if kernel in self._met:
            return True
        self._met.add(kernel)
        if self._forked():
            return True
        from triton.backends.nvidia.driver import CudaLauncher
        from triton.runtime.driver import driver

        driver.active.launcher_cls = partial(_and_end, CudaLauncher)
        return False

    def finish(self) -> None:
        """Wait until all is compiled."""
        if os.getpid() != self._own:
            os._exit(1)
        for _ in range(self._running):
            os.wait()
        self._running = 0

    def _forked(self) -> bool:
        """Fork when there is a core for it: True here, False in the new process."""
        if self._running >= self._most:
            os.wait()
            self._running -= 1
        if os.fork():
            self._running += 1
            return True
        die_with(self._own)
        return False


def _and_end(make: Callable[..., object], *told: object) -> NoReturn:
    """Make a piece of C that Triton needs to speak to a GPU, the last thing that is missing."""
    try:
        make(*told)
    finally:
        os._exit(0)


def die_with(parent: int) -> None:
    """End when the process that started this one does, whatever ends that."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _ask(gpu: int) -> int:
    """Ask CUDA for the GPU's compute capability, apart and meanwhile: where to read the answer."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, _capability(gpu).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return reading


def _capability(gpu: int) -> str:
    """90 for 9.0; nothing where there is no such GPU."""
    cuda, device, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), gpu):
        return ""
    digits = []
    for attribute in CAPABILITY:
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        digits.append(str(number.value))
    return "".join(digits)


def _without_compiler() -> None:
    """Torch's compiler takes seconds to import, only to be told to keep out of what follows."""
    import torch

    absent = ModuleType("torch._dynamo")
    vars(absent)["disable"] = lambda function, *rest, **named: function
    sys.modules[absent.__name__] = vars(torch)["_dynamo"] = absent


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
