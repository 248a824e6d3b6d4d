"""Start a training run, or resume one."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from heed import plot
from heed.config import Recipe
from heed.config.checks import find_long_warmup, find_rank_conflicts
from heed.data.batching.bucketed import DEFAULT_BATCH_TOKENS
from heed.device import choose_device, is_out_of_memory
from heed.errors import ConfigError, DataError, HeedError, HeedWarning, RunError, StoppedError
from heed.files import flush_folder
from heed.models.build import describe_model
from heed.models.weights import require_matching_weights
from heed.nn.lora import merge_adapters
from heed.plugins import used_plugins
from heed.runs.load import verify_final_weights
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train.curves import draw_curves, has_curves
from heed.train.distributed.ranks import World, process_group
from heed.train.distributed.sharding import UnshardedModel, distribute
from heed.train.execution.choose import PlannedWork, build_step
from heed.train.loader import Loader
from heed.train.loop import Loop
from heed.train.objective import Objective
from heed.train.optimizers.build import CAPTURABLE, build_optimizer, optimizer_settings
from heed.train.optimizers.schedules import build_schedule, count_steps
from heed.train.prepare.init_from import PretrainedModel, resolve_init
from heed.train.prepare.setup import (
    Say,
    Stage,
    TrainingSetup,
    prepare,
    unmeasured,
    validate_recipe,
)
from heed.train.progress import ProgressBar
from heed.train.recipe_change import RecipeChange, change_recipe
from heed.train.recorder import EvaluationHook
from heed.train.state import State, select_prefix


class TrainingMemoryError(HeedError):
    """A batch does not fit into memory."""


def start(
    recipe: Recipe,
    folder: Path,
    *,
    device: str = "auto",
    console: Console,
    after_evaluation: EvaluationHook | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Run:
    """Create a run folder and train in it to the end, or until `after_evaluation` raises.

    `files` are the run's own data: the content of files in its `data/`, by name.
    """
    with process_group() as world:
        torch_device = world.init_process_group(choose_device(device))
        pretrained = None
        if recipe.init.from_model is not None:
            with world.rank0_first():
                recipe, pretrained = resolve_init(recipe)
        if not files:
            validate_recipe(recipe, pretrained)
        refuse_rank_conflicts(recipe, world, resumed=False)
        with _creating(folder, recipe, world, files or {}) as run:
            try:
                if files:  # only now is its text there
                    validate_recipe(recipe, pretrained)
                _train(
                    run,
                    recipe,
                    torch_device,
                    world,
                    console,
                    pretrained,
                    after_evaluation=after_evaluation,
                )
            except TrainingMemoryError:
                # The second attempt has smaller batches, so it starts again.
                if world.is_first:
                    run.delete_if_unsaved()
                raise
            except (ConfigError, DataError, OSError):
                # An unstarted run would be in the way of a second attempt.
                if world.is_first:
                    run.delete_if_unstarted()
                raise
            except KeyboardInterrupt:
                if world.is_first:
                    run.delete_if_unstarted()
                if run.recipe_path.exists():  # interrupted twice while training
                    raise
                what = f"Stopped before the first step; nothing is left in {folder}."
                raise StoppedError(what) from None
    return run


@contextmanager
def _creating(
    folder: Path, recipe: Recipe, world: World, files: Mapping[str, bytes]
) -> Iterator[Run]:
    """Create a run on rank 0, which holds its lock; the other ranks open it."""
    if world.is_first:
        with Run.creating(folder, recipe, files) as run:
            world.broadcast(lambda: str(run.folder))
            yield run
    else:
        yield Run(Path(world.broadcast(lambda: str(folder))))


def resume(
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    console: Console,
    after_evaluation: EvaluationHook | None = None,
) -> Run:
    """Resume a run from its newest intact checkpoint; a finished run gets the figures it lacks.

    With `overrides` of its recipe (`section.key=value`), a finished run trains on as well.
    """
    with process_group() as world:
        torch_device, run = world.init_process_group(choose_device(device)), Run.open(folder)
        recipe = run.recipe()
        change = change_recipe(run, recipe, overrides) if overrides else None
        refuse_rank_conflicts(change.recipe if change else recipe, world, resumed=True)
        if world.broadcast(lambda: run.finished) and change is None:
            verify_final_weights(run)
            done = "its figures were missing and are drawn"
            if not (world.is_first and _complete(run)):
                done = "nothing to do"
            message = (
                f"{folder}: this run is finished; {done}. "
                "To train on, raise its end: --set train.steps=N"
            )
            world.console(console).print(message, highlight=False, soft_wrap=True)
        else:
            with _locked(run, world):
                if world.is_first:
                    run.delete_drafts()
                new_recipe = recipe if change is None else change.recipe
                _train(
                    run,
                    new_recipe,
                    torch_device,
                    world,
                    console,
                    change=change,
                    after_evaluation=after_evaluation,
                )
    return run


def _locked(run: Run, world: World) -> AbstractContextManager[None]:
    """The lock of a run, which rank 0 holds."""
    return run.locked() if world.is_first else nullcontext()


def _complete(run: Run) -> bool:
    """Draw the figures of a finished run that was killed before it drew them; whether it was."""
    if not run.metrics_path.exists() or has_curves(run):
        return False
    with run.locked():
        run.delete_drafts()
        draw_curves(run)
    return True


def refuse_rank_conflicts(recipe: Recipe, world: World, *, resumed: bool) -> None:
    """Refuse what several ranks cannot do, before anything is written."""
    complaints = find_rank_conflicts(recipe, resumed=resumed) if world.is_distributed else []
    if complaints:
        raise ConfigError(complaints)


def _train(
    run: Run,
    recipe: Recipe,
    device: torch.device,
    world: World,
    console: Console,
    pretrained: PretrainedModel | None = None,
    change: RecipeChange | None = None,
    after_evaluation: EvaluationHook | None = None,
) -> None:
    """Train a run to its end. Only rank 0, which has its lock, writes files and to the console.

    `change` is what `heed resume --set` changes of the run's recipe.
    """
    world.folder, console = str(run.folder), world.console(console)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with oom_guard(recipe, run, preparing=True):
        setup = prepare(recipe, run, device=device, say=say, world=world, pretrained=pretrained)
    _refuse_changed_data(run, setup)
    say(f"Model: {describe_model(setup.model, recipe.task, recipe.model)}.")
    with oom_guard(recipe, run):
        loop = build_loop(setup, run, say=say)
    recorder = loop.recorder
    if change is not None:
        change.refuse_no_steps(run, loop.state.step, loop.steps)
        if world.is_first:
            say(change.describe(run, loop.state.step, loop.steps))
            change.write(run, loop.state.step)
    if world.is_first:
        warn_of_long_warmup(loop)
        run.truncate_metrics(loop.state.lines)  # those of steps that are trained again
        for folder in (run.checkpoints, run.snapshots):
            checkpoint.delete_weights(folder, after=loop.state.step)
        recorder.prune()
        changes = run.environment().get("recipe_changes", [])
        environment = describe_training(setup, loop.loader.steps_per_epoch, changes)
        run.write_environment(environment)
        _import_matplotlib_meanwhile()
    bar = ProgressBar(console, total=loop.steps, start=loop.state.step)
    with bar as progress, recorder.tracked(), oom_guard(recipe, run):
        loop.train(progress, after_evaluation)
        weights = recorder.choose_weights(progress) if world.is_first else {}
    if world.is_first:
        recorder.flush()
        run.write_environment(environment | {"lines": loop.state.lines})
        flush_folder(run.checkpoints)  # or a power cut brings back what was deleted there
        if recipe.init.lora is not None:
            weights = merge_adapters(setup.model, weights)
        checkpoint.write_tensors(run.weights_path, weights)
        draw_curves(run)


def _import_matplotlib_meanwhile() -> None:
    """Import on a thread, while training, what draws the curves at its end.

    An error is left to `draw_curves`, which imports the same.
    """

    def import_quietly() -> None:
        with suppress(Exception):
            plot.import_matplotlib()

    threading.Thread(target=import_quietly).start()


def describe_training(
    setup: TrainingSetup, steps_per_epoch: int, changes: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the result depends on, beside versions and hardware.

    `changes` are those of the recipe since the run was started (`heed resume --set`).
    """
    info: dict[str, Any] = {"data": setup.data_hashes, "device": str(setup.device)}
    info |= {"bf16": setup.bf16, "ranks": setup.world.size, "steps_per_epoch": steps_per_epoch}
    if setup.new_parts:
        info["new_parts"] = setup.new_parts
    if changes:
        info["recipe_changes"] = changes
    model = setup.recipe.model
    if model.has_registered_part and (plugins := used_plugins(model)):
        info["plugins"] = [plugin.record() for plugin in plugins]
    return info


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


def warn_of_long_warmup(loop: Loop) -> None:
    """Warn where training ends within the warm-up: only now is the number of steps known."""
    if message := find_long_warmup(loop.settings, loop.steps):
        warnings.warn(message, HeedWarning, stacklevel=2)


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


def _refuse_changed_data(run: Run, setup: TrainingSetup) -> None:
    """Refuse to resume a run on other data than it started with."""
    hashes = run.environment().get("data", {})
    changed = [
        name
        for name, data_hash in setup.data_hashes.items()
        if hashes.get(name, data_hash) != data_hash
    ]
    if changed:
        raise RunError(
            f"the text of {' and '.join(changed)} is not what this run started with.",
            where=str(run.folder),
            todo="Restore the files, or train again in another folder.",
        )


@contextmanager
def oom_guard(recipe: Recipe, run: Run, *, preparing: bool = False) -> Iterator[None]:
    """Turn running out of memory into an error that says what to do.

    `preparing` is before the first batch, when it is the model or the text that does not fit.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if preparing:
            raise TrainingMemoryError(
                "memory ran out while the text and the model were prepared.",
                todo="Use a smaller model (model.layers, model.width, tokenizer.vocab_size), "
                "or less text.",
            ) from error
        name, size = _batch_setting(recipe)
        raise TrainingMemoryError(
            f"memory ran out with train.{name} = {size}.", todo=_advise_less_memory(recipe, run)
        ) from error


def _batch_setting(recipe: Recipe) -> tuple[str, int]:
    """The recipe key that sets the size of a batch, and its value."""
    settings = recipe.train
    if settings.batch_size is not None:
        return "batch_size", settings.batch_size
    return "batch_tokens", settings.batch_tokens or DEFAULT_BATCH_TOKENS


def _advise_less_memory(recipe: Recipe, run: Run) -> str:
    """What to do where a batch does not fit: a run with a checkpoint can go on in smaller parts."""
    if run.checkpoints.exists() and not recipe.train.split_on_oom:
        command = f"heed resume {run.folder} --set train.split_on_oom=true"
        return f"Continue it in smaller parts with: {command}"
    name, size = _batch_setting(recipe)
    if size == 1:
        return "Use a smaller model, or shorter texts (data.max_length)."
    return (
        f"Use --set train.{name}={size // 2} --set train.accumulate={2 * recipe.train.accumulate}, "
        "which takes nearly the same steps in half the memory."
    )
