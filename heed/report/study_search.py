"""The search of a study: its trials by key, the best ten, expected best by budget, winners' falls.

Scores of a search chose the winners, so they are too good; only fresh seeds say how good these are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from heed.report.document import Block, Figure, Interactive, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.study_figures import MAX_CURVES
from heed.report.wording import count_of
from heed.stats.verdicts import format_differences, format_score
from heed.study.finding import Finding
from heed.study.search.propose import list_edges
from heed.study.search.pruning import has_pilot, read_curves, review_pruning
from heed.study.search.search_states import group_states
from heed.study.study_results import StudyResults
from heed.study.trials import TrialState

MAX_TRIALS = 10
"""Rows of the table of the highest-scoring trials."""
MAX_AXES = 8
"""Axes of the parallel coordinates: more do not fit a page."""


def describe_search(results: StudyResults, findings: Sequence[Finding]) -> Section | None:
    """The section about a search; None where the study has none that began."""
    searched = [state for system in results.systems for state in system.searched]
    if not searched:
        return None
    blocks: list[Block] = [
        Paragraph(
            f"{count_of(len(searched), 'trial')} searched the nuisance keys, at the same budget "
            "for every system. They were scored on dev only, and their scores are not results: "
            "they chose the settings that fresh seeds then tested."
        )
    ]
    if (figure := expected_best_figure(results)) is not None:
        blocks.append(figure)
        gains = [one for one in findings if one.figure == figure.id][:MAX_CURVES]
        blocks += [Paragraph(one.text, "text", figure.id) for one in gains]
    blocks += _describe_falls(results)
    keys = list(results.config.search.space) if results.config.search is not None else []
    blocks.append(search_coordinates(results, searched, keys))
    if (table := chosen_table(results, keys)) is not None:
        blocks.append(table)
    if (unfinished := _tell_unfinished(searched)) is not None:
        blocks.append(unfinished)
    blocks += _review_pruning(results)
    if (edges := _tell_edges(results)) is not None:
        blocks.append(edges)
    return Section("search", "Search", blocks)


def expected_best_figure(results: StudyResults) -> Figure | None:
    """The expected best dev score by the number of search trials, one curve for each system."""
    curves = results.expected_best()
    series = [
        Series(name, [(float(n), value) for n, value in enumerate(values, 1)], style=number)
        for number, (name, values) in enumerate(list(curves.items())[:MAX_CURVES])
    ]
    if not series:
        return None
    best, worst = ("highest", "lowest") if results.higher_is_better else ("lowest", "highest")
    caption = (
        f"Expected best by budget (Dodge et al. 2019): the {best} dev score that so many "
        f"search trials would have; those that failed or were pruned count as the {worst}."
    )
    if len(curves) > MAX_CURVES:
        caption += f" {len(curves) - MAX_CURVES} more systems are not drawn."
    ends = "; ".join(f"{one.label} {one.points[-1][1]:.4g}" for one in series)
    draw = partial(line_chart, series, x="search trials", y=f"dev {results.metric}")
    return Figure.drawn(
        "expected-best", caption, f"Expected dev score after all trials: {ends}", draw
    )


def _describe_falls(results: StudyResults) -> list[Block]:
    """The table of how far winners fall from their search to fresh seeds."""
    falls = results.winner_falls()
    if not falls:
        return []
    rows = []
    for name, fall in falls.items():
        span = "–"
        if fall.interval is not None:
            span = " to ".join(_format_falls(results, [fall.interval.low, fall.interval.high]))
        scores = [_format_score(results, score) for score in (fall.chosen, fall.fresh)]
        rows.append([name, *scores, *_format_falls(results, [fall.fall]), span])
    columns = ["system", "when chosen", "fresh seeds", "fall", "95% interval of the fall"]
    caption = (
        f"Dev {results.metric} of each winner when it was chosen, and of its fresh seeds. A fall "
        "above 0 is the optimism of choosing."
    )
    if not results.higher_is_better:
        caption += " Lower is better here, so a fall is how much higher the fresh seeds are."
    return [Table("winner-falls", caption, columns, rows, columns[1:])]


def _format_score(results: StudyResults, score: float) -> str:
    """A score with the digits of its metric, where a comparison knows the metric."""
    if results.comparison is None:
        return f"{score:.4g}"
    return format_score(score, results.comparison.metric)


def _format_falls(results: StudyResults, falls: Sequence[float]) -> list[str]:
    if results.comparison is None:
        return [f"{fall:+.3g}" for fall in falls]
    return format_differences(falls, results.comparison.metric)


def search_coordinates(
    results: StudyResults, states: Sequence[TrialState], keys: Sequence[str]
) -> Interactive:
    """Every trial of the search as a line over its keys and its dev score."""
    scores = {state.trial.name: state.dev for state in states if _is_finite(state.dev)}
    return _coordinates("search-coordinates", results, states, keys, scores, "dev")


def grid_coordinates(results: StudyResults) -> Interactive | None:
    """Every final trial of a grid of several keys as a line; None where one key varies."""
    keys = [key for key, values in results.config.grid.items() if len(values) > 1]
    states = [state for system in results.systems for state in system.finished]
    name, metric = results.set_name, results.metric or ""
    scores = {state.trial.name: state.scores.get(name, {}).get(metric) for state in states}
    known = {trial: score for trial, score in scores.items() if _is_finite(score)}
    if len(keys) < 2 or not known:
        return None
    return _coordinates("grid-coordinates", results, states, keys, known, name)


def _is_finite(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _coordinates(
    name: str,
    results: StudyResults,
    states: Sequence[TrialState],
    keys: Sequence[str],
    scores: Mapping[str, float | None],
    set_name: str,
) -> Interactive:
    """Trials as parallel coordinates; the alternative is the table of the ten highest."""
    shown = list(keys)[:MAX_AXES]
    axes = [
        trial_axis(key, [one.trial.changes.get(key) for one in states], results) for key in shown
    ]
    lines = []
    for state in states:
        if state.trial.name not in scores:
            continue
        values = [state.trial.changes.get(key) for key in shown]
        texts = [
            str(value) if axis["scale"] == "category" and value is not None else value
            for value, axis in zip(values, axes, strict=True)
        ]
        values = [*texts, scores[state.trial.name]]
        lines.append({"name": state.trial.name, "group": state.trial.system, "values": values})
    label = f"{set_name} {results.metric}"
    data = {
        "axes": [*axes, {"label": label, "scale": "linear"}],
        "lines": lines,
        "score": len(axes),
        "higher_is_better": results.higher_is_better,
    }
    left_out = len(keys) - len(shown)
    more = f" {count_of(left_out, 'more key')} not drawn." if left_out > 0 else ""
    return Interactive(
        name,
        "parallel-coordinates",
        data,
        f"{count_of(len(lines), 'trial')} over the keys and {label}.{more}",
        _highest_table(f"{name}-table", results, states, shown, scores, label),
    )


def trial_axis(key: str, values: Sequence[Any], results: StudyResults) -> dict[str, Any]:
    """One axis: numbers, logarithmic where the search was, or choices."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known):
        search = results.config.search
        space = search.space.get(key) if search is not None else None
        is_log = space is not None and space.log
        return {"label": key, "scale": "log" if is_log else "linear"}
    categories = list(dict.fromkeys(map(str, known)))
    return {"label": key, "scale": "category", "categories": categories}


def _highest_table(
    name: str,
    results: StudyResults,
    states: Sequence[TrialState],
    keys: Sequence[str],
    scores: Mapping[str, float | None],
    label: str,
) -> Table:
    """The ten trials with the highest scores, or the lowest where less is wanted."""
    sign = -1 if results.higher_is_better else 1
    scored = [state for state in states if state.trial.name in scores]
    scored.sort(key=lambda state: sign * (scores[state.trial.name] or 0.0))
    has_systems = len({state.trial.system for state in states}) > 1
    columns = [*(["system"] if has_systems else []), *keys, label, "minutes"]
    rows = []
    for state in scored[:MAX_TRIALS]:
        row = [state.trial.system] if has_systems else []
        row += [_short(state.trial.changes.get(key)) for key in keys]
        minutes = "–" if state.minutes is None else f"{state.minutes:.2f}"
        rows.append([*row, _format_score(results, scores[state.trial.name] or 0.0), minutes])
    order = "highest" if results.higher_is_better else "lowest"
    caption = f"The {len(rows)} of {count_of(len(states), 'trial')} with the {order} {label}."
    return Table(name, caption, columns, rows, columns[-2:])


def chosen_table(results: StudyResults, keys: Sequence[str]) -> Table | None:
    """The settings that the search chose for every system, with which its final trials ran."""
    systems = [system for system in results.systems if system.finals]
    if not systems:
        return None
    rows = [[one.name, *(_short(one.changes.get(key)) for key in keys)] for one in systems]
    caption = "The settings that the search chose, on dev, for the final trials of every system."
    return Table("chosen", caption, ["system", *keys], rows, list(keys))


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tell_unfinished(states: Sequence[TrialState]) -> Paragraph | None:
    pruned = sum(state.status == "pruned" for state in states)
    failed = sum(state.status == "failed" for state in states)
    if not pruned and not failed:
        return None
    return Paragraph(
        f"{count_of(pruned, 'search trial')} {'was' if pruned == 1 else 'were'} pruned and "
        f"{failed} failed; their tokens count in the budget, and the table of trials has the "
        "reasons."
    )


def _review_pruning(results: StudyResults) -> list[Block]:
    """The table of pruned trials, and of exempt ones that pruning would have ended wrongly."""
    search = results.config.search
    if search is None or not has_pilot(search):
        return []
    trials = [state for system in results.systems for state in system.searched]
    curves = read_curves(results.folder, results.config, trials)
    reviews = review_pruning(results.config, trials, curves)
    rows = [
        [
            one.system,
            str(one.trials),
            str(one.pruned),
            _short(one.deviation),
            str(one.exempt),
            str(one.would_prune),
            "–" if one.wrong_share is None else f"{one.wrong} ({one.wrong_share:.0%})",
        ]
        for one in reviews
    ]
    columns = ["system", "trials", "pruned", "seed deviation"]
    columns += ["exempt", "below the rule", "wrongly"]
    caption = (
        "Pruning. The seed deviation is that of the pilot at the end of training, of what "
        "evaluations in training measure (accuracy as a share, BLEU or loss). Exempt trials "
        "train to their end: those below the rule would have been pruned, and wrongly where they "
        "ended above the median of all trials."
    )
    return [Table("pruning", caption, columns, rows, columns[1:])]


def _tell_edges(results: StudyResults) -> Paragraph | None:
    """The keys whose highest-scoring value is at an edge of the search space, by system."""
    if results.config.search is None:
        return None
    edges = list_edges(results.config, group_states(results.config, results.trials))
    places = [f"{' and '.join(keys)} of {system}" for system, keys in edges.items() if keys]
    if not places:
        return None
    return Paragraph(
        f"At the edge of the search space, as wide as it became, lie the values chosen by the "
        f"search for {'; '.join(places)}. Values beyond were not tried: search a wider range.",
        "note",
    )
