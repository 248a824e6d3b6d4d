"""Commands that make runs: the demo, training, resuming, and what lies beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import AsJson, Device, RunFolder, app, console, print_json


@app.command(rich_help_panel="Train")
def demo(
    run: Annotated[Path, typer.Option(help="Where to put the run.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Another seed gives another corpus and model.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Fewer updates, for a quick look.")] = None,
    json: AsJson = False,
) -> None:
    """Train, translate, score and draw on a generated corpus, in under three minutes."""
    from dataclasses import asdict

    from heed.demo import demo as show

    result = show(run, console=console(quiet=json), seed=seed, steps=steps)
    if json:
        print_json(asdict(result))


@app.command(rich_help_panel="Train")
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe file, or a shipped name (see `heed recipes`).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[
        list[str] | None, typer.Option(help="A file to learn from, not the recipe's; repeat.")
    ] = None,
    dev: Annotated[list[str] | None, typer.Option(help="A file to choose by; repeat.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder in which the recipe's files are.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the recipe; repeat.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder to make; unset, under runs/.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to use.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take.")
    ] = False,
) -> None:
    """Train a model by a recipe, or on files alone with sensible settings.

    heed train demo-translate --run runs/first

    heed train --task translate --train a.en --train a.fr --dev b.en --dev b.fr
    """
    from heed.train import precompile

    precompile.start_early(device)  # Before torch is imported: kernels take as long to compile.
    from heed.train import resolve
    from heed.train import run as train_run

    resolved, name = resolve.recipe(recipe, task, train, dev, change, precision, data)
    precompile.start_early(device, resolved)
    resolve.use_threads(threads)
    if dry_run:
        resolve.dry_run(resolved, device=device, console=console())
    else:
        folder = run or resolve.free_folder(name)
        train_run.start(resolved, folder, device=device, console=console())
        if os.environ.get("RANK", "0") == "0":
            _score_test(folder, device)
            typer.echo(resolve.farewell(folder, resolved))


@app.command(rich_help_panel="Train")
def resume(run: RunFolder, device: Device = "auto") -> None:
    """Go on with a run that was stopped, to the same bits as if it had not been."""
    from heed.train import precompile

    precompile.start_early(device)
    from heed.train import resolve
    from heed.train import run as train_run

    done = train_run.resume(run, device=device, console=console())
    if os.environ.get("RANK", "0") == "0":
        _score_test(run, device)
        typer.echo(resolve.farewell(run, done.recipe()))


def _score_test(run: Path, device: str) -> None:
    """What `train.evaluate_test` asks for, unless it was done before."""
    from heed.runs.run import Run

    opened = Run.open(run)
    if (recipe := opened.recipe()).train.evaluate_test:
        from heed.cli import evaluate
        from heed.runs.best_weights import describe_weights
        from heed.runs.results_file import read_results

        before = read_results(run).get("test")
        if before is None or before["checkpoint"] != describe_weights(opened, recipe):
            metric = "bleu,chrf" if recipe.task == "translate" else None
            evaluate.evaluate(run, split="test", metric=metric, device=device)


@app.command(rich_help_panel="Train")
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one, every key explained.")] = None,
) -> None:
    """List the shipped recipes, or print one with every key explained."""
    from heed.recipes import show, table

    if name:
        typer.echo(show(name))
    else:
        console().print(table())


@app.command(rich_help_panel="Train")
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    json: AsJson = False,
) -> None:
    """List runs with their scores."""
    from heed.runs.index import build_runs_table, list_runs

    found = list_runs(folder)
    if json:
        print_json(found)
    elif not found:
        typer.echo(f"{folder}: there are no runs here. Make one: heed demo")
    else:
        console().print(build_runs_table(found))
        for run in found:
            if run["broken"]:
                typer.echo(run["broken"], err=True)


@app.command(rich_help_panel="Train")
def check(
    files: Annotated[list[Path], typer.Argument(help="Text to look at: splits, or two sides.")],
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Print one batch as training would see it.")
    ] = False,
    json: AsJson = False,
) -> None:
    """The data doctor: what would hurt training or flatter a score, by file and line."""
    if batch:
        from heed.data.doctor.show_batch import show_batch

        console().print(show_batch(files, task=task))
        return
    from heed.data.doctor import check as examine
    from heed.data.doctor import render

    report = examine(files, task=task)
    if json:
        typer.echo(report.to_json())
    else:
        console().print(render(report))
    raise typer.Exit(report.exit_code)
