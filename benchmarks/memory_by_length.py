"""Memory of a forward and backward pass by sequence length, for every position encoding.

    python benchmarks/memory_by_length.py --device cuda       to 32,768 tokens
    python benchmarks/memory_by_length.py --tiny              a quick trial

A language model of two layers in bfloat16, one sequence, forward and backward. Memory linear in
length doubles with the length; a mask or bias held as a dense tensor would make it four times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from common import keep, table

from heed.config import POSITIONS, ModelConfig
from heed.data.batching.batch import Batch
from heed.models import build
from heed.train.objective import Objective

LENGTHS = (4096, 8192, 16384, 32768)
VOCAB = 1000


def peak(position: str, length: int, device: str, *, width: int) -> float:
    """Peak bytes of a pass, without weights and gradients."""
    config = ModelConfig(
        layers=2, width=width, heads=width // 64, position=position, max_positions=length, dropout=0
    )
    model = build("generate", config, vocab=VOCAB).to(device)
    objective = Objective(model)
    ids = torch.randint(5, VOCAB, (1, length), device=device)
    positions = torch.arange(length, device=device)[None]
    batch = Batch(ids, ids, ids.bool(), positions, length, ())

    def forward_backward() -> None:
        with torch.autocast(device, torch.bfloat16):
            total, _ = objective(batch)
        total.backward()

    forward_backward()  # allocates the gradients
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forward_backward()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def main() -> None:
    """Measure, print the table and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    lengths, width = ((64, 128), 64) if options.tiny else (LENGTHS, 512)
    peaks_by_position: dict[str, list[float]] = {}
    for position in POSITIONS.names():
        peaks_by_position[position] = [
            peak(position, n, options.device, width=width) for n in lengths
        ]
    rows = []
    for position, peaks in peaks_by_position.items():
        by_token = [f"{bytes_ / n / 1024:.1f}" for bytes_, n in zip(peaks, lengths, strict=True)]
        growth = peaks[-1] / peaks[-2] if peaks[-2] else float("nan")
        rows.append([position, *by_token, f"{growth:.2f}x"])
    title = f"KiB of memory per token, forward and backward, 2 layers, width {width}, one sequence"
    columns = ["position", *(f"{n:,} tokens" for n in lengths), "last doubling"]
    keep(
        f"memory-by-length-{options.device}",
        table(title, columns, rows),
        {"lengths": lengths, "bytes": peaks_by_position},
        device=options.device,
        folder=options.out,
    )


if __name__ == "__main__":
    main()
