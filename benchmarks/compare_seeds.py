"""Verdicts of `heed compare` on real runs: many seeds of one recipe, and a planted change.

For each task, `heed train` and `heed evaluate` make runs that differ only in their seed, and three
runs that were trained half as long. Runs of the one recipe are then relabelled as if they were two
recipes: whatever a comparison claims of those is false. The change is real: it should be found with
three seeds each where the power calculation says so. Runs that are complete are not made again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, keep, table

from heed.runs.item_counts import item_path
from heed.stats.verdicts import Verdict
from heed.study.recipe_comparison import compare_runs
from heed.study.run_records import ScoredRun, open_scored_runs

CLAIMS = {Verdict.BETTER, Verdict.WORSE}
MAX_FALSE_CLAIMS = 0.07
MIN_POWER = 0.75
SEEDS_EACH = 3
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5)
MAX_SPLITS = 1000
"""With more splits of the runs into three and three, a random sample serves."""


@dataclass(frozen=True)
class Task:
    """A recipe, shortened so that its score is far from perfect, and its half."""

    recipe: str
    settings: tuple[str, ...]
    half: str
    """The setting that trains half as long."""


TASKS = {
    "translate": Task("demo-translate", ("train.steps=400", "train.warmup=60"), "train.steps=200"),
    "classify": Task("demo-classify", ("train.steps=44", "train.warmup=10"), "train.steps=22"),
    "generate": Task("demo-generate", ("data.synthetic=6000", "train.epochs=2"), "train.epochs=1"),
}


def main() -> None:
    """Make the runs, judge them, and print and keep the tables."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one core each")
    parser.add_argument("--seeds", type=int, default=6, help="runs of the one recipe")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path("runs/compare-seeds"))
    parser.add_argument("--results", type=Path, help="folder of the kept results")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [
            pool.submit(make_run, options.out / task / f"{kind}-{seed}", command)
            for task in options.tasks
            for kind, seed, command in list_runs(TASKS[task], options.seeds)
        ]
        for future in futures:
            future.result()
    results = {}
    for task in options.tasks:
        write_records(options.out / task, options.out / "records" / task)
        results[task] = judge_task(options.out / "records" / task)
    keep("compare-seeds", build_tables(results), results, device="cpu", folder=options.results)


# ------------------------------------------------------------------------------------- the runs


def list_runs(task: Task, seeds: int) -> Iterator[tuple[str, int, list[str]]]:
    """The kind, seed and settings of every run; the change has seeds of its own."""
    for seed in range(1, seeds + 1):
        yield "whole", seed, [task.recipe, *_settings([*task.settings, f"seed={seed}"])]
    for seed in range(seeds + 1, seeds + 1 + SEEDS_EACH):
        settings = [*task.settings, task.half, f"seed={seed}"]
        yield "half", seed, [task.recipe, *_settings(settings)]


def make_run(folder: Path, arguments: Sequence[str]) -> None:
    """Train and evaluate one run, unless it was evaluated before."""
    if item_path(folder, "test").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    call_heed("train", *arguments, "--run", str(folder), "--device", "cpu")
    options = ["--metric", "bleu,chrf"] if "demo-translate" in arguments else []
    call_heed("evaluate", str(folder), "--device", "cpu", "--bootstrap", "0", *options)
    print(f"made {folder}", flush=True)


def call_heed(*arguments: str) -> str:
    """Run one heed command on one core; its output."""
    command = [sys.executable, "-m", "heed", *arguments]
    variables = environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def write_records(runs: Path, records: Path) -> None:
    """Write the records of all runs: recipes and item counts, no text."""
    shutil.rmtree(records, ignore_errors=True)
    call_heed("compare", str(runs), "--records", str(records), "--json")


def _settings(settings: Sequence[str]) -> Iterator[str]:
    for setting in settings:
        yield from ("--set", setting)


# ----------------------------------------------------------------------------------- the verdicts


def judge_task(records: Path) -> dict[str, Any]:
    """What comparisons of one task's runs claim: falsely, and of the planted change."""
    runs = open_scored_runs([records])
    whole = [run for run in runs if Path(run.name).name.startswith("whole")]
    half = [run for run in runs if Path(run.name).name.startswith("half")]
    report = json.loads(call_heed("compare", str(records), "--json"))
    scores = {Path(run).name: score for s in report["systems"] for run, score in _scores(s)}
    singles = [_compare_relabelled([a], [b])["claim"] for a, b in combinations(whole, 2)]
    splits = [_compare_relabelled(a, b) for a, b in split_runs(whole)]
    planted = [_compare_pair([*some, *half]) for some in combinations(whole, SEEDS_EACH)]
    effect = abs(_mean(scores, "half") - _mean(scores, "whole"))
    visible = [one for one in planted if effect >= one["smallest_visible"]]
    visible_sizes = [one["smallest_visible"] for one in planted]
    return {
        "metric": report["metric"],
        "items": report["items"],
        "scores": scores,
        "minutes_per_run": report["minutes_per_run"],
        "verdicts": report["verdicts"],
        "single_pairs": len(singles),
        "single_claims": sum(singles),
        "splits": len(splits),
        "split_claims": sum(one["claim"] for one in splits),
        "split_p_quantiles": {
            f"{share:g}": float(np.quantile([one["p"] for one in splits], share))
            for share in QUANTILES
            if splits
        },
        "effect": effect,
        "smallest_visible": [float(bound(visible_sizes)) for bound in (min, np.median, max)],
        "planted": len(planted),
        "planted_found": sum(one["claim"] for one in planted),
        "visible": len(visible),
        "visible_found": sum(one["claim"] for one in visible),
    }


def split_runs(runs: Sequence[ScoredRun]) -> list[tuple[list[ScoredRun], list[ScoredRun]]]:
    """Every way to take two groups of three runs, or a random sample of the ways."""
    count = comb(len(runs), 2 * SEEDS_EACH) * comb(2 * SEEDS_EACH, SEEDS_EACH) // 2
    if count > MAX_SPLITS:
        random = np.random.default_rng(0)
        orders = [random.permutation(len(runs)).tolist() for _ in range(MAX_SPLITS)]
        chosen = [(order[:SEEDS_EACH], order[SEEDS_EACH : 2 * SEEDS_EACH]) for order in orders]
    else:
        chosen = [
            (list(first), [i for i in six if i not in first])
            for six in combinations(range(len(runs)), 2 * SEEDS_EACH)
            for first in combinations(six, SEEDS_EACH)
            if six[0] in first  # each split once
        ]
    return [([runs[i] for i in a], [runs[i] for i in b]) for a, b in chosen]


def _compare_relabelled(a: Sequence[ScoredRun], b: Sequence[ScoredRun]) -> dict[str, Any]:
    """Compare runs of one recipe as if they had two."""
    return _compare_pair(
        [
            replace(run, recipe={**run.recipe, "label": label})
            for label, runs in (("a", a), ("b", b))
            for run in runs
        ]
    )


def _compare_pair(runs: Sequence[ScoredRun]) -> dict[str, Any]:
    [(pair, judgement)] = compare_runs(runs).pairs
    return {
        "claim": judgement.verdict in CLAIMS,
        "p": pair.corrected_p,
        "smallest_visible": pair.smallest_visible,
    }


def _scores(system: dict[str, Any]) -> Iterator[tuple[str, float]]:
    return zip(system["runs"], system["scores"], strict=True)


def _mean(scores: dict[str, float], kind: str) -> float:
    return float(np.mean([value for name, value in scores.items() if name.startswith(kind)]))


def build_tables(results: dict[str, dict[str, Any]]) -> str:
    """The three questions as a table, and whether each bar is met."""
    rows = []
    for task, one in results.items():
        seeds = [value for name, value in one["scores"].items() if name.startswith("whole")]
        rows.append(
            [
                task,
                f"{one['metric']}, {one['items']:,} items",
                f"{np.mean(seeds):.3f} ± {np.std(seeds, ddof=1):.3f} ({len(seeds)})",
                f"{one['single_claims']} of {one['single_pairs']}",
                f"{one['split_claims']} of {one['splits']}",
                f"{one['effect']:.3f}",
                f"{one['smallest_visible'][1]:.3f}",
                f"{one['planted_found']} of {one['planted']}",
            ]
        )
    columns = ["task", "metric", "mean ± sd (seeds)", "1 x 1 claims", "3 x 3 claims"]
    columns += ["half: D", "smallest visible", "found, 3 x 3"]
    total = {
        key: sum(one[key] for one in results.values())
        for key in ("single_claims", "split_claims", "splits", "visible", "visible_found")
    }
    share = total["split_claims"] / max(total["splits"], 1)
    lines = [
        f"One recipe, one run each: {total['single_claims']} claims (bar 0).",
        f"One recipe, three runs each, relabelled: {share:.1%} of {total['splits']} comparisons "
        f"claim a difference (bar {MAX_FALSE_CLAIMS:.0%}).",
        f"Half the training, three runs each, where the power calculation calls it visible: found "
        f"in {total['visible_found']} of {total['visible']} (bar {MIN_POWER:.0%}).",
    ]
    return table("\n".join(lines) + "\n", columns, rows)


if __name__ == "__main__":
    main()
