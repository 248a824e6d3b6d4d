"""Where do heads look under each position encoding: near, at the first tokens, on diagonals?

    python benchmarks/attention_by_position.py train --data DIR --runs RUNS --out OUT --jobs 16
    python benchmarks/attention_by_position.py report --measured OUT

The first trains the course report's models of the speeches in DIR with seven positions and five
seeds, by the real command: a classifier (encoder), the same classifier with padding as words that
nothing hides, and a language model (decoder). It writes one JSON file per run into OUT, and skips
those that are there. The second writes `docs/results/attention-by-position.md`, its figures, and
`benchmarks/results/attention-by-position.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
from functools import partial
from pathlib import Path

from by_position.measure import measure_run
from by_position.report import write_report
from by_position.systems import MODELS, SEEDS, RunPlan, plan_runs, write_padded_speeches
from common import DOCS, RESULTS, machine
from running import Plan, all_of, learn, settings, spawn

from heed.files import to_json
from heed.runs.run import Run

SCRIPT = Path(__file__).resolve()


def train_and_measure(plan: Plan, chosen: RunPlan, out: Path) -> str:
    """Train one run and measure it, in processes of their own; the run folder is then deleted."""
    result = out / f"{chosen.name}.json"
    if result.exists():
        return "there already"
    run = Run(plan.runs / chosen.name)
    changes = settings([*chosen.changes, *plan.changes])
    data = plan.runs / "padded" if chosen.padded else plan.data
    learn(plan, run, chosen.recipe, "--data", str(data), *changes)
    words = ("measure", str(run.folder), "--data", str(data), "--out", str(result))
    spawn(plan, run, "measure", str(SCRIPT), *words)
    shutil.rmtree(run.folder)
    return "measured"


def train(arguments: argparse.Namespace) -> bool:
    """Train and measure every run that is not there; returns whether all are now."""
    os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    runs, out = arguments.runs.resolve(), arguments.out.resolve()
    for folder in (runs, out):
        folder.mkdir(parents=True, exist_ok=True)
    endless = float("inf")
    plan = Plan(
        data=arguments.data.resolve(),
        runs=runs,
        changes=arguments.set,
        device="cpu",
        jobs=arguments.jobs,
        deadline=endless,
        stop=endless,
    )
    write_padded_speeches(plan.data, runs / "padded")
    chosen = plan_runs(arguments.only, arguments.seeds)
    (out / "machine.json").write_text(to_json(machine("cpu")) + "\n", encoding="utf-8")
    makers = {one.name: partial(train_and_measure, plan, one, out) for one in chosen}
    return all_of(plan.jobs, makers, lambda: None)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train and measure the models")
    training.add_argument("--data", type=Path, required=True, help="folder with the speeches")
    training.add_argument("--runs", type=Path, required=True, help="folder for runs, then deleted")
    training.add_argument("--out", type=Path, required=True, help="folder for the measurements")
    training.add_argument("--jobs", type=int, default=1, help="runs side by side, a core each")
    training.add_argument("--seeds", type=int, default=SEEDS)
    training.add_argument("--only", nargs="+", choices=[*MODELS], default=[*MODELS])
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    measuring = commands.add_parser("measure", help="measure one run; `train` does this")
    measuring.add_argument("run", type=Path)
    measuring.add_argument("--data", type=Path, required=True)
    measuring.add_argument("--out", type=Path, required=True)
    reporting = commands.add_parser("report", help="write the page from the measurements")
    reporting.add_argument("--measured", type=Path, help="default: the results that are kept")
    return parser.parse_args()


def main() -> None:
    """Train all runs, measure one, or report."""
    arguments = options()
    if arguments.command == "train":
        raise SystemExit(0 if train(arguments) else 1)
    if arguments.command == "measure":
        measured = to_json(measure_run(arguments.run, arguments.data))
        arguments.out.write_text(measured + "\n", encoding="utf-8")
    else:
        write_report(arguments.measured, RESULTS, DOCS)


if __name__ == "__main__":
    main()
