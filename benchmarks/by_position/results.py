"""What the runs measured, put together; and where each position differs from uniform attention.

Shapes: s seeds, t texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from by_position.systems import MODELS, POSITIONS
from heed.arrays import Floats
from heed.stats.comparison import Pair, SumMetric, compare_systems
from heed.stats.variance import System

EVEN = "even"
"""A head that looks at all it may see alike: what the shares are compared with."""
KEPT = {
    "encoder": ("distance", "first_three", "same", "previous", "next"),
    "padded": ("distance", "first_three", "padding"),
    "decoder": ("distance", "first_three", "same", "previous"),
}
"""The statistics that are kept of each model, text by text."""
MEAN = SumMetric("mean", lambda counts: np.asarray(counts[..., 0] / counts[..., 1]), digits=3)
Results = dict[str, Any]


def gather(folder: Path) -> Results:
    """The measurements of all runs: text by text, head by head, and the maps of one seed."""
    results: Results = {"machine": json.loads((folder / "machine.json").read_text("utf-8"))}
    for model in MODELS:
        runs = {position: _read_runs(folder, model, position) for position in POSITIONS}
        every = [run for of_position in runs.values() for run in of_position]
        results[model] = {
            "seeds": min(len(of_position) for of_position in runs.values()),
            "texts": len(every[0]["by_text"]["same"]),
            "even": {name: _short(every[0]["uniform"][name]) for name in KEPT[model]},
            "positions": {name: _of_position(model, own) for name, own in runs.items()},
        }
        results[model]["comparisons"] = {
            f"{statistic} {baseline}": {
                name: describe_pair(pair)
                for name, pair in compare(results, model, statistic, baseline).items()
            }
            for statistic in KEPT[model]
            for baseline in (EVEN, *(["alibi"] if statistic == "distance" else []))
        }
    return results


def describe_pair(pair: Pair) -> Results:
    """The mean of a position, and its difference with a simultaneous interval."""
    values = {
        "mean": pair.mean_a,
        "difference": pair.difference,
        "low": pair.interval.low,
        "high": pair.interval.high,
    }
    return {name: round(value, 4) for name, value in values.items()}


def compare(results: Results, model: str, statistic: str, baseline: str) -> dict[str, Pair]:
    """Every position compared with one, or with uniform attention, as one family."""
    of_model = results[model]
    rows = {name: np.array(own[statistic]) for name, own in of_model["positions"].items()}
    if baseline == EVEN:
        even = np.array(of_model["even"][statistic])
        rows[EVEN] = np.tile(even, (of_model["seeds"], 1))
    systems = [System(name, _with_counts(values_st)) for name, values_st in rows.items()]
    pairs = compare_systems(systems, MEAN, baseline=baseline).pairs
    return {pair.a: pair for pair in pairs}


def _with_counts(values_st: Floats) -> Floats:
    return np.stack([values_st, np.ones_like(values_st)], axis=-1)


def _read_runs(folder: Path, model: str, position: str) -> list[Results]:
    paths = sorted(folder.glob(f"{model}-{position}-*.json"))
    return [json.loads(path.read_text("utf-8")) for path in paths]


def _of_position(model: str, runs: list[Results]) -> Results:
    first = runs[0]
    return {
        **{name: [_short(run["by_text"][name]) for run in runs] for name in KEPT[model]},
        "score": [next(iter(run["score"].values())) for run in runs],
        "by_head": {
            name: np.round(np.mean([run["by_head"][name] for run in runs], axis=0), 3).tolist()
            for name in KEPT[model]
        },
        "equal_tokens_differ_by": [
            max(one["equal_tokens_differ_by"] or 0.0 for one in run["sentences"].values())
            for run in runs
        ],
        "maps": {
            name: _keep_maps(one, with_nearest=name == "long")
            for name, one in first["sentences"].items()
            if model != "padded" or name == "short"
        },
    }


def _keep_maps(sentence: Results, *, with_nearest: bool) -> Results:
    """Of one sentence: the mean of all heads, and the head with the shortest mean distance."""
    weights_lhnn = np.array(sentence["weights"])
    kept = {
        "words": sentence["words"],
        "tokens": sentence["tokens"],
        "mean": np.round(weights_lhnn.mean(axis=(0, 1)), 3).tolist(),
    }
    if not with_nearest:
        return kept
    at = np.arange(weights_lhnn.shape[-1])
    distance_lh = (weights_lhnn * np.abs(at[:, None] - at)).sum(axis=3).mean(axis=2)
    layer, head = np.unravel_index(int(distance_lh.argmin()), distance_lh.shape)
    return kept | {
        "nearest": np.round(weights_lhnn[layer, head], 3).tolist(),
        "nearest_head": [int(layer) + 1, int(head) + 1],
    }


def _short(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]
