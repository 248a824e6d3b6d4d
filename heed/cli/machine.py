"""Commands about this machine: how fast it is, and whether all holds on it."""

from __future__ import annotations

from typing import Annotated

import typer

from heed.cli.common import AsJson, Device, app, console, print_json


@app.command(rich_help_panel="This machine")
def bench(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe; without one, the standard shapes.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[list[str] | None, typer.Option(help="A file to learn from; repeat.")] = None,
    dev: Annotated[list[str] | None, typer.Option(help="A file to choose by; repeat.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the recipe; repeat.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads to use.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Run a peer beside it, in turns: transformers.")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates to time; unset, epochs for some seconds.")
    ] = None,
    json: AsJson = False,
) -> None:
    """How fast training is here: tokens/s, share of the machine's peak, memory, start-up.

    heed bench demo-translate

    heed bench --against transformers
    """
    from heed.train import precompile

    if recipe or train:
        precompile.start_early(device)
    from heed.bench import command

    facts, report = command.bench(
        (recipe, task, train, dev, change, precision),
        device=device,
        threads=threads,
        against=against,
        updates=updates,
        console=console(quiet=json),
    )
    if json:
        print_json(facts)
    else:
        console().print(report)


@app.command(rich_help_panel="This machine")
def selfcheck(json: AsJson = False) -> None:
    """Prove on this machine: fused = plain, cached = uncached, resumed = unbroken, two = one."""
    from dataclasses import asdict

    from heed import selfcheck as checks

    screen = console(quiet=json)
    done = checks.selfcheck(lambda text: screen.print(text, highlight=False, markup=False))
    if json:
        print_json([asdict(check) | {"holds": check.holds} for check in done])
    else:
        screen.print(checks.table(done))
    raise typer.Exit(0 if all(check.holds for check in done) else 1)
