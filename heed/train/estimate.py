"""`heed train --dry-run`: parameters, memory and time, from a few real steps and evaluations."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from rich.console import Console

from heed.config import DecodeConfig, Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.packing import PackedBatches
from heed.decode.batch_plan import INPUTS_ON_CPU, INPUTS_ON_GPU
from heed.device import choose_device
from heed.errors import ConfigError
from heed.models import Model, Translator
from heed.models.build import describe_model
from heed.nn.lora import merge_adapters
from heed.runs.run import Run
from heed.terminal import Say, print_message
from heed.train import checkpoint, precompile
from heed.train.build_loop import build_loop
from heed.train.distributed.torchrun import is_torchrun, rank0_error_only
from heed.train.loop import Loop
from heed.train.optimizers.build import describe_rates
from heed.train.out_of_memory import oom_guard
from heed.train.prepare.init_from import resolve_init
from heed.train.prepare.setup import (
    TrainingSetup,
    prepare,
    validate_recipe,
)
from heed.train.progress import format_duration
from heed.train.run import describe_training, warn_of_long_warmup
from heed.train.validate import SentencePair, greedy_bleu, validate

TIMED_STEPS = 5
"""Steps that are timed, after one to warm up."""
TIMED_BATCHES = 8
"""Batches of each set whose evaluation is timed, after one to warm up; the rest takes as long."""

FinalEvaluation = Callable[[Run, DecodeConfig], float]
"""Seconds of what is evaluated after training, from a run that a few steps were trained in.

It decodes by the given settings, since a model that has learned nothing does not end a sentence."""


@dataclass(frozen=True)
class TrainingEstimate:
    """A recipe as it would be trained, and what a few real steps of it took."""

    recipe: Recipe
    """The recipe with the shape of the model that it starts from."""
    setup: TrainingSetup
    loop: Loop
    preparation: float
    """Seconds before the first step: text, tokenizer, model."""
    seconds_per_step: float
    seconds_per_evaluation: float
    """Seconds of one evaluation while training: the loss of every set, and BLEU if it is asked."""
    seconds_per_checkpoint: float
    final_evaluation: float = 0.0
    """Seconds of what is evaluated after training."""

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(p.numel() for p in self.setup.model.parameters())

    @property
    def evaluations(self) -> int:
        """Evaluations while training, and that of averaged weights; early stopping makes fewer."""
        averages = self.recipe.train.average_checkpoints > 1
        return -(-self.loop.steps // self.loop.evaluate_every) + averages

    @property
    def step_seconds(self) -> float:
        """Seconds of all steps and checkpoints."""
        checkpoints = -(-self.loop.steps // self.loop.checkpoint_every)
        return self.seconds_per_step * self.loop.steps + self.seconds_per_checkpoint * checkpoints

    @property
    def evaluation_seconds(self) -> float:
        """Seconds of all evaluations while training."""
        return self.seconds_per_evaluation * self.evaluations

    @property
    def seconds(self) -> float:
        """Seconds from the first line of text to the last score."""
        return (
            self.preparation + self.step_seconds + self.evaluation_seconds + self.final_evaluation
        )


@rank0_error_only()
def dry_run(
    recipe: Recipe,
    *,
    device: str,
    console: Console,
    final_evaluation: FinalEvaluation | None = None,
) -> Recipe:
    """Print parameters, memory and time, from a few steps in a temporary folder.

    `final_evaluation` measures what follows training. Returns the recipe with the shape of the
    model that it starts from.
    """
    if is_torchrun():
        raise ConfigError(["--dry-run estimates one process: call heed without torchrun."])

    def say(text: str) -> None:
        print_message(console, text)

    estimate = measure_recipe(recipe, device=device, say=say, final_evaluation=final_evaluation)
    recipe, setup, loop = estimate.recipe, estimate.setup, estimate.loop
    say(f"model       {describe_model(setup.model, recipe.task, recipe.model)}")
    say(f"rates       {describe_rates(loop.state.optimizer, recipe.train.lr)}")
    say(f"vocabulary  {setup.tokenizer.vocab_size:,}")
    counts = [f"{_count_texts(split)} in {name}" for name, split in setup.sets.items()]
    say(f"texts       {', '.join([f'{_count_texts(setup.train)} to learn from', *counts])}")
    say(f"memory      {_describe_memory(estimate.parameters, setup.device)}")
    say(f"steps       {loop.steps:,}, {loop.loader.steps_per_epoch:,} an epoch")
    say(f"time        about {_describe_time(estimate)}")
    return recipe


def measure_recipe(
    recipe: Recipe,
    *,
    device: str,
    say: Say,
    final_evaluation: FinalEvaluation | None = None,
) -> TrainingEstimate:
    """Prepare a recipe in a temporary folder, and time some of its steps and evaluations."""
    torch_device = choose_device(device)
    pretrained = None
    if recipe.init.from_model is not None:
        recipe, pretrained = resolve_init(recipe)
    validate_recipe(recipe, pretrained)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "dry", recipe)
        began = time.perf_counter()
        with oom_guard(recipe, run, preparing=True):
            setup = prepare(recipe, run, device=torch_device, say=say, pretrained=pretrained)
        precompile.stop_compiling()
        preparation = time.perf_counter() - began
        with oom_guard(recipe, run):
            loop = build_loop(setup, run, say=say)
            warn_of_long_warmup(loop)
            steps = [
                _time(partial(loop.update, batches), torch_device)
                for batches in loop.loader.iterate(0, min(TIMED_STEPS + 1, loop.steps))
            ]
            evaluation = _time_evaluation(loop)
            saving = _time(loop.recorder.save, torch_device)
        final = 0.0
        if final_evaluation is not None:
            _finish_run(run, loop)
            final = final_evaluation(run, _limit_output(setup))
    timed = sorted(steps[1:] or steps)
    return TrainingEstimate(
        recipe, setup, loop, preparation, timed[len(timed) // 2], evaluation, saving, final
    )


def count_timed_texts(device: torch.device) -> int:
    """Texts of a set whose decoding or scoring is timed: as many as the search decodes at once."""
    return INPUTS_ON_GPU if device.type == "cuda" else INPUTS_ON_CPU


def _time(function: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes, with all that it leaves to a GPU."""
    began = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _time_evaluation(loop: Loop) -> float:
    """Seconds of one evaluation while training, from a part of every set."""
    setup = loop.setup
    with loop.state.evaluation_model() as model:
        losses = [_time_loss(loop, cast(Model, model), one) for one in setup.sets.values()]
        bleu = [_time_bleu(setup, cast(Translator, model), one) for one in setup.pairs.values()]
    return sum(losses) + sum(bleu)


def _time_loss(loop: Loop, model: Model, batches: BucketedBatches) -> float:
    """Seconds of the loss of a set, from its first batches."""
    setup, count = loop.setup, len(batches.plan_in_order())
    if loop.settings.evaluate_batches is not None:
        count = min(count, loop.settings.evaluate_batches)

    def evaluate(number: int) -> None:
        validate(model, batches, device=setup.device, bf16=setup.bf16, max_batches=number)

    evaluate(1)
    timed = min(TIMED_BATCHES, count)
    return _time(partial(evaluate, timed), setup.device) * count / max(1, timed)


def _time_bleu(setup: TrainingSetup, model: Translator, pairs: list[SentencePair]) -> float:
    """Seconds of the greedy BLEU of a set, from some of its sentences, evenly chosen."""
    some = pairs[:: max(1, len(pairs) // count_timed_texts(setup.device))]
    if not some:
        return 0.0
    decode, max_length = _limit_output(setup), setup.recipe.data.max_length

    def translate() -> None:
        greedy_bleu(model, setup.tokenizer, some, decode, max_length=max_length)

    return _time(translate, setup.device) * len(pairs) / len(some)


def _limit_output(setup: TrainingSetup) -> DecodeConfig:
    """The recipe's decoding with outputs as long as the references of train are on average.

    After a few steps a model hardly ever ends a sentence: its translations would all be cut at the
    recipe's limit, which is about twice as long as those of a trained model.
    """
    decode, sides = setup.recipe.decode, setup.train.store.sides
    if setup.recipe.task != "translate":
        return decode
    source, target = (max(1, int(side.starts[-1])) for side in sides[:2])
    return decode.model_copy(update={"max_ratio": target / source, "max_extra": 1})


def _finish_run(run: Run, loop: Loop) -> None:
    """Write what an evaluation needs of a run: its weights as they are now, and its data."""
    run.write_environment(describe_training(loop.setup, loop.loader.steps_per_epoch, []))
    weights = loop.state.weights()
    if loop.setup.recipe.init.lora is not None:
        weights = merge_adapters(loop.setup.model, weights)
    checkpoint.write_tensors(run.weights_path, weights)


def _describe_time(estimate: TrainingEstimate) -> str:
    """The time of a run, and of its parts."""
    count = estimate.evaluations
    parts = [
        f"{format_duration(estimate.preparation)} to prepare",
        f"{format_duration(estimate.step_seconds)} to train "
        f"({estimate.seconds_per_step * 1e3:.0f} ms a step)",
        f"{format_duration(estimate.evaluation_seconds)} for {count:,} "
        f"evaluation{'s' * (count != 1)} ({estimate.seconds_per_evaluation:.1f} s each)",
    ]
    if estimate.final_evaluation:
        parts.append(f"{format_duration(estimate.final_evaluation)} for test")
    return f"{format_duration(estimate.seconds)}: {', '.join(parts)}"


def _count_texts(split: BucketedBatches | PackedBatches) -> str:
    """The number of texts, and of windows where a language model reads long texts in several."""
    texts, windows = split.example_count, len(split.rows)
    return f"{texts:,} ({windows:,} windows)" if windows > texts else f"{texts:,}"


def _describe_memory(parameters: int, device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at the peak"
    size = parameters * 16 / 2**20
    return f"{size:.0f} MiB for weights, gradients and optimizer, without activations"
