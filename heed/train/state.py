"""Everything that training changes, and how it is put into a checkpoint and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heed.train.checkpoint import optimizer_pieces, restore_optimizer
from heed.train.distributed.ranks import ALONE, World
from heed.train.distributed.sharding import Twin, gather, placed_like

NOW, RECENT, EPOCH = range(3)
"""Rows of a tally's sums: this update, since the last line of metrics, since the last evaluation.
Their columns: losses, answers that were right, targets."""
CLOCK, SKIPPED, IN_ROW, FAILED_AT = range(4)
"""A tally's counts: updates, those skipped, those skipped in a row, and the update at which these
were too many (-1: none)."""

Means = dict[str, float | None]
"""Loss and accuracy while training; None where nothing was learnt."""


class Counters:
    """What is counted while training, kept on the device: to read it is the only wait.

    Each rank adds up its own losses and answers; all of them count the targets of all.
    """

    def __init__(self, device: torch.device, world: World = ALONE) -> None:
        self.world = world
        self.sums = torch.zeros(3, 3, dtype=torch.float64, device=device)
        self.counts = torch.tensor([0, 0, 0, -1], device=device)

    def begin(self, count: int) -> None:
        """An update over so many targets begins."""
        self.sums[NOW, 2].fill_(count)

    def add(self, total: Tensor, right: Tensor) -> None:
        """Take in one micro-batch of the update."""
        self.sums[NOW, 0] += total
        self.sums[NOW, 1] += right

    def settle(self, finite: Tensor, skip_limit: int) -> None:
        """The update is over: count it, or count it as skipped where it was not finite."""
        self.sums[RECENT:] += torch.where(finite, self.sums[NOW], 0.0)
        self.sums[NOW].zero_()
        skipped = (~finite).long()
        in_row = (self.counts[IN_ROW] + skipped) * skipped
        first = (in_row > skip_limit) & (self.counts[FAILED_AT] < 0)
        failed_at = torch.where(first, self.counts[CLOCK], self.counts[FAILED_AT])
        before = self.counts
        new = [before[CLOCK] + 1, before[SKIPPED] + skipped, in_row, failed_at]
        self.counts.copy_(torch.stack(new))

    def means(self, row: int) -> Means:
        """Mean loss and share right of RECENT or EPOCH, which then begins anew.

        None where every update was skipped: nothing was learnt, and nothing is known.
        """
        total, right, count = self.of_all_ranks()[row].tolist()
        self.sums[row].zero_()
        if not count:
            return {"loss": None, "accuracy": None}
        return {"loss": total / count, "accuracy": right / count}

    def of_all_ranks(self) -> Tensor:
        """The sums over all ranks, which must ask together."""
        if not self.world.several:
            return self.sums
        sums = self.sums.cpu().clone()
        sums[:, :2] = self.world.total(sums[:, :2].contiguous())
        return sums

    def restore(self, sums: Tensor, counts: Tensor) -> None:
        """Go on from the sums of all ranks, which the first one takes as its own."""
        self.sums.copy_(sums)
        self.counts.copy_(counts)
        if not self.world.first:
            self.sums[:, :2] = 0.0

    @property
    def skipped(self) -> int:
        """Updates left out because the loss was not finite."""
        return int(self.counts[SKIPPED])

    @property
    def failed_at(self) -> int | None:
        """The update at which too many in a row were not finite; None while that is well."""
        step = int(self.counts[FAILED_AT])
        return None if step < 0 else step


@dataclass
class State:
    """A run at one moment. All randomness is torch's generators, saved with the rest."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    ema_decay: float = 0.0
    world: World = ALONE
    twin: Twin | None = None
    """Of a sharded model: what the first rank scores its weights with."""
    step: int = 0
    lines: int = 0
    """Lines of metrics.jsonl written by now: what a resumed run keeps of it."""
    best: float | None = None
    worse: int = 0
    """Evaluations since the best one."""
    pieces_of_batch: int = 1
    """Into how many parts each batch is cut, because a whole one did not fit into memory."""
    tally: Counters = field(init=False)
    ema: dict[str, Tensor] = field(default_factory=dict)
    ema_share: Tensor = field(init=False)
    """How much of the weights the running mean takes in at this update."""

    def __post_init__(self) -> None:
        self.tally = Counters(self.device, self.world)
        self.ema_share = torch.zeros((), device=self.device)
        if self.ema_decay:
            named = self.model.named_parameters()
            self.ema = {name: p.detach().clone() for name, p in named if p.requires_grad}

    def begin(self, count: int) -> None:
        """An update over so many targets begins; a running mean forgets faster near the start."""
        self.tally.begin(count)
        if self.ema:
            number = self.step + 1
            self.ema_share.fill_(1.0 - min(self.ema_decay, (1 + number) / (10 + number)))

    def halve(self) -> None:
        """Cut batches smaller after one did not fit, and forget what was counted of it.

        Its gradient is to be forgotten before, by whoever made it.
        """
        self.tally.sums[NOW].zero_()
        self.pieces_of_batch *= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def update_ema(self) -> None:
        """mean ← mean + share · (weights - mean)."""
        if self.ema:
            learnt = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
            means = [self.ema[name] for name, _ in learnt]
            weights = [parameter.detach() for _, parameter in learnt]
            steps = torch._foreach_sub(weights, means)
            torch._foreach_mul_(steps, self.ema_share)
            torch._foreach_add_(means, steps)

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """A model with the weights to keep, to be scored: the running mean where there is one."""
        return self.from_weights(self.ema if self.twin is None else self.weights())

    @contextmanager
    def from_weights(self, weights: dict[str, Tensor]) -> Iterator[nn.Module]:
        """A model with these weights, to be scored; then all is as it was."""
        if self.twin is not None:
            with self.twin.from_weights(weights) as model:
                yield model
            return
        named = self.model.named_parameters()
        own = {name: p.detach().clone() for name, p in named if name in weights}
        _copy_into(self.model, weights)
        try:
            yield self.model
        finally:
            _copy_into(self.model, own)

    def weights(self) -> dict[str, Tensor]:
        """The weights to keep: the running mean where there is one. Sharded ones are made whole,
        for the first rank alone, and all must ask together."""
        return gather({**self.model.state_dict(), **self.ema}, self.world)

    def pieces(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """This moment as named tensors and plain numbers. All ranks must ask together."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"ema.{name}": value for name, value in self.ema.items()}
        optimizer_tensors, optimizer_facts = optimizer_pieces(self.optimizer)
        tensors = gather(tensors | optimizer_tensors, self.world)
        tensors |= self.world.generators(self.device)
        tensors |= {"tally.sums": self.tally.of_all_ranks(), "tally.counts": self.tally.counts}
        facts: dict[str, Any] = {"optimizer": optimizer_facts}
        return tensors, facts | {name: getattr(self, name) for name in FACTS}

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Become the moment that `pieces` described."""
        own = self.model.state_dict()
        weights, means = (
            {name: placed_like(tensor, own[name]) for name, tensor in under(kind, tensors).items()}
            for kind in ("model.", "ema.")
        )
        self.model.load_state_dict(weights)
        self.ema = {name: mean.to(self.device) for name, mean in means.items()}
        restore_optimizer(self.optimizer, tensors, facts["optimizer"])
        self.world.restore_generators(tensors, self.device)
        self.tally.restore(tensors["tally.sums"], tensors["tally.counts"])
        for name in (*FACTS, "step"):
            setattr(self, name, facts[name])


FACTS = ("lines", "best", "worse", "pieces_of_batch")
"""The plain numbers of a state that a checkpoint keeps beside its step."""


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint that are of one kind, by their own names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@torch.no_grad()
def _copy_into(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])
