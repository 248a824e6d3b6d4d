"""Time from the command to the first captured step, on a machine that has compiled nothing.

    python benchmarks/precompile_time.py --data DIR
    python benchmarks/precompile_time.py --data DIR --set model.position=t5 \
        --set data.max_length=512

DIR holds train.en, train.fr, dev.en and dev.fr; without it the recipe demo-translate is trained.
Each round starts with an empty Triton cache and an empty heed cache, then starts again with the
filled ones. Kernels should be compiled ahead of time by other processes: the table names those that
the run, or its first validation, compiled itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

BARS = {"cold": 20.0, "warm": 12.0}
"""Seconds allowed."""
EVALUATED = 20
"""Batches of dev, to see whether validation finds its kernels."""


def recipe_options(data: Path | None) -> tuple[str | None, str | None, list[str], list[str]]:
    """Arguments of `heed train`: a recipe, or a task and files."""
    if data is None:
        return "demo-translate", None, [], []
    train, dev = ([str(data / f"{s}.{side}") for side in ("en", "fr")] for s in ("train", "dev"))
    return None, "translate", train, dev


def once(data: Path | None, changes: list[str]) -> dict[str, Any]:
    """What `heed train` does up to its first step, in this process, which has just started."""
    from heed.train import precompile

    precompile.start_early("cuda")
    from heed.bench.startup import Startup

    startup = Startup()
    from heed.train import resolve

    name, task, train, dev = recipe_options(data)
    recipe, _ = resolve.resolve_recipe(name, task, train, dev, changes, None)
    precompile.start_early("cuda", recipe)
    with tempfile.TemporaryDirectory() as folder:
        return first_update(recipe, Path(folder) / "run", startup)


def first_update(recipe: Any, folder: Path, startup: Any) -> dict[str, Any]:
    """Prepare as training does, take one step, validate a little; the seconds of each part."""
    import torch

    from heed.bench.timing import process_age, synchronize
    from heed.device import choose_device
    from heed.runs.run import Run
    from heed.train.build_loop import build_loop
    from heed.train.precompile.start import CompileProcess, stamp_path
    from heed.train.prepare.setup import prepare, validate_recipe
    from heed.train.validate import validate

    born, said = time.time() - process_age(), list[str]()
    with startup.part("device"):
        device = choose_device("cuda")
        torch.zeros(1, device=device)
    stamp = stamp_path(recipe)
    wait = CompileProcess.wait

    def timed_wait(process: CompileProcess) -> None:
        with startup.part("waiting"):
            wait(process)

    with startup.part("read and check"):
        validate_recipe(recipe)
    run = Run.create(folder, recipe)
    with patch.object(CompileProcess, "wait", timed_wait):
        setup = prepare(recipe, run, device=device, say=said.append, stage=startup.part)
    compiled = _listen()
    loop = build_loop(setup, run, say=said.append, stage=startup.part)
    with startup.part("first update"):
        loop.update(next(iter(loop.loader.iterate(0, 1))))
        synchronize(device)
    seconds = startup.finished()
    seconds["waiting"] = startup.parts.get("waiting", 0.0)
    seconds["other"] -= seconds["waiting"]
    while_training = list(compiled)
    dev = setup.sets["dev"]
    validate(setup.model, dev, device=device, bf16=setup.bf16, max_batches=EVALUATED)
    return {
        "seconds": seconds,
        "compiled before the first update": while_training,
        "compiled to evaluate": compiled[len(while_training) :],
        "all compiled ahead after": stamp.stat().st_mtime - born if stamp.exists() else None,
        "said": said,
    }


def _listen() -> list[str]:
    """A list that will hold the names of kernels this process compiles from now on."""
    from triton import knobs

    compiled: list[str] = []

    def listen(*, src: Any, cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            compiled.append(src.name)

    knobs.compilation.listener = listen
    return compiled


def start(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run `once` in a new process."""
    from common import ROOT, environment  # not above: the timed process must not import it

    changes = [part for change in options.set for part in ("--set", change)]
    data = [] if options.data is None else ["--data", str(options.data.resolve())]
    done = subprocess.run(
        [sys.executable, __file__, "--once", *data, *changes],
        cwd=ROOT,
        env=environment(HEED_CACHE=str(folder / "heed"), TRITON_CACHE_DIR=str(folder / "triton")),
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Cold and warm starts, several rounds each; the median of every part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="one start, in this process, as JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.data, options.set)))
        return
    from common import keep, table

    starts: dict[str, list[dict[str, Any]]] = {state: [] for state in BARS}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            for state in BARS:  # the first fills the folders for the second
                starts[state].append(start(options, Path(name)))
    parts = list(starts["cold"][0]["seconds"])
    medians = {
        state: {part: statistics.median(one["seconds"][part] for one in ones) for part in parts}
        for state, ones in starts.items()
    }
    rows = [[part, *(f"{medians[state][part]:.2f}" for state in BARS)] for part in parts]
    text = table("Seconds from the command to the first captured update", ["part", *BARS], rows)
    for state, bar in BARS.items():
        last = starts[state][-1]
        text += f"\n{state}: {medians[state]['total']:.1f} s, where {bar:.0f} are allowed"
        for fact in ("all compiled ahead after", "compiled before the first update"):
            text += f"\n  {fact}: {last[fact]}"
        text += f"\n  compiled to evaluate: {last['compiled to evaluate']}; {last['said']}"
    keep("precompile-time", text, starts, device="cuda")
    raise SystemExit(any(medians[state]["total"] > bar for state, bar in BARS.items()))


if __name__ == "__main__":
    main()
