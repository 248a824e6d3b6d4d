"""The list of runs below a folder: their settings, how far they trained, and their scores.

By default the table shows the settings that differ between the runs. `--columns` chooses others:
the names in `COMPUTED`, `dev/METRIC`, `SET/METRIC` of an evaluated set, or any key of a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text
from safetensors import SafetensorError, safe_open

from heed.config import SECTIONS, ModelConfig, Recipe
from heed.errors import ConfigError, HeedError, RunError, nearest
from heed.files import require_regular
from heed.plugins import PluginError
from heed.runs.best_weights import chosen_evaluation
from heed.runs.discovery import runs_below
from heed.runs.groups import differing_keys
from heed.runs.history import is_number
from heed.runs.results_file import OTHER_WEIGHTS, read_results
from heed.runs.run import Run
from heed.terminal import build_note, build_table

COMPUTED = ("run", "task", "model", "status", "parameters", "steps", "best")
"""Columns that are not keys of a recipe. `best` is the step of the dev scores, which are those of
the chosen weights; `steps` is how many were trained."""
METRICS = {
    "loss": ("loss", "{:.3f}"),
    "perplexity": ("ppl", "{:.2f}"),
    "accuracy": ("acc.", "{:.1%}"),
    "bleu": ("BLEU", "{:.1f}"),
}
"""Metrics of dev and test: their short header and format. Others are shown with 4 digits."""
TEST_METRIC = {"translate": "bleu", "classify": "accuracy", "generate": "perplexity"}
DEV_METRICS = ("loss", "accuracy", "bleu")
FILE_KEYS = ("data.train", "data.dev", "data.test", "data.sets", "tokenizer.text")
"""Keys with paths, which are compared but too long to show by default."""
USUAL_KEYS = (
    *("model.family", "model.position", "model.merge", "model.layers", "model.width"),
    *("model.heads", "model.dropout", "train.optimizer", "train.lr", "seed"),
)
"""Keys that come first among those that differ."""
NONE = "–"
NO_WEIGHTS = "no weights"
"""The status of a finished run whose weights its study did not keep."""
PRUNED = "pruned"
"""The status of a run that the search of its study ended early."""
NOT_FOR_LSTM = tuple(
    f"model.{key}"
    for key in ("position", "heads", "merge", "norm", "norm_place", "activation", "feed_forward")
)
CHECKPOINT = re.compile(r"(?:step|best|recent)-([0-9]{9})")
MAX_HIDDEN = 8
"""Keys that differ and are named below the table."""
MIN_RUN_WIDTH = 14
"""Characters of the run's name that stay on one line, however many scores there are."""

UNREADABLE = (
    *(HeedError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError),
)
"""Errors that files of a run which heed did not write may cause."""

Entry = dict[str, Any]


def list_runs(folder: Path) -> list[Entry]:
    """Every run in a folder and below it: settings, steps, and the scores of its chosen weights."""
    if not folder.is_dir():
        raise RunError(
            "there is no such folder.", where=str(folder), todo="Make a first run: heed demo"
        )
    return [list_run(run) for run in runs_below(folder)]


def list_run(run: Run) -> Entry:
    """One entry of the list. For a run that cannot be read, `broken` holds the reason.

    `needs` is what a run lacks that was trained with a plug-in which is not loaded.
    """
    names = ("task", "model", "settings", "parameters", "steps", "best", "dev", "test")
    entry: Entry = {"run": str(run.folder), "finished": run.finished} | dict.fromkeys(names)
    entry |= {"broken": None, "needs": None, "weights_deleted": False, "pruned": False, "sets": {}}
    entry["training"] = False
    try:
        recipe = Run.open(run.folder).recipe()
        if run.has_deleted_weights:
            entry |= {"finished": True, "weights_deleted": True}
        entry["pruned"] = run.find_pruning_study() is not None
        entry["training"] = run.is_locked
        return entry | describe_run(run, recipe, run.metrics())
    except PluginError as error:
        return entry | {"needs": error.need}
    except UNREADABLE as error:
        return entry | {"broken": str(error)}


def describe_run(run: Run, recipe: Recipe, lines: list[dict[str, Any]]) -> Entry:
    """What the list has of a run. Of the lines of its metrics, evaluations and the last suffice."""
    evaluation = chosen_evaluation(lines, recipe.train.best_metric)
    results = read_results(run.folder)
    return {
        "task": recipe.task,
        "model": describe_model(recipe.model),
        "settings": _settings(recipe),
        "parameters": count_parameters(run),
        "steps": max([line["step"] for line in lines] + _checkpoint_steps(run), default=0),
        "best": evaluation["step"] if evaluation else None,
        "dev": evaluation.get("dev") if evaluation else None,
        "test": _numbers(results["test"]) if "test" in results else None,
        "sets": {
            name: _numbers(result)
            for name, result in results.items()
            if name not in ("dev", "test", "train") and OTHER_WEIGHTS not in name
        },
    }


def describe_model(model: ModelConfig) -> str:
    """Family, layers and width; the position and an unusual merge where there is attention."""
    layers = str(model.layers)
    if model.decoder_layers not in (None, model.layers):
        layers += f"+{model.decoder_layers}"
    parts = [f"{model.family} {layers}x{model.width}"]
    if model.family == "transformer":
        parts += [model.position, *([] if model.merge == "concat" else [model.merge])]
    return " ".join(parts)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The keys of a recipe as section.key; keys that its model has no use for are `NONE`."""
    tables = recipe.tables()
    settings = {"seed": tables["seed"]}
    for section in SECTIONS:
        settings |= {f"{section}.{key}": value for key, value in tables[section].items()}
    return settings | (dict.fromkeys(NOT_FOR_LSTM, NONE) if recipe.model.family == "lstm" else {})


def _checkpoint_steps(run: Run) -> list[int]:
    """Steps of the checkpoints and weights: a run that was stopped may have no line of metrics."""
    if not run.checkpoints.is_dir():
        return []
    matches = (CHECKPOINT.match(path.name) for path in run.checkpoints.iterdir())
    return [int(match[1]) for match in matches if match]


def count_parameters(run: Run) -> int | None:
    """The number of weights, from the head of their file; None before there is one."""
    path = run.weights_path if run.finished else run.weight_files.best_path
    if path is None:
        return None
    require_regular(path)
    try:
        with safe_open(path, framework="numpy") as weights:
            names = weights.keys()
            return sum(prod(weights.get_slice(name).get_shape()) for name in names)
    except SafetensorError as error:
        raise RunError("these weights cannot be read.", where=str(path)) from error


def _numbers(result: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in result.items() if is_number(value)}


# -------------------------------------------------------------------------------------- the table


def build_runs_table(
    runs: Sequence[Entry], columns: Sequence[str] | None = None, *, width: int = 80
) -> Group:
    """The list of runs as a table for the terminal, and a note about what it leaves out.

    Without `columns`, settings that differ are shown as far as the width allows.
    """
    if columns is not None:
        sets = {name for run in runs for name in run["sets"]}
        chosen = [_find_column(name, sets) for name in columns]
        return Group(_table(runs, chosen, width))
    differing = _differing_keys(runs)
    before, after = _default_columns(runs, has_settings=bool(differing))
    for column in _set_columns(runs):
        if _width(runs, [*before, *after, column]) <= width:
            after.append(column)
    room = width - _width(runs, [*before, *after], run_width=0)
    longest = max((len(part) for run in runs for part in _path_parts(run["run"])), default=0)
    run_width = max(MIN_RUN_WIDTH, min(longest, room))  # settings yield to names
    shown: list[str] = []
    for key in differing:
        columns = [*before, *shown, key, *after]
        if key not in FILE_KEYS and _width(runs, columns, run_width=run_width) <= width:
            shown.append(key)
    hidden = [key for key in differing if key not in shown]
    more = f" and {len(hidden) - MAX_HIDDEN} more" if len(hidden) > MAX_HIDDEN else ""
    note = f"Also different: {', '.join(hidden[:MAX_HIDDEN])}{more}. Choose with --columns."
    table = _table(runs, [*before, *shown, *after], width)
    notes = [note] if hidden else []
    if any(run["weights_deleted"] for run in runs):
        notes.append(f"{NO_WEIGHTS}: finished, and its study did not keep them (keep_weights).")
    if any(run["pruned"] for run in runs):
        notes.append(f"{PRUNED}: the search of its study ended it early (prune).")
    return Group(table, *map(build_note, notes))


def _default_columns(runs: Sequence[Entry], *, has_settings: bool) -> tuple[list[str], list[str]]:
    """The columns before and after the settings that differ."""
    before = ["run"]
    if not has_settings or len({run["task"] for run in runs}) > 1:
        before += ["task"]
    if not has_settings:
        before += ["model"]
    unusual = ("weights_deleted", "broken", "needs")
    is_usual = [run["finished"] and not any(run[key] for key in unusual) for run in runs]
    after = [] if all(is_usual) else ["status"]
    after += ["steps"]
    if any(run["best"] not in (None, run["steps"]) for run in runs):
        after += ["best"]
    has_dev = [metric for metric in DEV_METRICS if any(metric in (r["dev"] or ()) for r in runs)]
    if "bleu" in has_dev:
        has_dev.remove("accuracy")
    tests = dict.fromkeys(TEST_METRIC[run["task"]] for run in runs if run["test"] and run["task"])
    return before, [*after, *(f"dev/{one}" for one in has_dev), *(f"test/{one}" for one in tests)]


def _set_columns(runs: Sequence[Entry]) -> list[str]:
    """The primary metric of every evaluated set that is neither dev nor test."""
    columns = (f"{name}/{TEST_METRIC[run['task']]}" for run in runs for name in run["sets"])
    return list(dict.fromkeys(columns))


def _differing_keys(runs: Sequence[Entry]) -> list[str]:
    """Recipe keys with more than one value among the runs, usual ones first."""
    settings = [run["settings"] for run in runs if run["settings"] is not None]
    differing = differing_keys(settings, ignored=(NONE,))
    return sorted(differing, key=lambda key: (*USUAL_KEYS, key).index(key))


def _find_column(name: str, sets: Collection[str] = ()) -> str:
    """The whole name of a column: a key may be given without its section, [model]'s first.

    `sets` are the names of evaluated sets beside dev and test.
    """
    by_section = {section: kind.keys() for section, kind in SECTIONS.items()}
    keys = ["seed", *(f"{one}.{key}" for one, names in by_section.items() for key in names)]
    evaluated, _, metric = name.rpartition("/")
    is_score = evaluated in ("dev", "test", *sets) and re.fullmatch(r"\w+", metric)
    if name in (*COMPUTED, *keys) or is_score:
        return name
    matching = [key for key in keys if key.partition(".")[2] == name]
    if name in ("dev", "test", *sets):
        raise ConfigError([f"{name} has several scores: name one, such as {name}/loss."])
    if matching:  # model.dropout rather than tokenizer.dropout
        return min(matching, key=lambda key: not key.startswith(("model.", "train.")))
    known = [*COMPUTED, *keys, *(key.partition(".")[2] for key in keys)]
    scores = ", ".join(f"{one}/METRIC" for one in ("dev", "test", *sorted(sets)))
    examples = f"{', '.join(COMPUTED)}, {scores}, or a key such as model.heads"
    raise ConfigError([f"There is no column {name!r}: use {examples}.{nearest(name, known)}"])


def _header(column: str) -> str:
    split, slash, metric = column.rpartition("/")
    if slash:
        return f"{split}\n{METRICS.get(metric, (metric, ''))[0]}"
    if column == "status":
        return ""
    return column if column in COMPUTED else column.rpartition(".")[2].replace("_", "\n")


def _cell(run: Entry, column: str) -> str:
    if column == "status":
        status = "finished" if run["finished"] else "to resume"
        status = PRUNED if run["pruned"] else status
        status = "training" if run["training"] else status
        status = NO_WEIGHTS if run["weights_deleted"] else status
        return "broken" if run["broken"] else run["needs"] or status
    split, slash, metric = column.rpartition("/")
    if slash:
        scores = run[split] if split in ("dev", "test") else run["sets"].get(split)
        value = (scores or {}).get(metric)
        return NONE if value is None else METRICS.get(metric, ("", "{:.4g}"))[1].format(value)
    value = run[column] if column in COMPUTED else (run["settings"] or {}).get(column)
    if column in ("parameters", "steps", "best") and value is not None:
        return f"{value:,}"
    return NONE if value is None else str(value)


def _path_parts(name: str) -> list[str]:
    """The parts of a run's name, each with the slash that ends it."""
    return re.findall("[^/]*/|[^/]+", name)


def _fold_path(name: str, width: int) -> str:
    """The name of a run on lines of at most this width, if its parts allow it: each is whole."""
    lines = [""]
    for part in _path_parts(name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _width(runs: Sequence[Entry], columns: Sequence[str], *, run_width: int = MIN_RUN_WIDTH) -> int:
    """Characters of the table on one line; the name of a run may continue on the next."""
    widths = []
    for column in columns:
        texts = [*_header(column).split("\n"), *(_cell(run, column) for run in runs)]
        widest = max(map(len, texts))
        widths.append(min(widest, run_width) if column == "run" else widest)
    return sum(widths) + 2 * (len(widths) - 1)


def _table(runs: Sequence[Entry], columns: Sequence[str], width: int) -> Any:
    headers = [_header(column) for column in columns]
    room = max(MIN_RUN_WIDTH, width - _width(runs, columns, run_width=0))
    runs = [run | {"run": _fold_path(run["run"], room)} for run in runs]
    cells = [[_cell(run, column) for column in columns] for run in runs]
    numeric = [
        header
        for index, header in enumerate(headers)
        if all(re.fullmatch(r"[-0-9.,%e+]+|–|nan|inf", row[index]) for row in cells)
    ]
    table = build_table(
        *headers,
        right=[header for header in numeric if header != "run"],
        no_wrap=[header for header in headers if header not in ("run", "model")],
        compact=True,
    )
    for row in cells:
        table.add_row(*map(Text, row))
    return table
