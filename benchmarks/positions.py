"""What each position encoding costs beside `none`, and the plain path beside the fused one.

    python benchmarks/positions.py                   two lengths on this machine's CPU
    python benchmarks/positions.py --device cuda     GPT-2's 124M shape in bfloat16, 1,024 tokens

Every figure is a ratio to `none` on the same path in the same run, over a causal language model's
forward and backward pass and over a whole training step (forward, backward, clip, optimizer).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from common import keep, side_by_side, table
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.models import LanguageModel, build

ENCODINGS = ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw")


@dataclass(frozen=True)
class Shape:
    """One setting to measure."""

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
        max_positions=shape.length,
    )
    model = build("generate", config, vocab=shape.vocab)
    if not isinstance(model, LanguageModel):
        raise TypeError("the benchmark measures a language model")
    return model.to(device)


def loss_of(model: nn.Module, logits_of: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    """Next-token loss in the precision of the device."""
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        logits = logits_of(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def passes(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], object]:
    """A forward and backward pass by the plain, the fused or the compiled path."""
    logits_of: Callable[[Tensor], Tensor] = model
    if path == "plain":
        logits_of = lambda ids: model.trace(ids).logits  # noqa: E731
    elif path == "compiled":
        logits_of = torch.compile(model, dynamic=False)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model, logits_of, ids).backward()

    return run


def step(model: LanguageModel, ids: Tensor, path: str) -> Callable[[], object]:
    """A whole training step by the fused or the compiled path."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    both = passes(model, ids, path)

    def run() -> None:
        both()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def measure(
    shape: Shape,
    what: Callable[[LanguageModel, Tensor, str], Callable[[], object]],
    path: str,
    device: str,
    rounds: int,
) -> dict[str, float]:
    """Seconds by encoding, all in one run."""
    ids = torch.randint(shape.vocab, (shape.batch, shape.length), device=device)
    models = {position: make(shape, position, device) for position in ENCODINGS}
    runs = {position: what(model, ids, path) for position, model in models.items()}
    return side_by_side(runs, device=device, rounds=rounds, warmup=3)


def main() -> None:
    """Measure, print the tables, keep them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=0, help="0: as many as the device allows")
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    device, cuda = options.device, options.device == "cuda"
    rounds = options.rounds or (15 if cuda else 5)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
        shapes = [Shape(12, 12, 768, 50304, 64, 128), Shape(12, 12, 768, 50304, 16, 1024)]
    else:
        shapes = [Shape(2, 4, 256, 1000, 16, 128), Shape(2, 4, 256, 1000, 2, 1024)]
    if options.tiny:
        shapes, rounds = [Shape(1, 2, 32, 50, 2, 32), Shape(1, 2, 32, 50, 2, 64)], 2
    plans = [("pass", passes, "plain"), ("pass", passes, "fused"), ("step", step, "fused")]
    if cuda:
        plans += [("step", step, "compiled")]
    texts, figures = [], []
    for shape in shapes:
        columns = [f"{what}, {path}" for what, _, path in plans]
        seconds = {
            column: measure(shape, make_run, path, device, rounds)
            for column, (_, make_run, path) in zip(columns, plans, strict=True)
        }
        figures.append({"shape": vars(shape), "seconds": seconds})
        rows = [
            [position, *(f"{s[position] / s['none']:.2f}x" for s in seconds.values())]
            for position in ENCODINGS
        ]
        rows.append(["none, ms", *(f"{s['none'] * 1e3:.1f}" for s in seconds.values())])
        title = f"Cost relative to `none`: {shape}"
        texts.append(table(title, ["position", *columns], rows))
        print(texts[-1], flush=True)
    name = f"positions-{device}"
    keep(name, "\n\n".join(texts), figures, device=device, folder=options.out)


if __name__ == "__main__":
    main()
