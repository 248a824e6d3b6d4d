"""The state of a run: everything that training changes, saved to and restored from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heed.train.counters import STEP, Counters
from heed.train.distributed.ranks import SINGLE, World
from heed.train.distributed.sharding import UnshardedModel, distribute_like, gather_full

NUMBERS = (
    "lines",
    "tokens",
    "best",
    "best_step",
    "recent_steps",
    "evals_since_best",
    "batch_splits",
)
"""The plain numbers of a state that a checkpoint stores beside its step."""


@dataclass
class State:
    """A run at one step. All randomness is torch's generators, which are saved too."""

    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    ema_decay: float = 0.0
    world: World = SINGLE
    unsharded: UnshardedModel | None = None
    """Of a sharded model: the whole model that rank 0 evaluates."""
    step: int = 0
    lines: int = 0
    """Lines of metrics.jsonl written so far, which a resumed run keeps."""
    tokens: int = 0
    """Tokens that all ranks have read so far, without padding; of a translation, both sides."""
    best: float | None = None
    best_step: int | None = None
    """The step of the best weights so far."""
    recent_steps: list[int] = field(default_factory=list)
    """The steps of the weights that would be averaged if training ended now."""
    evals_since_best: int = 0
    batch_splits: int = 1
    """The number of parts each batch is split into, because a whole one did not fit into memory."""
    counters: Counters = field(init=False)
    ema: dict[str, Tensor] = field(default_factory=dict)
    ema_rate: Tensor = field(init=False)
    """Share of the current weights in this step's moving average."""

    def __post_init__(self) -> None:
        self.counters = Counters(self.device, self.world)
        self.ema_rate = torch.zeros((), device=self.device)
        if self.ema_decay:
            named = self.model.named_parameters()
            self.ema = {name: p.detach().clone() for name, p in named if p.requires_grad}

    def start_step(self, targets: int) -> None:
        """Begin a step over this many targets. The moving average decays faster at the start."""
        self.counters.start_step(targets)
        if self.ema:
            number = self.step + 1
            self.ema_rate.fill_(1.0 - min(self.ema_decay, (1 + number) / (10 + number)))

    def pass_step(self) -> None:
        """Count a step that has no targets, and leave all else as it is."""
        self.counters.pass_step()
        self.step += 1

    def double_batch_splits(self) -> None:
        """Split batches into twice as many parts after one did not fit; reset its step's counters.

        The caller has cleared the gradient.
        """
        self.counters.sums[STEP].zero_()
        self.batch_splits *= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def update_ema(self) -> None:
        """average ← average + rate · (weights - average)."""
        if self.ema:
            trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
            averages = [self.ema[name] for name, _ in trained]
            weights = [parameter.detach() for _, parameter in trained]
            differences = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(differences, self.ema_rate)
            torch._foreach_add_(averages, differences)

    def evaluation_model(self) -> AbstractContextManager[nn.Module]:
        """The model with the weights that are evaluated and saved: the moving average, if any."""
        return self.with_weights(self.ema if self.unsharded is None else self.weights())

    @contextmanager
    def with_weights(self, weights: dict[str, Tensor]) -> Iterator[nn.Module]:
        """The model with these weights; its own are restored on exit."""
        if self.unsharded is not None:
            with self.unsharded.with_weights(weights) as model:
                yield model
            return
        named = self.model.named_parameters()
        saved = {name: p.detach().clone() for name, p in named if name in weights}
        _copy_into(self.model, weights)
        try:
            yield self.model
        finally:
            _copy_into(self.model, saved)

    def weights(self) -> dict[str, Tensor]:
        """The weights to save: the moving average, if any.

        Sharded weights are gathered on rank 0; a collective call.
        """
        return self._gather({**self.model.state_dict(), **self.ema})

    def _gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors if self.unsharded is None else gather_full(tensors, self.world)

    def state_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state as named tensors and plain numbers; a collective call."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"ema.{name}": value for name, value in self.ema.items()}
        optimizer_tensors, optimizer_numbers = optimizer_state(self.optimizer)
        tensors = self._gather(tensors | optimizer_tensors)
        tensors |= self.world.generators(self.device)
        counters = self.counters
        tensors |= {"counters.sums": counters.sum_over_ranks(), "counters.counts": counters.counts}
        numbers: dict[str, Any] = {"optimizer": optimizer_numbers}
        return tensors, numbers | {name: getattr(self, name) for name in NUMBERS}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state_tensors` returned."""
        current = self.model.state_dict()
        weights, averages = (
            {
                name: distribute_like(tensor, current[name])
                for name, tensor in select_prefix(prefix, tensors).items()
            }
            for prefix in ("model.", "ema.")
        )
        self.model.load_state_dict(weights)
        self.ema = {name: average.to(self.device) for name, average in averages.items()}
        restore_optimizer(self.optimizer, tensors, numbers["optimizer"])
        self.world.restore_generators(tensors, self.device)
        self.counters.restore(tensors["counters.sums"], tensors["counters.counts"])
        for name in (*NUMBERS, "step"):
            setattr(self, name, numbers[name])


def select_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose names have this prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


@torch.no_grad()
def _copy_into(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])


# ------------------------------------------------------------------------------ optimizer state


def optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as named tensors and plain numbers."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            values_of_kind = tensors if isinstance(value, Tensor) else numbers
            values_of_kind[f"optimizer.{index}.{name}"] = value
    groups = [
        {key: value for key, value in group.items() if not isinstance(value, Tensor)}
        for group in state["param_groups"]
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def restore_optimizer(
    optimizer: Optimizer, tensors: dict[str, Tensor], saved: dict[str, Any]
) -> None:
    """Restore what `optimizer_state` returned."""
    state: dict[int, dict[str, Any]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in _optimizer_items(tensors, saved["numbers"]):
        _, index, key = name.split(".", 2)
        if isinstance(value, Tensor):
            value = distribute_like(value, parameters[int(index)])
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, saved_group in zip(groups, saved["groups"], strict=True):
        group.update(saved_group)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _optimizer_items(
    tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    yield from ((name, t) for name, t in tensors.items() if name.startswith("optimizer."))
    yield from numbers.items()
