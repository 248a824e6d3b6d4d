"""How long does one step of each optimizer take, on the parameters of a translator?

    python benchmarks/optimizer_step.py --device cuda    `ted-en-fr/best`: 4 + 4 layers, width 512
    python benchmarks/optimizer_step.py --tiny           seconds on a CPU, to try the script

Gradients are random. On a GPU a step is captured and replayed, with the division of gradients and
the check for infinities that training has. There `plain` names an optimizer without heed's kernels:
`plain adamw` is torch's fused AdamW. GB/s counts a read of every gradient and a read and a write of
every parameter, which no optimizer does without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch
from common import captured, keep, side_by_side, table

from heed.config import ModelConfig
from heed.models.build import build
from heed.train.optimizers import custom, fused_adamw
from heed.train.optimizers.build import (
    CAPTURABLE,
    OptimizerSettings,
    build_optimizer,
    step_optimizer,
)

SHAPE = ModelConfig(layers=4, heads=8, width=512, position="t5")
TINY = ModelConfig(layers=1, heads=2, width=32, position="t5")
VOCABULARY = 4000
PLAIN = "plain "
"""Before the name of an optimizer: without its kernels."""
alive: dict[str, object] = {}
"""What captured steps read and write: a graph knows memory by its address and does not keep it."""


def step(name: str, model_config: ModelConfig, device: str) -> tuple[Callable[[], object], int]:
    """One step of an optimizer on a model's parameters, and their number."""
    model = build("translate", model_config, vocab=VOCABULARY).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    settings = OptimizerSettings(name=name.removeprefix(PLAIN), lr=1e-3, weight_decay=0.05)
    optimizer = build_optimizer(model, settings, lr_tensor=device == "cuda")
    divisor, finite = torch.tensor(8192.0, device=device), torch.tensor(True, device=device)

    def run() -> None:
        with ExitStack() as stack:
            if name.startswith(PLAIN):
                stack.enter_context(patch.object(custom, "can_fuse_matrices", return_value=False))
                stack.enter_context(patch.object(fused_adamw, "can_fuse", return_value=False))
            step_optimizer(optimizer, divisor, finite)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    if device != "cuda":
        return run, parameters
    replay = captured(run)
    alive[name] = model, optimizer, run
    return replay, parameters


def main() -> None:
    """Measure all optimizers in alternation, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder of the result; default: results")
    options = parser.parse_args()
    config = TINY if options.tiny else SHAPE
    steps, parameters = {}, 0
    plain = (
        [f"{PLAIN}{name}" for name in ("adamw", "adam", "muon")] if options.device == "cuda" else []
    )
    for name in [*sorted(CAPTURABLE), *plain]:
        steps[name], parameters = step(name, config, options.device)
    medians = side_by_side(steps, device=options.device, rounds=options.rounds, turn=0.05)
    rows = [
        [name, f"{1e3 * seconds:.3f}", f"{seconds / medians['adamw']:.2f}", f"{rate:.0f}"]
        for name, seconds in sorted(medians.items(), key=lambda one: one[1])
        for rate in [12 * parameters / seconds / 1e9]
    ]
    title = f"one step of each optimizer, {parameters:,} parameters, {options.device}"
    text = table(title, ["optimizer", "ms", "to adamw", "GB/s"], rows)
    keep(
        f"optimizer-step-{options.device}",
        text,
        {"parameters": parameters, "seconds": medians},
        device=options.device,
        folder=options.out,
    )


if __name__ == "__main__":
    main()
