"""What a search of nuisance keys gained, and how far its winners fall on fresh seeds."""

from __future__ import annotations

from heed.metrics.item_metrics import item_metrics
from heed.stats.comparison import SumMetric
from heed.stats.selection import WinnerFall
from heed.stats.verdicts import format_differences, format_score
from heed.study.finding import Finding, quote_name
from heed.study.study_results import StudyResults

FIGURE = "expected-best"


def find_search_gains(results: StudyResults) -> list[Finding]:
    """For each system, the expected best by budget and the winner's fall; nothing is tested."""
    metric = _dev_metric(results)
    if metric is None:
        return []
    falls, findings = results.winner_falls(), []
    for system, curve in results.expected_best().items():
        half = max(len(curve) // 2, 1)
        text = (
            f"{quote_name(system)}: the expected highest dev score of {half} trials is "
            f"{format_score(curve[half - 1], metric)}, of {len(curve)} it is "
            f"{format_score(curve[-1], metric)}."
        )
        if not metric.higher_is_better:
            text = text.replace("highest", "lowest")
        numbers = {"system": system, "trials": len(curve), "expected": curve}
        fall = falls.get(system)
        if fall is not None:
            text += f" {tell_fall(fall, metric)}"
            numbers |= {"fall": fall.fall, "chosen": fall.chosen, "fresh": fall.fresh}
        interval = None if fall is None else fall.interval
        findings.append(Finding("search", text, FIGURE, numbers, interval))
    return findings


def tell_fall(fall: WinnerFall, metric: SumMetric) -> str:
    """How the winner's dev score changes from the search to fresh seeds, with its direction."""
    change, interval = fall.fresh - fall.chosen, fall.interval
    [size] = format_differences([abs(change)], metric)
    verb = "rises" if change > 0 else "falls"
    size = size.lstrip("+")
    text = f"The dev score of its winner {verb} by {size} from the search to fresh seeds"
    if interval is not None:
        ends = [interval.low, interval.high]
        if metric.higher_is_better:  # A fall is then a change below 0.
            ends = [-interval.high, -interval.low]
        low, high = format_differences(ends, metric)
        text += f" (95% interval of the change {low} to {high})"
    return f"{text}."


def _dev_metric(results: StudyResults) -> SumMetric | None:
    """The primary metric, as the first finished trial's dev scores have it."""
    for system in results.systems:
        for state in system.finished:
            items = results.record(state.trial.name).run.evaluations.get("dev")
            if items is not None and results.metric is not None:
                one = item_metrics(items).get(results.metric)
                return None if one is None else one.metric
    return None
