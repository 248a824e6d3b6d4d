"""The report of a study: its answer in three sentences first, then everything that supports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from heed.config.registry import MERGES, POSITIONS
from heed.config.train import OPTIMIZERS
from heed.report.answer import answer_question, answer_without_runs
from heed.report.claims import Question
from heed.report.document import Block, Document, Figure, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.study_analysis import describe_analysis
from heed.report.study_examples import describe_examples
from heed.report.study_figures import (
    MAX_CURVES,
    MAX_MATRIX,
    MIN_MATRIX,
    Cost,
    difference_plot,
    format_count,
    pair_matrix,
    pairs_table,
    seeds_table,
    systems_table,
)
from heed.report.study_process import (
    describe_declarations,
    describe_method,
    describe_reproduction,
    describe_trials,
)
from heed.report.study_search import describe_search
from heed.report.study_sets import CLEAN, describe_further_scores, tell_overlap
from heed.report.wording import count_of, join_names
from heed.study.analysis import analyze_study
from heed.study.status_table import mark_interrupted
from heed.study.study_lock import is_running
from heed.study.study_results import StudyResults
from heed.study.trials import FINISHED

TRAIN_LOSS = "train/loss"
"""The loss while training, where dev was evaluated too seldom for a curve."""
DESCRIBED: Mapping[str, Mapping[str, str]] = {
    "model.position": POSITIONS.declared,
    "model.merge": MERGES.declared,
    "train.optimizer": OPTIMIZERS,
}
"""Keys whose values are names that a reader may not know, with a line about each."""
MATTERING_SIZE = 1.05
"""A larger ratio of parameters is told beside the settings that it follows from."""
MAX_KEYS = 5
"""Keys that have a column each, and are named in a sentence."""


def build_study_report(
    folder: str | Path,
    *,
    title: str | None = None,
    author: str | None = None,
    notes: str | None = None,
    examples: bool = True,
) -> Document:
    """The report of the study in this folder.

    Records of trials hold no text, so the report has none; `examples` adds some from the run
    folders that still exist.
    """
    results = StudyResults.read(folder)
    config = results.config
    question = build_question(results)
    title = (
        title or config.title or config.question or f"Study {config.name or results.folder.name}"
    )
    sections = [_describe_answer(results, question, title)]
    if question is not None:
        sections.append(_describe_systems(results, question))
        if question.comparison.pairs:
            sections.append(_describe_differences(question))
    findings = analyze_study(results)
    further = (
        _describe_training(results),
        describe_further_scores(results),
        describe_search(results, findings),
        describe_analysis(results, findings),
    )
    sections += [section for section in further if section is not None]
    if examples and (section := describe_examples(results)) is not None:
        sections.append(section)
    running = is_running(results.folder)
    states = mark_interrupted(results.trials, is_running=running)
    space = results.config.search.space if results.config.search else ()
    sections.append(describe_trials(states, space))
    sections.append(describe_declarations(results, question))
    if question is not None and results.comparison is not None:
        sections.append(
            describe_method(question, results.comparison.signature, results.comparison.notes)
        )
    sections.append(
        describe_reproduction(
            results.folder, results.declared, results.trials, _environments(results)
        )
    )
    return Document(
        title,
        config.author or "" if author is None else author,
        config.notes or "" if notes is None else notes,
        sections,
    )


def build_question(results: StudyResults) -> Question | None:
    """The declared question with its comparison; None before two final trials have finished."""
    comparison = results.comparison
    if comparison is None:
        return None
    compared = {group.name for group in comparison.groups}
    looks, seeds = results.config.looks, results.look.seeds if results.look else 0
    return Question(
        comparison.whole,
        comparison.judgements,
        comparison.set_name,
        margin=comparison.margin,
        minutes_per_run=comparison.minutes_per_run,
        is_declared=comparison.is_declared,
        without_runs=[system.name for system in results.systems if system.name not in compared],
        next_look=next((look for look in looks if look > seeds), None),
    )


def _describe_answer(results: StudyResults, question: Question | None, title: str) -> Section:
    blocks: list[Block] = []
    if results.config.question and results.config.question != title:
        blocks.append(Paragraph(f"Question: {results.config.question}"))
    if results.declared.is_quick:
        text = (
            "This is the quick form of a study (--quick): small models and little training. It "
            "shows how the question is answered; the full study may answer it otherwise."
        )
        blocks.append(Paragraph(text, "note"))
    if (missing := _tell_missing(results)) is not None:
        blocks.append(Paragraph(missing, "note", "trials"))
    if results.comparison is not None and question is not None and question.pairs:
        blocks += [
            Paragraph(f"{note} So nothing below is called shown.", "note", "declared")
            for note in results.comparison.exploratory_notes
        ]
    if question is None:
        names = [system.name for system in results.systems]
        sentences = answer_without_runs(names)
        blocks += [Paragraph(text, "finding", "trials") for text in sentences]
    else:
        support = "differences" if question.comparison.pairs else "systems"
        has_best_table = len(question.comparison.best or ()) > 1
        pointers = (support, support, "best" if has_best_table else "systems")
        blocks += [
            Paragraph(text, "finding", pointer)
            for text, pointer in zip(answer_question(question), pointers, strict=True)
        ]
        comparison = results.comparison
        if comparison is not None and (overlap := tell_overlap(comparison)):
            blocks.insert(-3, Paragraph(overlap, "note", CLEAN if question.pairs else None))
    return Section("answer", "Answer", blocks)


def _tell_missing(results: StudyResults) -> str | None:
    """Which final trials have no score, where some have and others have not."""
    finals = [state for system in results.systems for state in system.finals]
    finished = sum(state.status == FINISHED for state in finals)
    total = max(len(finals), len(results.declared.seeds) * len(results.systems))
    if not 0 < finished < total:
        return None
    missing = join_names(state.trial.name for state in finals if state.status != FINISHED)
    named = f": {missing} {'has' if total - finished == 1 else 'have'} no score" if missing else ""
    return f"{finished} of {total} final trials have finished{named}."


def _describe_systems(results: StudyResults, question: Question) -> Section:
    costs = {}
    for system in results.systems:
        finished = system.finished
        costs[system.name] = Cost(
            _first(state.parameters for state in finished),
            _mean(state.minutes for state in finished),
            _largest(state.peak_memory for state in finished),
        )
    blocks: list[Block] = [Paragraph(text) for text in _tell_settings(results)]
    sizes = sorted({cost.parameters for cost in costs.values() if cost.parameters})
    if blocks and len(sizes) > 1 and sizes[-1] > MATTERING_SIZE * sizes[0]:
        blocks.append(
            Paragraph(
                "The number of parameters follows from that, and differs too: "
                f"{format_count(sizes[0])} to {format_count(sizes[-1])}."
            )
        )
    blocks.append(systems_table(question, costs))
    groups = [] if results.comparison is None else results.comparison.groups
    if (seeds := seeds_table(question, groups)) is not None:
        blocks.append(seeds)
    if (glossary := _glossary(results)) is not None:
        blocks.append(glossary)
    if (settings := _settings_table(results)) is not None:
        blocks.append(settings)
    return Section("systems-section", "Systems", blocks)


def _tell_settings(results: StudyResults) -> list[str]:
    """Which keys the systems differ in."""
    keys = list(dict.fromkeys(key for values in _settings(results).values() for key in values))
    if not keys or len(results.systems) < 2:
        return []
    searched = list(results.config.search.space) if results.config.search is not None else []
    text = f"The systems differ in {_join_keys(keys)}"
    if searched:
        text += f"; {_join_keys(searched)} {'was' if len(searched) == 1 else 'were'} searched anew "
        text += "for each"
    return [f"{text}. Every other key is the same."]


def _settings(results: StudyResults) -> dict[str, dict[str, Any]]:
    """The keys of every system that the study asks about, with its values.

    Where systems have recipes of their own and no key, these are what differs between the recipes.
    """
    declared = {system.name: system.scientific for system in results.systems}
    if any(declared.values()) or results.comparison is None:
        return declared
    return declared | {group.name: group.differing for group in results.comparison.groups}


def _glossary(results: StudyResults) -> Table | None:
    """What each position encoding, merge and optimizer is that the systems differ in."""
    settings = _settings(results)
    asked = {key for values in settings.values() for key in values}
    if results.config.search is not None:
        asked |= set(results.config.search.space)
    rows: dict[str, str] = {}
    for key, descriptions in DESCRIBED.items():
        if key not in asked:
            continue
        changes = [*settings.values(), *(one.changes for one in results.systems)]
        changes += [state.trial.changes for state in results.trials]
        values = [str(one.get(key)) for one in changes]
        rows |= {one: descriptions[one] for one in values if one in descriptions}
    if not rows:
        return None
    return Table("names", "What the names stand for.", ["name", "is"], [*map(list, rows.items())])


def _join_keys(keys: Sequence[str]) -> str:
    shown = join_names(keys[:MAX_KEYS])
    return shown if len(keys) <= MAX_KEYS else f"{shown} and {len(keys) - MAX_KEYS} more keys"


def _settings_table(results: StudyResults) -> Table | None:
    """The keys of every system, where they have several that the names may not tell."""
    settings = _settings(results)
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    if not len(keys) >= 2 or len(results.systems) < 2:
        return None
    if len(keys) <= MAX_KEYS:
        rows = [
            [name, *(_format_value(values.get(key)) for key in keys)]
            for name, values in settings.items()
        ]
        return Table("settings", "The keys of every system.", ["system", *keys], rows)
    rows = [
        [
            name,
            ", ".join(f"{key} = {_format_value(one)}" for key, one in values.items()),
        ]
        for name, values in settings.items()
    ]
    return Table("settings", "The keys of every system.", ["system", "settings"], rows)


def _format_value(value: Any) -> str:
    return "as in the recipe" if value is None else str(value)


def _describe_differences(question: Question) -> Section:
    blocks: list[Block] = [difference_plot(question)]
    systems = len(question.comparison.systems)
    if question.baseline is None and MIN_MATRIX <= systems <= MAX_MATRIX:
        blocks.append(pair_matrix(question))
    blocks.append(pairs_table(question))
    return Section("differences-section", "Differences", blocks)


def _describe_training(results: StudyResults) -> Section | None:
    names = results.metrics()
    wanted = dict.fromkeys((f"dev/{results.metric}", "dev/loss"))  # once, where they are the same
    metrics = [name for name in wanted if name in names]
    figures = [_curve_figure(results, metric) for metric in metrics]
    blocks: list[Block] = [figure for figure in figures if figure is not None]
    if not blocks and TRAIN_LOSS in names:
        text = "Dev was evaluated once, at the end. So the loss while training is drawn."
        curve = _curve_figure(results, TRAIN_LOSS)
        blocks = [Paragraph(text), curve] if curve is not None else []
    return Section("training", "Training", blocks) if blocks else None


def _curve_figure(results: StudyResults, metric: str) -> Figure | None:
    """The curves of a metric; None where every system has one point at most."""
    curves = results.curves(metric)
    if all(len(curve.points) < 2 for curve in curves):
        return None
    # Histories have shares where scores are in percent.
    scale = 100.0 if metric.endswith("/accuracy") else 1.0
    series = [
        Series(
            curve.group.name,
            [(at, scale * value) for at, value in curve.points],
            [(scale * low, scale * high) for low, high in curve.band],
            style=number,
        )
        for number, curve in enumerate(curves[:MAX_CURVES])
    ]
    if not series:
        return None
    label = metric.replace("/", " ").replace("bleu", "BLEU")
    label += " in percent" if scale > 1 else ""
    caption = f"{label[0].upper()}{label[1:]} over training: mean of the seeds"
    if metric == TRAIN_LOSS:
        caption += ", with dropout and label smoothing where the recipe has them"
    caption += "; band: lowest to highest seed." if any(one.band for one in series) else "."
    if len(curves) > MAX_CURVES:
        caption += f" {count_of(len(curves) - MAX_CURVES, 'more system')} not drawn."
    ends = "; ".join(f"{one.label} ends at {one.points[-1][1]:.4g}" for one in series)
    draw = partial(line_chart, series, x="step", y=label)
    name = metric.replace("/", "-").replace("_", "-")
    return Figure.drawn(f"curve-{name}", caption, f"{label} by step: {ends}", draw)


def _environments(results: StudyResults) -> list[Mapping[str, Any]]:
    return [
        results.record(state.trial.name).environment
        for system in results.systems
        for state in system.finished
    ]


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _largest(values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)
