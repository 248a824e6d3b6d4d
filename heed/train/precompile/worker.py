"""The compile process: compiles a recipe's kernels (`heed.train.precompile.start` starts it).

It launches everything the recipe launches, on a fake GPU (`heed.train.precompile.dry_launch`).
Before Triton compiles a kernel it calls a hook. The hook forks. In the parent it answers that
nothing is to be compiled. In the child it answers otherwise: the child compiles this one kernel
into Triton's cache, under the key that a launch on the GPU looks up, and exits where the GPU would
be needed.
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
from heed.plugins import load_plugins
from heed.train.precompile.start import TRAINING_READY, decoding_stamp

PR_SET_PDEATHSIG = 1
NICE = 10
"""Priority of decoding kernels, which are compiled while training runs."""
COMPUTE_CAPABILITY_ATTRIBUTES = (75, 76)
"""CUDA's device attributes for the major and the minor compute capability."""


def main(parent: int, gpu: int) -> None:
    """Import torch and Triton, read a recipe from stdin, compile its kernels, write stamp files.

    Kernels of training come first, because training waits for them; those of decoding follow at
    low priority.
    """
    die_with_parent(parent)
    answer = os.dup(1)
    os.dup2(2, 1)  # The parent reads this pipe: what libraries print must not get into it.
    capability_pipe = _query_capability(gpu)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Torch would start threads for a GPU it sees.
    stub_dynamo()
    from triton.runtime.cache import triton_key

    from heed.train.precompile.dry_launch import launch_decoding, launch_training

    triton_key()  # Part of every kernel's key, cached here for all forked processes.
    capability, message = os.read(capability_pipe, 8).decode(), sys.stdin.read()
    os.wait()  # for the query's process: later waits are for compiling ones only
    if capability and message:
        job, hook = json.loads(message), CompileHook()
        load_plugins(job["plugins"])
        recipe, stamp = Recipe.of(job["recipe"]), Path(job["stamp"])
        launch_training(recipe, int(capability), hook)
        hook.finish()
        stamp.touch()
        os.write(answer, TRAINING_READY)
        os.nice(NICE)
        launch_decoding(recipe, int(capability), hook)
        hook.finish()
        decoding_stamp(stamp).touch()


class CompileHook:
    """Triton's hook before compilation: each kernel is compiled in a forked process.

    As many processes run at once as there are cores but one.
    """

    def __init__(self) -> None:
        self._pid, self._running = os.getpid(), 0
        self._seen: set[object] = set()
        self._max_running = max(1, len(os.sched_getaffinity(0)) - 1)
        if not self._fork():
            from triton.backends.nvidia.driver import CudaUtils

            _build_and_exit(CudaUtils)

    def __call__(self, *, key: str, fn: Any, **rest: Any) -> bool:
        """Return True to have Triton neither compile nor launch this kernel."""
        if os.getpid() != self._pid:
            os._exit(1)  # The one kernel this process was forked for failed to compile.
        kernel = (fn.module, fn.name, key)
        if kernel in self._seen:
            return True
        self._seen.add(kernel)
        if self._fork():
            return True
        from triton.backends.nvidia.driver import CudaLauncher
        from triton.runtime.driver import driver

        driver.active.launcher_cls = partial(_build_and_exit, CudaLauncher)
        return False

    def finish(self) -> None:
        """Wait until all kernels are compiled."""
        if os.getpid() != self._pid:
            os._exit(1)
        for _ in range(self._running):
            os.wait()
        self._running = 0

    def _fork(self) -> bool:
        """Fork once a core is free: True in this process, False in the new one."""
        if self._running >= self._max_running:
            os.wait()
            self._running -= 1
        if os.fork():
            self._running += 1
            return True
        die_with_parent(self._pid)
        return False


def _build_and_exit(build: Callable[..., object], *args: object) -> NoReturn:
    """Build a C extension that Triton needs for launches, the last part to cache, and exit."""
    try:
        build(*args)
    finally:
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _query_capability(gpu: int) -> int:
    """Query the GPU's compute capability in a forked process; returns the pipe to read it from.

    This process must not initialize CUDA, because it forks.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writing, _capability(gpu).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return reading


def _capability(gpu: int) -> str:
    """The compute capability, "90" for 9.0; empty where there is no such GPU."""
    cuda, device, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), gpu):
        return ""
    digits = []
    for attribute in COMPUTE_CAPABILITY_ATTRIBUTES:
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        digits.append(str(number.value))
    return "".join(digits)


def stub_dynamo() -> None:
    """Replace torch._dynamo, which takes seconds to import and is only used to keep out of things.

    Modules and optimizers ask it to disable itself; a step asks for graph breaks.
    """
    import torch

    stub = ModuleType("torch._dynamo")
    vars(stub)["disable"] = lambda function, *args, **kwargs: function
    vars(stub)["graph_break"] = lambda *args, **kwargs: None
    sys.modules[stub.__name__] = vars(torch)["_dynamo"] = stub


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
