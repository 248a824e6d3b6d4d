"""Distributed training: `torchrun --nproc-per-node 2 -m heed train RECIPE`.

Beside gradients, ranks exchange a few numbers: scores, sums, whether to stop. These go between
hosts by gloo even where gradients go between GPUs by NCCL, so no host waits in a GPU's queue for a
rank that is gone. How batches and models are divided is in
`heed.train.distributed.sharding`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

from heed.errors import ConfigError, HeedError, RunError, StoppedError, first_line
from heed.train.distributed.torchrun import REPORT_SECONDS, is_torchrun

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Made = TypeVar("Made")
TIMEOUT = timedelta(hours=1)
"""How long a rank waits for another that is alive but silent: it may be training a tokenizer.
A rank that is gone is noticed at once."""
ALIVE_SECONDS = 1.0
"""Seconds in which a rank that is alive reports so, once another was lost."""


@dataclass(eq=False)
class World:
    """The ranks that train together, and which of them this process is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank within its machine, which is the index of its GPU."""
    store: Store | None = None
    """torchrun's key-value store, which outlives a rank."""
    folder: str | None = None
    """The run folder, for the message on how to resume."""

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one rank."""
        return self.size > 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and to the console."""
        return self.rank == 0

    @property
    def command(self) -> str:
        """The command that heed was called with."""
        return "torchrun … -m heed" if self.is_distributed else "heed"

    def init_process_group(self, device: torch.device) -> torch.device:
        """Initialize torch.distributed; returns the device of this rank."""
        if not self.is_distributed:
            return device
        backend = "gloo"
        if device.type == "cuda":
            backend, device = "cpu:gloo,cuda:nccl", self._own_gpu()
        before = set_sigterm(signal.SIG_DFL)  # a rank that waits here for a dead one ends
        dist.init_process_group(
            backend, store=self.store, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )
        set_sigterm(before)
        _groups.append(dist.group.WORLD)
        return device

    def _own_gpu(self) -> torch.device:
        gpus = torch.cuda.device_count()
        if self.local_rank >= gpus:
            raise ConfigError(
                [
                    f"Rank {self.rank} is number {self.local_rank + 1} on its machine, which has "
                    f"{gpus} GPUs: start as many ranks as there are GPUs, or use --device cpu."
                ]
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def console(self, console: Console) -> Console:
        """The console on rank 0, a silent one on other ranks."""
        return console if self.is_first else Console(quiet=True, force_terminal=False)

    # ------------------------------------------------------------------------ collective calls

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.all_reduce(torch.zeros(1))

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a CPU tensor over ranks, in place."""
        if self.is_distributed:
            dist.all_reduce(values)
        return values

    def any(self, value: bool) -> bool:
        """Whether the value is true on any rank."""
        return bool(self.all_reduce(torch.tensor([float(value)])))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The CPU tensors of all ranks, which have one shape."""
        if not self.is_distributed:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor)
        return tensors

    def broadcast(self, make: Callable[[], Made]) -> Made:
        """Call a function on rank 0 and send its result, which must be JSON, to all ranks."""
        if not self.is_distributed:
            return make()
        content = json.dumps(make()).encode() if self.is_first else b""
        length = self.all_reduce(torch.tensor([len(content)]))
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        buffer = torch.empty(int(length), dtype=torch.uint8) if sent is None else sent
        dist.broadcast(buffer, 0)
        result: Made = json.loads(bytes(buffer.tolist()))
        return result

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """Rank 0 runs the body first; then the others run it, and find the files it wrote."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    # --------------------------------------------------------------------------- randomness

    def reseed(self, seed: int, step: int) -> None:
        """Seed every rank but the first differently; rank 0 draws as a single process does."""
        if not self.is_first:
            mixed = np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))

    def generators(self, device: torch.device) -> dict[str, Tensor]:
        """The states of all ranks' random generators, by name."""
        local_states = {"random.cpu": torch.get_rng_state()}
        if device.type == "cuda":
            local_states["random.cuda"] = torch.cuda.get_rng_state(device)
        return {
            _of_rank(name, rank): state
            for name, local in local_states.items()
            for rank, state in enumerate(self.all_gather(local))
        }

    def restore_generators(self, saved: dict[str, Tensor], device: torch.device) -> None:
        """Restore this rank's generators, if they were saved."""
        cpu, cuda = (_of_rank(name, self.rank) for name in ("random.cpu", "random.cuda"))
        if cpu in saved:
            torch.set_rng_state(saved[cpu])
        if cuda in saved and device.type == "cuda":
            torch.cuda.set_rng_state(saved[cuda], device)


SINGLE = World()


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


# -------------------------------------------------------- one error message for all ranks


_group_numbers = count()
"""Each process group of a process has its own prefix in the store."""
_groups: list[object] = []
"""Process groups. To free one, Python waits for gloo's threads, one of which may wait for Python.
So groups are kept until the process ends, with `exit_process`."""


def exit_process(code: int) -> None:
    """End the process here if it ever had a process group; else return.

    A normal exit would free groups whose threads may be running, and abort.
    """
    if _groups:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def process_group() -> Iterator[World]:
    """The ranks that torchrun started; a single rank without torchrun.

    On an error one rank reports it and the others end silently.
    """
    if not is_torchrun():
        yield World()
        return
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    store = PrefixStore(f"heed/{next(_group_numbers)}", store)
    world = World(rank, size, int(os.environ.get("LOCAL_RANK", "0")), store)
    before = set_sigterm(_raise_on_sigterm)
    try:
        yield world
        world.barrier()
    except BaseException as error:
        set_sigterm(signal.SIG_IGN)  # what is left is short, and must be done
        if isinstance(error, StoppedError):  # all ranks stopped, at the same step
            dist.destroy_process_group()
        raise _final_error(world, error) from error
    set_sigterm(before)
    dist.destroy_process_group()


def set_sigterm(action: Any) -> Any:
    """Set the handler of SIGTERM on the main thread; returns the previous one."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(signal.SIGTERM, action)
    return None


class _SigtermError(HeedError):
    """SIGTERM, which torchrun sends to all ranks when one is gone."""


def _raise_on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    raise _SigtermError("stopped from outside (SIGTERM).", todo="Resume the run when you can.")


def _final_error(world: World, error: BaseException) -> BaseException:
    """The exception that this rank ends with: the error, or a silent exit if another reports it."""
    if isinstance(error, StoppedError | KeyboardInterrupt | SystemExit):
        return error if world.is_first else SystemExit(130)
    lost = isinstance(error, _SigtermError) or _is_connection_error(error)
    if lost:
        _set_flag(world, f"alive/{world.rank}")
    if not _reports_error(world):
        set_sigterm(signal.SIG_DFL)
        time.sleep(REPORT_SECONDS)
        return SystemExit(2)
    return _lost_rank_error(world, error) if lost else error


def _is_connection_error(error: BaseException) -> bool:
    """Whether an error means that another rank is gone. Gloo's are known by their text alone."""
    words = ("gloo", "NCCL", "Connection")
    named = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return named or isinstance(error, dist.DistError)


def _lost_rank_error(world: World, error: BaseException) -> HeedError:
    silent = [str(rank) for rank in range(world.size) if rank != world.rank]
    until = time.monotonic() + ALIVE_SECONDS
    while silent and time.monotonic() < until:
        silent = [rank for rank in silent if not _has_flag(world, f"alive/{rank}")]
        time.sleep(0.05)
    if not silent and isinstance(error, HeedError):
        return error
    if silent:
        ranks = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(silent)}"
        what = f"{ranks} stopped, and the others cannot continue alone."
    else:
        what = f"the ranks lost their connection: {first_line(error)}"
    todo = (
        f"Continue with: {world.command} resume {world.folder}" if world.folder else "Start again."
    )
    return RunError(what, todo=todo)


def _reports_error(world: World) -> bool:
    """Whether this rank is the first to report an error."""
    try:
        return world.store is None or world.store.add("ends", 1) == 1
    except RuntimeError:  # the store is gone with rank 0: rank 1 reports
        return world.rank == 1


def _set_flag(world: World, flag: str) -> None:
    if world.store is not None:
        try:
            world.store.set(flag, "")
        except RuntimeError:
            return


def _has_flag(world: World, flag: str) -> bool:
    try:
        return world.store is None or world.store.check([flag])
    except RuntimeError:
        return False
