"""`heed bench`: measure a recipe, or the standard shapes of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType

from heed.bench import recipe_speed as by_recipe
from heed.bench import standard_shapes
from heed.bench.against import STEPS, compare_with, recipe_workload, standard_workloads
from heed.bench.like_for_like import SpeedComparison
from heed.bench.peers import require_peer
from heed.bench.report import comparison_report, recipe_report, standard_report
from heed.bench.startup import Startup
from heed.device import choose_device
from heed.errors import ConfigError
from heed.runs.environment import describe_environment
from heed.terminal import Say
from heed.train import resolve as training

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
    updates: int | None = None,
    console: Console,
) -> Measured:
    """Measure a recipe; without a recipe and files, the standard shapes."""
    startup = Startup()
    _refuse_less_than_one("--updates", updates)
    training.set_threads(threads)
    say = _printer(console)
    if not _names_recipe(named):
        return _standard(device, updates, _standard_changes(named), say)
    recipe, _ = training.resolve_recipe(*named)
    figures = by_recipe.measure(recipe, device=device, updates=updates, startup=startup, say=say)
    return {"environment": describe_environment(), **asdict(figures)}, recipe_report(figures)


def run_comparison(
    named: Named,
    library: str,
    *,
    device: str,
    threads: int | None = None,
    updates: int | None = None,
    turns: int | None = None,
    compiled: bool = True,
    console: Console,
) -> Measured:
    """Compare a recipe, or the standard shapes, with a peer of this library."""
    require_peer(library)
    _refuse_less_than_one("--updates", updates)
    _refuse_less_than_one("--turns", turns)
    training.set_threads(threads)
    torch_device, say = choose_device(device), _printer(console)
    if _names_recipe(named):
        recipe, name = training.resolve_recipe(*named)
        require_peer(library, recipe.task)
        workloads = [recipe_workload(recipe, named[0] or name, updates or STEPS, say=say)]
    else:
        workloads = standard_workloads(library, torch_device, _standard_changes(named))
    comparisons = compare_with(
        workloads, library, device=torch_device, compiled=compiled, turns=turns, say=say
    )
    return _comparison_figures(library, torch_device, comparisons), comparison_report(comparisons)


def _comparison_figures(
    library: str, device: object, comparisons: Sequence[SpeedComparison]
) -> dict[str, Any]:
    return {
        "environment": describe_environment(),
        "device": str(device),
        "against": library,
        "comparisons": [comparison.figures() for comparison in comparisons],
    }


def _printer(console: Console) -> Say:
    return lambda text: console.print(text, highlight=False, markup=False)


def _refuse_less_than_one(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError([f"{option} cannot be {value}: use 1 or more."])


def _names_recipe(named: Named) -> bool:
    name, task, train, *_ = named
    return bool(name or task or train)


def _standard_changes(named: Named) -> list[str]:
    """Overrides of the standard shapes' recipes: `--set`, and `--precision`."""
    *_, changes, precision = named
    return [*(changes or ()), *([f"train.precision={precision}"] if precision else [])]


def _standard(device: str, updates: int | None, changes: Sequence[str], say: Say) -> Measured:
    torch_device = choose_device(device)
    rows = []
    for setting in standard_shapes.settings_for(torch_device):
        say(f"Measuring {setting.name}…")
        rows.append(standard_shapes.measure(setting, changes, device=torch_device, rounds=updates))
    figures = {
        "environment": describe_environment(),
        "device": str(torch_device),
        "standard": [asdict(row) for row in rows],
    }
    return figures, standard_report(rows)
