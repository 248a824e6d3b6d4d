"""Kill a training run repeatedly, resume it each time, and compare it with an unbroken run.

    python benchmarks/kill_and_resume.py --kills 24

Half of the kills come at random moments, half while a checkpoint is being written. The results must
be the same to the byte: `model.safetensors`, and `metrics.jsonl` except for its `time`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, environment, keep, table

from heed.config import Recipe
from heed.runs.run import Run


def recipe() -> Recipe:
    """A small recipe with all kinds of state: dropout, a random merge, weight averaging (EMA)."""
    return Recipe.of(
        {
            "data": {"synthetic": 2000, "synthetic_test": 100, "max_length": 48},
            "tokenizer": {"kind": "bpe", "vocab_size": 800},
            "model": {"layers": 1, "width": 64, "heads": 4, "merge": "shuffle"},
            "train": {
                "steps": 900,
                "batch_tokens": 512,
                "accumulate": 2,
                "ema": 0.95,
                "checkpoint_every": 3,
                "evaluate_every": 60,
                "log_every": 10,
            },
        }
    )


def command(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the real command from this checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", "heed", *arguments, "--device", "cpu"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def outcome(folder: Path) -> tuple[bytes, list[dict[str, object]]]:
    """The bytes of the weights and the metrics without their times: what must not differ."""
    run = Run(folder)
    lines = [{k: v for k, v in line.items() if k != "time"} for line in run.metrics()]
    return run.weights_path.read_bytes(), lines


def kill(process: subprocess.Popen[bytes], run: Run, *, writing: bool, after: float) -> bool:
    """Kill the process after some seconds, or at the next checkpoint write; False if it has ended.

    `after` counts from the first new line of metrics.
    """
    lines = run.metrics_path.stat().st_size if run.metrics_path.exists() else 0
    while process.poll() is None and not (
        run.metrics_path.exists() and run.metrics_path.stat().st_size > lines
    ):
        time.sleep(0.002)
    time.sleep(after)
    while writing and process.poll() is None and not any(run.checkpoints.glob(".draft-*")):
        pass
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    return True


def main() -> None:
    """Kill and resume a run, and compare it with an unbroken one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, rows, inside = random.Random(options.seed), [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "recipe.toml").write_text(recipe().toml(), encoding="utf-8")
        train = ("train", str(path / "recipe.toml"), "--run")
        command(*train, str(path / "whole")).communicate()
        broken = Run(path / "broken")
        action: tuple[str, ...] = (*train, str(broken.folder))
        kills = 0
        while kills < options.kills:
            process, writing = command(*action), kills % 2 == 1
            killed = kill(process, broken, writing=writing, after=draw.uniform(0.0, 0.3))
            _, error = process.communicate()
            if not killed and process.returncode != 0:
                raise RuntimeError(error.decode())
            kills += killed
            drafts = list(broken.checkpoints.glob(".draft-*"))
            inside += bool(killed and drafts)
            step = max((int(p.name[5:]) for p in broken.checkpoints.glob("step-*")), default=0)
            rows.append([str(kills), "during a write" if drafts else "between writes", str(step)])
            action = ("resume", str(broken.folder))
            if broken.finished:
                break
        command("resume", str(broken.folder)).communicate()
        same = outcome(path / "whole") == outcome(broken.folder)
    text = table("Kills", ["kill", "when", "last checkpoint"], rows)
    text += f"\n\n{kills} kills, {inside} of them during a checkpoint write: the result is "
    text += "identical to the byte." if same else "DIFFERENT."
    figures = {"kills": kills, "inside_a_write": inside, "identical": same}
    keep("kill-and-resume", text, figures, device="cpu")
    print(json.dumps(figures))
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
