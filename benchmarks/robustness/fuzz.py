"""Fuzz every command: no input may end in a traceback or a signal.

    PYTHONPATH=benchmarks python -m robustness.fuzz --inputs 1200 --seed 0

Each input is a command with random or extreme recipes, data files, numbers, texts or folders. It
runs in a forked child under limits of time and memory. It must end with an answer, with a sentence
and exit code 2, or at a limit. A fault is printed with the number that draws it again (--only).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from robustness import forked_command
from robustness.forked_command import FAULTS, OUTCOMES, Result
from robustness.fuzz_inputs import COMMANDS, TINY, Input, Models, data_files, draw_input

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "robustness-fuzz"
HOLDS = {
    "translate": ("model.position=sinusoidal", "model.sinusoids=halves", "model.norm_place=post"),
    "classify": (
        *("model.position=learned", "model.norm_place=post", "model.embedding_norm=true"),
        *("model.pooling=first", "model.pooler=true"),
    ),
    "generate": ("model.position=learned",),
}
"""Settings with which Marian's, RoBERTa's and GPT-2's classes hold a model."""


def train_models(folder: Path) -> Models:
    """Train a tiny run of each task by the real command, and export it for imports."""
    runs, folders = {}, []
    for task in COMMANDS:
        files = data_files(task)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        names = [part for name in files for part in ("--train", name)]
        settings = [part for one in HOLDS[task] for part in ("--set", one)]
        command = ["train", "--task", task, *names, *TINY, *settings, "--device", "cpu"]
        _expect_answer([*command, "--run", task], folder)
        runs[task] = folder / task
        exported = forked_command.run_command(["export", task, f"hf-{task}"], folder)
        if exported.code == 0:
            folders.append(folder / f"hf-{task}")
    return Models(runs, folders)


def _expect_answer(arguments: list[str], folder: Path) -> None:
    result = forked_command.run_command(arguments, folder, seconds=120)
    if result.code:
        raise SystemExit(f"heed {' '.join(arguments)}: {result.err}")


def try_input(one: Input, seconds: float) -> Result:
    """Run one input in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        one.write(folder)
        return forked_command.run_command(one.arguments, folder, stdin=one.stdin, seconds=seconds)


def describe_fault(number: int, one: Input, result: Result) -> str:
    """A fault with the command, and the end of what it printed."""
    command = " ".join(part[:80] for part in one.arguments)
    end = "\n    ".join(result.err.strip().splitlines()[-8:])
    how = f"{result.outcome} {result.code}"
    return f"input {number} ({one.family}): {how}: heed {command!r}\n    {end}"


def fuzz(
    numbers: range, seed: int, models: Models, *, seconds: float, jobs: int = 1
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Counts of inputs by family and outcome, and the faults; in `jobs` processes at once."""
    counts: Counter[tuple[str, str]] = Counter()
    faults = []
    try_number = partial(_try_number, seed=seed, models=models, seconds=seconds)
    with get_context("fork").Pool(jobs) as pool:
        for key, fault in pool.imap_unordered(try_number, numbers):
            counts[key] += 1
            if fault:
                faults.append(fault)
                print(fault, flush=True)
    return counts, faults


def _try_number(
    number: int, *, seed: int, models: Models, seconds: float
) -> tuple[tuple[str, str], str | None]:
    """Family and outcome of one input, and the fault if there is one."""
    one = draw_input(seed, number, models)
    result = try_input(one, seconds)
    fault = describe_fault(number, one, result) if result.outcome in FAULTS else None
    return (one.family, result.outcome), fault


def main() -> None:
    """Fuzz, and keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30.0, help="limit of one input")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this input alone, and print all of it")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-models-") as name:
        one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        os.environ.update(one_thread | {"HEED_CACHE": f"{name}/cache"})
        forked_command.import_commands()
        models = train_models(Path(name))
        if options.only is not None:
            one = draw_input(options.seed, options.only, models)
            result = try_input(one, options.seconds)
            print(one.arguments, result.outcome, result.code, result.out[-3000:], result.err)
            return
        numbers = range(options.first, options.first + options.inputs)
        counts, faults = fuzz(
            numbers, options.seed, models, seconds=options.seconds, jobs=options.jobs
        )
    text = _table(counts)
    print(text)
    if options.keep:
        _keep(counts, faults, text, options)
    raise SystemExit(1 if faults else 0)


def _table(counts: Counter[tuple[str, str]]) -> str:
    """Counts as a Markdown table: a row for each family, a column for each outcome."""
    families = sorted({family for family, _ in counts})
    lines = ["| input | " + " | ".join(OUTCOMES) + " | all |"]
    lines.append("|---|" + "---:|" * (len(OUTCOMES) + 1))
    for family in [*families, "all"]:
        row = [
            sum(n for (f, o), n in counts.items() if o == outcome and family in (f, "all"))
            for outcome in OUTCOMES
        ]
        lines.append(f"| {family} | " + " | ".join(f"{n:,}" for n in [*row, sum(row)]) + " |")
    return "\n".join(lines)


def _keep(
    counts: Counter[tuple[str, str]], faults: list[str], text: str, options: argparse.Namespace
) -> None:
    from common import machine

    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    info = machine("cpu") | {
        "command": " ".join(["PYTHONPATH=benchmarks python -m robustness.fuzz", *sys.argv[1:]]),
        "commit": commit,
        "seed": options.seed,
    }
    figures = {f"{family}: {outcome}": n for (family, outcome), n in sorted(counts.items())}
    document = {"machine": info, "figures": figures, "inputs": counts.total(), "faults": faults}
    RESULT.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    head = "\n".join(f"- {key}: {value}" for key, value in info.items())
    explained = (
        "`answer`: exit code 0. `sentence`: exit code 2 with a message. `findings`: `heed check` "
        "reports errors. `memory` and `time`: stopped at the limit of the child process "
        f"({options.seconds:.0f} s). `traceback`, `signal` and `other` are faults."
    )
    page = f"# Fuzzed inputs of every command\n\n{head}\n\n{text}\n\n{explained}\n"
    RESULT.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
