"""Everything that training changes, and how it is put into a checkpoint and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heed.train.checkpoint import optimizer_pieces, restore_optimizer


@dataclass
class Sums:
    """Running sums of the training loss since the last line that reported them."""

    total: Tensor
    right: Tensor
    count: int = 0

    @classmethod
    def zero(cls, device: torch.device) -> Sums:
        """Nothing yet. The sums stay on the device: reading them is the only wait."""
        total = torch.zeros((), dtype=torch.float64, device=device)
        return cls(total, torch.zeros((), dtype=torch.int64, device=device))

    def add(self, total: Tensor, right: Tensor, count: int) -> None:
        """Take in one update."""
        self.total += total
        self.right += right
        self.count += count

    def means(self) -> dict[str, float]:
        """Mean loss and share right."""
        count = max(1, self.count)
        return {"loss": float(self.total) / count, "accuracy": int(self.right) / count}


@dataclass
class State:
    """A run at one moment. All randomness is torch's generators, saved with the rest."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    ema_decay: float = 0.0
    step: int = 0
    lines: int = 0
    """Lines of metrics.jsonl written by now: what a resumed run keeps of it."""
    skipped: int = 0
    """Updates left out because the loss was not finite; and of those, how many in a row."""
    skipped_in_row: int = 0
    best: float | None = None
    best_step: int = 0
    worse: int = 0
    """Evaluations since the best one."""
    recent: Sums = field(init=False)
    epoch: Sums = field(init=False)
    ema: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recent, self.epoch = Sums.zero(self.device), Sums.zero(self.device)
        if self.ema_decay:
            self.ema = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def update_ema(self) -> None:
        """mean ← decay · mean + (1 - decay) · weights, with a shorter memory at the start."""
        if not self.ema:
            return
        decay = min(self.ema_decay, (1 + self.step) / (10 + self.step))
        means, weights = [], []
        for name, parameter in self.model.named_parameters():
            means.append(self.ema[name])
            weights.append(parameter.detach())
        torch._foreach_lerp_(means, weights, 1.0 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model with its running mean as weights, where there is one; then as it was."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters() if self.ema}
        _copy_into(self.model, self.ema)
        try:
            yield
        finally:
            _copy_into(self.model, own)

    def weights(self) -> dict[str, Tensor]:
        """The weights to keep and to score: the running mean where there is one."""
        return {**self.model.state_dict(), **self.ema}

    def pieces(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """This moment as named tensors and plain numbers."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"ema.{name}": value for name, value in self.ema.items()}
        optimizer_tensors, optimizer_facts = optimizer_pieces(self.optimizer)
        tensors |= optimizer_tensors
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        facts: dict[str, Any] = {"optimizer": optimizer_facts}
        for name in ("recent", "epoch"):
            sums: Sums = getattr(self, name)
            tensors |= {f"{name}.total": sums.total, f"{name}.right": sums.right}
            facts[f"{name}.count"] = sums.count
        for name in ("lines", "skipped", "skipped_in_row", "best", "best_step", "worse"):
            facts[name] = getattr(self, name)
        return tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Become the moment that `pieces` described."""
        self.model.load_state_dict(_under("model.", tensors))
        self.ema = {n: t.to(self.device) for n, t in _under("ema.", tensors).items()}
        restore_optimizer(self.optimizer, tensors, facts["optimizer"])
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        for name in ("recent", "epoch"):
            total, right = tensors[f"{name}.total"], tensors[f"{name}.right"]
            sums = Sums(total.to(self.device), right.to(self.device), facts[f"{name}.count"])
            setattr(self, name, sums)
        for name in ("step", "lines", "skipped", "skipped_in_row", "best", "best_step", "worse"):
            setattr(self, name, facts[name])


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@torch.no_grad()
def _copy_into(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])
