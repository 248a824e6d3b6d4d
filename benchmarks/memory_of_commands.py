"""Does memory grow with the lines that `heed translate`, `score` and `generate` read?

    python benchmarks/memory_of_commands.py [--tiny]

Each command runs on few lines and on many, as a process of its own. Its peak memory is read from
the kernel. The runs are trained first by the real command.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from common import keep, table
from process_monitor import run_command

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
            if run_command(command, folder).code:
                raise SystemExit((folder / "out").read_text())
        rows = {}
        for lines in (200, 400) if tiny else (2_000, 20_000):
            (folder / "x").write_text(random_lines(lines, 3))
            (folder / "y").write_text(random_lines(lines, 4))
            translate = ["translate", "translate", "--file", "x", "--device", "cpu"]
            translate += ["--max-ratio", "0.3", "--max-extra", "2"]
            rows[f"translate, {lines:,} lines"] = run_command(translate, folder)
            score = ["score", "x", "--ref", "y", "--metric", "bleu,chrf", "--json"]
            rows[f"score, {lines:,} lines"] = run_command(score, folder)
        for words in (1_000,) if tiny else (1_000, 4_000, 40_000):
            (folder / "prompt").write_text("word " * words + "\n")
            generate = ["generate", "generate", "--file", "prompt", "--length", "5"]
            rows[f"generate, {words:,} words"] = run_command(generate, folder)
            cut = [*generate, "--cut-prompt"]
            rows[f"generate --cut-prompt, {words:,} words"] = run_command(cut, folder)
    cells = [
        [name, f"{one.memory / 2**20:,.0f}", f"{one.seconds:.0f}", str(one.code)]
        for name, one in rows.items()
    ]
    text = table("Peak memory of commands", ["command", "MiB", "seconds", "exit code"], cells)
    if tiny:
        print(text)
    else:
        figures = [
            {"command": name, "bytes": one.memory, "seconds": one.seconds, "code": one.code}
            for name, one in rows.items()
        ]
        keep("memory-of-commands", text, figures, device="cpu")


if __name__ == "__main__":
    main()
