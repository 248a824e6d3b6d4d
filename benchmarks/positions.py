"""The cost of each position encoding relative to `none`, and of plain attention relative to fused.

    python benchmarks/positions.py                   two lengths on this machine's CPU
    python benchmarks/positions.py --device cuda     GPT-2's 124M shape in bfloat16

All is measured in one process on a causal language model at 128 and at 1,024 tokens, the encodings
in alternation: a forward pass, a forward and backward pass, and a whole training step (forward,
backward, clip, optimizer). On a GPU the step is also measured as in training: captured as a CUDA
graph with heed's own loss, without Python's launch time. The longer one is also measured with
compiled blocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from common import keep, side_by_side, table
from torch import Tensor, nn

from heed.bench.standard_shapes import Setting, build_trainee
from heed.config import ModelConfig
from heed.device import wants_bf16
from heed.models import LanguageModel, build
from heed.nn.stack import Stack

ENCODINGS = ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw")
BEFORE_BLOCKS = ("sinusoidal", "learned")
"""They act before the first block: compiled or captured, their blocks equal those of `none`."""


@dataclass(frozen=True)
class Shape:
    """A model and batch shape to measure."""

    layers: int
    heads: int
    width: int
    vocab: int
    batch: int
    length: int


def make(shape: Shape, position: str, device: str) -> LanguageModel:
    """A language model of this shape, ready to train."""
    torch.manual_seed(0)
    config = ModelConfig(
        layers=shape.layers,
        heads=shape.heads,
        width=shape.width,
        position=position,
        dropout=0.0,
    )
    model = build("generate", config, vocab=shape.vocab)
    if not isinstance(model, LanguageModel):
        raise TypeError("the benchmark measures a language model")
    return model.to(device)


def loss_of(logits_of: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    """Next-token loss in the precision of the device."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        logits = logits_of(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def forward(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], Tensor]:
    """A forward pass with plain or fused attention, or fused with compiled blocks."""

    def plain_logits(ids: Tensor) -> Tensor:
        return model.trace(ids).logits

    if path == "compiled":
        for block in cast(Stack, model.stack).blocks:
            block.compile(dynamic=False)
    logits_of = plain_logits if path == "plain" else model
    return lambda: loss_of(logits_of, ids)


def both(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], object]:
    """A forward and a backward pass."""
    loss = forward(model, ids, path)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        loss().backward()

    return run


def step(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], object]:
    """A whole training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loss = forward(model, ids, path)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def captured(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], object]:
    """The step that `heed train` takes, launched as one CUDA graph."""
    config, device = model.config, ids.device
    texts, length = ids.shape
    setting = Setting(
        config.position,
        "generate",
        config.layers,
        config.heads,
        config.width,
        model.head.weight.shape[0],
        texts,
        length,
        position=config.position,
    )
    batch = setting.batch(device)
    recipe = setting.recipe([f"train.execution={'graphs' if device.type == 'cuda' else 'eager'}"])
    bf16 = wants_bf16(recipe.train.precision, device)
    update = build_trainee(setting, recipe, batch, device=device, bf16=bf16).update
    return lambda: update([batch])


WHAT: dict[str, Callable[[LanguageModel, Tensor, str], Callable[[], object]]] = {
    "forward": forward,
    "both": both,
    "step": step,
}
Plan = tuple[str, str]
Results = dict[Shape, dict[Plan, dict[str, float]]]
PATHS = ("plain", "fused", "captured", "compiled")
PLANS: list[Plan] = [(what, path) for path in PATHS[:2] for what in ("forward", "both")]
PLANS += [("step", path) for path in PATHS[1:]]


def measure(
    models: dict[str, LanguageModel], ids: Tensor, plan: Plan, rounds: int
) -> dict[str, float]:
    """Seconds by encoding, measured in alternation."""
    what, path = plan
    make_run = captured if path == "captured" else WHAT[what]
    runs = {
        position: make_run(model, ids, path)
        for position, model in models.items()
        if path in ("plain", "fused") or position not in BEFORE_BLOCKS
    }
    times = side_by_side(runs, device=ids.device.type, rounds=rounds, warmup=3)
    for model in models.values():
        model.zero_grad(set_to_none=True)
    if ids.device.type == "cuda":
        torch.cuda.empty_cache()
    return times


def report(shape: Shape, seconds: dict[Plan, dict[str, float]]) -> str:
    """A row per encoding: each plan relative to `none`, and the fused pass to the plain one."""
    compare = ("both", "plain") in seconds and ("both", "fused") in seconds
    rows = []
    for position in ENCODINGS:
        ratios = [
            f"{times[position] / times['none']:.3f}x" if position in times else ""
            for times in seconds.values()
        ]
        if compare:
            gain = seconds["both", "fused"][position] / seconds["both", "plain"][position]
            ratios.append(f"{gain:.3f}x")
        rows.append([position, *ratios])
    rows.append(["none, ms", *(f"{times['none'] * 1e3:.1f}" for times in seconds.values())])
    rows[-1] += [""] * compare
    title = (
        f"{shape.length:,} tokens, batch {shape.batch}, {shape.layers} layers, {shape.heads} heads,"
        f" width {shape.width}: time relative to `none`"
    )
    columns = [", ".join(plan) for plan in seconds] + ["fused / plain"] * compare
    return table(title, ["position", *columns], rows)


def main() -> None:
    """Measure, print the tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=0, help="0: as many as the device allows")
    parser.add_argument(
        "--paths", nargs="+", choices=PATHS, help="default: all that the device supports"
    )
    parser.add_argument("--long", action="store_true", help="only the longer sequences")
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    device, cuda = options.device, options.device == "cuda"
    rounds = options.rounds or (10 if cuda else 5)
    if cuda:
        torch.set_float32_matmul_precision("high")
        # Every encoding needs its own compilation.
        torch._dynamo.config.recompile_limit = 8 * len(ENCODINGS)
        shapes = [Shape(12, 12, 768, 50304, 64, 128), Shape(12, 12, 768, 50304, 16, 1024)]
    else:
        shapes = [Shape(2, 4, 256, 1000, 16, 128), Shape(2, 4, 256, 1000, 2, 1024)]
    if options.tiny:
        shapes, rounds = [Shape(1, 2, 32, 50, 2, 32), Shape(1, 2, 32, 50, 2, 64)], 2
    shapes = shapes[1:] if options.long else shapes
    models = {position: make(shapes[0], position, device) for position in ENCODINGS}
    results: Results = {}
    for path in options.paths or (PATHS if cuda else PATHS[:2]):
        for shape, plan in product(shapes, PLANS):
            # Only the longest is compiled, and last, because compiled blocks stay compiled.
            if plan[1] == path and (path != "compiled" or shape is shapes[-1]):
                ids = torch.randint(shape.vocab, (shape.batch, shape.length), device=device)
                results.setdefault(shape, {})[plan] = measure(models, ids, plan, rounds)
        texts = [report(shape, seconds) for shape, seconds in results.items()]
        figures = [
            {"shape": vars(shape), "seconds": {", ".join(plan): s for plan, s in seconds.items()}}
            for shape, seconds in results.items()
        ]
        name = f"positions-{device}"
        keep(name, "\n\n".join(texts), figures, device=device, folder=options.out)


if __name__ == "__main__":
    main()
