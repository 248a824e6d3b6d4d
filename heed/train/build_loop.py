"""Build the training loop of a prepared run, at its newest checkpoint or at step 0."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from heed.errors import RunError
from heed.models.weights import require_matching_weights
from heed.runs.run import Run
from heed.terminal import Say
from heed.train import checkpoint
from heed.train.distributed.sharding import UnshardedModel, distribute
from heed.train.execution.choose import PlannedWork, build_step
from heed.train.loader import Loader
from heed.train.loop import Loop
from heed.train.objective import Objective
from heed.train.optimizers.build import CAPTURABLE, build_optimizer, optimizer_settings
from heed.train.optimizers.schedules import build_schedule, count_steps
from heed.train.prepare.setup import Stage, TrainingSetup, unmeasured
from heed.train.state import State, select_prefix


def build_loop(setup: TrainingSetup, run: Run, *, say: Say, stage: Stage = unmeasured) -> Loop:
    """The training loop of a run, at its newest checkpoint or at step 0."""
    recipe, settings, world = setup.recipe, setup.recipe.train, setup.world
    if settings.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(settings.deterministic)  # imports a compiler: 2 s
    with stage("store"):
        loader = Loader(
            setup.train, accumulate=settings.accumulate, device=setup.device, world=world
        )
    steps = count_steps(settings, loader.steps_per_epoch)
    sharded = world.is_distributed and settings.parallel == "fsdp"
    unsharded = UnshardedModel(setup.model) if sharded else None
    objective = Objective(
        setup.model,
        label_smoothing=settings.label_smoothing,
        class_weights=setup.class_weights,
        rdrop=settings.rdrop,
        fp8_output=settings.fp8_output,
    )
    step_objective: nn.Module = objective
    if world.is_distributed:
        step_objective = distribute(objective, settings.parallel, world, setup.device)
    # Sharding replaces the parameters, so the optimizer is built after it. torch imports its
    # compiler, of which optimizers use a part, when the first one is built.
    with stage("optimizer"):
        optimizer = _build_optimizer(setup)
    state = State(
        setup.model,
        optimizer,
        setup.device,
        ema_decay=settings.ema,
        world=world,
        unsharded=unsharded,
    )
    _restore(state, setup, run, say)
    setup.model.train()
    work = PlannedWork(steps - state.step, setup.train.shapes(), loader.example_batch())
    with stage("capture"):
        step = build_step(recipe, step_objective, state, work, bf16=setup.bf16, say=say)
    return Loop(setup, step, run, loader, build_schedule(settings, steps), steps)


def _build_optimizer(setup: TrainingSetup) -> Optimizer:
    settings = setup.recipe.train
    captured = setup.device.type == "cuda" and not setup.world.is_distributed
    return build_optimizer(
        setup.model,
        optimizer_settings(settings),
        lr_tensor=captured and settings.optimizer in CAPTURABLE,
    )


def _restore(state: State, setup: TrainingSetup, run: Run, say: Say) -> None:
    """Restore the newest intact checkpoint, if there is one."""
    world = setup.world
    tensors, numbers = checkpoint.load_newest(run.checkpoints, say, lines=run.metrics_lines())
    world.reseed(setup.recipe.seed, numbers.get("step", 0))
    if numbers:
        weights, where = select_prefix("model.", tensors), str(run.recipe_path)
        require_matching_weights(setup.model.state_dict(), weights, where=where)
        state.restore(tensors, numbers)
        say(f"Resuming from step {state.step}.")
    elif setup.has_checkpoints:
        raise RunError(
            "all of its checkpoints are damaged, so the run cannot be resumed.",
            where=str(run.folder),
            todo="Restore what is named above from a copy, or delete its checkpoints folder to "
            "start again.",
        )
    _refuse_different_steps(state, run)
    if world.is_first:
        checkpoint.set_damaged_aside(run.checkpoints, after=state.step)


def _refuse_different_steps(state: State, run: Run) -> None:
    """Refuse ranks that read different checkpoints: their folders are different ones."""
    steps = [int(step) for step in state.world.all_gather(torch.tensor([state.step]))]
    if len({*steps}) > 1:
        raise RunError(
            f"the ranks found different checkpoints here: of steps {', '.join(map(str, steps))}.",
            where=str(run.folder),
            todo="Put the run into a folder that all machines share.",
        )
