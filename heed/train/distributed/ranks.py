"""Several processes train as one: `torchrun --nproc-per-node 2 -m heed train RECIPE`.

What ranks must agree on beside the gradients (scores, sums, whether to stop) is a few numbers that
travel between hosts by gloo, also where gradients travel between GPUs by NCCL: no host waits in a
GPU's queue for a rank that is gone. How batches and models are divided is in
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

from heed.errors import ConfigError, HeedError, RunError, StoppedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Made = TypeVar("Made")
TIMEOUT = timedelta(hours=1)
"""How long a rank waits for another that is there but says nothing: it may be learning a tokenizer.
One that is gone is noticed at once."""
HEARD = 1.0
"""Seconds in which a rank that is alive says so, once another was lost."""
SILENT = 10.0
"""Seconds that a rank leaves to another to tell what went wrong. torchrun ends it before."""


@dataclass(eq=False)
class World:
    """Who trains together, and which of them this process is. Alone, nothing here does anything."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Which of its machine's ranks this is, and so which GPU is its own."""
    store: Store | None = None
    """Words that outlive a rank: torchrun keeps them."""
    folder: str | None = None
    """Where the run is, for who has to resume it."""

    @property
    def several(self) -> bool:
        """Whether there is anyone else."""
        return self.size > 1

    @property
    def first(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0

    @property
    def command(self) -> str:
        """How heed was called."""
        return "torchrun … -m heed" if self.several else "heed"

    def join(self, device: torch.device) -> torch.device:
        """Meet the others; returns the device of this rank."""
        if not self.several:
            return device
        backend = "gloo"
        if device.type == "cuda":
            backend, device = "cpu:gloo,cuda:nccl", self._own_gpu()
        before = on_terminate(signal.SIG_DFL)  # whoever waits here for a rank that died just ends
        dist.init_process_group(
            backend, store=self.store, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )
        on_terminate(before)
        _kept.append(dist.group.WORLD)
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

    def voice(self, console: Console) -> Console:
        """The console where this rank is the one to speak, else one that shows nothing."""
        return console if self.first else Console(quiet=True, force_terminal=False)

    # -------------------------------------------------------- what all ranks must do together

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.total(torch.zeros(1))

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, of a tensor on the CPU, which is changed."""
        if self.several:
            dist.all_reduce(values)
        return values

    def any(self, asked: bool) -> bool:
        """Whether any rank was asked."""
        return bool(self.total(torch.tensor([float(asked)])))

    def gathered(self, own: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape, on the CPU."""
        if not self.several:
            return [own]
        room = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(room, own)
        return room

    def once(self, make: Callable[[], Made]) -> Made:
        """What the first rank makes, told to all: anything that JSON can say."""
        if not self.several:
            return make()
        said = json.dumps(make()).encode() if self.first else b""
        length = self.total(torch.tensor([len(said)]))
        room = torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else None
        told = torch.empty(int(length), dtype=torch.uint8) if room is None else room
        dist.broadcast(told, 0)
        made: Made = json.loads(bytes(told.tolist()))
        return made

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank goes ahead; the others follow, and find the files it left."""
        if not self.first:
            self.barrier()
        yield
        if self.first:
            self.barrier()

    # --------------------------------------------------------------------------- randomness

    def reseed(self, seed: int, step: int) -> None:
        """Draws of its own for every rank but the first, which draws as a lone process does."""
        if not self.first:
            mixed = np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))

    def generators(self, device: torch.device) -> dict[str, Tensor]:
        """Where the generators of all ranks stand, by name."""
        own = {"random.cpu": torch.get_rng_state()}
        if device.type == "cuda":
            own["random.cuda"] = torch.cuda.get_rng_state(device)
        return {
            _of_rank(name, rank): state
            for name, mine in own.items()
            for rank, state in enumerate(self.gathered(mine))
        }

    def restore_generators(self, saved: dict[str, Tensor], device: torch.device) -> None:
        """Draw on from there, where this rank's were saved."""
        cpu, cuda = (_of_rank(name, self.rank) for name in ("random.cpu", "random.cuda"))
        if cpu in saved:
            torch.set_rng_state(saved[cpu])
        if cuda in saved and device.type == "cuda":
            torch.cuda.set_rng_state(saved[cuda], device)


ALONE = World()


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


# ------------------------------------------------------------- one message, whatever goes wrong


_meetings = count()
"""Each time the ranks of a process meet, they leave their words under another name."""
_kept: list[object] = []
"""Groups that met. Python, to free one, waits for gloo's threads; one of those that just finished
waits for Python. So groups are kept until the process ends, which `leave` does."""


def leave(code: int) -> None:
    """End the process here if its ranks ever met; else return.

    An interpreter that takes itself apart frees groups whose threads may be at work, and aborts.
    """
    if _kept:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def among_several() -> bool:
    """Whether torchrun started others beside this process."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[World]:
    """This process among those that torchrun started; alone where it was started by itself.

    When it ends badly, one rank tells why and the others are silent.
    """
    if not among_several():
        yield World()
        return
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    store = PrefixStore(f"heed/{next(_meetings)}", store)
    world = World(rank, size, int(os.environ.get("LOCAL_RANK", "0")), store)
    before = on_terminate(_told_to_stop)
    try:
        yield world
        world.barrier()
    except BaseException as error:
        on_terminate(signal.SIG_IGN)  # what is left to do is short, and must be done
        if isinstance(error, StoppedError):  # all ranks stopped, at the same step
            dist.destroy_process_group()
        raise _verdict(world, error) from error
    on_terminate(before)
    dist.destroy_process_group()


@contextmanager
def one_voice() -> Iterator[None]:
    """Before ranks have met: an error that all run into alike is told by the first of them."""
    try:
        yield
    except HeedError:
        if among_several() and int(os.environ["RANK"]) > 0:
            time.sleep(SILENT)  # torchrun ends this rank as soon as the first one has told
        raise


def on_terminate(action: Any) -> Any:
    """Set what SIGTERM does, where that can be set; returns what it did."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(signal.SIGTERM, action)
    return None


class _ToldToStopError(HeedError):
    """SIGTERM: torchrun ends all ranks when one is gone."""


def _told_to_stop(number: int, frame: FrameType | None) -> NoReturn:
    raise _ToldToStopError("stopped from outside (SIGTERM).", todo="Resume the run when you can.")


def _verdict(world: World, error: BaseException) -> BaseException:
    """What this rank has to say of its end: the error, or nothing where another one tells."""
    if isinstance(error, StoppedError | KeyboardInterrupt | SystemExit):
        return error if world.first else SystemExit(130)
    lost = isinstance(error, _ToldToStopError) or _lost_touch(error)
    if lost:
        _tell(world, f"alive/{world.rank}")
    if not _speaks(world):
        on_terminate(signal.SIG_DFL)
        time.sleep(SILENT)
        return SystemExit(2)
    return _epitaph(world, error) if lost else error


def _lost_touch(error: BaseException) -> bool:
    """Whether this error is another rank's end. Gloo's are told by their words alone."""
    words = ("gloo", "NCCL", "Connection")
    named = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return named or isinstance(error, dist.DistError)


def _epitaph(world: World, error: BaseException) -> HeedError:
    silent = [str(rank) for rank in range(world.size) if rank != world.rank]
    until = time.monotonic() + HEARD
    while silent and time.monotonic() < until:
        silent = [rank for rank in silent if not _was_told(world, f"alive/{rank}")]
        time.sleep(0.05)
    if not silent and isinstance(error, HeedError):
        return error
    if silent:
        who = f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(silent)}"
        what = f"{who} stopped, and the others cannot go on alone."
    else:
        what = f"the ranks lost touch with each other: {str(error).splitlines()[0]}"
    todo = f"Go on with: {world.command} resume {world.folder}" if world.folder else "Start anew."
    return RunError(what, todo=todo)


def _speaks(world: World) -> bool:
    """Whether this rank is the first that has to tell of an end."""
    try:
        return world.store is None or world.store.add("ends", 1) == 1
    except RuntimeError:  # the words are gone with the first rank: the next one tells
        return world.rank == 1


def _tell(world: World, word: str) -> None:
    if world.store is not None:
        try:
            world.store.set(word, "")
        except RuntimeError:
            return


def _was_told(world: World, word: str) -> bool:
    try:
        return world.store is None or world.store.check([word])
    except RuntimeError:
        return False
