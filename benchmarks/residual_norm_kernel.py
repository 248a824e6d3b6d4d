"""Residual add and norm, activations and biases: heed's kernels against torch's own steps.

    python benchmarks/residual_norm_kernel.py --device cuda   GPT-2's and translation widths
    python benchmarks/residual_norm_kernel.py --tiny          seconds on a CPU, to try the script

Each figure is a forward and backward pass under autocast. The stream is float32, a branch and what
linear layers read bfloat16. On a GPU passes are captured and replayed, so that what Python takes to
launch a kernel does not count. `linear` and `activations` include matrix products, which are the
same on both sides. GB/s is the least that must be moved (28 bytes a number) by the time it takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from common import captured, keep, side_by_side, table
from torch import Tensor, nn

from heed.nn.kernels.linear import ACTIVATIONS, Linear, linear_activation
from heed.nn.kernels.residual_norm import add_norm, draw_seeds

BYTES = 28
"""Bytes per number, 4 in the residual stream and else 2: forward x, branch, sum, norm; backward the
sum, both incoming and both outgoing gradients."""
PASSES = 10
"""Passes in one captured graph."""
Work = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """One setting to measure."""

    rows: int
    width: int


SHAPES = [Shape(16_384, 512), Shape(16_384, 768), Shape(65_536, 768)]
TINY = [Shape(64, 32)]


def passes(
    device: str, forward: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]
) -> Callable[[], object]:
    """Several forward and backward passes, with gradients of ones; on a GPU as a graph."""

    def run() -> None:
        for _ in range(PASSES):
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                out = list(forward())
            torch.autograd.grad(out, list(inputs), [torch.ones_like(x) for x in out])

    return captured(run) if device == "cuda" else run


def half(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def adds(shape: Shape, device: str, norm: nn.Module, p: float) -> dict[str, Work]:
    """x + dropout(branch) and its norm, in the dtype a linear layer reads."""
    dropout = nn.Dropout(p)
    x = torch.randn(shape.rows, shape.width, device=device, requires_grad=True)
    branch = torch.randn_like(x, dtype=half(device), requires_grad=True)
    inputs = [x, branch, *norm.parameters()]
    seeds = draw_seeds(x, dropout, 1)

    def apart() -> tuple[Tensor, Tensor]:
        total = x + dropout(branch)
        return total, norm(total).to(half(device))

    def together() -> tuple[Tensor, Tensor]:
        seed = None if seeds is None else seeds[0]
        return add_norm(x, branch, norm, dropout, seed=seed, for_linear=True)

    return {"apart": passes(device, apart, inputs), "together": passes(device, together, inputs)}


def activations(shape: Shape, device: str, name: str) -> dict[str, Work]:
    """activation(up(x)), four times as wide."""
    gates = 2 if name == "swiglu" else 1
    up = nn.Linear(shape.width, 4 * gates * shape.width).to(device)
    x = torch.randn(shape.rows, shape.width, device=device).to(half(device)).requires_grad_()
    inputs = [x, *up.parameters()]

    def apart() -> list[Tensor]:
        hidden = up(x)
        if name != "swiglu":
            return [ACTIVATIONS[name](hidden)]
        gate, passed = hidden.chunk(2, dim=-1)
        return [F.silu(gate) * passed]

    def together() -> list[Tensor]:
        return [linear_activation(x, up, name)]

    return {"apart": passes(device, apart, inputs), "together": passes(device, together, inputs)}


def linears(shape: Shape, device: str, times: int) -> dict[str, Work]:
    """W x + b, with an output so many times as wide as the input."""
    ours = Linear(shape.width, times * shape.width).to(device)
    x = torch.randn(shape.rows, shape.width, device=device).to(half(device)).requires_grad_()
    inputs = [x, *ours.parameters()]
    return {
        "apart": passes(device, lambda: [F.linear(x, ours.weight, ours.bias)], inputs),
        "together": passes(device, lambda: [ours(x)], inputs),
    }


def measure(shape: Shape, device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds per pass, by measurement and contender."""
    layer, rms = (kind(shape.width, eps=1e-5).to(device) for kind in (nn.LayerNorm, nn.RMSNorm))
    works: dict[str, Callable[[], dict[str, Work]]] = {
        "add, layer": lambda: adds(shape, device, layer, 0.0),
        "add, layer, dropout 0.2": lambda: adds(shape, device, layer, 0.2),
        "add, rms": lambda: adds(shape, device, rms, 0.0),
        "activation, gelu": lambda: activations(shape, device, "gelu"),
        "activation, swiglu": lambda: activations(shape, device, "swiglu"),
        "linear": lambda: linears(shape, device, 1),
        "linear, 3x": lambda: linears(shape, device, 3),
    }
    found = {}
    for name, build in works.items():
        times = side_by_side(build(), device=device, rounds=rounds, warmup=3)
        found[name] = {who: taken / PASSES for who, taken in times.items()}
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def report(shape: Shape, figures: dict[str, dict[str, float]]) -> str:
    """One row per measurement: both in µs, the ratio, and for adds the memory throughput."""
    rows = []
    for what, taken in figures.items():
        cells = [f"{taken[who] * 1e6:.1f}" for who in ("apart", "together")]
        ratio = taken["together"] / max(taken["apart"], 1e-12)
        moved = BYTES * shape.rows * shape.width / max(taken["together"], 1e-12) / 1e9
        speed = f"{moved:,.0f}" if what.startswith("add") else ""
        rows.append([what, *cells, f"{ratio:.3f}x", speed])
    title = f"{shape.rows:,} rows, width {shape.width}"
    return table(title, ["", "apart, µs", "together, µs", "together / apart", "GB/s"], rows)


def main() -> None:
    """Measure, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    results = {
        shape: measure(shape, options.device, 2 if options.tiny else options.rounds)
        for shape in (TINY if options.tiny else SHAPES)
    }
    text = "\n\n".join(report(shape, figures) for shape, figures in results.items())
    kept = [{"shape": vars(shape), "figures": figures} for shape, figures in results.items()]
    keep(
        f"residual-norm-kernel-{options.device}",
        text,
        kept,
        device=options.device,
        folder=options.out,
    )


if __name__ == "__main__":
    main()
