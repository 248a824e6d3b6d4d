"""`heed bench`: measure a recipe, or the standard shapes of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType

from heed.bench import recipe_speed as by_recipe
from heed.bench import standard_shapes
from heed.bench.peers import require_transformers
from heed.bench.report import recipe_report, standard_report
from heed.bench.startup import Startup
from heed.device import choose_device
from heed.errors import ConfigError
from heed.runs.environment import describe_environment
from heed.train import resolve as training

Say = Callable[[str], None]
Measured = tuple[dict[str, Any], RenderableType]
"""The figures as JSON, and as tables for the terminal."""
Named = tuple[
    str | None, str | None, list[str] | None, list[str] | None, list[str] | None, str | None
]
"""A recipe as on the command line: name, task, train and dev files, overrides, precision."""


def run_bench(
    named: Named,
    *,
    device: str,
    threads: int | None = None,
    against: str | None = None,
    updates: int | None = None,
    console: Console,
) -> Measured:
    """Measure a recipe; without a recipe and files, the standard shapes."""
    startup = Startup()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    if against not in (None, "transformers"):
        raise ConfigError([f"--against cannot be {against!r}: use transformers."])
    if updates is not None and updates < 1:
        raise ConfigError([f"--updates cannot be {updates}: use 1 or more."])
    if against:
        require_transformers()
    training.set_threads(threads)
    name, task, train, _, changes, precision = named
    if not (name or task or train):
        extra = [f"train.precision={precision}"] if precision else []
        return _standard(device, updates, bool(against), [*(changes or ()), *extra], say)
    recipe, _ = training.resolve_recipe(*named)
    figures = by_recipe.measure(
        recipe, device=device, updates=updates, against=bool(against), startup=startup, say=say
    )
    return {"environment": describe_environment(), **asdict(figures)}, recipe_report(figures)


def _standard(
    device: str, updates: int | None, against: bool, changes: Sequence[str], say: Say
) -> Measured:
    torch_device = choose_device(device)
    settings = standard_shapes.settings_for(torch_device)
    rows = []
    for setting in settings:
        say(f"Measuring {setting.name}…")
        rows.append(
            standard_shapes.measure(
                setting, changes, device=torch_device, rounds=updates, against=against
            )
        )
    figures = {
        "environment": describe_environment(),
        "device": str(torch_device),
        "standard": [asdict(row) for row in rows],
    }
    return figures, standard_report(rows)
