"""The report of several runs: which change was real, their scores, curves and recipes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from heed.errors import HeedError
from heed.evaluate.tables import ROWS, TOKEN_ACCURACY, format_metric
from heed.report.curves_section import METRICS
from heed.report.document import Block, Code, Document, Figure, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.recipe_section import UNSET
from heed.report.reproduce_section import training_minutes
from heed.report.row_charts import Row, interval_plot
from heed.report.run_content import RunContent, read_run_content
from heed.report.run_report import ReportOptions
from heed.report.scores_section import HEADLINES
from heed.runs.metric_plot import PlotOptions, RecordedRun, build_curves, count_metrics
from heed.stats.verdicts import Verdict
from heed.study.comparison_tables import all_notes, describe_scores, difference_rows, score_rows
from heed.study.recipe_comparison import RecipeComparison, compare_runs

OPEN = (Verdict.UNDECIDED, Verdict.TWO_MODELS)
"""Verdicts that leave open whether two recipes differ."""


def build_comparison_report(
    folders: Sequence[str | Path], options: ReportOptions | None = None
) -> Document:
    """The report of several runs, compared as `heed compare` does."""
    options = options or ReportOptions()
    contents = [read_run_content(Path(folder)) for folder in folders]
    sections = [
        _build_comparison_section(contents),
        _build_runs_section(contents),
        _build_curves_section(contents),
        _build_reproduce_section(contents),
    ]
    names = [content.name for content in contents]
    listed = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
    title = options.title or f"Comparison of {listed}"
    return Document(title, options.author, options.notes, sections)


def _build_comparison_section(contents: Sequence[RunContent]) -> Section:
    """Verdicts first, then scores and differences, then notes."""
    try:
        comparison = compare_runs([content.run.folder for content in contents])
    except HeedError as error:
        text = f"These runs are not compared: {error}"
        return Section("comparison", "Comparison", [Paragraph(text, "note")])
    support = "differences" if comparison.whole.pairs else "system-scores"
    blocks: list[Block] = [
        Paragraph(sentence, "finding", figure=support) for sentence in comparison.sentences
    ]
    columns, rows = score_rows(comparison)
    caption = f"{describe_scores(comparison)}."
    blocks.append(Table("system-scores", caption, columns, rows, right=columns[1:]))
    if comparison.whole.pairs:
        blocks.append(_draw_differences(comparison))
        columns, rows = difference_rows(comparison)
        caption = "Differences with their corrected intervals and p-values."
        blocks.append(Table("difference-table", caption, columns, rows, right=columns[1:]))
    blocks += [Paragraph(note, "note") for note in all_notes(comparison)]
    if comparison.signature:
        blocks.append(Paragraph(f"{comparison.metric.name}: {comparison.signature}", "note"))
    return Section("comparison", "Comparison", blocks)


def _draw_differences(comparison: RecipeComparison) -> Figure:
    """Dots and intervals of the differences; a filled dot has a verdict on the recipes."""
    columns, cells = difference_rows(comparison)
    rows = [
        Row(
            label,
            pair.difference,
            pair.interval.low,
            pair.interval.high,
            f"{difference} ({interval})",
            is_strong=judgement.verdict not in OPEN,
        )
        for (label, difference, interval, *_), (pair, judgement) in zip(
            cells, comparison.pairs, strict=True
        )
    ]
    unit = comparison.metric.name
    x, margin = f"difference in {unit}", comparison.margin
    draw = partial(interval_plot, rows, x=x, reference=0.0, margin=margin)
    alt = "; ".join(f"{row.label}: {row.text}" for row in rows)
    caption = (
        f"Differences in {unit}, {columns[0]}. Filled: there is a verdict on the recipes "
        "(exploratory); hollow: there is none."
    )
    return Figure.drawn("differences", caption, f"Differences: {alt}.", draw)


def _build_runs_section(contents: Sequence[RunContent]) -> Section:
    """One row for each run: seed, size, time, and its scores on the first set."""
    task = contents[0].recipe.task
    rows_of = ROWS | (TOKEN_ACCURACY if task != "classify" else {})
    keys = [
        key
        for key in HEADLINES[task]
        if any(key in result for one in contents for result in list(one.results.values())[:1])
    ]
    columns = ["run", "seed", "parameters", "minutes", "set", *(rows_of[key][0] for key in keys)]
    columns.append("also in train")
    rows = []
    for content in contents:
        name, result = next(iter(content.results.items()), ("–", {}))
        scores = [
            format_metric(result, key, rows_of[key][1]) if key in result else "–" for key in keys
        ]
        parameters = "–" if content.parameters is None else f"{content.parameters:,}"
        seen = result.get("in_train")
        overlap = "–" if seen is None else f"{seen:,} of {result['texts']:,}"
        minutes = training_minutes(content) or "–"
        cells = [content.name, str(content.recipe.seed), parameters, minutes]
        rows.append([*cells, name, *scores, overlap])
    numbers = [name for name in columns if name not in ("run", "set")]
    caption = "The runs. Brackets are 95% intervals over texts, of this run alone."
    blocks: list[Block] = [Table("run-scores", caption, columns, rows, right=numbers)]
    blocks += _render_differing_keys(contents)
    return Section("runs", "Runs and recipes", blocks)


def _render_differing_keys(contents: Sequence[RunContent]) -> Iterator[Block]:
    """The keys of the recipes that differ."""
    flat = []
    for content in contents:
        tables = content.recipe.tables()
        values = {"seed": tables["seed"]}
        for section, keys in tables.items():
            if isinstance(keys, dict):
                values |= {f"{section}.{key}": value for key, value in keys.items()}
        flat.append(values)
    keys = list(dict.fromkeys(key for values in flat for key in values))
    differing = [key for key in keys if len({str(values.get(key)) for values in flat}) > 1]
    if not differing:
        yield Paragraph("The recipes of these runs are the same.")
        return
    rows = [
        [content.name, *(str(values.get(key, UNSET)) for key in differing)]
        for content, values in zip(contents, flat, strict=True)
    ]
    yield Table("keys", "Keys of the recipes that differ.", ["run", *differing], rows)


def _build_curves_section(contents: Sequence[RunContent]) -> Section:
    """Dev metrics over training: one line for each recipe, with a band over its seeds."""
    recorded = [
        RecordedRun(str(one.run.folder), one.history, one.recipe, one.environment.get("data", {}))
        for one in contents
        if one.history
    ]
    blocks: list[Block] = []
    known = count_metrics(recorded)
    for metric, name in METRICS.items():
        key = f"dev/{metric}"
        if key not in known or (metric == "perplexity" and contents[0].recipe.task != "generate"):
            continue
        notes: list[str] = []
        curves = build_curves(recorded, [key], PlotOptions(), notes.append)
        series = [Series(curve.group.name, curve.points, curve.band) for curve in curves]
        draw = partial(line_chart, series, x="step", y=f"{name} on dev")
        ends = "; ".join(f"{one.label}: {one.points[-1][1]:.4g} at the end" for one in series)
        band = " Bands: from the lowest to the highest seed." if any(c.band for c in curves) else ""
        caption = f"{name[0].upper()}{name[1:]} on dev by step.{band}"
        blocks.append(Figure.drawn(f"curve-{metric}", caption, f"{name} on dev. {ends}.", draw))
        blocks += [Paragraph(note.removeprefix("heed: "), "note") for note in notes]
    if not blocks:
        blocks.append(Paragraph("None of these runs has recorded a metric on dev.", "note"))
    return Section("training", "Training curves", blocks)


def _build_reproduce_section(contents: Sequence[RunContent]) -> Section:
    folders = [str(content.run.folder) for content in contents]
    commands = [f"heed compare {shlex.join(folders)}", f"heed report {shlex.join(folders)}"]
    commands += [f"heed report {shlex.quote(folder)}" for folder in folders]
    text = "The report of each run has its recipe, versions and data hashes."
    return Section("reproduce", "How to reproduce", [Paragraph(text), Code("\n".join(commands))])
