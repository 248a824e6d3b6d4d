"""Optimizers that torch does not have, or not in a form that a CUDA graph can capture.

torch has no Lion. Its Muon takes matrices alone, one by one, and reads a learning rate that is a
tensor back to the host. Its Adagrad has no fused kernel on a GPU, and cannot skip a step there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from heed.train.optimizers.fused_adamw import FusedAdamW
from heed.train.optimizers.fused_muon import can_fuse_matrices, fused_step
from heed.train.optimizers.newton_schulz import orthogonalize

Group = dict[str, Any]


class AmpOptimizer(Optimizer):
    """An optimizer that reads `grad_scale` and `found_inf` itself, as torch's fused ones do."""

    _step_supports_amp_scaling = True
    state_name = "momentum"
    """Name of the state tensor of each parameter, which starts as zeros."""
    state_is_mean = False
    """Whether the state is a running mean of gradients: it stays if it is fed itself."""
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def trained(self, group: Group) -> tuple[list[Tensor], ...]:
        """The group's parameters that have a gradient, their gradients and state tensors."""
        params = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in params:
            state = self.state[parameter]
            if self.state_name not in state:
                state[self.state_name] = torch.zeros_like(parameter)
        states = [self.state[parameter][self.state_name] for parameter in params]
        return params, [parameter.grad for parameter in params], states

    def read_group(self, group: Group) -> tuple[list[Tensor], ...]:
        """What `trained` returns, with gradients divided by `grad_scale`.

        In a skipped step the state stands for the gradient where it is a mean, else zeros do.
        """
        params, grads, states = self.trained(group)
        if self.grad_scale is not None and grads:
            grads = list(torch._foreach_div(grads, self.grad_scale))
        if self.found_inf is not None:
            finite = self.found_inf == 0
            others: list[Any] = states if self.state_is_mean else [0.0] * len(grads)
            grads = [torch.where(finite, *both) for both in zip(grads, others, strict=True)]
        return params, grads, states

    def unless_skipped(self, weight: float) -> float | Tensor:
        """`weight`, or 0 if the step is skipped; then a tensor, so that the host does not wait."""
        return weight if self.found_inf is None else weight * (1.0 - self.found_inf)


def _decay(params: list[Tensor], lr: float | Tensor, group: Group) -> None:
    """θ ← (1 - lr λ) θ, with the rate a number or a 0-d tensor (never read back)."""
    if group["weight_decay"]:
        torch._foreach_mul_(params, 1.0 - lr * group["weight_decay"])


class Adagrad(AmpOptimizer):
    """Adaptive Subgradient Methods (Duchi et al., 2011), with decay in the gradient (L2).

    s ← s + g², then θ ← θ - lr g / (√s + ε): a weight with large past gradients moves less.
    """

    state_name = "sum"

    def __init__(
        self,
        params: list[Group],
        lr: float | Tensor = 1e-2,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            params, grads, sums = self.read_group(group)
            if not params:
                continue
            if group["weight_decay"]:
                pull = torch._foreach_mul(params, self.unless_skipped(group["weight_decay"]))
                grads = list(torch._foreach_add(grads, pull))
            torch._foreach_addcmul_(sums, grads, grads)
            sizes = torch._foreach_sqrt(sums)
            torch._foreach_add_(sizes, group["eps"])
            updates = torch._foreach_div(grads, sizes)
            torch._foreach_mul_(updates, group["lr"])
            torch._foreach_sub_(params, updates)
        return loss


class Lion(AmpOptimizer):
    """Symbolic Discovery of Optimization Algorithms (Chen et al., 2023): only the sign is used.

    θ ← θ - lr (sign(β₁ m + (1 - β₁) g) + λ θ), then m ← β₂ m + (1 - β₂) g. Every weight moves by
    lr, so the rate is 3 to 10 times smaller than AdamW's and the decay as many times larger.
    """

    state_is_mean = True

    def __init__(
        self,
        params: list[Group],
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            params, grads, momenta = self.read_group(group)
            if not params:
                continue
            beta1, beta2 = group["betas"]
            updates = torch._foreach_lerp(momenta, grads, 1.0 - beta1)
            lr = group["lr"] * self.unless_skipped(1.0)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(updates, lr)
            _decay(params, lr, group)
            torch._foreach_sub_(params, updates)
            torch._foreach_lerp_(momenta, grads, 1.0 - beta2)
        return loss


class Muon(AmpOptimizer):
    """Muon (Jordan et al., 2024) for the group named `muon`, AdamW for every other group.

    m ← μ m + (1 - μ) g and θ ← (1 - lr λ) θ - lr · 0.2 √max(rows, columns) · orth(u), where u is
    m, or (1 - μ) g + μ m with Nesterov's look-ahead. An orthogonal matrix has entries of mean
    square 1 / max(rows, columns) and an AdamW update is about 0.2 in size, so that factor (Liu et
    al., "Muon is Scalable for LLM Training", 2025) lets both optimizers share one learning rate.
    """

    state_is_mean = True

    def __init__(
        self,
        params: list[Group],
        *,
        momentum: float = 0.95,
        **adamw: Any,
    ) -> None:
        # AdamW has no parameters itself: at each step it gets this optimizer's groups and state,
        # so that there is one state to save.
        self._adamw = FusedAdamW([{"params": []}], **adamw)
        defaults = self._adamw.defaults | {"momentum": momentum}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient, by its group's optimizer."""
        loss = _evaluate(closure)
        others = [group for group in self.param_groups if group.get("name") != "muon"]
        self._adamw.param_groups, self._adamw.state = others, self.state
        adamw: Any = self._adamw
        adamw.grad_scale, adamw.found_inf = self.grad_scale, self.found_inf
        adamw.step()
        for group in self.param_groups:
            if group.get("name") == "muon":
                self._orthogonal_step(group)
        return loss

    def _orthogonal_step(self, group: Group) -> None:
        params, grads, momenta = self.trained(group)
        if not params:
            return
        if can_fuse_matrices([*params, *grads, *momenta]):
            amp = {"grad_scale": self.grad_scale, "found_inf": self.found_inf}
            fused_step(params, grads, momenta, group, **amp)
        else:
            self._plain_step(group)

    def _plain_step(self, group: Group) -> None:
        params, grads, momenta = self.read_group(group)
        mu, lr = group["momentum"], group["lr"] * self.unless_skipped(1.0)
        torch._foreach_lerp_(momenta, grads, 1.0 - mu)
        looks_ahead = torch._foreach_lerp(grads, momenta, mu)
        _decay(params, lr, group)
        same_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for index, parameter in enumerate(params):
            same_shape[parameter.shape].append(index)
        # Layers repeat, so a model has few shapes: one batched product serves all of one shape.
        for shape, indices in same_shape.items():
            updates = orthogonalize([looks_ahead[i] for i in indices])
            scale = lr * (0.2 * math.sqrt(max(shape)))
            for i, update in zip(indices, updates.unbind(), strict=True):
                if isinstance(scale, Tensor):
                    params[i].addcmul_(update, scale, value=-1.0)
                else:
                    params[i].add_(update, alpha=-scale)


def _evaluate(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
