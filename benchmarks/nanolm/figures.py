"""Everything there is to tell, as plain values without a word of the corpus.

A seed begins from its own weights and reads in its own order; the dev texts are the same for all.
Intervals are Student's over seeds: they are about other seeds, not about other texts. Two systems
are compared seed by seed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

from reading import MACHINE, Facts, facts, read
from ted.joined import holm, student
from ted.systems import System

from heed.runs.run import Run
from nanolm.systems import LONG, LONG_PLAIN, MERGES, PLAIN, POSITIONS, REWEIGHT, SYSTEMS
from nanolm.training import JUDGED

Seeds = dict[int, Facts]
"""What the trainer noted of each seed's run."""
LOCAL = ("commit", "bf16", "device")
"""What a run alone knows of where it was trained."""
SURE = 0.95
CLOSE = 1e-12


def gather(folder: Path) -> Facts:
    """All figures of the runs in a folder."""
    runs = {name: seeds for name in SYSTEMS if (seeds := _seeds(folder, name))}
    found: Facts = {
        "machine": read(folder / MACHINE),
        "systems": {name: _described(SYSTEMS[name], seeds) for name, seeds in runs.items()},
        "compared": {name: _compared(runs, pairs) for name, pairs in _questions().items()},
        "same_weights": _same_weights(runs),
    }
    if runs:
        first = next(iter(runs))
        (seed, noted), *_ = runs[first].items()
        told = Run(folder / f"{first}-{seed}").environment_path
        environment = json.loads(told.read_text(encoding="utf-8"))
        found["machine"] |= {key: environment[key] for key in LOCAL if key in environment}
        found["machine"]["jobs"] = noted["jobs"]
        found["vocabulary"] = noted[JUDGED]["vocabulary"]
    return found


def _seeds(folder: Path, name: str) -> Seeds:
    """The runs of a system that were judged."""
    named = re.compile(re.escape(name) + r"-(\d+)")
    found = {}
    for path in folder.iterdir():
        if (match := named.fullmatch(path.name)) and JUDGED in (noted := facts(path)):
            found[int(match[1])] = noted
    return dict(sorted(found.items()))


def _described(system: System, seeds: Seeds) -> Facts:
    """One system, its seeds joined."""
    told = [noted[JUDGED] for noted in seeds.values()]
    first = told[0]
    found: Facts = {
        "label": str(system),
        "changes": list(system.changes),
        "seeds": list(seeds),
        "parameters": next(iter(seeds.values()))["parameters"],
        "heads": first["heads"],
        "minutes": fmean(sum(noted["seconds"].values()) / 60 for noted in seeds.values()),
    }
    for group in ("sets", "sentences"):
        found[group] = {
            name: {
                "texts": first[group][name]["texts"],
                "tokens": fmean(one[group][name]["tokens"] for one in told),
                "loss": level([one[group][name]["loss"] for one in told]),
                "log_mean_text_perplexity": level(
                    [math.log(one[group][name]["mean_text_perplexity"]) for one in told]
                ),
            }
            for name in first[group]
        }
    found["batched"] = level([one["batched"] for one in told])
    found["apart"] = level([one["batched"] - one["sets"]["dev"]["loss"] for one in told])
    found["read"] = {how: level([one["read"][how] for one in told]) for how in first["read"]}
    found["lost"] = {
        how: level([one["read"][how] - one["read"]["with"] for one in told])
        for how in first["read"]
        if how != "with"
    }
    if first["blind"]:
        found["blind"] = {
            key: level([one["blind"][key] for one in told]) for key in ("whole", "blind")
        } | {"hidden": level([one["blind"]["blind"] - one["blind"]["whole"] for one in told])}
    return found


def level(values: Sequence[float]) -> Facts:
    """A mean over seeds with Student's interval; with one seed there is none."""
    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None, "each": list(values)}
    half = reach(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "each": list(values)}


@cache
def reach(freedom: int) -> float:
    """Between ± this Student's distribution has 95%, found by halving."""
    low, high = 0.0, 1.0
    while student(high, freedom) > 1 - SURE:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if student(middle, freedom) > 1 - SURE else (low, middle)
    return high


Measure = Callable[[Facts], float]
Pair = tuple[str, str, str, Measure]
"""A system, what it is held against, on what, and how a run's loss there is found."""


def _set(name: str, group: str = "sets") -> Measure:
    return lambda one: one[group][name]["loss"]


def _mean_text(one: Facts) -> float:
    return math.log(one["sets"]["dev"]["mean_text_perplexity"])


def _questions() -> dict[str, list[Pair]]:
    """What is compared; each question is a table, corrected for as many tests as it has."""
    learned, sinusoidal = (system.name for system in POSITIONS)
    places: dict[str, Measure] = {
        "train": _set("train"),
        "dev": _set("dev"),
        "dev, mean of the texts' perplexities": _mean_text,
        **{name: _set(name, "sentences") for name in ("ordinary", "odd", "long")},
    }
    merges = [*MERGES[1:], *REWEIGHT]
    return {
        "positions": [(learned, sinusoidal, where, how) for where, how in places.items()],
        "merges": [(system.name, PLAIN.name, "dev", _set("dev")) for system in merges],
        "longer": [(system.name, LONG_PLAIN.name, "dev", _set("dev")) for system in LONG[1:]],
    }


def _compared(runs: Mapping[str, Seeds], pairs: Sequence[Pair]) -> list[Facts]:
    """Every pair there is, by the seeds that both have."""
    found: list[Facts] = []
    for name, other, where, how in pairs:
        shared = sorted(set(runs.get(name, {})) & set(runs.get(other, {})))
        if not shared:
            continue
        apart = [how(runs[name][s][JUDGED]) - how(runs[other][s][JUDGED]) for s in shared]
        found.append(
            level(apart) | {"system": name, "against": other, "on": where, "p": paired(apart)}
        )
    told = [one for one in found if one["p"] is not None]
    for one, p in zip(told, holm([one["p"] for one in told]), strict=True):
        one["p_holm"] = p
    return found


def paired(apart: Sequence[float]) -> float | None:
    """Student's paired test: the chance of a mean so far from none; None with one seed."""
    if len(apart) < 2:
        return None
    spread = stdev(apart) / math.sqrt(len(apart))
    if spread < CLOSE:
        return 1.0 if abs(fmean(apart)) < CLOSE else 0.0
    return student(abs(fmean(apart)) / spread, len(apart) - 1)


def _same_weights(runs: Mapping[str, Seeds]) -> Facts:
    """Of merges in training only: how many seeds chose the very weights of `always`."""
    found = {}
    for name, always in _twins(runs):
        shared = sorted(set(runs[name]) & set(runs[always]))
        same = sum(runs[name][s]["weights"] == runs[always][s]["weights"] for s in shared)
        found[name] = {"seeds": len(shared), "same": same}
    return found


def _twins(runs: Mapping[str, Seeds]) -> Iterator[tuple[str, str]]:
    for name in runs:
        always = name.removesuffix("-training")
        if always != name and always in runs:
            yield name, always
