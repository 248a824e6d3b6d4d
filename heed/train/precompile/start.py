"""Kernels made before they are needed.

A kernel of ours is compiled when it first runs on a machine, which takes a second or two; then it
is on disk. The first run on a fresh machine would wait for dozens, one after another. Threads do
not help, for Triton is Python for the most part. So, while the text is read, another process finds
out what a recipe launches and has each kernel compiled in a process of its own (`kindling`). None
of them touches the GPU, and what fails there fails again where it is needed, and is told there.
Training waits for what it launches itself; what a model writes with is compiled while it learns.

Nothing is imported here that takes long. The process has to import torch itself, so a command
starts it before anything else, if this machine has compiled nothing yet.
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

from heed.config import Recipe

if TYPE_CHECKING:
    import torch

GPUS = ("/dev/nvidiactl", "/dev/dxg")
"""Where Linux shows that there is one."""
LONGEST = 60.0
"""Seconds after which a run no longer waits, and compiles for itself."""
ROOT = Path(__file__).parents[1]
SOURCES = ("nn", "models", "decode", "score/dev.py", "score/objective.py", "train/rehearse.py")
"""What decides which kernels there are."""
READY = b"ready\n"
"""Said when all is compiled that training needs."""


class CompileProcess:
    """The process that compiles."""

    def __init__(self, device: str) -> None:
        """It begins with its imports, and waits to be told of a recipe."""
        self.stamp: Path | None = None
        """The file it will leave when all is compiled that training needs, and another when all is
        that the model writes with; None while it knows no recipe."""
        path = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # for it forks
        gpu = device.partition(":")[2] or "0"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "heed.train.precompile.worker", str(os.getpid()), gpu],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("HEED_DEBUG") else subprocess.DEVNULL,
            env={**os.environ, **one, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # Ctrl-C is for who reads the console
        )
        self._words = cast("IO[bytes]", self._process.stdout)
        atexit.register(self.stop)

    def light(self, recipe: Recipe, stamp: Path) -> None:
        """Tell it of the recipe."""
        self.stamp = stamp
        self._tell(json.dumps({"recipe": recipe.tables(), "stamp": str(stamp)}))

    @property
    def out(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Until all is compiled that training needs, or there is nothing to wait for."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._words, selectors.EVENT_READ)
            if not selector.select(LONGEST) or self._words.readline() != READY:
                self.stop()

    def stop(self) -> None:
        """End it, and all it has started."""
        atexit.unregister(self.stop)
        self._tell("")
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._words.close()

    def _tell(self, text: str) -> None:
        pipe = self._process.stdin
        with suppress(OSError):  # It may have ended: it saw no GPU.
            if pipe is not None and not pipe.closed:
                with pipe:
                    pipe.write(text.encode())


_fire: CompileProcess | None = None
"""The one that burns, if any: until its recipe's text is read training waits for it, and then it
goes on by itself, to the end of this process at most."""


def lay(device: str) -> None:
    """Start the process before any recipe is known, on a machine that has compiled nothing yet."""
    global _fire
    if _fire is None and _useful(device) and not any(_folder().glob(f"{_edition()}-*")):
        _fire = CompileProcess(device)


def light(recipe: Recipe, device: str) -> None:
    """Have compiled what this recipe launches, unless that was done here before."""
    global _fire
    if not _useful(device) or recipe.model.family == "lstm":
        return
    stamp = _stamp(recipe)
    if _fire is not None and (_fire.out or _fire.stamp not in (None, stamp)):
        put_out()
    if stamp.exists() and for_writing(stamp).exists():
        return
    _fire = _fire or CompileProcess(device)
    if _fire.stamp is None:
        _fire.light(recipe, stamp)


def for_writing(stamp: Path) -> Path:
    """The stamp beside a recipe's own: that all is compiled that its model writes with."""
    return stamp.with_name(f"{stamp.name}-writing")


def put_out() -> None:
    """Stop compiling ahead: nothing more is needed, or what is timed shall be alone."""
    global _fire
    if _fire is not None:
        _fire.stop()
        _fire = None


@contextmanager
def kindled(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """What the batches of this recipe will need is compiled meanwhile, and is there after."""
    light(recipe, str(device))
    try:
        with ThreadPoolExecutor(1) as pool:
            waking = pool.submit(_wake, device)
            yield
            waking.exception()
        if _fire is not None and _fire.stamp is None:  # laid for what needs none
            put_out()
        elif _fire is not None and not _stamp(recipe).exists():
            _fire.wait()
    except BaseException:
        put_out()
        raise


def _wake(device: torch.device) -> None:
    """Have torch load, on a thread, what it loads when first asked: that, too, takes seconds."""
    if device.type != "cuda" or not find_spec("triton"):
        return
    import torch

    weight = torch.zeros(64, 64, device=device, requires_grad=True)
    torch.optim.SGD([weight])  # The first optimizer imports a compiler.
    from triton.runtime.cache import triton_key

    triton_key()  # Triton reads all of itself, to tell its versions apart.
    with torch.autocast(device.type, torch.bfloat16):
        (weight @ weight).sum().backward()  # matrix products, autograd's threads


def _useful(device: str) -> bool:
    """Whether there are a GPU and Triton; of several ranks on a machine, only the first kindles."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    there = any(Path(name).exists() for name in GPUS)
    return there and first and device.startswith(("auto", "cuda")) and bool(find_spec("triton"))


def _stamp(recipe: Recipe) -> Path:
    """The file that says that all was compiled for recipes like this one.

    It lies where Triton keeps what it compiled, and goes when that goes.
    """
    settings, data = recipe.train, recipe.data
    told = [
        recipe.task,
        recipe.model.model_dump(),
        recipe.tokenizer.vocab_size,
        [data.max_length, data.pack],
        [settings.precision, settings.objective, settings.label_smoothing],
        [settings.evaluate_bleu, recipe.decode.model_dump()],
    ]
    return _folder() / f"{_edition()}-{_name(json.dumps(told).encode())}"


@cache
def _edition() -> str:
    """What a recipe's kernels depend on beside it: this code, what compiles it, and where."""
    told = [sys.version.encode(), platform.node().encode()]
    for name, file in (("torch", "version.py"), ("triton", "__init__.py")):
        found = find_spec(name)
        if found is not None and found.origin is not None:
            told.append(Path(found.origin).with_name(file).read_bytes())
    for source in SOURCES:
        files = sorted((ROOT / source).rglob("*.py")) or [ROOT / source]
        told += [file.read_bytes() for file in files]
    return f"heed-{_name(b''.join(told))}"


def _name(told: bytes) -> str:
    return blake2b(told, digest_size=8).hexdigest()


def _folder() -> Path:
    """Where Triton keeps what it compiled."""
    named = os.environ.get("TRITON_CACHE_DIR")
    home = os.environ.get("TRITON_HOME")
    return Path(named) if named else Path(home or Path.home()) / ".triton" / "cache"
