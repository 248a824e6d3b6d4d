"""What `heed train` does first: put the recipe together, find a folder, or only estimate."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from heed.config import Recipe, apply_overrides, error_location, read_tables
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.packing import PackedBatches
from heed.data.corpus import infer_task
from heed.device import choose_device
from heed.errors import ConfigError
from heed.recipes import FOLDER as SHIPPED
from heed.recipes import find
from heed.runs.run import Run
from heed.train import precompile
from heed.train.distributed.ranks import among_several, one_voice
from heed.train.optimizers.build import rates
from heed.train.prepare.init_from import settled
from heed.train.prepare.setup import prepare, validate_recipe
from heed.train.run import build_loop

SMALL = 2**21
"""Bytes of text up to which a model of two layers is enough."""
TRIED = 5
"""Updates timed for an estimate, after one to warm up."""

RIVALS = {"batch_size": "batch_tokens", "batch_tokens": "batch_size"}
NO_TEST = (
    "[train] evaluate_test scores the test set, and there is none: name its files with "
    "--set 'data.test=[\"FILE\", …]', or leave it out with --set train.evaluate_test=false."
)


@one_voice()
def recipe(
    name: str | None,
    task: str | None,
    train: Sequence[str] | None,
    dev: Sequence[str] | None,
    changes: Sequence[str] | None,
    precision: str | None,
    folder: Path | None = None,
) -> tuple[Recipe, str]:
    """The recipe named, or an empty one, as the command line changes it; and its name.

    Files to learn from take the place of all text that the recipe names, but for what is in
    `folder`: a test set of another text would be in another language, or not there.
    """
    tables: dict[str, Any] = {}
    where = None
    asked = [*(changes or ()), *([f"train.precision={precision}"] if precision else [])]
    if name is not None:
        path = find(name)
        tables, where = read_tables(path), error_location(path, asked)
    elif train:
        tables = _sensible(train, begins="init.from" in _keys(changes))
    data = dict(tables.get("data", {}))
    if folder is not None:
        _refuse_of_no_use(tables)
        data = _inside(folder, data)
        if pieces := tables.get("tokenizer", {}).get("text"):
            tables["tokenizer"] = tables["tokenizer"] | {"text": _placed(folder, pieces)}
    elif train:
        data = {key: value for key, value in data.items() if key not in ("test", "sets")}
        if pieces := tables.get("tokenizer"):
            tables["tokenizer"] = {key: v for key, v in pieces.items() if key != "text"}
    if train:
        data.pop("synthetic", None)
        data |= {"train": list(train), "dev": list(dev or ())}
    elif dev:
        data |= {"dev": list(dev)}
    if task or (train and "task" not in tables):
        tables["task"] = task or infer_task(list(train or ()))
    tables |= {"data": data, "train": _without_rivals(tables.get("train", {}), _keys(changes))}
    resolved = Recipe.of(apply_overrides(tables, asked), where=where)
    if resolved.train.evaluate_test and not resolved.data.test and resolved.data.synthetic is None:
        raise ConfigError([NO_TEST])
    if name is not None and folder is None and not train:
        _refuse_absent(name, data.get("train", ()), resolved.data.train)
    return resolved, Path(name).stem if name else resolved.task


def _keys(changes: Sequence[str] | None) -> set[str]:
    """What the command line changes."""
    return {change.partition("=")[0].strip() for change in changes or ()}


def _without_rivals(train: dict[str, Any], changed_keys: set[str]) -> dict[str, Any]:
    """Settings without the other way to say how large a batch is, where one is told."""
    told = {rival for key, rival in RIVALS.items() if f"train.{key}" in changed_keys}
    return {key: value for key, value in train.items() if key not in told}


def _sensible(files: Sequence[str], *, begins: bool) -> dict[str, Any]:
    """Settings for files without a recipe: a small text gets a small model, stopped in time.

    A model that begins from another has its shape, and learns slowly.
    """
    if begins:
        return {"train": {"patience": 3, "batch_size": 32, "lr": 5e-5, "schedule": "linear"}}
    sizes = [Path(name).stat().st_size for name in files if Path(name).is_file()]
    if len(sizes) < len(files) or sum(sizes) > SMALL:
        return {"train": {"patience": 3}}
    train = {"batch_tokens": 2048, "lr": 2e-3, "patience": 3}
    return {"model": {"layers": 2, "width": 128}, "train": train}


def _inside(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The recipe's files, those of a relative name looked for in `folder`."""
    files = {key: _placed(folder, data[key]) for key in ("train", "dev", "test") if key in data}
    sets = {name: _placed(folder, paths) for name, paths in data.get("sets", {}).items()}
    return data | files | ({"sets": sets} if sets else {})


def _refuse_of_no_use(tables: dict[str, Any]) -> None:
    """A folder for a recipe that names no files: nothing would be read from there."""
    data, pieces = tables.get("data", {}), tables.get("tokenizer", {})
    if not (pieces.get("text") or any(data.get(k) for k in ("train", "dev", "test", "sets"))):
        why = (
            "this one makes its own text (data.synthetic)"
            if "synthetic" in data
            else "here are none"
        )
        todo = "name files with --train, or leave --data out."
        raise ConfigError([f"--data is for the files that a recipe names; {why}: {todo}"])


def _refuse_absent(name: str, own: Sequence[str], files: Sequence[str]) -> None:
    """A shipped recipe whose own files are not here: they lie wherever its user put them."""
    absent = [file for file in files if file in own and not Path(file).exists()]
    if absent and find(name).is_relative_to(SHIPPED):
        missing = f"{name} learns from {' and '.join(absent)}, and there is no such file here"
        raise ConfigError([f"{missing}: name the folder with --data DIR, or files with --train."])


def _placed(folder: Path, names: Sequence[str]) -> list[str]:
    return [str(folder / name) for name in names]


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, …: the first that is not there yet."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def next_steps(folder: Path, recipe: Recipe) -> str:
    """Where the model is, and what to type next."""
    name = shlex.quote(str(folder))
    written = recipe.task == "generate" and recipe.train.objective == "causal"
    using = {
        "translate": f'heed translate {name} "…"',
        "classify": f'heed classify {name} "…"',
        "generate": f'heed generate {name} --prompt "…"' if written else f"heed evaluate {name}",
    }
    return f"The model is in {folder}. Next: {using[recipe.task]}"


@one_voice()
def use_threads(threads: int | None) -> None:
    """How many cores torch may use."""
    if threads is None:
        return
    if threads < 1:
        raise ConfigError([f"threads cannot be {threads}: use 1 or more."])
    torch.set_num_threads(threads)


@one_voice()
def dry_run(recipe: Recipe, *, device: str, console: Console) -> None:
    """Parameters, memory and time, from a few real updates in a folder that is thrown away."""
    if among_several():
        raise ConfigError(["--dry-run tries one process: leave torchrun away."])

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    chosen = choose_device(device)
    recipe, origin = settled(recipe)
    validate_recipe(recipe, origin)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "dry", recipe)
        parts = prepare(recipe, run, device=chosen, say=say, origin=origin)
        precompile.stop_compiling()
        loop = build_loop(parts, run, say=say)
        seconds = []
        for batches in loop.feed.walk(0, min(TRIED + 1, loop.steps)):
            began = time.perf_counter()
            loop.update(batches)
            if chosen.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    weights = sum(p.numel() for p in parts.model.parameters())
    each = sorted(seconds[1:] or seconds)[len(seconds[1:] or seconds) // 2]
    say(f"parameters  {weights:,}")
    say(f"rates       {rates(loop.state.optimizer, recipe.train.lr)}")
    say(f"vocabulary  {parts.tokenizer.vocab_size:,}")
    say(
        f"texts       {_texts(parts.train)} to learn from, "
        f"{', '.join(f'{_texts(split)} in {name}' for name, split in parts.sets.items())}"
    )
    say(f"memory      {_memory(weights, chosen)}")
    say(f"updates     {loop.steps:,}, {loop.feed.steps_per_epoch:,} an epoch")
    say(
        f"time        about {_span(each * loop.steps)} ({each * 1e3:.0f} ms an update), "
        "evaluation apart"
    )


def _texts(split: BucketedBatches | PackedBatches) -> str:
    """How many there are; and how many windows, where a language model reads long ones in parts."""
    texts, windows = split.example_count, len(split.rows)
    return f"{texts:,} ({windows:,} windows)" if windows > texts else f"{texts:,}"


def _memory(weights: int, device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at its height"
    return f"{weights * 16 / 2**20:.0f} MiB for weights, gradients and optimizer, activations apart"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
