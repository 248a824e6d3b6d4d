"""linear_cross_entropy against F.linear and F.cross_entropy.

    python benchmarks/cross_entropy_kernel.py                small shapes on this machine's CPU
    python benchmarks/cross_entropy_kernel.py --device cuda  GPT-2's head and smaller, in bfloat16

Both take turns in one run: a forward and backward pass of layer and loss, with the right answers
counted, as training does it; and a forward pass alone, as evaluation does. On a GPU also the most
memory each takes beyond its inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, side_by_side, synchronize, table
from torch import Tensor

from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy

IGNORED = -100
Heads = dict[str, Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Shape:
    """One setting to measure."""

    rows: int
    width: int
    vocab: int
    smoothing: float = 0.0


SHAPES = {
    "cuda": [Shape(65_536, 768, 50_304), Shape(16_384, 512, 8_000, 0.1), Shape(512, 512, 30_437)],
    "cpu": [Shape(1_000, 512, 8_000), Shape(1_000, 512, 8_000, 0.1), Shape(4_096, 256, 1_000)],
}
TINY = [Shape(64, 16, 100), Shape(64, 16, 100, 0.1)]


def apart(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The linear layer, then the loss, then the predictions."""
    logits = F.linear(x, weight).float()
    total = F.cross_entropy(
        logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    with torch.no_grad():
        right = (logits.argmax(dim=-1) == targets).sum()
    return total, right


def together(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """All in one operator."""
    return linear_cross_entropy(x, weight, targets, ignore_index=IGNORED, label_smoothing=smoothing)


HEADS: Heads = {"apart": apart, "together": together}


def inputs(shape: Shape, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs as in a model, a float32 weight, and targets, a tenth of them ignored."""
    torch.manual_seed(0)
    x = torch.randn(shape.rows, shape.width, device=device)
    x = x.to(torch.bfloat16 if device == "cuda" else torch.float32).requires_grad_()
    weight = torch.randn(shape.vocab, shape.width, device=device) / shape.width**0.5
    targets = torch.randint(shape.vocab, (shape.rows,), device=device)
    hidden = torch.rand(shape.rows, device=device) < 0.1
    return x, weight.requires_grad_(), targets.masked_fill(hidden, IGNORED)


def runs(shape: Shape, device: str, *, learning: bool) -> dict[str, Callable[[], object]]:
    """Both contenders, over the same inputs."""
    x, weight, targets = inputs(shape, device)

    def run(name: str) -> None:
        x.grad = weight.grad = None
        with (
            torch.set_grad_enabled(learning),
            torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
        ):
            total, _ = HEADS[name](x, weight, targets, shape.smoothing)
        if learning:
            (total / shape.rows).backward()

    return {name: partial(run, name) for name in HEADS}


def peaks(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The peak memory each contender adds, in GiB."""
    found = {}
    for name, run in contenders.items():
        run()
        synchronize("cuda")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        synchronize("cuda")
        found[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
    return found


def measure(shape: Shape, device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds, and on a GPU GiB, by measurement and contender."""
    found = {}
    for what, learning in (("both", True), ("forward", False)):
        contenders = runs(shape, device, learning=learning)
        found[what] = side_by_side(contenders, device=device, rounds=rounds, warmup=3)
        if device == "cuda":
            found[f"{what}, GiB"] = peaks(contenders)
            torch.cuda.empty_cache()
    return found


def report(shape: Shape, figures: dict[str, dict[str, float]]) -> str:
    """One row per measurement: apart, together, and the ratio."""
    rows = []
    for what, by_name in figures.items():
        memory = what.endswith("GiB")
        cells = [f"{value:.2f}" if memory else f"{value * 1e3:.2f}" for value in by_name.values()]
        ratio = by_name["together"] / max(by_name["apart"], 1e-12)
        rows.append([what if memory else f"{what}, ms", *cells, f"{ratio:.3f}x"])
    title = (
        f"{shape.rows:,} rows, width {shape.width}, vocabulary {shape.vocab:,}, "
        f"label smoothing {shape.smoothing}"
    )
    return table(title, ["", *HEADS, "together / apart"], rows)


def main() -> None:
    """Measure, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    device = options.device
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    results = {
        shape: measure(shape, device, 2 if options.tiny else options.rounds)
        for shape in (TINY if options.tiny else SHAPES[device])
    }
    text = "\n\n".join(report(shape, figures) for shape, figures in results.items())
    kept = [{"shape": vars(shape), "figures": figures} for shape, figures in results.items()]
    keep(f"cross-entropy-kernel-{device}", text, kept, device=device, folder=options.out)


if __name__ == "__main__":
    main()
