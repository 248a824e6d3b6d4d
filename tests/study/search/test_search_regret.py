"""Searches on 240 recorded learning curves, in short: what they choose, and what pruning changes.

`benchmarks/search_regret.py` has the long form, with its results.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from search_regret import (
    Replay,
    build_study,
    list_methods,
    measure_bias,
    measure_regret,
    read_recorded,
)

from heed.study.search.search_space import list_settings

CURVES = read_recorded()
SEEDS = 12
MOST_ABOVE = 9
"""More than so many of 12 regrets are above their median in one of 50 cases."""


def test_the_recorded_curves_are_all_of_a_grid_and_differ_by_more_than_their_seeds() -> None:
    assert CURVES.losses_nsp.shape == (48, 5, 12)
    assert CURVES.scores_ns.size >= 200
    assert np.isfinite(CURVES.losses_nsp).all()
    search = build_study({}).search
    assert search is not None
    choices = {
        key: one.model_copy(
            update={"choices": sorted({s[key] for s in CURVES.settings}), "low": None, "high": None}
        )
        for key, one in search.space.items()
    }
    settings = list_settings(choices, {})
    assert sorted(map(str, settings)) == sorted(map(str, CURVES.settings))
    assert [CURVES.snap(setting) for setting in CURVES.settings] == [*range(48)]
    assert np.median(CURVES.means) - CURVES.means.min() > 3 * CURVES.deviation


def test_tpe_chooses_within_a_seed_deviation_of_the_best_at_half_the_tokens_of_the_grid() -> None:
    search = list_methods(CURVES)["TPE"]
    outcomes = [Replay(CURVES, search, seed).run() for seed in range(SEEDS)]
    assert all(one.tokens <= len(CURVES.settings) / 2 for one in outcomes)
    assert (measure_regret(CURVES, outcomes) > 1).sum() <= MOST_ABOVE


def test_pruning_ends_bad_trials_and_leaves_the_winner_as_good_on_fresh_seeds() -> None:
    """The bias is at most a tenth of a seed deviation, but for what 40 searches can tell."""
    search = {"method": "random", "trials": 24, "prune": True}
    result = measure_bias(CURVES, search, range(40))
    assert result["bias"] - 3 * result["standard_error"] < 0.1
    assert result["pruned"] > 0.1
    assert result["tokens_saved"] > 0.05
    assert result["wrong_share"] < 0.25


def test_a_replayed_search_repeats_itself() -> None:
    search = list_methods(CURVES)["random"]
    assert Replay(CURVES, search, 3).run() == Replay(CURVES, search, 3).run()
    assert math.isfinite(Replay(CURVES, search, 3).run().fresh)
    with pytest.raises(ValueError, match="not in list"):
        CURVES.snap({"train.schedule": "linear"})
