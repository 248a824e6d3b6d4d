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

from heed import plot
from heed.config import Recipe
from heed.config.checks import find_long_warmup, find_rank_conflicts
from heed.device import choose_device
from heed.errors import ConfigError, DataError, HeedWarning, RunError, StoppedError
from heed.files import flush_folder
from heed.models.build import describe_model
from heed.nn.lora import merge_adapters
from heed.plugins import used_plugins
from heed.runs.load import verify_final_weights
from heed.runs.run import Run
from heed.terminal import print_message
from heed.train import checkpoint
from heed.train.build_loop import build_loop
from heed.train.curves import draw_curves, has_curves
from heed.train.distributed.ranks import World, process_group
from heed.train.loop import Loop
from heed.train.out_of_memory import TrainingMemoryError, oom_guard
from heed.train.prepare.init_from import PretrainedModel, resolve_init
from heed.train.prepare.setup import TrainingSetup, prepare, validate_recipe
from heed.train.progress import ProgressBar
from heed.train.recipe_change import RecipeChange, change_recipe
from heed.train.recorder import EvaluationHook


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

    With `overrides` of its recipe (`section.key=value`), a finished run trains on as well. A run
    that its study pruned is refused.
    """
    with process_group() as world:
        torch_device, run = world.init_process_group(choose_device(device)), Run.open(folder)
        run.refuse_if_pruned()
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
            print_message(world.console(console), message)
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
        print_message(console, text)

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


def warn_of_long_warmup(loop: Loop) -> None:
    """Warn where training ends within the warm-up: only now is the number of steps known."""
    if message := find_long_warmup(loop.settings, loop.steps):
        warnings.warn(message, HeedWarning, stacklevel=2)


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
