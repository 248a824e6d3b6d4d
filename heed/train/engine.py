"""Start a run, go on with one, load what it learnt."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file

from heed import draw
from heed.config import Recipe
from heed.data.tokenizer import Tokenizer
from heed.models import Model, build
from heed.runs import Run
from heed.train import checkpoint
from heed.train.feed import Feed
from heed.train.loop import Loop
from heed.train.optim import OptimizerSettings, build_optimizer
from heed.train.schedules import schedule
from heed.train.setup import Parts, choose_device, prepare
from heed.train.state import State
from heed.train.view import View

DEFAULT_EPOCHS = 20


def start(recipe: Recipe, folder: Path, *, device: str = "auto", console: Console) -> Run:
    """Make a run folder and train in it to the end."""
    chosen = choose_device(device)
    run = Run.create(folder, recipe)
    with run.locked():
        _train(run, recipe, chosen, console)
    return run


def resume(folder: Path, *, device: str = "auto", console: Console) -> Run:
    """Go on with a run from its newest whole checkpoint; say so where it is finished."""
    chosen, run = choose_device(device), Run.open(folder)
    if run.finished:
        console.print(f"{folder}: this run is finished; nothing to do.", highlight=False)
        return run
    with run.locked():
        _train(run, run.recipe(), chosen, console)
    return run


def _train(run: Run, recipe: Recipe, device: torch.device, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    parts = prepare(recipe, run, device=device, say=say)
    loop = build_loop(parts, run)
    tensors, facts = checkpoint.newest(run.checkpoints, say)
    if facts:
        loop.state.restore(tensors, facts)
        say(f"Going on from step {loop.state.step}.")
    _keep_lines(run, loop.state.lines)
    run.write_environment({"data": parts.data_hashes, "device": str(device), "bf16": parts.bf16})
    with View(console, total=loop.steps, start=loop.state.step) as view:
        loop.train(view)
    _finish(run, parts)


def build_loop(parts: Parts, run: Run) -> Loop:
    """The loop of a recipe, at step 0."""
    settings = parts.recipe.train
    feed = Feed(parts.train, accumulate=settings.accumulate, device=parts.device)
    steps = settings.steps or (settings.epochs or DEFAULT_EPOCHS) * feed.steps_per_epoch
    optimizer = build_optimizer(
        parts.model,
        OptimizerSettings(
            name=settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            betas=(settings.betas[0], settings.betas[1]) if settings.betas else None,
            momentum=settings.momentum,
            muon_lr=settings.muon_lr,
        ),
    )
    factor = schedule(
        settings.schedule,
        warmup=min(settings.warmup, steps),
        steps=steps,
        floor=settings.lr_floor,
    )
    state = State(parts.model, optimizer, parts.device, ema_decay=settings.ema)
    return Loop(parts, state, run, feed, factor, steps)


def _keep_lines(run: Run, lines: int) -> None:
    """Forget what was measured after the checkpoint: it will be measured again."""
    if run.metrics_path.exists():
        kept = run.metrics_path.read_bytes().split(b"\n")[:lines]
        run.metrics_path.write_bytes(b"".join(line + b"\n" for line in kept))


def _finish(run: Run, parts: Parts) -> None:
    """Draw the curves, then put the best weights where everyone looks for them."""
    draw_curves(run)
    best = load_file(run.checkpoints / "best.safetensors")
    parts.model.load_state_dict(best)
    checkpoint.write_tensors(run.weights_path, best)


def draw_curves(run: Run) -> None:
    """Loss by step, of training and of every set evaluated, the best marked."""
    lines = run.metrics()
    series: dict[str, list[tuple[float, float]]] = {
        "train": [(line["step"], line["loss"]) for line in lines if line["event"] == "train"]
    }
    for line in lines:
        if line["event"] == "evaluate":
            for name in line.keys() - {"event", "step", "epoch", "time", "train"}:
                series.setdefault(name, []).append((line["step"], line[name]["loss"]))
    best = {
        name: min(points, key=lambda point: point[1])[0]
        for name, points in series.items()
        if name != "train" and points
    }
    figure = draw.curves(
        {name: points for name, points in series.items() if points},
        title="Loss while training",
        x="step",
        y="cross-entropy a token",
        best=best,
    )
    draw.save(figure, run.figures / "loss")


def load(folder: Path, *, device: str = "auto") -> tuple[Model, Tokenizer, Recipe]:
    """The model a finished run chose, its tokenizer and its recipe."""
    run, chosen = Run.open(folder), choose_device(device)
    recipe, tokenizer = run.recipe(), Tokenizer.load(run.tokenizer_path)
    weights = load_file(run.require_weights())
    classes = weights["head.bias"].shape[0] if "head.bias" in weights else None
    model = build(recipe.task, recipe.model, vocab=tokenizer.vocab_size, classes=classes)
    model.load_state_dict(weights)
    return model.to(chosen).eval(), tokenizer, recipe
