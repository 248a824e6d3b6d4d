"""The median rule with a margin: trials far below the others of their search end early.

After each evaluation a trial is compared with trials of earlier rounds of its own system's search,
at the same place of their schedules. It ends where its best score so far is below their median by
more than two seed deviations, and by more than two deviations of what those trials still gained
from there on: where curves cross, nothing is pruned. A tenth of the trials is exempt: they tell how
often the rule is wrong. All of it was known before the trial began, so that a search repeats
itself, whatever runs at the same time.

The seed deviation comes from a pilot: the first three trials of a search have one setting, the
center of its space, and differ in their seeds alone. They count as trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from heed import checksums
from heed.config import Recipe
from heed.config.task_metrics import LOWER_IS_BETTER
from heed.errors import StoppedError
from heed.runs.run import Run
from heed.study.run_records import SUFFIX
from heed.study.search.search_states import SystemSearch, group_states, score_of, search_number
from heed.study.study_config import SearchConfig, StudyConfig
from heed.study.trials import RECORDS, RESTORE, Trial, TrialState, read_trials
from heed.train.optimizers.schedules import count_steps

if TYPE_CHECKING:
    from heed.train.recorder import EvaluationHook, Scores  # which imports torch

PILOT_SEEDS = 3
"""Trials of the pilot."""
MIN_TRIALS = 10
"""Searches with fewer trials have no pilot and are not pruned."""
MIN_OTHERS = 5
"""Fewest settings that a median is taken of."""
MARGIN = 2.0
"""Deviations below the median from which on a trial is pruned."""
EXEMPT_EVERY, EXEMPT = 10, 7
"""Trials 7, 17, 27 … of every search are exempt. With rounds of four there is no rule yet for 7."""
END = Fraction(1)
"""The last place of a schedule."""
PROXIES = {
    "bleu": ("bleu", "loss"),
    "chrf": ("bleu", "loss"),
    "ter": ("bleu", "loss"),
    "accuracy": ("accuracy", "loss"),
    "macro_f1": ("accuracy", "loss"),
}
"""What an evaluation in training measures in place of a study's metric; of all others, the loss."""

Places = Mapping[Fraction, float]
"""The best score so far, larger for better, by the place in the schedule: 1/2 is its middle."""


class PrunedError(StoppedError):
    """A trial that the median rule ended."""


@dataclass(frozen=True)
class PruningRule:
    """The rule for one trial, fixed before it begins."""

    medians: dict[Fraction, float]
    """Median score of the earlier trials at each place."""
    margins: dict[Fraction, float]
    """How far below the median a trial may be: two seed deviations, or more where curves cross."""
    is_exempt: bool = False
    """Whether the trial trains to its end, whatever the rule says."""

    def find_place(self, places: Places) -> Fraction | None:
        """The first place at which a trial falls below the rule; None where it never does."""
        for place in sorted(places):
            limit = self.limit(place)
            if limit is not None and places[place] < limit:
                return place
        return None

    def limit(self, place: Fraction) -> float | None:
        """The score below which a trial is pruned at a place; None where there is none."""
        if place >= END or place not in self.medians or place not in self.margins:
            return None
        return self.medians[place] - self.margins[place]


def has_pilot(search: SearchConfig) -> bool:
    """Whether a search begins with a pilot, and prunes. A grid tries all its combinations."""
    return search.prune and search.method != "grid" and search.trials >= MIN_TRIALS


def is_exempt(number: int) -> bool:
    """Whether the trial with this number of a search is exempt from pruning."""
    return number % EXEMPT_EVERY == EXEMPT


def build_rule(
    config: StudyConfig,
    states: Sequence[TrialState],
    curves: Mapping[str, Places],
    trial: Trial,
) -> PruningRule | None:
    """The rule for a trial, from the curves of earlier trials by their names.

    None where nothing is pruned: outside a search, in its pilot, without deviations.
    """
    search = config.search
    if search is None or trial.stage != "search" or not has_pilot(search):
        return None
    number, groups = search_number(trial), group_states(config, states)
    first = number // search.round * search.round
    if first < PILOT_SEEDS:
        return None
    deviations = measure_deviations(groups, curves, trial.system)
    group = next(one for one in groups if one.system.name == trial.system)
    earlier = group.ended_before(first)
    medians, spreads = _take_medians(earlier, curves), _measure_spreads(earlier, curves)
    margins = {
        place: MARGIN * max(deviations[place], spreads[place])
        for place in medians
        if place in deviations and place in spreads
    }
    return PruningRule(medians, margins, is_exempt(number)) if margins else None


def measure_deviations(
    groups: Sequence[SystemSearch], curves: Mapping[str, Places], system: str
) -> dict[Fraction, float]:
    """The seed deviation at each place: that of the system's pilot, or of all pilots if larger.

    Three seeds measure a deviation poorly; a margin that is too wide costs tokens only.
    """
    deviations: dict[Fraction, float] = {}
    variances: dict[Fraction, list[float]] = {}
    for group in groups:
        pilot = [
            curves[group.search[i].trial.name]
            for i in range(PILOT_SEEDS)
            if i in group.search and group.search[i].trial.name in curves
        ]
        for place in set().union(*pilot):
            values = [places[place] for places in pilot if place in places]
            if len(values) >= 2:
                variances.setdefault(place, []).append(_deviation(values) ** 2)
                if group.system.name == system:
                    deviations[place] = math.sqrt(variances[place][-1])
    return {
        place: max(one, math.sqrt(fmean(variances[place]))) for place, one in deviations.items()
    }


def _take_medians(
    ended: Sequence[TrialState], curves: Mapping[str, Places]
) -> dict[Fraction, float]:
    """Median score at each place. The pilot counts once; pruned trials count as below.

    Were pruned trials left out, each would make the rule stricter for those that follow.
    """
    pilot = [state for state in ended if search_number(state.trial) < PILOT_SEEDS]
    others = [state for state in ended if search_number(state.trial) >= PILOT_SEEDS]
    known = [state for state in others if state.trial.name in curves]
    pilots = [curves[state.trial.name] for state in pilot if state.trial.name in curves]
    every = {place for state in known for place in curves[state.trial.name]}
    medians = {}
    for place in every:
        values = []
        if seeds := [one[place] for one in pilots if place in one]:
            values.append(fmean(seeds))
        for state in known:
            places = curves[state.trial.name]
            if place in places:
                values.append(places[place])
            elif state.status == "pruned" and place > max(places, default=Fraction(0)):
                values.append(-math.inf)
        if len(values) >= MIN_OTHERS:
            medians[place] = median(values)
    return medians


def _measure_spreads(
    ended: Sequence[TrialState], curves: Mapping[str, Places]
) -> dict[Fraction, float]:
    """How differently the earlier trials gained from each place to the end: a deviation.

    Where curves cross, as those of a long and of a short warm-up, a low score is no verdict yet.
    """
    finished = [curves.get(state.trial.name, {}) for state in ended if state.status == "finished"]
    finals = [(places, places[END]) for places in finished if END in places]
    spreads = {}
    for place in {place for places, _ in finals for place in places}:
        gains = [final - places[place] for places, final in finals if place in places]
        if len(gains) >= MIN_OTHERS:
            spreads[place] = _deviation(gains)
    return spreads


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


# ------------------------------------------------------------------------------ learning curves


def measure_places(
    rows: Sequence[Mapping[str, Any]], steps: int, metric: str | None
) -> dict[Fraction, float]:
    """The learning curve of a run from the rows of its history: the best dev score so far.

    `steps` is the length of its schedule.
    """
    evaluations = [row for row in rows if row.get("event") == "evaluate"]
    name = _find_proxy(evaluations, metric)
    if name is None:
        return {}
    best, places = -math.inf, {}
    for row in evaluations:
        value = row.get(f"dev/{name}")
        if value is not None:
            best = max(best, -value if name in LOWER_IS_BETTER else value)
        places[Fraction(row["step"], steps)] = best
    return places


def _find_proxy(rows: Sequence[Mapping[str, Any]], metric: str | None) -> str | None:
    """What the evaluations of a run measure in place of a study's metric; None if nothing."""
    names = PROXIES.get(metric or "", ("loss",))
    return next((one for one in names if any(f"dev/{one}" in row for row in rows)), None)


def read_curves(
    folder: Path, config: StudyConfig, states: Sequence[TrialState]
) -> dict[str, Places]:
    """The learning curves of a study's trials by their names, from the records in its folder."""
    curves: dict[str, Places] = {}
    for state in states:
        path = folder / RECORDS / f"{state.trial.name}{SUFFIX}"
        if not state.has_ended or not path.exists():
            continue
        record = checksums.read_json(path, todo=RESTORE)
        train = Recipe.of(record["recipe"]).train
        steps = count_steps(train, record["environment"]["steps_per_epoch"])
        curves[state.trial.name] = measure_places(record["history"], steps, config.metric)
    return curves


def build_hook(
    folder: Path, config: StudyConfig, trial: Trial, run_folder: Path
) -> EvaluationHook | None:
    """What follows each evaluation of a trial: a `PrunedError` where it falls below the rule.

    None where the trial is not pruned, whatever its scores.
    """
    search = config.search
    if search is None or trial.stage != "search" or not has_pilot(search):
        return None
    states = [one for one in read_trials(folder) if one.trial.stage == "search"]
    rule = build_rule(config, states, read_curves(folder, config, states), trial)
    if rule is None or rule.is_exempt:
        return None

    def prune_below_rule(step: int, steps: int, _: Scores) -> None:
        # The history has the evaluations before a resume as well, and this one already.
        rows = Run(run_folder).history
        places = measure_places(rows, steps, config.metric)
        place = rule.find_place(places)
        if place is not None:
            name = _find_proxy(rows, config.metric)
            score, limit = (
                f"{100 * abs(one):.2f}" if name == "accuracy" else f"{abs(one):.4g}"
                for one in (places[place], rule.limit(place) or 0.0)
            )
            raise PrunedError(
                f"Pruned at {float(place):.0%} of its schedule: its best dev {name} was {score}, "
                f"and the limit was {limit}, {MARGIN:g} deviations below the median of earlier "
                "trials."
            )

    return prune_below_rule


# ------------------------------------------------------------------------ how often it is wrong


@dataclass(frozen=True)
class PruningReview:
    """What pruning did in the search of one system, and how often it would have been wrong."""

    system: str
    trials: int
    """Trials that have ended."""
    pruned: int
    exempt: int
    """Trials that the rule could not end."""
    would_prune: int
    """Exempt trials that it would have ended."""
    wrong: int
    """Those of them that ended better than the median of all trials."""
    deviation: float | None
    """The seed deviation at the end of training, by the pilot."""

    @property
    def wrong_share(self) -> float | None:
        """The share of exempt trials that would have been pruned wrongly; None without any."""
        return self.wrong / self.exempt if self.exempt else None


def review_pruning(
    config: StudyConfig, states: Sequence[TrialState], curves: Mapping[str, Places]
) -> list[PruningReview]:
    """The pruning of every system's search. Pruned and failed trials rank below all others."""
    reviews = []
    groups = group_states(config, states)
    for group in groups:
        ended = group.ended_before(len(group.search))
        scores = [
            score if (score := score_of(config, one)) is not None else -math.inf for one in ended
        ]
        exempt, would_prune, wrong = 0, 0, 0
        for state in ended:
            if not is_exempt(search_number(state.trial)):
                continue
            rule = build_rule(config, states, curves, state.trial)
            if rule is None:
                continue
            exempt += 1
            if rule.find_place(curves.get(state.trial.name, {})) is not None:
                would_prune += 1
                score = score_of(config, state)
                wrong += score is not None and score > median(scores)
        pruned = sum(one.status == "pruned" for one in ended)
        deviation = measure_deviations(groups, curves, group.system.name).get(END)
        reviews.append(
            PruningReview(
                group.system.name, len(ended), pruned, exempt, would_prune, wrong, deviation
            )
        )
    return reviews
