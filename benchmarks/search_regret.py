"""Regret of searches on recorded learning curves: TPE, random search and pruning against a grid.

`heed study benchmarks/search_curves.toml --jobs 14` trains every setting of a grid with five seeds.
`python benchmarks/search_regret.py collect STUDY` keeps its curves as one small file. Without
`collect`, searches are replayed on them: each setting that `heed.study.search` proposes is snapped
to the nearest of the grid, and its score and tokens are read off a curve.

Regret is how much worse the chosen setting is than the best one, by the means over all five seeds,
in seed deviations. The bias of pruning is the difference of the winners' means on two seeds that
chose nothing, with and without pruning, of searches that are otherwise the same.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, keep, table

from heed.files import write_atomic
from heed.study.search.finalists import choose_winner
from heed.study.search.propose import propose
from heed.study.search.pruning import (
    PILOT_SEEDS,
    Places,
    PruningRule,
    build_rule,
    is_exempt,
    read_curves,
    review_pruning,
)
from heed.study.search.search_space import Setting, read_setting
from heed.study.search.search_states import group_states, search_number
from heed.study.study_config import StudyConfig
from heed.study.study_file import read_study
from heed.study.trials import Trial, TrialState, read_trials

CURVES = RESULTS / "search-curves.json"
SPACE = {
    "train.lr": {"low": 0.001, "high": 0.04, "log": True},
    "train.warmup": {"low": 10, "high": 60, "log": True},
    "train.schedule": {"choices": ["constant", "cosine"]},
    "model.dropout": {"low": 0.0, "high": 0.1},
}
"""The grid of search_curves.toml as ranges."""
LOGARITHMIC = ("train.lr", "train.warmup")
FINALISTS, FINALIST_SEEDS, FRESH_SEEDS = 3, 2, 2
ROUND = 4


# ------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class RecordedCurves:
    """The curves of every setting and seed: the dev loss by place, and the final score."""

    settings: list[Setting]
    places: list[Fraction]
    losses_nsp: np.ndarray[Any, Any]
    """Dev loss in training: setting, seed, place."""
    scores_ns: np.ndarray[Any, Any]
    """Dev loss of the chosen weights, as the study scored it."""
    tokens: int
    """Training tokens of one run."""

    @cached_property
    def means(self) -> np.ndarray[Any, Any]:
        """The score of every setting, over its seeds."""
        return self.scores_ns.mean(axis=1)

    @cached_property
    def deviation(self) -> float:
        """The seed deviation, pooled over the best quarter of the settings.

        Those far from the best vary more, and a search does not choose them.
        """
        best = np.argsort(self.means)[: max(1, len(self.means) // 4)]
        return float(np.sqrt(self.scores_ns[best].var(axis=1, ddof=1).mean()))

    def snap(self, setting: Setting) -> int:
        """The nearest setting of the grid, by its place in the list."""
        nearest = {
            key: _nearest(key, value, sorted({one[key] for one in self.settings}))
            for key, value in setting.items()
        }
        return self.settings.index(nearest)


def _nearest(key: str, value: Any, values: Sequence[Any]) -> Any:
    """The value of the grid that is nearest on the key's scale."""
    return value if isinstance(value, str) else min(values, key=partial(_distance, key, value))


def _distance(key: str, a: float, b: float) -> float:
    return abs(math.log(a / b)) if key in LOGARITHMIC else abs(a - b)


def collect_curves(folder: Path) -> dict[str, Any]:
    """The curves of a study folder as one document."""
    config, states = read_study(folder), read_trials(folder)
    curves = read_curves(folder, config, states)
    finished = [state for state in states if state.trial.name in curves]
    settings: list[Setting] = []
    rows: dict[int, list[TrialState]] = {}
    for state in sorted(finished, key=lambda state: state.trial.seed):
        setting = {key: state.trial.changes[key] for key in config.grid}
        if setting not in settings:
            settings.append(setting)
        rows.setdefault(settings.index(setting), []).append(state)
    seeds = min(map(len, rows.values()))
    places = sorted(curves[finished[0].trial.name])
    return {
        "settings": settings,
        "places": [str(place) for place in places],
        "tokens": max(state.tokens or 0 for state in finished),
        "losses": [
            [
                [round(-curves[state.trial.name][place], 5) for place in places]
                for state in rows[i][:seeds]
            ]
            for i in range(len(settings))
        ],
        "scores": [
            [round(state.dev or math.inf, 6) for state in rows[i][:seeds]]
            for i in range(len(settings))
        ],
    }


def read_recorded(path: Path = CURVES) -> RecordedCurves:
    """The kept curves."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return RecordedCurves(
        document["settings"],
        [Fraction(place) for place in document["places"]],
        np.array(document["losses"]),
        np.array(document["scores"]),
        document["tokens"],
    )


# ------------------------------------------------------------------------------------- replay


@dataclass(frozen=True)
class Outcome:
    """What one replayed search chose, and what it cost."""

    setting: int
    trials: int
    pruned: int
    tokens: float
    """In runs of full length, finalists included."""
    fresh: float
    """Mean score of the chosen setting on the seeds that chose nothing."""
    searched: float
    """Its score in the search."""
    exempt: int = 0
    wrong: int = 0
    """Exempt trials, and those of them that pruning would have ended wrongly."""


class Replay:
    """One search on recorded curves, with its own order of every setting's seeds."""

    def __init__(self, curves: RecordedCurves, search: Mapping[str, Any], seed: int) -> None:
        self.curves, self.is_pruned = curves, bool(search.get("prune"))
        self.config = build_study({**search, "seed": seed})
        draw = np.random.default_rng(seed)
        seeds = curves.scores_ns.shape[1]
        self.orders = [draw.permutation(seeds) for _ in curves.settings]
        self.places: dict[str, Places] = {}
        self.rules: dict[int, PruningRule | None] = {}

    def run(self, *, ignore_rule: bool = False) -> Outcome:
        """Search to the end. With `ignore_rule`, every trial is trained to its end."""
        states: list[TrialState] = []
        while trials := propose(self.config, states):
            if trials[0].stage == "final":
                break
            states += [self._carry_out(trial, states, ignore_rule) for trial in trials]
        group = group_states(self.config, states)[0]
        winner = choose_winner(self.config, group)
        if winner is None:
            raise ValueError("no trial finished")
        number, space = self.curves.snap(winner), require(self.config).space
        searched = [
            state.dev or math.inf
            for state in group.search.values()
            if read_setting(space, state.trial.changes) == winner and state.status == "finished"
        ]
        fresh = self.orders[number][-FRESH_SEEDS:]
        reviews = review_pruning(self.config, states, self.places) if self.is_pruned else []
        return Outcome(
            number,
            len(group.search),
            sum(state.status == "pruned" for state in states),
            sum(state.tokens or 0 for state in states) / self.curves.tokens,
            float(self.curves.scores_ns[number, fresh].mean()),
            float(np.mean(searched)),
            sum(review.exempt for review in reviews),
            sum(review.wrong for review in reviews),
        )

    def _carry_out(
        self, trial: Trial, states: Sequence[TrialState], ignore_rule: bool
    ) -> TrialState:
        number = self.curves.snap(read_setting(require(self.config).space, trial.changes))
        choosing = self.orders[number][:-FRESH_SEEDS]
        if trial.stage == "finalist":
            seed = choosing[1 + trial.seed % FINALIST_SEEDS]
        else:  # the pilot has one setting, and so different seeds of it
            is_pilot = self.is_pruned and search_number(trial) < PILOT_SEEDS
            seed = choosing[search_number(trial) if is_pilot else 0]
        losses = np.minimum.accumulate(self.curves.losses_nsp[number, seed])
        places = dict(zip(self.curves.places, (-losses).tolist(), strict=True))
        score, tokens = float(self.curves.scores_ns[number, seed]), self.curves.tokens
        state = TrialState(trial, "finished", dev=score, tokens=tokens)
        place = None if ignore_rule else self._find_place(trial, states, places)
        if place is not None:
            places = {one: value for one, value in places.items() if one <= place}
            state = replace(state, status="pruned", dev=None, tokens=round(tokens * place))
        self.places[trial.name] = places
        return state

    def _find_place(
        self, trial: Trial, states: Sequence[TrialState], places: Places
    ) -> Fraction | None:
        """Where a trial is pruned. The rule is the same for all trials of a round."""
        if not self.is_pruned or trial.stage != "search" or is_exempt(search_number(trial)):
            return None
        number = search_number(trial) // ROUND
        if number not in self.rules:
            self.rules[number] = build_rule(self.config, states, self.places, trial)
        rule = self.rules[number]
        return None if rule is None else rule.find_place(places)


def require(config: StudyConfig) -> Any:
    """The search of a replayed study."""
    return config.search


def build_study(search: Mapping[str, Any]) -> StudyConfig:
    """The study of one system that a replay searches. Nothing outside the grid was recorded."""
    defaults = {"round": ROUND, "widen": 0, "prune": False, "space": SPACE}
    defaults |= {"finalists": FINALISTS, "finalist_seeds": FINALIST_SEEDS}
    tables = {"name": "replay", "recipe": "demo-generate", "metric": "loss", "seeds": 1}
    return StudyConfig.of({**tables, "search": {**defaults, **search}})


def replay_grid(curves: RecordedCurves, seed: int) -> Outcome:
    """A grid of one seed for each setting: the best score wins."""
    draw = np.random.default_rng(seed)
    orders = [draw.permutation(curves.scores_ns.shape[1]) for _ in curves.settings]
    scores = [curves.scores_ns[i, order[0]] for i, order in enumerate(orders)]
    best = int(np.argmin(scores))
    fresh = float(curves.scores_ns[best, orders[best][-FRESH_SEEDS:]].mean())
    return Outcome(best, len(scores), 0, len(scores), fresh, float(scores[best]))


# -------------------------------------------------------------------------------------- tables


def measure_regret(curves: RecordedCurves, outcomes: Iterable[Outcome]) -> np.ndarray[Any, Any]:
    """How much worse each choice is than the best setting, in seed deviations."""
    best = curves.means.min()
    return np.array([(curves.means[one.setting] - best) / curves.deviation for one in outcomes])


def list_methods(curves: RecordedCurves) -> dict[str, dict[str, Any]]:
    """The searches that are replayed. All have half of the grid's tokens, finalists included."""
    half = len(curves.settings) // 2
    trials = half - FINALISTS * FINALIST_SEEDS
    return {
        "random": {"method": "random", "trials": trials},
        "TPE": {"method": "tpe", "trials": trials},
        "TPE, pruned, as many trials": {"method": "tpe", "trials": trials, "prune": True},
        "TPE, pruned, as many tokens": {
            "method": "tpe",
            "trials": 2 * trials,
            "prune": True,
            "tokens": float((trials - ROUND / 2) * curves.tokens),
        },
    }


def summarize(curves: RecordedCurves, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The row of one method."""
    regret = measure_regret(curves, outcomes)
    falls = [(one.fresh - one.searched) / curves.deviation for one in outcomes]
    return {
        "trials": float(np.mean([one.trials for one in outcomes])),
        "tokens": float(np.mean([one.tokens for one in outcomes]) / len(curves.settings)),
        "median": float(np.median(regret)),
        "ninth_decile": float(np.quantile(regret, 0.9)),
        "within_one": float(np.mean(regret <= 1)),
        "fall": float(np.mean(falls)),
        "pruned": float(np.mean([one.pruned for one in outcomes])),
    }


def measure_bias(
    curves: RecordedCurves, search: Mapping[str, Any], seeds: Iterable[int]
) -> dict[str, float]:
    """The bias of pruning: the fresh-seed mean of its winner less that without pruning.

    In seed deviations; above 0 where pruning makes the winner worse. `search` prunes.
    """
    pairs = [
        (Replay(curves, search, seed).run(), Replay(curves, search, seed).run(ignore_rule=True))
        for seed in seeds
    ]
    differences = [(a.fresh - b.fresh) / curves.deviation for a, b in pairs]
    exempt, wrong = (sum(getattr(a, name) for a, _ in pairs) for name in ("exempt", "wrong"))
    return {
        "searches": len(pairs),
        "bias": float(np.mean(differences)),
        "standard_error": float(np.std(differences, ddof=1) / math.sqrt(len(pairs))),
        "changed": float(np.mean([a.setting != b.setting for a, b in pairs])),
        "pruned": float(np.mean([a.pruned / a.trials for a, _ in pairs])),
        "tokens_saved": 1 - float(np.mean([a.tokens / b.tokens for a, b in pairs])),
        "wrong_share": wrong / exempt if exempt else math.nan,
    }


def main() -> None:
    """Collect curves, or replay searches on them and keep the tables."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", choices=["collect"])
    parser.add_argument("study", nargs="?", type=Path, help="folder of the recorded study")
    parser.add_argument("--seeds", type=int, default=100, help="searches of each method")
    parser.add_argument("--bias-seeds", type=int, default=1000, help="pairs for the bias")
    parser.add_argument("--results", type=Path, help="folder of the kept results")
    options = parser.parse_args()
    if options.command == "collect":
        if options.study is None:
            parser.error("collect needs the folder of the recorded study")
        write_atomic(CURVES, json.dumps(collect_curves(options.study)) + "\n")
        return
    curves = read_recorded()
    rows = {"grid": summarize(curves, [replay_grid(curves, i) for i in range(options.seeds)])}
    for name, search in list_methods(curves).items():
        outcomes = [Replay(curves, search, seed).run() for seed in range(options.seeds)]
        rows[name] = summarize(curves, outcomes)
    bias = {}
    for name, method in (("random", "random"), ("TPE", "tpe")):
        search = {"method": method, "trials": len(curves.settings) // 2, "prune": True}
        bias[name] = measure_bias(curves, search, range(options.bias_seeds))
    figures = {"curves": describe_curves(curves), "regret": rows, "pruning": bias}
    keep("search-regret", build_tables(figures), figures, device="cpu", folder=options.results)


def describe_curves(curves: RecordedCurves) -> dict[str, float]:
    """The landscape that is searched."""
    means = np.sort(curves.means)
    settings, seeds = curves.scores_ns.shape
    return {
        "settings": settings,
        "seeds": seeds,
        "best": float(means[0]),
        "median": float(np.median(means)),
        "worst": float(means[-1]),
        "deviation": curves.deviation,
        "within_one": int((means <= means[0] + curves.deviation).sum()),
    }


def build_tables(figures: Mapping[str, Any]) -> str:
    """The figures as plain text."""
    one = figures["curves"]
    head = (
        f"{one['settings']} settings × {one['seeds']} seeds. Dev loss of a setting: best "
        f"{one['best']:.4f}, median {one['median']:.4f}, worst {one['worst']:.4f};\n"
        f"seed deviation {one['deviation']:.4f}; {one['within_one']} settings within one of the "
        "best."
    )
    regret = table(
        "Regret in seed deviations",
        ["search", "trials", "tokens", "median", "9th decile", "≤ 1", "fall", "pruned"],
        [
            [
                name,
                f"{row['trials']:.0f}",
                f"{row['tokens']:.0%}",
                f"{row['median']:.2f}",
                f"{row['ninth_decile']:.2f}",
                f"{row['within_one']:.0%}",
                f"{row['fall']:.2f}",
                f"{row['pruned']:.1f}",
            ]
            for name, row in figures["regret"].items()
        ],
    )
    pruning = table(
        "Bias of pruning in seed deviations (above 0: the winner is worse)",
        ["search", "pairs", "bias", "± 2 SE", "pruned", "tokens saved", "wrong of exempt"],
        [
            [
                name,
                f"{row['searches']:.0f}",
                f"{row['bias']:+.3f}",
                f"{2 * row['standard_error']:.3f}",
                f"{row['pruned']:.0%}",
                f"{row['tokens_saved']:.0%}",
                f"{row['wrong_share']:.1%}",
            ]
            for name, row in figures["pruning"].items()
        ],
    )
    return "\n\n".join([head, regret, pruning])


if __name__ == "__main__":
    main()
