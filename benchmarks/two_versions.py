"""Two versions of heed side by side on one machine: training speed, step times and BLEU.

    python benchmarks/two_versions.py --old OLD-TREE --new . --data ted-en-fr
    python benchmarks/two_versions.py --old OLD-TREE --new . --tiny      seconds, to try the script

Each tree is a checkout. The versions take turns, in processes of their own, so that neither profits
from the other's warm caches. `minute` trains the recipe `ted-en-fr/minute` with three paired seeds;
`steps` runs `heed bench` on the standard shapes (GPT-2 124M and four translators on a GPU).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import keep, table

WARM_UP = 0.3
"""Share of a run's log lines left out of its training speed: kernels are still being compiled."""


def heed(tree: Path, arguments: Sequence[str], cache: Path, *, timeout: float = 400) -> str:
    """The standard output of one command of this version."""
    variables = os.environ | {"HEED_CACHE": str(cache), "COLUMNS": "200"}
    packages = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{tree}:{packages}" if packages else str(tree)
    command = [sys.executable, "-m", "heed", *arguments]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=timeout, cwd=cache
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def train(tree: Path, recipe: Sequence[str], seed: int, folder: Path) -> dict[str, float]:
    """Train one seed of a recipe: its training speed, BLEU and wall time."""
    run = folder / f"run-{seed}"
    started = time.perf_counter()
    heed(tree, ["train", *recipe, "--set", f"seed={seed}", "--run", str(run)], folder)
    seconds = time.perf_counter() - started
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [line["time"]["tokens_per_second"] for line in lines if line["event"] == "train"]
    steady = rates[int(len(rates) * WARM_UP) :]
    return {
        "seed": seed,
        "tokens_per_second": statistics.median(steady),
        "bleu": find_bleu(run),
        "wall_seconds": round(seconds, 1),
    }


def find_bleu(run: Path) -> float:
    """BLEU on the whole test set, from the run's results file."""
    results = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    return float(results["test"]["bleu"])


def measure_steps(tree: Path, folder: Path, updates: int | None) -> dict[str, float]:
    """Tokens per second of every standard shape."""
    flags = ["--updates", str(updates)] if updates else []
    answer = json.loads(heed(tree, ["bench", "--json", *flags], folder))
    return {row["name"]: float(row["tokens_per_second"]) for row in answer["standard"]}


def show_training(runs: dict[str, list[dict[str, float]]]) -> str:
    """A row a seed, and the mean ratio and difference."""
    rows, ratios, differences = [], [], []
    for old, new in zip(runs["old"], runs["new"], strict=True):
        ratios.append(new["tokens_per_second"] / old["tokens_per_second"])
        differences.append(new["bleu"] - old["bleu"])
        rows.append(
            [
                str(old["seed"]),
                *(f"{run['tokens_per_second']:,.0f}" for run in (old, new)),
                f"{ratios[-1]:.3f}",
                *(f"{run['bleu']:.2f}" for run in (old, new)),
                f"{differences[-1]:+.2f}",
                *(f"{run['wall_seconds']:.1f}" for run in (old, new)),
            ]
        )
    mean = [f"{statistics.mean(ratios):.3f}", "", "", f"{statistics.mean(differences):+.2f}"]
    rows.append(["mean", "", "", *mean, "", ""])
    columns = ["seed", "old tokens/s", "new", "ratio", "old BLEU", "new", "difference"]
    return table("Training, paired seeds", [*columns, "old wall s", "new"], rows)


def show_steps(rounds: dict[str, list[dict[str, float]]]) -> str:
    """A row a shape: the median of each version's rounds, and their ratio."""
    rows = []
    for name in rounds["old"][0]:
        old, new = (statistics.median(r[name] for r in rounds[v]) for v in ("old", "new"))
        rows.append([name, f"{old:,.0f}", f"{new:,.0f}", f"{new / old:.3f}"])
    return table("Training steps, tokens/s", ["shape", "old", "new", "ratio"], rows)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the folder of the TED files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--only", choices=("minute", "steps"))
    parser.add_argument("--tiny", action="store_true", help="a demo recipe of a few steps")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    figures: dict[str, Any] = {}
    texts = []
    recipe = ["ted-en-fr/minute", "--data", str(options.data and options.data.resolve())]
    if options.tiny:
        changes = ("train.steps=20", "train.log_every=5", "train.evaluate_test=true")
        sizes = ("model.layers=1", "model.width=32")
        recipe = ["demo-translate", *(f"--set={change}" for change in (*changes, *sizes))]
    with tempfile.TemporaryDirectory() as folder:
        places = {version: Path(folder) / version for version in trees}
        for place in places.values():
            place.mkdir()
        if options.only != "steps":
            runs: dict[str, list[dict[str, float]]] = {version: [] for version in trees}
            for seed in range(options.seeds):
                # The order alternates, so that a machine that slows down favours neither.
                for version in list(trees)[:: 1 if seed % 2 == 0 else -1]:
                    runs[version].append(train(trees[version], recipe, seed, places[version]))
                    print(version, runs[version][-1], flush=True)
            figures["minute"] = runs
            texts.append(show_training(runs))
        if options.only != "minute":
            rounds: dict[str, list[dict[str, float]]] = {version: [] for version in trees}
            for number in range(options.rounds):
                for version in list(trees)[:: 1 if number % 2 == 0 else -1]:
                    tree, place = trees[version], places[version]
                    rounds[version].append(measure_steps(tree, place, options.updates))
                    print(version, rounds[version][-1], flush=True)
            figures["steps"] = rounds
            texts.append(show_steps(rounds))
    keep("two-versions", "\n\n".join(texts), figures, device=options.device, folder=options.out)


if __name__ == "__main__":
    main()
