"""Time from `heed train` to its first step: with an empty cache, and with a filled one.

    python benchmarks/startup.py --data DIR --threads 2

DIR holds train.en, train.fr, dev.en and dev.fr. The model is the default one. The first step is
included; it has only 512 tokens, so that it takes little time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from common import keep, set_options, table
from process_monitor import watch

BARS = {"fresh": 15.0, "warm": 4.0}
"""The limits in seconds."""
PARTS = ("imports", "doctor", "tokenizer", "store", "model, plan", "first step")
SHORT = {
    "train.steps": 1,
    "train.log_every": 1,
    "train.evaluate_batches": 1,
    "train.batch_tokens": 512,
}


def arguments(data: Path, threads: int | None, device: str) -> list[str]:
    """The options of the training command."""
    options = ["--task", "translate", "--device", device]
    for split in ("train", "dev"):
        for side in ("en", "fr"):
            options += [f"--{split}", str((data / f"{split}.{side}").resolve())]
    options += set_options(SHORT)
    return options + ([] if threads is None else ["--threads", str(threads)])


def main() -> None:
    """Start with an empty and a filled cache, several times; report medians of every part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    train_options = arguments(options.data, options.threads, options.device)
    seconds: dict[str, list[list[float]]] = {state: [] for state in BARS}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            for state in BARS:  # the first fills the cache for the second
                folder, cache = Path(name) / state, Path(name) / "cache"
                parts = watch(train_options, folder=folder, cache=cache, splits=2)
                seconds[state].append([parts[part].seconds for part in PARTS])
    medians = {
        state: [statistics.median(column) for column in zip(*rounds, strict=True)]
        for state, rounds in seconds.items()
    }
    totals = {state: statistics.median(map(sum, rounds)) for state, rounds in seconds.items()}
    rows = [[p, *(f"{medians[s][i]:.2f}" for s in BARS)] for i, p in enumerate(PARTS)]
    rows.append(["total", *(f"{total:.2f}" for total in totals.values())])
    text = table("Seconds from the command to the first step", ["part", *BARS], rows)
    text += "".join(f"\n{s}: {totals[s]:.1f} s (limit {bar:.0f})" for s, bar in BARS.items())
    figures = {"seconds": {s: dict(zip(PARTS, medians[s], strict=True)) for s in BARS}}
    keep("startup", text, figures | {"total": totals}, device=options.device)
    raise SystemExit(any(totals[state] > bar for state, bar in BARS.items()))


if __name__ == "__main__":
    main()
