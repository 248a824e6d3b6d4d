"""The command that compares: which change of recipe was real."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import AsJson, PluginFiles, app, console, print_json


class TableFormat(StrEnum):
    """Formats of a comparison for papers."""

    markdown = "markdown"
    latex = "latex"


@app.command(rich_help_panel="Score")
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(help="Evaluated runs, folders of runs, records, or patterns in quotes."),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="Compare with this run's recipe only. Default: all pairs."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="bleu, chrf, accuracy, bits_per_byte… Default: the task's first."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="The smallest difference that matters, for 'as good, within'."),
    ] = None,
    set_name: Annotated[
        str | None,
        typer.Option("--set", help="The set that all were scored on. Default: test, else dev."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Also write a record of each run (no text) into this folder."),
    ] = None,
    table: Annotated[
        TableFormat | None, typer.Option(help="Print a table for a paper: markdown or latex.")
    ] = None,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Compare recipes: is the difference more than another seed and other test text would make?

    Runs of one recipe with different seeds are one system. Three seeds each or more give a verdict
    on recipes; fewer compare the models alone. Evaluate the runs first.

    heed compare runs/rope-* runs/alibi-*

    heed compare runs --baseline runs/rope-1 --margin 0.5

    heed compare runs/a runs/b --metric chrf --table latex
    """
    from heed.study.comparison_tables import render_comparison, to_latex, to_markdown
    from heed.study.recipe_comparison import compare_runs
    from heed.study.run_records import open_scored_runs, write_record

    scored = open_scored_runs(runs)
    result = compare_runs(
        scored, baseline=baseline, metric=metric, margin=margin, set_name=set_name
    )
    if records is not None:
        for run in scored:
            write_record(run, records)
    if json:
        print_json(result.to_dict())
    elif table is not None:
        typer.echo(
            to_latex(result) if table is TableFormat.latex else to_markdown(result), nl=False
        )
    else:
        console().print(render_comparison(result))
