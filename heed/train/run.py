"""Start a training run, or resume one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from rich.console import Console
from torch.optim import Optimizer

from heed.config import Recipe
from heed.config.checks import find_rank_conflicts
from heed.data.batching.bucketed import DEFAULT_BATCH_TOKENS
from heed.device import choose_device
from heed.errors import ConfigError, DataError, HeedError, RunError, StoppedError
from heed.files import write_atomic
from heed.models.weights import require_matching_weights
from heed.nn.lora import merge_adapters
from heed.plugins import used_plugins
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train.curves import draw_curves
from heed.train.distributed.ranks import World, joined
from heed.train.distributed.sharding import Twin, spread
from heed.train.execution.choose import PlannedWork, build_step
from heed.train.loader import Feed
from heed.train.loop import Loop
from heed.train.objective import Objective
from heed.train.optimizers.build import CAPTURABLE, build_optimizer, settings_of
from heed.train.optimizers.schedules import schedule
from heed.train.prepare.init_from import Origin, settled
from heed.train.prepare.setup import Say, TrainingSetup, prepare, validate_recipe
from heed.train.progress import View
from heed.train.state import State, under

DEFAULT_EPOCHS = 20


class OutOfRoomError(HeedError):
    """A batch does not fit into memory."""


def start(recipe: Recipe, folder: Path, *, device: str = "auto", console: Console) -> Run:
    """Make a run folder and train in it to the end."""
    with joined() as world:
        chosen = world.join(choose_device(device))
        with world.in_turn():
            recipe, origin = settled(recipe)
        validate_recipe(recipe, origin)
        refuse_rank_conflicts(recipe, world, resumed=False)
        run = Run(Path(world.once(lambda: str(Run.create(folder, recipe).folder))))
        try:
            _train(run, recipe, chosen, world, console, origin)
        except (ConfigError, DataError, OutOfRoomError, OSError):
            # Nothing learnt is in the way of a second try.
            if world.first:
                run.delete_if_unstarted()
            raise
        except KeyboardInterrupt:
            if world.first:
                run.delete_if_unstarted()
            if run.folder.exists():  # asked twice in the middle of training
                raise
            what = f"Stopped before anything was learnt; {folder} is removed."
            raise StoppedError(what) from None
    return run


def resume(folder: Path, *, device: str = "auto", console: Console) -> Run:
    """Go on with a run from its newest whole checkpoint; say so where it is finished."""
    with joined() as world:
        chosen, run = world.join(choose_device(device)), Run.open(folder)
        refuse_rank_conflicts(run.recipe(), world, resumed=True)
        if world.once(lambda: run.finished):
            finished = f"{folder}: this run is finished; nothing to do."
            world.voice(console).print(finished, highlight=False)
        else:
            _train(run, run.recipe(), chosen, world, console)
    return run


def refuse_rank_conflicts(recipe: Recipe, world: World, *, resumed: bool) -> None:
    """Refuse what several ranks cannot do, before anything is written."""
    complaints = find_rank_conflicts(recipe, resumed=resumed) if world.several else []
    if complaints:
        raise ConfigError(complaints)


def _train(
    run: Run,
    recipe: Recipe,
    device: torch.device,
    world: World,
    console: Console,
    origin: Origin | None = None,
) -> None:
    """Only the first rank writes into the folder, and only it speaks."""
    world.folder, console = str(run.folder), world.voice(console)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with run.locked() if world.first else nullcontext():
        parts = prepare(recipe, run, device=device, say=say, world=world, origin=origin)
        _refuse_other_text(run, parts)
        with memory_guard(recipe):
            loop = build_loop(parts, run, say=say)
        if world.first:
            _keep_lines(run, loop.state.lines)
            checkpoint.forget_weights(run.checkpoints, after=loop.state.step)
            facts = {"device": str(device), "bf16": parts.bf16, "ranks": world.size}
            facts |= {"new_parts": parts.new} if parts.new else {}
            plugins = [plugin.record() for plugin in used_plugins(recipe.model)]
            facts |= {"plugins": plugins} if plugins else {}
            run.write_environment({"data": parts.data_hashes, **facts})
        shown = View(console, total=loop.steps, start=loop.state.step)
        with shown as view, loop.ledger.tracked():
            with memory_guard(recipe):
                loop.train(view)
            weights = loop.ledger.choose(view) if world.first else {}
        if world.first:
            checkpoint.write_tensors(run.weights_path, merge_adapters(parts.model, weights))
            draw_curves(run)


def build_loop(parts: TrainingSetup, run: Run, *, say: Say) -> Loop:
    """The loop of a recipe, at its newest checkpoint or at step 0."""
    settings, world = parts.recipe.train, parts.world
    if settings.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(settings.deterministic)  # imports a compiler: 2 s
    feed = Feed(parts.train, accumulate=settings.accumulate, device=parts.device, world=world)
    epochs = settings.epochs or (DEFAULT_EPOCHS if settings.steps is None else None)
    ends = [settings.steps, epochs and epochs * feed.steps_per_epoch]
    steps = min(end for end in ends if end)
    twin = Twin(parts.model) if world.several and settings.parallel == "fsdp" else None
    objective = Objective(
        parts.model,
        label_smoothing=settings.label_smoothing,
        class_weights=parts.class_weights,
        rdrop=settings.rdrop,
    )
    shared = spread(objective, settings.parallel, world, parts.device)
    state = State(
        parts.model,
        _optimizer(parts),
        parts.device,
        ema_decay=settings.ema,
        world=world,
        twin=twin,
    )
    tensors, facts = checkpoint.newest(run.checkpoints, say)
    world.reseed(parts.recipe.seed, facts.get("step", 0))
    if facts:
        found, where = under("model.", tensors), str(run.recipe_path)
        require_matching_weights(parts.model.state_dict(), found, where=where)
        state.restore(tensors, facts)
        say(f"Going on from step {state.step}.")
    elif parts.begun:
        raise RunError(
            "none of its checkpoints is whole, so there is nothing to go on from.",
            where=str(run.folder),
            todo="Put one back from a copy, or remove its checkpoints folder to begin anew.",
        )
    _refuse_different_steps(state, run)
    if world.first:
        checkpoint.put_aside(run.checkpoints, after=state.step)
    parts.model.train()
    ahead = PlannedWork(steps - state.step, parts.train.shapes(), feed.example())
    step = build_step(parts.recipe, shared, state, ahead, bf16=parts.bf16, say=say)
    warmup = min(400, steps // 10) if settings.warmup is None else min(settings.warmup, steps)
    factor = schedule(settings.schedule, warmup=warmup, steps=steps, floor=settings.lr_floor)
    return Loop(parts, step, run, feed, factor, steps)


def _optimizer(parts: TrainingSetup) -> Optimizer:
    settings = parts.recipe.train
    captured = parts.device.type == "cuda" and not parts.world.several
    return build_optimizer(
        parts.model,
        settings_of(settings),
        lr_tensor=captured and settings.optimizer in CAPTURABLE,
    )


def _refuse_different_steps(state: State, run: Run) -> None:
    """Ranks that read different checkpoints do not look into the same folder."""
    steps = [int(step) for step in state.world.gathered(torch.tensor([state.step]))]
    if len({*steps}) > 1:
        raise RunError(
            f"the ranks found different checkpoints here: of steps {', '.join(map(str, steps))}.",
            where=str(run.folder),
            todo="Keep the run in a folder that all machines share.",
        )


def _refuse_other_text(run: Run, parts: TrainingSetup) -> None:
    """A run that goes on must read what it began with."""
    known = run.environment().get("data", {})
    other = [name for name, own in parts.data_hashes.items() if known.get(name, own) != own]
    if other:
        raise RunError(
            f"the text of {' and '.join(other)} is not what this run began with.",
            where=str(run.folder),
            todo="Put the files back as they were, or train anew in another folder.",
        )


def _keep_lines(run: Run, lines: int) -> None:
    """Forget what was measured after the checkpoint: it will be measured again."""
    if run.metrics_path.exists():
        whole = run.metrics_path.read_bytes().split(b"\n")[:-1]  # a line that was cut off is none
        write_atomic(run.metrics_path, b"".join(line + b"\n" for line in whole[:lines]))


@contextmanager
def memory_guard(recipe: Recipe) -> Iterator[None]:
    """Running out of memory is a sentence with the setting to change."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        settings = recipe.train
        if settings.batch_size is not None:
            name, size = "batch_size", settings.batch_size
        else:
            name, size = "batch_tokens", settings.batch_tokens or DEFAULT_BATCH_TOKENS
        smaller = (
            f"--set train.{name}={size // 2} --set train.accumulate={2 * settings.accumulate}, "
            "which makes nearly the same updates in half the memory."
        )
        if size == 1:
            smaller = "a smaller model, or shorter texts (data.max_length)."
        raise OutOfRoomError(
            f"memory ran out with train.{name} = {size}.", todo=f"Use {smaller}"
        ) from error
