"""Short attention against SDPA, from the qkv linear layer's output to its gradient.

    python benchmarks/short_attention_kernel.py --device cuda         in bfloat16, heads of 64
    python benchmarks/short_attention_kernel.py --device cuda --tune  also other tilings
    python benchmarks/short_attention_kernel.py --tiny                seconds, to try the script

Measured is everything between the linear layer of queries, keys and values and the output layer:
splitting into heads, RoPE or T5's bias where there is any, attention, merging, and the backward
pass. The bias is made for this one layer, and so is the gradient of its table; in a model all
layers share the work. `SDPA` is torch's, with a split by heads whose gradient is a concatenation
and a transposition; `packed` packs these gradients in one pass; `short` is one kernel for each
pass. On a GPU each is one captured graph, which leaves out what Python takes to launch it. Without
one there are no kernels, and only SDPA is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch
from common import captured, keep, side_by_side, table
from torch import Tensor

from heed.config import ModelConfig
from heed.nn.kernels import dispatch
from heed.nn.kernels.heads import SharedPosition
from heed.nn.masks import Mask
from heed.nn.positions import Position, build_position

if TYPE_CHECKING:  # There may be no Triton.
    from heed.nn.kernels.triton.short_attention import Tiling


@dataclass(frozen=True)
class Shape:
    """One setting to measure."""

    batch: int
    length: int
    heads: int = 8
    width: int = 64
    mask: str = "causal"
    position: str = "none"


SIZES = [(512, 32), (256, 64), (128, 128), (64, 256)]
"""The last is too long for short attention."""
POSITIONS = ("none", "rope", "t5")
SHAPES = [
    Shape(*size, mask=mask, position=position)
    for size in SIZES
    for mask in ("causal", "padded")
    for position in POSITIONS
]
TINY = [Shape(2, 8, 2, 8), *(Shape(2, 8, 2, 8, "padded", name) for name in POSITIONS[1:])]
WAYS = ("SDPA", "packed", "short")


def split_by_heads(packed: Tensor, counts: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """The usual way to split heads."""
    return packed.unflatten(2, (-1, width)).transpose(1, 2).split(list(counts), dim=1)


@contextmanager
def by(way: str) -> Iterator[None]:
    """Select the functions of one contender."""
    limit = dispatch.SHORT if way == "short" else 0
    split = split_by_heads if way == "SDPA" else dispatch.split_heads
    with mock.patch.multiple(dispatch, SHORT=limit, split_heads=split):
        yield


@dataclass
class Work:
    """The inputs of one layer's attention, and the gradient of its output."""

    packed: Tensor
    given: Tensor
    mask: Mask
    position: Position
    places: Tensor
    shape: Shape

    def run(self, way: str, *, learning: bool) -> None:
        """A forward pass, and a backward pass when training."""
        self.packed.grad = None
        self.position.zero_grad()
        counts, shared = (self.shape.heads,) * 3, SharedPosition(self.places, self.places)
        with by(way), torch.set_grad_enabled(learning):
            q, k, v = dispatch.split_heads(self.packed, counts, self.shape.width)
            heads = shared.heads(q, k, v, self.position, self.places)
            out = dispatch.attention(
                *heads[:3],
                mask=self.mask,
                bias=shared.bias(self.position),
                rotation=heads.rotation,
            )
            out = out.transpose(1, 2).flatten(2)
        if learning:
            out.backward(self.given)


def make(shape: Shape, device: str) -> Work:
    """Inputs as in a model; with padding, sequences have half to all of the length."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    b, n, inner = shape.batch, shape.length, shape.heads * shape.width
    packed = torch.randn(b, n, 3 * inner, device=device, dtype=dtype, requires_grad=True)
    given = torch.randn(b, n, inner, device=device, dtype=dtype)
    mask = Mask(n, n, packed.device, causal=shape.mask == "causal")
    if shape.mask == "padded":
        lengths = torch.randint(n // 2, n + 1, (b, 1), device=device)
        mask.real_bm = torch.arange(n, device=device) < lengths
    config = ModelConfig(heads=shape.heads, head_width=shape.width, position=shape.position)
    position = build_position(config, causal=mask.causal).to(device)
    places = torch.arange(n, device=device)[None]
    return Work(packed, given, mask, position, places, shape)


def measure(shape: Shape, device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds by measurement and contender."""
    work, cuda = make(shape, device), device == "cuda"
    ways = [way for way in WAYS if cuda or way == "SDPA"]
    if shape.length > dispatch.SHORT:
        ways = ways[:2]
    found = {}
    for what, learning in (("forward", False), ("both", True)):
        contenders: dict[str, Callable[[], object]] = {}
        for way in ways:
            run = partial(work.run, way, learning=learning)
            contenders[way] = captured(run) if cuda else run
        turn = 0.005 if cuda else 0.0
        found[what] = side_by_side(contenders, device=device, rounds=rounds, warmup=3, turn=turn)
    return found


def report(results: dict[Shape, dict[str, dict[str, float]]]) -> str:
    """One row per shape: microseconds by contender, for the forward pass and for both passes."""
    columns = [f"{what}, {way}" for what in ("forward", "both") for way in WAYS]
    rows = []
    for shape, figures in results.items():
        name = f"{shape.batch}x{shape.length} {shape.mask}{_suffix(shape.position)}"
        cells = [by_way.get(way) for by_way in figures.values() for way in WAYS]
        rows.append([name, *("" if x is None else f"{x * 1e6:.1f}" for x in cells)])
    return table("From the qkv layer's output to its gradient, µs", ["sequences", *columns], rows)


def _suffix(position: str) -> str:
    return "" if position == "none" else f", {position}"


def tune(rounds: int) -> str:
    """Microseconds by tiling: rows per program, warps, and registers per thread."""
    from heed.nn.kernels.triton import short_attention

    rows = []
    for (batch, length), position in product(SIZES[:3], POSITIONS):
        work = make(Shape(batch, length, position=position), "cuda")
        for kernel, learning in (("forward", False), ("backward", True)):
            times = {}
            for tiling in tilings(length):
                tilings_of = mock.patch.dict(short_attention.TILINGS[kernel], {length: tiling})
                with tilings_of, mock.patch.object(short_attention, "ROPE_TILING", tiling):
                    run = captured(partial(work.run, "short", learning=learning))
                once = side_by_side({"": run}, device="cuda", rounds=rounds, turn=0.005)
                times[tiling] = once[""]
            for tiling, taken in sorted(times.items(), key=lambda item: item[1])[:6]:
                name = f"{batch}x{length}{_suffix(position)}, {kernel}"
                cells = [tiling.rows, tiling.warps, tiling.registers or "free"]
                rows.append([name, *(str(x) for x in cells), f"{taken * 1e6:.1f}"])
    columns = ["texts", "rows", "warps", "registers", "µs (backward: with forward)"]
    return table("The best six tilings of each", columns, rows)


def tilings(length: int) -> list[Tiling]:
    """Tilings that may be fast."""
    from heed.nn.kernels.triton.short_attention import Tiling

    return [
        Tiling(rows, warps, registers)
        for rows in (length // 2, length)
        for warps in (1, 2, 4, 8)
        for registers in (None, 168, 128, 104)
        if 8 <= rows * length // (32 * warps) <= 128
    ]


def main() -> None:
    """Measure, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tune", action="store_true", help="also try other tilings, on a GPU")
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    device, rounds = options.device, 2 if options.tiny else options.rounds
    results = {
        shape: measure(shape, device, rounds) for shape in (TINY if options.tiny else SHAPES)
    }
    text = report(results)
    if options.tune and device == "cuda":
        text += "\n\n" + tune(max(2, rounds // 4))
    kept = [{"shape": vars(shape), "seconds": figures} for shape, figures in results.items()]
    keep(f"short-attention-kernel-{device}", text, kept, device=device, folder=options.out)


if __name__ == "__main__":
    main()
