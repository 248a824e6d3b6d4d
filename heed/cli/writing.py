"""Commands that write with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import Device, RunFolder, app, reader_left


@app.command(rich_help_panel="Use a model")
def translate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; without any, a pipe.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Translate the lines of this file.")] = None,
    others: Annotated[
        list[Path] | None, typer.Option("--with", help="Another run to write with this; repeat.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses side by side; 1: greedy.")] = None,
    nbest: Annotated[int, typer.Option(help="Translations of each line, tabs between.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="0: the likeliest.")] = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="Against words left out.")] = None,
    early_stop: Annotated[bool | None, typer.Option(help="Take what ended first.")] = None,
    sample: Annotated[bool | None, typer.Option("--sample", help="Draw tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the draws.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from so much probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw what has such a share of it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    copy_unknown: Annotated[
        bool | None, typer.Option("--copy-unknown", help="Copy words that have no translation.")
    ] = None,
    max_ratio: Annotated[float | None, typer.Option(help="Longest output by source…")] = None,
    max_extra: Annotated[int | None, typer.Option(help="…plus so many tokens.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sentences side by side.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="A score after each.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Source-target word pairs after each.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
) -> None:
    """Translate sentences, a file or a pipe, one line out for each line in.

    What is not said here, is as the decode section of the run's recipe has it.

    heed translate runs/demo "The old woman sees the cat."

    heed translate runs/demo --beam 5 --scores < input.txt > output.tsv
    """
    from heed.api import Translator
    from heed.decode import pipe

    settings = pipe.chosen(context.params)  # all flags that [decode] has a key for
    translator = Translator.load(run, *(others or ()), device=device, precision=precision)
    try:
        with pipe.opened(text, file) as lines:
            pipe.pump(
                lines,
                translator.scribe(nbest, alignments, **settings),
                pipe.Shown(scores, alignments, json),
                out=sys.stdout.buffer,
                say=lambda word: typer.echo(word, err=True),
            )
    except BrokenPipeError:
        reader_left()
