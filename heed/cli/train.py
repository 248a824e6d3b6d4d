"""Commands that create runs: demo, train, resume; and recipes, runs, check beside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    Device,
    PluginFiles,
    RunFolder,
    app,
    console,
    print_json,
    print_text,
)


@app.command(rich_help_panel="Train")
def demo(
    run: Annotated[
        Path | None,
        typer.Option(help="The run folder to create. Default: runs/demo, or the next free number."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model, not of the corpus.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Training steps; fewer for a quick look.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier demo in that folder.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Train, translate, score and plot attention on a generated corpus, in under three minutes on
    two CPU cores."""
    from dataclasses import asdict

    from heed.demo import run_demo

    result = run_demo(run, console=console(quiet=json), seed=seed, steps=steps, force=force)
    if json:
        print_json(asdict(result))


@app.command(rich_help_panel="Train")
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe file, or the name of a shipped recipe (see `heed recipes`)."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(help="A training file, in place of the recipe's; repeat for more."),
    ] = None,
    dev: Annotated[
        list[str] | None,
        typer.Option(help="A dev file, to choose the best weights; repeat for more."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(help="A test file, scored once after training; repeat for more."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with the recipe's data files."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, overrides the recipe; repeat for more."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run folder to create. Default: a new one in runs/.")
    ] = None,
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only estimate parameters, memory and training time."),
    ] = False,
) -> None:
    """Train a model by a recipe, or on files alone with default settings.

    heed train demo-translate --run runs/first

    heed train --task translate --train a.en --train a.fr --dev b.en --dev b.fr
    """
    from heed.train import precompile

    precompile.start_early(device)  # Before torch is imported: kernels take as long to compile.
    from heed.train import resolve
    from heed.train.distributed.torchrun import is_rank0
    from heed.train.prepare import tokenize_ahead

    resolved, name = resolve.resolve_recipe(
        recipe, task, train, dev, change, precision, data, test=test
    )
    precompile.start_early(device, resolved)
    if data is not None and is_rank0():
        typer.echo(resolve.describe_files(resolved))
    if not dry_run:
        tokenize_ahead.start(resolved)  # Before torch is imported too.
    resolve.set_threads(threads)
    if dry_run:
        from heed.evaluate.after_training import estimate_test
        from heed.export.support import describe_formats
        from heed.train import estimate

        resolved = estimate.dry_run(
            resolved,
            device=device,
            console=console(),
            final_evaluation=partial(estimate_test, device=device),
        )
        typer.echo(f"export      {describe_formats(resolved)}")
    else:
        from heed.train import run as train_run

        folder = run or resolve.free_folder(name)
        train_run.start(resolved, folder, device=device, console=console())
        _finish(folder, device)


@app.command(rich_help_panel="Train")
def resume(
    run: RunFolder,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, changes the run, such as train.steps=4000."),
    ] = None,
    device: Device = "auto",
    plugin: PluginFiles = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Number of CPU threads. Default: as many as before, for the same bits."),
    ] = None,
) -> None:
    """Resume an interrupted run from its last checkpoint, to the same bits as without the break
    (on a GPU: with train.deterministic).

    With --set train.steps=N or train.epochs=N a run trains on for longer, a finished one too.

    heed resume runs/mine --set train.steps=4000
    """
    from heed.train import precompile

    precompile.start_early(device)
    from heed.train import resolve
    from heed.train import run as train_run

    resolve.set_threads(resolve.recorded_threads(run) if threads is None else threads)
    train_run.resume(run, overrides=change or (), device=device, console=console())
    _finish(run, device)


def _finish(folder: Path, device: str) -> None:
    """Score the test set if the recipe asks for it, and print the next command; rank 0 only."""
    from heed.train.distributed.torchrun import is_rank0

    if not is_rank0():
        return
    from heed.runs.run import Run
    from heed.train import resolve

    recipe, screen = Run.open(folder).recipe(), console()
    if recipe.train.evaluate_test:
        from heed.evaluate.after_training import evaluate_test
        from heed.evaluate.tables import render_evaluation

        evaluate_test(
            folder,
            device=device,
            notify=screen.print,
            on_result=lambda result: screen.print(render_evaluation(result)),
        )
    print_text(resolve.next_steps(folder, recipe))


@app.command(rich_help_panel="Train")
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="The recipe to print, with every key explained.")
    ] = None,
) -> None:
    """List the shipped recipes, or print one with every key explained."""
    from heed.recipes import show, table

    if name:
        print_text(show(name))
    else:
        console().print(table())


@app.command(rich_help_panel="Train")
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that contains the runs.")] = Path(
        "runs"
    ),
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns, separated by commas: run, task, model, status, parameters, steps, best, "
            "dev/loss, test/bleu, or any recipe key (heads, train.lr). Default: what differs."
        ),
    ] = None,
    json: AsJson = False,
    plugin: PluginFiles = None,
) -> None:
    """List runs with their scores and the settings in which they differ.

    heed runs

    heed runs --columns run,heads,dropout,lr,parameters,dev/loss,test/bleu
    """
    from heed.runs.index import build_runs_table, list_runs

    listed = list_runs(folder)
    if json:
        print_json(listed)
    elif not listed:
        print_text(f"{folder}: there are no runs here. Create one with: heed demo")
    else:
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        screen = console()
        screen.print(build_runs_table(listed, names, width=screen.width))
        for run in listed:
            if run["broken"]:
                print_text(run["broken"], err=True)


@app.command(rich_help_panel="Train")
def check(
    files: Annotated[
        list[Path],
        typer.Argument(help="Data files (train, dev, test; both languages), or their folder."),
    ],
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    unit: Annotated[
        str, typer.Option(help="What one plain text is: a line, a document or a file.")
    ] = "line",
    header: Annotated[
        bool | None,
        typer.Option(
            help="Whether the first row of a table names its columns. Default: that row decides."
        ),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Print one batch as the model sees it in training.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Find problems in data files, by file and line: duplicates, train-test overlap, malformed
    lines."""
    if batch:
        from heed.data.doctor.show_batch import show_batch

        console().print(show_batch(files, task=task, unit=unit, header=header))
        return
    from heed.data.doctor import check as check_files
    from heed.data.doctor import render_report

    report = check_files(files, task=task, unit=unit, header=header)
    if json:
        typer.echo(report.to_json())
    else:
        console().print(render_report(report))
    raise typer.Exit(report.exit_code)
