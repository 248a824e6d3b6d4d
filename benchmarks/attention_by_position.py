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
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from by_position.measure import measure_run
from by_position.report import write_report
from by_position.systems import MODELS, SEEDS, RunPlan, plan_runs, write_padded_speeches
from common import DOCS, RESULTS, ROOT, environment, machine

from heed.files import to_json
from heed.runs.run import Run

SCRIPT = Path(__file__).resolve()


def train_and_measure(data: Path, runs: Path, out: Path, changes: list[str], plan: RunPlan) -> bool:
    """Train one run and measure it, in processes of their own; returns whether it is measured now.

    A run that was interrupted is resumed. The run folder is deleted in the end.
    """
    result, run = out / f"{plan.name}.json", Run(runs / plan.name)
    if result.exists():
        return True
    data = runs / "padded" if plan.padded else data
    settings = [word for change in [*plan.changes, *changes] for word in ("--set", change)]
    training = ["train", plan.recipe, "--data", str(data), *settings, "--run", str(run.folder)]
    if any(run.checkpoints.glob("step-*")):
        training = ["resume", str(run.folder)]
    commands = [
        ["-m", "heed", *training, "--device", "cpu"],
        [str(SCRIPT), "measure", str(run.folder), "--data", str(data), "--out", str(result)],
    ]
    variables = environment(OMP_NUM_THREADS="1", RAYON_NUM_THREADS="1")
    with (runs / f"{plan.name}.log").open("ab") as log:
        for command in commands:
            ended = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if ended.returncode:
                print(f"{plan.name} failed: see {log.name}", flush=True)
                return False
    shutil.rmtree(run.folder)
    print(f"{plan.name} is measured", flush=True)
    return True


def train(arguments: argparse.Namespace) -> bool:
    """Train and measure every run that is not there; returns whether all are now."""
    data, runs, out = (path.resolve() for path in (arguments.data, arguments.runs, arguments.out))
    for folder in (runs, out):
        folder.mkdir(parents=True, exist_ok=True)
    write_padded_speeches(data, runs / "padded")
    (out / "machine.json").write_text(to_json(machine("cpu")) + "\n", encoding="utf-8")
    carry_out = partial(train_and_measure, data, runs, out, arguments.set)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        return all(list(pool.map(carry_out, plan_runs(arguments.only, arguments.seeds))))


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
