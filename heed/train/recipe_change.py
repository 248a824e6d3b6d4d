"""Changes of a started run's recipe: `heed resume RUN --set train.steps=N` trains on for longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heed.config import SECTIONS, Recipe, apply_overrides, error_location
from heed.errors import ConfigError, RunError, nearest
from heed.runs.run import Run
from heed.train.optimizers.schedules import build_schedule, count_steps, count_warmup

CHANGEABLE = (
    "train.steps",
    "train.epochs",
    "train.patience",
    "train.evaluate_every",
    "train.evaluate_test",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.snapshot_every",
    "train.log_every",
    "train.split_on_oom",
)
"""Keys that may change in a started run: when it ends, and what it writes on the way."""


@dataclass(frozen=True)
class RecipeChange:
    """A run's recipe before and after a change."""

    before: Recipe
    recipe: Recipe
    keys: tuple[str, ...]

    def refuse_no_steps(self, run: Run, step: int, steps: int) -> None:
        """Refuse a change after which there is nothing to train, or nothing to train on from."""
        if run.finished and step == 0:
            raise RunError(
                "this run is finished and has no checkpoint to train on from.",
                where=str(run.folder),
                todo="Train a new run; init.from starts from this one's weights.",
            )
        if steps > step:
            return
        epochs = self.recipe.train.epochs
        todo = "Raise train.steps" + (f" and train.epochs (now {epochs})." if epochs else ".")
        raise ConfigError(
            [f"this run has trained {step} steps, and with this change it ends at {steps}. {todo}"],
            where=str(run.folder),
        )

    def write(self, run: Run, step: int) -> None:
        """Write the recipe and record the change; the run is then unfinished.

        The old weights go first: a run that is killed in between finishes as it would have before.
        """
        for path in (run.weights_path, run.calibration_path):
            path.unlink(missing_ok=True)
        run.write_recipe(self.recipe)
        environment = run.environment()
        changes = [*environment.get("recipe_changes", []), {"step": step, "keys": self._values()}]
        run.write_environment(environment | {"recipe_changes": changes})

    def _values(self) -> dict[str, list[Any]]:
        """The values of the changed keys before and after."""
        return {
            key: [_value(recipe, key) for recipe in (self.before, self.recipe)] for key in self.keys
        }

    def describe(self, run: Run, step: int, steps: int) -> str:
        """What the change does to the run's end, calibration and learning rate, as one line."""
        text = f"Training on from step {step} to {steps}."
        if run.calibration_path.exists():
            text += (
                " The calibration is deleted with the weights it is of: "
                f"calibrate again with heed evaluate {run.folder} --calibrate."
            )
        name, before = self.recipe.train.schedule, self.before.train
        if name in ("constant", "inverse_sqrt"):
            return text
        lr = self.recipe.train.lr
        after = lr * build_schedule(self.recipe.train, steps)(step)
        return (
            f"{text} The {name} schedule now spans {steps} steps: "
            f"the learning rate continues at {after:.2g} (peak {before.lr:.2g})."
        )


def change_recipe(run: Run, recipe: Recipe, overrides: Sequence[str]) -> RecipeChange:
    """The change that these overrides make; refuses keys that a started run cannot change.

    A warm-up that was derived from the number of steps stays as it was.
    """
    keys = tuple(override.partition("=")[0].strip() for override in overrides)
    complaints = [
        f"heed resume cannot change {key!r}: it changes {', '.join(CHANGEABLE)}."
        f"{'' if _is_key(key) else nearest(key, CHANGEABLE)} For anything else train a new run."
        for key in keys
        if key not in CHANGEABLE
    ]
    if complaints:
        raise ConfigError(complaints)
    tables = apply_overrides(recipe.tables(), overrides)
    steps_per_epoch = run.environment().get("steps_per_epoch")
    if recipe.train.warmup is None and steps_per_epoch is not None:
        steps = count_steps(recipe.train, steps_per_epoch)
        tables["train"]["warmup"] = count_warmup(recipe.train, steps)
    changed = Recipe.of(tables, where=error_location(run.recipe_path, overrides))
    return RecipeChange(recipe, changed, keys)


def _is_key(key: str) -> bool:
    """Whether a recipe has this key: then it is not a misspelling of another."""
    section, _, name = key.partition(".")
    keys = SECTIONS[section].keys() if section in SECTIONS else ()
    return name in keys


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)
