"""Scores of a study beside the declared one: further sets, windows of a model, further metrics.

They do not decide. They may qualify what the declared metric shows on the declared set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from heed.metrics.item_metrics import item_metrics
from heed.report.document import Block, Figure, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.study_figures import MAX_CURVES, capitalize, keep_together
from heed.report.wording import format_interval, name_level
from heed.runs.results_file import OTHER_WINDOW
from heed.stats.verdicts import format_differences, format_score
from heed.study.finding import quote_name
from heed.study.recipe_comparison import RecipeComparison
from heed.study.study_results import StudyResults

CLEAN = "not-in-train"
"""The table of differences on test items that are not in train."""
MAX_CLEAN_PAIRS = 20
MAX_SYSTEMS = 16
"""More systems have no table of further metrics: it would be as long as it is wide."""


def describe_further_scores(results: StudyResults) -> Section | None:
    """Further sets and metrics; None where the study has none."""
    main = results.comparison
    if main is None:
        return None
    blocks: list[Block] = []
    if (table := _clean_table(main)) is not None:
        blocks.append(table)
    if len(main.groups) <= MAX_SYSTEMS:
        blocks += _describe_sets(results, main)
    if not blocks:
        return None
    note = (
        f"The declared question is {main.metric.name} on {main.set_name}. What follows does not "
        "decide it; it may qualify it."
    )
    return Section("further-scores", "Further sets and metrics", [Paragraph(note), *blocks])


def tell_overlap(main: RecipeComparison) -> str:
    """How many test items are also in train; empty where none are known to be."""
    if main.clean is None:
        return ""
    seen, items = main.whole.items - main.clean.items, main.whole.items
    return (
        f"{seen:,} of {items:,} items of {main.set_name} ({seen / items:.1%}) are also in train. "
        "The differences without them are listed below."
    )


def _clean_table(main: RecipeComparison) -> Table | None:
    """The largest differences on the test items that are not in train."""
    if main.clean is None or not main.clean.pairs:
        return None
    pairs = sorted(main.clean.pairs, key=lambda pair: -abs(pair.difference))[:MAX_CLEAN_PAIRS]
    rows = []
    for pair in pairs:
        [difference] = format_differences([pair.difference], main.metric)
        means = [format_score(mean, main.metric) for mean in (pair.mean_a, pair.mean_b)]
        name = keep_together(f"{pair.a} − {pair.b}")
        rows.append([name, *means, difference, format_interval(pair.interval, main.metric)])
    columns = ["pair", "first", "second", "difference", f"{name_level(main.clean)} interval"]
    caption = (
        f"{capitalize(main.metric.name)} on the {main.clean.items:,} items of {main.set_name} that "
        "are not in train."
    )
    if len(main.clean.pairs) > MAX_CLEAN_PAIRS:
        caption += f" The {MAX_CLEAN_PAIRS} largest differences."
    return Table(CLEAN, caption, columns, rows, columns[1:])


def _describe_sets(results: StudyResults, main: RecipeComparison) -> list[Block]:
    """The declared metric on further sets, and further metrics on the declared set."""
    sets = [name for name in _scored_sets(results, main) if name != main.set_name]
    by_set = {name: results.compare(set_name=name) for name in sets}
    blocks: list[Block] = []
    if (figure := _window_figure(results, main, by_set)) is not None:
        blocks.append(figure)
    if by_set:
        blocks.append(_scores_table("other-sets", list(by_set.values()), "set"))
    metrics = _further_metrics(results, main)
    if metrics:
        blocks.append(_scores_table("other-metrics", metrics, "metric"))
    return blocks


def _scored_sets(results: StudyResults, main: RecipeComparison) -> list[str]:
    """The sets that every compared run was scored on, those that the study names first."""
    runs = [results.record(run).run for group in main.groups for run in group.runs]
    common = [name for name in runs[0].evaluations if all(name in r.evaluations for r in runs)]
    named = [name for name in results.config.sets if name in common]
    return list(dict.fromkeys([*named, *common]))


def _further_metrics(results: StudyResults, main: RecipeComparison) -> list[RecipeComparison]:
    """The comparisons by every other metric that all runs have on the declared set."""
    runs = [results.record(run).run for group in main.groups for run in group.runs]
    names = [set(item_metrics(run.evaluations[main.set_name])) for run in runs]
    common = set.intersection(*names)
    first = item_metrics(runs[0].evaluations[main.set_name])
    chosen = [name for name in first if name in common and name != main.metric_name]
    return [results.compare(metric=name) for name in chosen]


def _scores_table(name: str, comparisons: Sequence[RecipeComparison], what: str) -> Table:
    """The mean of every system, and its difference from the baseline where there is one."""
    rows = []
    for comparison in comparisons:
        label = comparison.set_name if what == "set" else comparison.metric.name
        pairs = {pair.a: pair for pair in comparison.whole.pairs}
        has_baseline = len({pair.b for pair in comparison.whole.pairs}) == 1
        for system, values in comparison.whole.systems.items():
            metric = comparison.metric
            row = [label, system, format_score(float(values.mean()), metric)]
            pair = pairs.get(system) if has_baseline else None
            if pair is None:
                rows.append([*row, "–", "–"])
                continue
            [difference] = format_differences([pair.difference], metric)
            rows.append([*row, difference, format_interval(pair.interval, metric)])
    first = comparisons[0]
    level = name_level(first.whole)
    columns = [what, "system", "mean", "difference", f"{level} interval"]
    caption = f"Scores by {what}, mean of the seeds."
    if all(row[3] == "–" for row in rows):
        columns, rows = columns[:3], [row[:3] for row in rows]
    else:
        base = quote_name(first.whole.pairs[0].b)
        caption += f" Differences are from {base}; the intervals hold together within one {what}."
    return Table(name, caption, columns, rows, columns[2:])


def _window_figure(
    results: StudyResults, main: RecipeComparison, by_set: dict[str, RecipeComparison]
) -> Figure | None:
    """The score by the length of the window that a language model is evaluated with."""
    base = main.set_name.partition(OTHER_WINDOW)[0]
    places: list[tuple[int, RecipeComparison]] = []
    for name, comparison in {main.set_name: main, **by_set}.items():
        window = _window_of(results, comparison)
        if window is not None and name.partition(OTHER_WINDOW)[0] == base:
            places.append((window, comparison))
    if len({window for window, _ in places}) < 2:
        return None
    places.sort(key=lambda one: one[0])
    series = []
    for number, system in enumerate(list(main.whole.systems)[:MAX_CURVES]):
        values = [(float(window), one.whole.systems[system]) for window, one in places]
        points = [(at, float(scores.mean())) for at, scores in values]
        band = [(float(scores.min()), float(scores.max())) for _, scores in values]
        series.append(Series(system, points, band if len(values[0][1]) > 1 else (), number))
    metric = main.metric.name
    caption = (
        f"{metric} on {base} by the tokens of the window that it is evaluated with, mean of the "
        "seeds; band: lowest to highest seed."
    )
    ends = "; ".join(f"{one.label} {one.points[-1][1]:.4g}" for one in series)
    draw = partial(line_chart, series, x="tokens of the window", y=metric, log_x=True)
    return Figure.drawn("by-window", caption, f"{metric} at the longest window: {ends}", draw)


def _window_of(results: StudyResults, comparison: RecipeComparison) -> int | None:
    """The tokens of the window that a language model was evaluated with on a set."""
    run = comparison.groups[0].runs[0]
    settings = results.record(run).run.evaluations[comparison.set_name].settings
    window = settings.get("window")
    tokens = window.get("tokens") if isinstance(window, dict) else None
    return tokens if isinstance(tokens, int) else None
