"""Commands that look into a model: attend shows what it attends to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    Device,
    PluginFiles,
    RunFolder,
    Weights,
    app,
    console,
    print_json,
    print_text,
    print_warning,
)


@app.command(rich_help_panel="Look inside")
def attend(
    run: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to look at. Default: the lines of standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="The lines of this file (- for standard input).")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The translation to read. Default: the model's own."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="encoder, decoder or cross. Default: cross of a translator."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=1, help="One layer, counted from 1. Default: the last.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="One head, counted from 1, or mean. Default: the mean; in a figure every head."
        ),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Between words instead of subwords.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a figure (.png, .svg, .pdf), a page to explore (.html), or the exact "
            "numbers (.json). Of several texts, each has a file with its number."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Verify sums, masks, padding and the future; exit code 1 on a failure."
        ),
    ] = False,
    json: AsJson = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
) -> None:
    """Show what a model attends to: which tokens each token asks, with exact weights.

    A row asks and the columns answer. The weights are computed by the plain formula on what
    translate, classify or generate would read of the text, special tokens included.

    heed attend runs/demo "The old woman sees the cat."

    heed attend runs/demo "The old woman sees the cat." --layer 2 --head 1 --out map.png

    heed attend runs/demo "The old woman sees the cat." --out map.html

    heed attend runs/demo "The old woman sees the cat." --check
    """
    from heed.api import load
    from heed.pipelines import line_io
    from heed.probe.attend import View, attend_texts, check_texts, render_view
    from heed.probe.checks import render_checks

    view = View.from_flags(kind, layer, head, words=words)
    lines = line_io.open_lines(text, file, notify=print_warning)
    model = load(run, device=device, weights=weights)
    if check:
        checks = check_texts(model, lines, target=target)
        if json:
            print_json([one.to_dict() for one in checks])
        else:
            console().print(render_checks(checks))
        raise typer.Exit(0 if all(one.passed for one in checks) else 1)
    for maps, path in attend_texts(model, lines, view, target=target, out=out):
        if path is not None:
            print_text(f"{path}: {maps.text}", err=json)
        if json:
            print_json(maps.select(view.kind, view.layer).to_dict())
        elif path is None:
            console().print(render_view(maps, view))
