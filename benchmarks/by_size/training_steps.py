"""Time and memory of a training step by length, width, depth and vocabulary.

The step is that of `heed train`: forward, loss, backward, clipping and AdamW in the precision and
the execution that a run would choose, so captured as a CUDA graph on a GPU. Tokens are random and
none is padding. One size varies at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from process_monitor import read_memory

from by_size.communication import GRADIENT_BYTES
from by_size.record import Point
from by_size.turns import Job
from heed.bench.standard_shapes import GPT2, SETS, Setting, build_trainee
from heed.bench.timing import Work
from heed.device import is_out_of_memory, wants_bf16

POSITIONS = ("rope", "none", "alibi", "t5", "shaw", "sinusoidal", "learned")
"""In the order in which they are measured."""
HEAD_WIDTH = 64


def powers(first: int, last: int) -> tuple[int, ...]:
    """`first`, doubled until `last`."""
    return (first, *powers(2 * first, last)) if first <= last else ()


@dataclass(frozen=True)
class Grid:
    """The base shape of a device, and the first and the last size that replace one of its numbers.

    A step by length has as many tokens as the longest sequence.
    """

    base: Setting
    lengths: tuple[int, int]
    widths: tuple[int, int]
    depths: tuple[int, int]
    vocabularies: tuple[int, int]
    positions: tuple[str, ...] = POSITIONS


SMALL = Setting("base", "generate", 2, 2, 128, 1000, 16, 128)
LARGE = Setting("base", "generate", 6, 8, 512, 8000, 64, 256)
CPU = Grid(SMALL, (128, 4096), (64, 1024), (1, 32), (1000, 64_000))
CUDA = Grid(LARGE, (128, 32_768), (128, 4096), (1, 64), (1000, 256_000))
TINY = Grid(
    Setting("base", "generate", 1, 1, 64, 50, 2, 16),
    *((16, 64), (64, 256), (1, 4), (50, 200)),
    positions=("rope", "none"),
)
TRANSLATOR = replace(
    SETS[2], name="translator", vocab=4000, dropout=0.25, texts=128, length=32, position="rope"
)
"""A translator of the shape of `ted-en-fr/minute`: 30,000 pairs in batches of 8,192 tokens."""
SHARED = {"translator": TRANSLATOR, GPT2.name: GPT2}
"""Shapes whose batch several ranks share, on paper."""
RANKS = 8


def jobs_by_length(grid: Grid, position: str, device: torch.device) -> Iterator[Job]:
    """Steps of equally many tokens in sequences of each length."""
    for length in powers(*grid.lengths):
        texts = grid.lengths[1] // length
        setting = replace(grid.base, position=position, texts=texts, length=length)
        yield build_job(Point("length", position, length), setting, device)


def jobs_by_shape(grid: Grid, question: str, device: torch.device) -> Iterator[Job]:
    """Steps of models that differ in width, depth or vocabulary."""
    base = grid.base
    if question == "width":
        widths = powers(*grid.widths)
        settings = {w: replace(base, width=w, heads=w // HEAD_WIDTH) for w in widths}
    elif question == "depth":
        settings = {d: replace(base, layers=d) for d in powers(*grid.depths)}
    else:
        settings = {v: replace(base, vocab=v) for v in powers(*grid.vocabularies)}
    for size, setting in settings.items():
        yield build_job(Point(question, base.position, size), setting, device)


def jobs_by_share(device: torch.device) -> Iterator[Job]:
    """Steps on a whole batch and on one rank's share of it, for the computed scaling.

    One rank captures its steps, several launch them eagerly, as heed does.
    """
    for name, setting in SHARED.items():
        for execution, ranks in (("graphs", 1), ("eager", 1), ("eager", RANKS)):
            part = replace(setting, texts=setting.texts // ranks)
            point = Point("share", f"{name}, {execution}", ranks)
            yield build_job(point, part, device, execution=execution)


def build_job(
    point: Point, setting: Setting, device: torch.device, *, execution: str = "auto"
) -> Job:
    """The job that times a setting's step."""
    info = {
        "layers": setting.layers,
        "width": setting.width,
        "heads": setting.heads,
        "vocabulary": setting.vocab,
        "sequences": setting.texts,
        "length": setting.length,
        "position": setting.position,
    }
    if point.question == "share":
        info["gradient_bytes"] = GRADIENT_BYTES * count_parameters(setting)
    peak = None if device.type == "cuda" else partial(peak_of_step, setting)
    build = partial(build_step, setting, device, execution)
    return Job(point, build, setting.tokens, info, peak)


def build_step(setting: Setting, device: torch.device, execution: str = "auto") -> Work:
    """A training step on one batch that is already on the device."""
    recipe = setting.recipe([f"train.execution={execution}"])
    bf16 = wants_bf16(recipe.train.precision, device)
    batch = setting.batch(device)
    update = build_trainee(setting, recipe, batch, device=device, bf16=bf16).update
    return lambda: update([batch])


def count_parameters(setting: Setting) -> int:
    """The model's parameters."""
    with torch.device("meta"):
        model = setting.model(setting.recipe(), torch.device("meta"))
    return sum(parameter.numel() for parameter in model.parameters())


# ------------------------------------------------------------------------------- memory on a CPU

STATUS = Path("/proc/self/status")


def peak_of_step(setting: Setting) -> int:
    """Peak resident bytes that a model and two of its steps add, in a process of their own.

    The server of the forks has imported all and computed nothing, so each child starts alike.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["by_size.training_steps"])
    threads = torch.get_num_threads()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        added = pool.submit(_added_memory, setting, threads).result()
    if added is None:
        raise MemoryError("the step does not fit into memory")
    return added


def _added_memory(setting: Setting, threads: int) -> int | None:
    """Peak memory over that of a process that has taken one tiny step; None: out of memory."""
    torch.set_num_threads(threads)
    _limit_memory()
    device = torch.device("cpu")
    build_step(replace(setting, layers=1, width=64, heads=1, vocab=50, texts=1, length=8), device)()
    before = read_memory(STATUS)["VmRSS"]
    try:
        run = build_step(setting, device)
        run()
        run()
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return None
        raise
    return read_memory(STATUS)["VmHWM"] - before


def _limit_memory() -> None:
    """Let allocations fail before Linux ends a process."""
    import resource

    limit = int(0.9 * read_memory(Path("/proc/meminfo"))["MemAvailable"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
