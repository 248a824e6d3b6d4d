"""Speed of a recipe on this machine: its text, its batches, and the step that training would take.

Steps on real batches are timed over whole epochs, so that every batch shape has its share. Steps on
the shape with most of the tokens, full and without padding, are timed too. The difference is the
cost of padding and of varied lengths.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from heed.api import Translator as Api
from heed.bench.standard_shapes import describe_execution
from heed.bench.startup import Startup
from heed.bench.throughput import (
    Pace,
    cells,
    fill_padding,
    fixed_pace,
    real_pace,
    warm_up,
)
from heed.bench.timing import matrix_peak, seconds, synchronize
from heed.config import Recipe
from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import EOS
from heed.device import choose_device, peak_memory
from heed.models import Translator
from heed.runs.run import Run
from heed.terminal import Say
from heed.train import precompile
from heed.train.build_loop import build_loop
from heed.train.loop import Loop
from heed.train.out_of_memory import oom_guard
from heed.train.prepare.init_from import resolve_init
from heed.train.prepare.setup import TrainingSetup, prepare, validate_recipe

FOREVER = 1 << 30
DECODED = {"cuda": 256, "cpu": 32}
"""Sentences translated to measure decoding, by device."""
METHODS = {"greedy": 1, "beam 4": 4}
"""Decoding methods, with their beam."""


@dataclass(frozen=True)
class RecipeFigures:
    """All figures of one recipe on this machine."""

    task: str
    device: str
    dtype: str
    parameters: int
    vocabulary: int
    peak_tflops: float
    """Speed of one large matrix product on this device in this dtype."""
    speed: str
    """How steps are executed, and why."""
    startup: dict[str, float]
    """Seconds from the start of the command to the end of its first step, by part."""
    shapes: int
    real: Pace
    share_of_peak: float
    """Share of the peak on real batches, padding included."""
    fixed_shape: dict[str, int | None]
    fixed: Pace
    fixed_share_of_peak: float
    real_over_fixed: float
    """Ratio of padded tokens per second."""
    memory: int | None
    """Peak bytes: of the GPU, else of the process."""
    decoding: dict[str, float]
    """Sentences per second, by method; an output is at most as long as its source."""


def measure(
    recipe: Recipe,
    *,
    device: str,
    updates: int | None = None,
    startup: Startup,
    say: Say,
) -> RecipeFigures:
    """Prepare a recipe as training does, in a temporary folder, and time it."""
    messages: list[str] = []

    def record(text: str) -> None:
        messages.append(text)
        say(text)

    with startup.part("device"):
        torch_device = choose_device(device)
        torch.zeros(1, device=torch_device)
    with tempfile.TemporaryDirectory() as folder, oom_guard(recipe, Run(Path(folder))):
        pretrained = None
        if recipe.init.from_model is not None:
            recipe, pretrained = resolve_init(recipe)
        with startup.part("read and check"):
            validate_recipe(recipe, pretrained)
        run = Run.create(Path(folder) / "bench", recipe)
        setup = prepare(
            recipe,
            run,
            device=torch_device,
            say=record,
            pretrained=pretrained,
            stage=startup.part,
        )
        precompile.stop_compiling()
        loop = build_loop(setup, run, say=record, stage=startup.part)
        speed = describe_execution(messages, recipe)
        return _measure_all(setup, loop, startup, speed, updates)


def _measure_all(
    setup: TrainingSetup,
    loop: Loop,
    startup: Startup,
    speed: str,
    updates: int | None,
) -> RecipeFigures:
    """Time everything, in an order in which nothing warms up what should be measured cold."""
    device, dtype = setup.device, torch.bfloat16 if setup.bf16 else torch.float32
    with closing(_endless_batches(loop)) as walk:
        with startup.part("first update"):
            loop.update(next(walk))
            synchronize(device)
        began = startup.finished()
        fullest = warm_up(loop, walk)
        real = real_pace(loop, walk, updates)
    memory = peak_memory(device)
    largest = max(fullest, key=lambda shape: cells(shape) * real.shapes[shape])
    fixed = fixed_pace(loop, fill_padding(fullest[largest], setup.tokenizer.vocab_size), updates)
    peak = matrix_peak(device, dtype)
    ours, best = real.pace(loop), fixed.pace(loop)
    return RecipeFigures(
        task=setup.recipe.task,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        parameters=sum(p.numel() for p in setup.model.parameters()),
        vocabulary=setup.tokenizer.vocab_size,
        peak_tflops=peak / 1e12,
        speed=speed,
        startup=began,
        shapes=len(setup.train.shapes()),
        real=ours,
        share_of_peak=ours.tflops * 1e12 / peak,
        fixed_shape=vars(largest),
        fixed=best,
        fixed_share_of_peak=best.tflops * 1e12 / peak,
        real_over_fixed=ours.padded_tokens_per_second / best.padded_tokens_per_second,
        memory=memory,
        decoding=_decoding_rates(setup),
    )


def _endless_batches(loop: Loop) -> Generator[list[Batch], None, None]:
    """The batches of one step after another, without end."""
    yield from loop.loader.iterate(0, FOREVER)


def _decoding_rates(setup: TrainingSetup) -> dict[str, float]:
    """Sentences of the dev set decoded per second, from text to text.

    A model after few steps rarely predicts the end, so an output is at most as long as its source.
    """
    if not isinstance(setup.model, Translator):
        return {}
    dev, ids = setup.sets["dev"], list[list[int]]()
    plan = dev.plan_in_order()
    for number in range(len(plan)):
        batch = dev.batch(plan, number)
        if batch.source is None or batch.source_mask is None:
            raise TypeError("a translator's batch has a source")
        rows = zip(batch.source, batch.source_mask, strict=True)
        ids += [[token for token in row[real].tolist() if token != EOS] for row, real in rows]
        if len(ids) >= DECODED[setup.device.type]:
            break
    texts = setup.tokenizer.decode_batch(ids[: DECODED[setup.device.type]])
    api, rates = Api(setup.model.eval(), setup.tokenizer, setup.recipe), {}
    for name, width in METHODS.items():
        translate = partial(
            api.translations, texts, beam=width, sample=False, max_ratio=1.0, max_extra=0
        )
        if setup.device.type == "cuda":
            translate()  # compiles the kernels, which is not timed
        rates[name] = len(texts) / seconds(translate, setup.device)
    return rates
