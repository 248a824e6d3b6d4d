"""Start, await and stop the process that compiles a recipe's Triton kernels ahead of time.

Triton compiles a kernel when it is first launched on a machine, which takes a second or two; after
that it is cached on disk. A first run would compile dozens, one after another. Threads do not help:
most of Triton is Python. So a second process finds out which kernels a recipe launches, while
training reads its data, and compiles each kernel in a process forked for it
(`heed.train.precompile.worker`). None of these processes uses the GPU. A kernel that fails to
compile there fails again in training, which reports the error. Training waits for the kernels it
launches itself; those of decoding are compiled during training.

This module imports nothing slow. The compile process must import torch itself, so a command starts
it before anything else, if this machine has compiled nothing yet.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from heed.child_process import child_environment
from heed.config import Recipe
from heed.plugins import used_plugins

if TYPE_CHECKING:
    import torch

GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Files that exist on Linux where there is an NVIDIA GPU; the second is WSL's."""
MAX_WAIT_SECONDS = 60.0
"""After this time training no longer waits, and compiles its kernels itself."""
PACKAGE = Path(__file__).parents[2]
SOURCES = (
    *("nn", "models", "decode", "pipelines"),
    *("train/objective.py", "train/clipping.py", "train/validate.py"),
    *("train/optimizers", "train/precompile"),
)
"""Modules of heed that decide which kernels are launched."""
KERNEL_OPTIMIZERS = ("adamw", "adam", "muon")
"""Optimizers with Triton kernels."""
TRAINING_READY = b"ready\n"
"""Line the compile process prints when all kernels of training are compiled."""


class CompileProcess:
    """A process that compiles the kernels of one recipe."""

    def __init__(self, device: str) -> None:
        """Start the process. It imports torch and Triton, then waits for a recipe."""
        self.stamp: Path | None = None
        """File that marks the kernels of training as compiled; `decoding_stamp` marks those of
        decoding. None until a recipe is sent."""
        # The process forks, which is safe only while a library has started no threads.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        gpu = device.partition(":")[2] or "0"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "heed.train.precompile.worker", str(os.getpid()), gpu],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("HEED_DEBUG") else subprocess.DEVNULL,
            env=child_environment(**threads),
            start_new_session=True,  # Ctrl-C must reach training alone, which then stops this one.
        )
        self._stdout = cast("IO[bytes]", self._process.stdout)
        atexit.register(self.stop)

    def send_recipe(self, recipe: Recipe, stamp: Path) -> None:
        """Name the recipe to compile for, and the stamp file to create."""
        self.stamp = stamp
        plugins = [str(plugin.path) for plugin in used_plugins(recipe.model)]
        job = {"recipe": recipe.tables(), "stamp": str(stamp), "plugins": plugins}
        self._write_stdin(json.dumps(job))

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait until the kernels of training are compiled, the process ends or time is up."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            ready = selector.select(MAX_WAIT_SECONDS)
            if not ready or self._stdout.readline() != TRAINING_READY:
                self.stop()

    def stop(self) -> None:
        """Kill the process and all processes it forked."""
        atexit.unregister(self.stop)
        self._write_stdin("")
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stdout.close()

    def _write_stdin(self, text: str) -> None:
        pipe = self._process.stdin
        with suppress(OSError):  # The process ends at once where it finds no GPU.
            if pipe is not None and not pipe.closed:
                with pipe:
                    pipe.write(text.encode())


_process: CompileProcess | None = None
"""The compile process, if running. Training waits for it once the data is read; it then compiles
decoding kernels until this process exits."""


def start_early(device: str, recipe: Recipe | None = None) -> None:
    """Start the compile process before training is prepared.

    Without a recipe it is started only on a machine that has compiled nothing yet: it then imports
    torch while the command does. With a recipe it compiles, unless that was done before.
    """
    global _process
    if recipe is not None:
        _start(recipe, device)
    elif _process is None and _is_useful(device):
        compiled_before = any(_triton_cache().glob(f"{_code_version()}-*"))
        _process = None if compiled_before else CompileProcess(device)


def _start(recipe: Recipe, device: str) -> None:
    """Compile the kernels of this recipe, unless that was done on this machine before."""
    global _process
    if _process is not None and _process.has_ended:
        stop_compiling()
    if not _is_useful(device) or recipe.model.family == "lstm":
        return
    stamp = stamp_path(recipe)
    if _process is not None and _process.stamp not in (None, stamp):
        stop_compiling()
    if stamp.exists() and decoding_stamp(stamp).exists():
        return
    _process = _process or CompileProcess(device)
    if _process.stamp is None:
        _process.send_recipe(recipe, stamp)


def decoding_stamp(stamp: Path) -> Path:
    """The stamp file that marks a recipe's kernels of decoding as compiled."""
    return stamp.with_name(f"{stamp.name}-decoding")


def stop_compiling() -> None:
    """Stop the compile process: its kernels are not needed, or a measurement must run alone."""
    global _process
    if _process is not None:
        _process.stop()
        _process = None


@contextmanager
def compiling_ahead(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Compile a recipe's kernels while the body prepares its data; on exit those are compiled."""
    _start(recipe, str(device))
    try:
        with ThreadPoolExecutor(1) as pool:
            warm_up = pool.submit(_warm_up_torch, device)
            yield
            warm_up.exception()
        if _process is not None and _process.stamp is None:  # This recipe needs no kernels.
            stop_compiling()
        elif _process is not None:
            stamp = stamp_path(recipe)
            if _process.stamp == stamp and not stamp.exists():
                _process.wait()
    except BaseException:
        stop_compiling()
        raise


def _warm_up_torch(device: torch.device) -> None:
    """Load what torch loads at first use, which takes seconds; run on a thread."""
    if device.type != "cuda" or not find_spec("triton"):
        return
    import torch

    weight = torch.zeros(64, 64, device=device, requires_grad=True)
    torch.optim.SGD([weight])  # The first optimizer imports torch's compiler.
    from triton.runtime.cache import triton_key

    triton_key()  # Triton hashes all its sources as its version.
    with torch.autocast(device.type, torch.bfloat16):
        (weight @ weight).sum().backward()  # cuBLAS, and autograd's threads


def _is_useful(device: str) -> bool:
    """Whether there are a GPU and Triton; of several ranks on a machine only the first compiles."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    has_gpu = any(Path(name).exists() for name in GPU_DEVICE_FILES)
    return has_gpu and first and device.startswith(("auto", "cuda")) and bool(find_spec("triton"))


def stamp_path(recipe: Recipe) -> Path:
    """The file that marks the kernels of recipes like this one as compiled.

    It lies in Triton's cache, so that it is deleted with the kernels.
    """
    train, data = recipe.train, recipe.data
    kernels_depend_on = [
        recipe.task,
        recipe.model.model_dump(),
        recipe.tokenizer.vocab_size,
        [data.max_length, data.pack],
        [train.precision, train.objective, train.label_smoothing],
        train.optimizer if train.optimizer in KERNEL_OPTIMIZERS else None,
        [train.fp8_output, train.rdrop],
        [recipe.init.freeze, recipe.init.lora, recipe.init.lora_targets],
        [train.evaluate_bleu, recipe.decode.model_dump()],
        [plugin.sha256 for plugin in used_plugins(recipe.model)],
    ]
    return _triton_cache() / f"{_code_version()}-{_hash(json.dumps(kernels_depend_on).encode())}"


@cache
def _code_version() -> str:
    """Hash of all that kernels depend on beside a recipe: heed, torch, Triton, Python, machine."""
    parts = [sys.version.encode(), platform.node().encode()]
    for name, file in (("torch", "version.py"), ("triton", "__init__.py")):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            parts.append(Path(spec.origin).with_name(file).read_bytes())
    for source in SOURCES:
        files = sorted((PACKAGE / source).rglob("*.py")) or [PACKAGE / source]
        parts += [file.read_bytes() for file in files]
    return f"heed-{_hash(b''.join(parts))}"


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _triton_cache() -> Path:
    """Triton's cache folder."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    home = os.environ.get("TRITON_HOME")
    return Path(folder) if folder else Path(home or Path.home()) / ".triton" / "cache"
