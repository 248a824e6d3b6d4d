"""Commands about finished runs: compare them, plot their metrics, write a report to hand in."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    PluginFiles,
    app,
    console,
    print_json,
    print_text,
    print_warning,
)


class TableFormat(StrEnum):
    """Formats of a comparison for papers."""

    markdown = "markdown"
    latex = "latex"


@app.command(rich_help_panel="Score")
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Evaluated runs, folders of runs, records, patterns in quotes, or one study."
        ),
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
    paired_seeds: Annotated[
        bool,
        typer.Option(
            "--paired-seeds",
            help="Treat runs with the same seed as pairs. Only if declared before training.",
        ),
    ] = False,
    records: Annotated[
        Path | None,
        typer.Option(help="Also write a record of each run (no text) into this folder."),
    ] = None,
    table: Annotated[
        TableFormat | None, typer.Option(help="Print a table for a paper: markdown or latex.")
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(
            help="Also write the pairs to this file as a LaTeX table (booktabs): difference, "
            "interval, p, verdict."
        ),
    ] = None,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Say which change of recipe was real: compare runs over seeds and test items.

    Runs of one recipe with different seeds are one system. Three seeds each or more give a verdict
    on recipes; fewer compare the models alone. Evaluate the runs first. The folder of a study is
    compared as it declared before training: its systems, metric, baseline, margin and looks.

    heed compare runs/rope-* runs/alibi-*

    heed compare runs --baseline runs/rope-1 --margin 0.5

    heed compare runs/a runs/b --metric chrf --table latex

    heed compare runs --latex pairs.tex

    heed compare runs/my-study
    """
    from heed.files import check_writable, write_atomic
    from heed.study.compare_named import compare_named, expand_studies
    from heed.study.comparison_tables import (
        pairs_to_latex,
        render_comparison,
        to_latex,
        to_markdown,
    )
    from heed.study.run_records import open_scored_runs, write_record

    check_writable(latex, "--latex")
    result = compare_named(
        runs,
        baseline=baseline,
        metric=metric,
        margin=margin,
        set_name=set_name,
        paired_seeds=paired_seeds,
    )
    if records is not None:
        for run in open_scored_runs(expand_studies(runs)):
            write_record(run, records)
    if latex is not None:
        write_atomic(latex, pairs_to_latex(result))
    if json:
        print_json(result.to_dict())
    elif table is not None:
        typer.echo(
            to_latex(result) if table is TableFormat.latex else to_markdown(result), nl=False
        )
    else:
        console().print(render_comparison(result))


@app.command(rich_help_panel="Score")
def plot(
    runs: Annotated[
        list[str],
        typer.Argument(help="Run folders, folders of runs, or patterns such as 'runs/rope-*'."),
    ],
    x: Annotated[
        str, typer.Option("--x", help="step, epoch, tokens (without padding) or seconds.")
    ] = "step",
    y: Annotated[
        list[str] | None,
        typer.Option(
            "--y",
            help="A metric, such as dev/loss, dev/bleu or train/lr; repeat for more. "
            "Default: dev/loss, else train/loss.",
        ),
    ] = None,
    log: Annotated[str | None, typer.Option(help="Logarithmic axes: x, y or both.")] = None,
    smooth: Annotated[
        int,
        typer.Option(
            help="Moving average over this many points, each point the last of its window."
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The figure: a .png, .svg or .pdf file. Default: named after what is drawn, "
            "as dev-loss-by-step.png, in the current folder; none with --csv."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write the values to this file: every run and step, not averaged."),
    ] = None,
    list_metrics: Annotated[
        bool, typer.Option("--list", help="List the metrics that the runs have, and draw nothing.")
    ] = False,
    plugin: PluginFiles = None,
) -> None:
    """Plot metrics of runs, also while they train: one line for each recipe.

    Runs that differ only in their seeds are one line: their mean, shaded from
    the lowest to the highest. The legend names the recipe keys that differ.
    Metrics of one kind, such as losses, share a panel.

    heed plot runs/mine

    heed plot runs/mine --y train/loss --y dev/loss --x epoch --out mine.svg

    heed plot 'runs/rope-*' 'runs/alibi-*' --y dev/bleu --csv bleu.csv
    """
    from heed.files import check_writable
    from heed.runs import metric_plot
    from heed.runs.discovery import find_runs

    options = metric_plot.PlotOptions(y or (), x, log, smooth)
    if out is not None:
        metric_plot.check_format(out)
    recorded = metric_plot.read_runs(find_runs(runs), print_warning)
    if list_metrics:
        console().print(metric_plot.build_metrics_table(recorded))
        return
    metrics = metric_plot.choose_metrics(recorded, options.metrics)
    if out is None and csv is None:
        out = metric_plot.default_path(metrics, x)
    check_writable(out)
    check_writable(csv, "--csv")
    for line in metric_plot.write_plot(recorded, metrics, options, out, csv, print_warning):
        print_text(line)


@app.command(rich_help_panel="Score")
def report(
    runs: Annotated[
        list[str],
        typer.Argument(help="A run, several runs to compare, a folder of runs, or a study."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file: .html (one file, no network), or .md with its figures in a folder "
            "beside it. Default: report.html in the run or study."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="Report title. Default: the study's title, or the names of the runs."),
    ] = None,
    author: Annotated[str | None, typer.Option(help="The author of the report.")] = None,
    notes: Annotated[
        str | None, typer.Option(help="Your own words below the title: a text, or a text file.")
    ] = None,
    no_examples: Annotated[
        bool,
        typer.Option(
            "--no-examples", help="Leave out every text of the corpus; names of classes stay."
        ),
    ] = False,
    plugin: PluginFiles = None,
) -> None:
    """Write a report: data, recipe, curves, scores with intervals, examples, attention.

    Everything comes from the run folder, and from the run's text if it is still there. Missing
    parts are listed in the report. Several runs are compared as `heed compare` does; a study has
    its answer first. For PDF, open the HTML file in a browser and print it.

    heed report runs/mine

    heed report runs/mine --out mine.md --title "My translator" --author "A. Student"

    heed report 'runs/rope-*' 'runs/alibi-*' --out positions.html
    """
    from heed.files import check_writable
    from heed.report.build_report import build_report, default_path, read_notes
    from heed.report.run_report import ReportOptions
    from heed.report.write_report import check_ending, describe_report, write_report

    path = out or default_path(runs)
    check_ending(path)
    check_writable(path)
    words = (title or "", author or "", read_notes(notes))
    document = build_report(runs, ReportOptions(*words, with_examples=not no_examples))
    for problem in document.problems:
        print_warning(problem)
    write_report(document, path)
    print_text(describe_report(document, path))
