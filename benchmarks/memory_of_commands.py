"""Does memory grow with the lines that `heed translate`, `score` and `generate` read?

    python benchmarks/memory_of_commands.py [--tiny]

Each command runs on few lines and on many, as a process of its own. Its peak memory is read from
the kernel. The runs are trained first by the real command.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import keep, table

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MODEL = (
    *("--set", "model.width=64", "--set", "model.heads=2", "--set", "model.layers=1"),
    *("--set", "data.max_length=64", "--set", "train.steps=20", "--set", "train.execution=eager"),
    *("--set", "tokenizer.vocab_size=500"),
)


def random_lines(count: int, seed: int) -> str:
    """Short lines of random words: nearly all of them differ."""
    draw = random.Random(seed)

    def word() -> str:
        return "".join(draw.choices(LETTERS, k=draw.randint(1, 9)))

    return "".join(" ".join(word() for _ in range(draw.randint(1, 8))) + "\n" for _ in range(count))


def peak_memory(arguments: list[str], folder: Path) -> tuple[int, float, int]:
    """Peak resident bytes of a command, its seconds and its exit code."""
    root = Path(__file__).resolve().parents[1]
    began = time.monotonic()
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "heed", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(root), "HEED_CACHE": str(folder / "cache")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024, time.monotonic() - began, process.returncode


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a trial in seconds, not kept")
    tiny = parser.parse_args().tiny
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, seed in (("en", 1), ("fr", 2)):
            (folder / f"train.{side}").write_text(random_lines(1000, seed))
        files = ["--train", "train.en", "--train", "train.fr"]
        for task, data in (("translate", files), ("generate", files[:2])):
            command = ["train", "--task", task, *data, *MODEL, "--device", "cpu", "--run", task]
            if peak_memory(command, folder)[2]:
                raise SystemExit((folder / "out").read_text())
        rows = []
        for lines in (200, 400) if tiny else (2_000, 20_000):
            (folder / "x").write_text(random_lines(lines, 3))
            (folder / "y").write_text(random_lines(lines, 4))
            translate = ["translate", "translate", "--file", "x", "--device", "cpu"]
            translate += ["--max-ratio", "0.3", "--max-extra", "2"]
            rows.append((f"translate, {lines:,} lines", *peak_memory(translate, folder)))
            score = ["score", "x", "--ref", "y", "--metric", "bleu,chrf", "--json"]
            rows.append((f"score, {lines:,} lines", *peak_memory(score, folder)))
        for words in (1_000,) if tiny else (1_000, 4_000, 40_000):
            (folder / "prompt").write_text("word " * words + "\n")
            generate = ["generate", "generate", "--file", "prompt", "--length", "5"]
            rows.append((f"generate, {words:,} words", *peak_memory(generate, folder)))
            cut = [*generate, "--cut-prompt"]
            rows.append((f"generate --cut-prompt, {words:,} words", *peak_memory(cut, folder)))
    cells = [[n, f"{b / 2**20:,.0f}", f"{s:.0f}", str(c)] for n, b, s, c in rows]
    text = table("Peak memory of commands", ["command", "MiB", "seconds", "exit code"], cells)
    if tiny:
        print(text)
    else:
        keys = ("command", "bytes", "seconds", "code")
        figures = [dict(zip(keys, row, strict=True)) for row in rows]
        keep("memory-of-commands", text, figures, device="cpu")


if __name__ == "__main__":
    main()
