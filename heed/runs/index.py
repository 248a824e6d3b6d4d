"""The list of runs below a folder: what each is, how far it trained, and its dev scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from heed.errors import HeedError, RunError
from heed.files import is_draft
from heed.runs.best_weights import chosen_evaluation
from heed.runs.run import Run
from heed.terminal import build_table


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Every run in a folder and below it: task, model, step, and the dev scores of its weights."""
    if not folder.is_dir():
        raise RunError(
            "there is no such folder.", where=str(folder), todo="Make a first run: heed demo"
        )
    recipes = [path for path in sorted(folder.rglob("recipe.toml")) if not _is_in_draft(path)]
    return [_describe(Run(path.parent)) for path in recipes]


def _is_in_draft(path: Path) -> bool:
    """Whether a file is in a folder that is still being written, or never will be complete."""
    return any(is_draft(parent) for parent in path.parents)


def _describe(run: Run) -> dict[str, Any]:
    """One entry of the list. For a run that cannot be read, `broken` holds the reason."""
    entry: dict[str, Any] = {"run": str(run.folder), "task": None, "model": None, "step": None}
    entry |= {"finished": run.finished, "dev": None, "broken": None}
    try:
        recipe, lines = Run.open(run.folder).recipe(), run.metrics()
        evaluation = chosen_evaluation(lines, recipe.train.best_metric)
        model = f"{recipe.model.family} {recipe.model.layers}x{recipe.model.width}"
        return entry | {
            "task": recipe.task,
            "model": f"{model} {recipe.model.position}",
            "step": lines[-1]["step"] if lines else 0,
            "dev": evaluation.get("dev") if evaluation else None,
        }
    except (HeedError, OSError, ValueError, LookupError, TypeError) as error:
        return entry | {"broken": str(error)}


def build_runs_table(runs: list[dict[str, Any]]) -> Table:
    """The list of runs as a table for the terminal."""
    metrics = {
        "loss": ("loss", "{:.3f}"),
        "accuracy": ("acc.", "{:.1%}"),
        "bleu": ("BLEU", "{:.1f}"),
    }
    if not any("bleu" in (run["dev"] or ()) for run in runs):
        del metrics["bleu"]
    numbers = ["step", *(f"dev\n{short}" for short, _ in metrics.values())]
    table = build_table(
        *("run", "task", "model", ""),
        *numbers,
        right=numbers,
        no_wrap=["task", "", *numbers],
        compact=True,
    )
    for run in runs:
        status = "finished" if run["finished"] else "to resume"
        cells = [run["task"] or "–", run["model"] or "–", "broken" if run["broken"] else status]
        cells.append("–" if run["step"] is None else str(run["step"]))
        scores = run["dev"] or {}
        cells += [
            form.format(scores[metric]) if scores.get(metric) is not None else "–"
            for metric, (_, form) in metrics.items()
        ]
        table.add_row(Text(run["run"]), *cells)
    return table
