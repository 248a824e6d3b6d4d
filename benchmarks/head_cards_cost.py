"""What do head report cards cost: seconds and memory by the number of sentences?

    python benchmarks/head_cards_cost.py [--tiny]

`heed heads` runs as a process of its own on a translator of 4 million parameters, on generated
sentence pairs. Peak memory and processor time are read from the kernel. Times include imports and
the word aligner.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common import keep, table
from process_monitor import run_command

from heed.data import synthetic

MODEL = (
    *("model.layers=4", "model.width=192", "model.feed_forward=768", "train.steps=1"),
    *("data.synthetic=2000", "data.synthetic_test=20"),
)
SENTENCES = (1_000, 5_000, 10_000)


def measure(arguments: list[str], folder: Path) -> dict[str, float]:
    """Seconds, processor seconds and peak resident bytes of a command."""
    # A fixed threshold: glibc's own adapts to the batches, and free memory in pieces would count.
    usage = run_command(arguments, folder, MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    if usage.code:
        raise SystemExit((folder / "out").read_text(encoding="utf-8"))
    return {
        "seconds": round(usage.seconds, 1),
        "processor_seconds": round(usage.processor, 1),
        "peak_bytes": usage.memory,
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a trial in seconds, not kept")
    tiny = parser.parse_args().tiny
    sizes = (20, 40) if tiny else SENTENCES
    with tempfile.TemporaryDirectory() as name:
        folder, figures = Path(name), {}
        train = ["train", "demo-translate", "--run", "run", "--device", "cpu"]
        for change in MODEL:
            train += ["--set", change]
        measure(train, folder)
        synthetic.write_corpus(folder / "text", train=0, dev=sizes[-1], test=0)
        files = ["--test", "text/dev.en", "--test", "text/dev.fr", "--gold", "text/dev.align"]
        for sentences in sizes:
            options = [*files, "--limit", str(sentences), "--device", "cpu", "--json"]
            figures[sentences] = measure(["heads", "run", *options], folder)
    rows = [
        [
            f"{size:,}",
            f"{one['seconds']:.1f}",
            f"{one['processor_seconds']:.1f}",
            f"{one['peak_bytes'] / 2**20:,.0f}",
        ]
        for size, one in figures.items()
    ]
    title = "heed heads on a translator of 4.6 million parameters"
    text = table(title, ["sentences", "seconds", "processor seconds", "peak MiB"], rows)
    if tiny:
        print(text)
    else:
        keep("head-cards-cost", text, figures, device="cpu")


if __name__ == "__main__":
    main()
