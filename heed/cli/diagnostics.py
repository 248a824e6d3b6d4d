"""Commands about this machine: bench measures speed, selfcheck verifies correctness."""

from __future__ import annotations

from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    Device,
    PluginFiles,
    app,
    console,
    print_json,
)
from heed.errors import ConfigError


@app.command(rich_help_panel="This machine")
def bench(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe to measure. Default: standard model shapes.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="translate, classify or generate.")] = None,
    train: Annotated[
        list[str] | None, typer.Option(help="A training file; repeat for more.")
    ] = None,
    dev: Annotated[list[str] | None, typer.Option(help="A dev file; repeat for more.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value, overrides the recipe; repeat for more."),
    ] = None,
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[str | None, typer.Option(help="auto, float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with a peer instead, like for like: transformers (Marian or GPT-2), "
            "nn.Transformer (translators), plain (a GPT like nanoGPT)."
        ),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(
            help="Training steps to time. Default: whole epochs, for seconds; with --against, the "
            "first 8 of the recipe."
        ),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="With --against: turns of each system. Default: 5.")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="With --against: whether the peer is also compiled, which takes minutes.",
        ),
    ] = True,
    json: AsJson = False,
) -> None:
    """Measure training speed: tokens/s, share of the machine's peak FLOP/s, memory, start-up.

    heed bench demo-translate

    With --against, heed and a peer train a model of the same shape on the same batches: forward,
    loss, backward, clipping, AdamW. Each is in a process of its own, and they take turns. The first
    ratio is to the fastest form of the peer (eager, compiled, captured) in the same precision.
    All else is labeled. A form that fails is listed with its reason.

    heed bench demo-translate --against transformers

    heed bench demo-generate --against plain --precision float32
    """
    from heed.train import precompile

    named = (recipe, task, train, dev, change, precision)
    if against is None:
        if turns is not None or not compiled:
            flag = "--no-compile" if turns is None else "--turns"
            raise ConfigError([f"{flag} is for a comparison: add --against."])
        if recipe or train:
            precompile.start_early(device)
        from heed.bench.run_bench import run_bench

        figures, report = run_bench(
            named, device=device, threads=threads, updates=updates, console=console(quiet=json)
        )
    else:
        from heed.bench.run_bench import run_comparison

        figures, report = run_comparison(
            named,
            against,
            device=device,
            threads=threads,
            updates=updates,
            turns=turns,
            compiled=compiled,
            console=console(quiet=json),
        )
    if json:
        print_json(figures)
    else:
        console().print(report)


@app.command(rich_help_panel="This machine")
def selfcheck(json: AsJson = False) -> None:
    """Verify this machine: fast kernels, cached decoding, resuming and two ranks give the reference
    results."""
    from dataclasses import asdict

    from heed.selfcheck import build_checks_table, run_checks

    screen = console(quiet=json)
    checks = run_checks(lambda text: screen.print(text, highlight=False, markup=False))
    if json:
        print_json([asdict(check) | {"holds": check.holds} for check in checks])
    else:
        screen.print(build_checks_table(checks))
    raise typer.Exit(0 if all(check.holds for check in checks) else 1)
