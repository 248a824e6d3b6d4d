"""Does memory grow with the corpus? Training runs on few and on many synthetic pairs, compared.

    python benchmarks/memory_by_corpus_size.py            # 100,000 and 10 million pairs, about 1 GB
    python benchmarks/memory_by_corpus_size.py --pairs 1000000  # a trial, not saved

Each run takes two steps with a tiny model, so that the data is measured: the doctor, the tokenizer,
the token store, the batches of an epoch. Memory is peak anonymous memory (`process_monitor.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from common import keep, table
from process_monitor import Part, watch

from heed.data import synthetic

FEW, MANY, HELD_OUT = 100_000, 10_000_000, 1000
BAR = 16.0
"""The limit in bytes per pair."""
BLOCK = 50_000
TINY = {
    "model.layers": 1,
    "model.width": 32,
    "model.heads": 2,
    "train.steps": 2,
    "train.log_every": 1,
    "train.evaluate_batches": 1,
    "train.batch_tokens": 2048,
}


def block(split: str, size: int, number: int) -> tuple[str, str]:
    """Both sides of `size` pairs of a split, starting at pair `number` · `size`."""
    pairs = list(synthetic.generate_sentences(split, size, start=number * size))
    sides = [p.english for p in pairs], [p.french for p in pairs]
    return "\n".join([*sides[0], ""]), "\n".join([*sides[1], ""])


def write(folder: Path, split: str, pairs: int) -> list[Path]:
    """Write a corpus of independently drawn synthetic pairs; returns the paths of its two sides."""
    size = min(BLOCK, pairs)
    paths = [folder / f"{split}-{pairs}.{side}" for side in ("en", "fr")]
    with (
        paths[0].open("w", encoding="utf-8") as english,
        paths[1].open("w", encoding="utf-8") as french,
        ProcessPoolExecutor(max_workers=os.cpu_count()) as pool,
    ):
        for left, right in pool.map(partial(block, split, size), range(pairs // size)):
            english.write(left)
            french.write(right)
    return paths


def measure(folder: Path, pairs: int, dev: list[Path]) -> dict[str, Part]:
    """Train on this many pairs, with an empty cache."""
    train = write(folder, "train", pairs)
    options = ["--task", "translate", "--device", "cpu"]
    for flag, paths in (("--train", train), ("--dev", dev)):
        options += [part for path in paths for part in (flag, str(path))]
    options += [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
    return watch(options, folder=folder / f"run-{pairs}", cache=folder / f"cache-{pairs}", splits=2)


def main() -> None:
    """Measure both corpora and save the growth in memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=MANY, help="size of the large corpus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        dev = write(Path(name), "dev", HELD_OUT)
        few, many = (measure(Path(name), pairs, dev) for pairs in (FEW, options.pairs))
    heights = [max(part.anonymous for part in parts.values()) for parts in (few, many)]
    growth = (heights[1] - heights[0]) / (options.pairs - FEW)
    rows = [
        [
            part,
            *(f"{parts[part].seconds:.1f}" for parts in (few, many)),
            *(f"{parts[part].anonymous / 1e6:.0f}" for parts in (few, many)),
            f"{(many[part].anonymous - few[part].anonymous) / (options.pairs - FEW):.1f}",
        ]
        for part in few
    ]
    sizes = [f"{pairs:,}" for pairs in (FEW, options.pairs)]
    columns = ["part", *(f"s, {size}" for size in sizes), *(f"MB, {size}" for size in sizes)]
    text = table("Time and anonymous memory by part", [*columns, "bytes per pair"], rows)
    text += f"\n\nPeak memory {heights[0] / 1e6:.0f} and {heights[1] / 1e6:.0f} MB: "
    text += f"{growth:.1f} bytes for each additional pair (limit {BAR:.0f})."
    figures = {
        "pairs": [FEW, options.pairs],
        "height": heights,
        "bytes_a_pair": growth,
        "parts": [{n: vars(p) for n, p in parts.items()} for parts in (few, many)],
    }
    if options.pairs < MANY:
        print(text)
    else:
        keep("memory-by-corpus-size", text, figures, device="cpu")
    raise SystemExit(0 if growth < BAR else 1)


if __name__ == "__main__":
    main()
