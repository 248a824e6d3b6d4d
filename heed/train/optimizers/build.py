"""Optimizers by name, and which parameters each of them decays.

torch's own rules are used where torch has them in one kernel; the others are in
`heed.train.optimizers.custom`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from heed.config import TrainConfig
from heed.config.base import unknown_name
from heed.config.train import OPTIMIZERS
from heed.errors import ConfigError, HeedError
from heed.models.layer_index import layer_indices
from heed.train.optimizers.custom import Adagrad, Group, Lion, Muon

CAPTURABLE = frozenset(OPTIMIZERS) - {"adafactor"}
"""Those whose step a CUDA graph can hold, built with `lr_tensor=True`; Adafactor asks the host."""

EPS = 1e-8
"""Added to what Adam, AdamW and Adagrad divide by."""


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimizer needs to know; None stands for what the rule's own paper used.

    | rule        | reads                     | weight decay                                   |
    |-------------|---------------------------|------------------------------------------------|
    | `adamw`     | betas (0.9, 0.98)         | decoupled, Loshchilov and Hutter (2019)        |
    | `adam`      | betas (0.9, 0.98)         | in the gradient (L2), Kingma and Ba (2015)     |
    | `sgd`       | momentum 0.9              | in the gradient                                |
    | `adagrad`   |                           | in the gradient, Duchi et al. (2011)           |
    | `adafactor` | lr caps its relative step | decoupled, Shazeer and Stern (2018)            |
    | `lion`      | betas (0.9, 0.99)         | decoupled, Chen et al. (2023)                  |
    | `muon`      | momentum 0.95 (Nesterov), | decoupled, Jordan et al. (2024); `adamw` for   |
    |             | muon_lr                   | all that is not a hidden matrix                |

    Adam's betas are those of Vaswani et al. (2017). `muon_lr` is the rate of the hidden matrices;
    None gives them `lr`, for Muon's update is scaled to be as large as AdamW's (see `Muon`).
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    momentum: float | None = None
    muon_lr: float | None = None
    layer_decay: float = 1.0
    """The rate of layer l of L is lr · layer_decay^(L + 1 - l): a head, as layer L + 1, learns at
    lr, embeddings, as layer 0, slowest (Howard and Ruder 2018; Clark et al. 2020)."""

    def __post_init__(self) -> None:
        complaints = list(self._complaints())
        if complaints:
            raise ConfigError(complaints)

    def _complaints(self) -> Iterator[str]:
        yield from filter(None, [unknown_name("optimizer", self.name, OPTIMIZERS)])
        for key, rate in (("lr", self.lr), ("muon_lr", self.muon_lr)):
            if rate is not None and not 0.0 < rate < math.inf:
                yield f"{key} must be a number above 0, not {rate}."
        if not 0.0 < self.layer_decay <= 1.0:
            yield f"layer_decay must be above 0 and at most 1, not {self.layer_decay}."
        if not 0.0 <= self.weight_decay < math.inf:
            yield f"weight_decay must be 0 or more, not {self.weight_decay}."
        if self.betas is not None and not all(0.0 <= beta < 1.0 for beta in self.betas):
            yield f"betas must each be at least 0 and below 1, not {self.betas}."
        if self.momentum is not None and not 0.0 <= self.momentum < 1.0:
            yield f"momentum must be at least 0 and below 1, not {self.momentum}."


def settings_of(train: TrainConfig) -> OptimizerSettings:
    """What a recipe says of its optimizer."""
    return OptimizerSettings(
        name=train.optimizer,
        lr=train.lr,
        weight_decay=train.weight_decay,
        betas=None if train.betas is None else (train.betas[0], train.betas[1]),
        momentum=train.momentum,
        muon_lr=train.muon_lr,
        layer_decay=train.layer_decay,
    )


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[Group]:
    """What decays and what does not: every trainable parameter once, in the model's order.

    Matrices decay. Vectors (norms, biases) do not, nor do embeddings, nor the parameters of a
    module that says `decay = False`. A tied parameter decays only if all its owners let it.
    """
    decays: dict[nn.Parameter, bool] = {}
    for _, module, parameter in _owners(model):
        matrix = parameter.ndim >= 2 and not _is_table(module)
        decays[parameter] = matrix and decays.get(parameter, True)
    if not decays:
        raise HeedError("This model has no parameter to train.", todo="Unfreeze some of it.")
    return _filled(
        _group("decay", [p for p, decay in decays.items() if decay], weight_decay),
        _group("no_decay", [p for p, decay in decays.items() if not decay], 0.0),
    )


def _muon_groups(model: nn.Module, settings: OptimizerSettings) -> list[Group]:
    """As `parameter_groups`, with the hidden matrices that Muon moves in a group of their own.

    The output layer is no hidden matrix: it is the module called `head` with all that is in it, or
    any that says `hidden = False`.
    """
    heads = {
        parameter
        for name, module, parameter in _owners(model)
        if "head" in name.split(".") or getattr(module, "hidden", True) is False
    }
    scale = 1.0 if settings.muon_lr is None else settings.muon_lr / settings.lr
    groups: list[Group] = []
    for group in parameter_groups(model, weight_decay=settings.weight_decay):
        if group["name"] == "decay":
            hidden = [p for p in group["params"] if p.ndim == 2 and p not in heads]
            groups.append(_group("muon", hidden, settings.weight_decay, lr_scale=scale))
            group["params"] = [p for p in group["params"] if p.ndim != 2 or p in heads]
        groups.append(group)
    return _filled(*groups)


def _by_layer(model: nn.Module, groups: list[Group], layer_decay: float) -> list[Group]:
    """The same groups, each parted by height, with the rate that belongs there."""
    if layer_decay == 1.0:
        return groups
    places = layer_indices(model)
    below = {parameter: places[name].below_top for name, parameter in model.named_parameters()}
    parted = []
    for group in groups:
        for steps in sorted({below[parameter] for parameter in group["params"]}):
            params = [parameter for parameter in group["params"] if below[parameter] == steps]
            scale = group["lr_scale"] * layer_decay**steps
            parted.append(group | {"params": params, "lr_scale": scale})
    return parted


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Each trainable parameter with every module that holds it: a tied one comes repeatedly."""
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                yield name, module, parameter


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) or getattr(module, "decay", True) is False


def _group(
    name: str, params: list[nn.Parameter], weight_decay: float, *, lr_scale: float = 1.0
) -> Group:
    return {"name": name, "params": params, "weight_decay": weight_decay, "lr_scale": lr_scale}


def _filled(*groups: Group) -> list[Group]:
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: nn.Module, settings: OptimizerSettings, *, lr_tensor: bool = False
) -> Optimizer:
    """The optimizer that `settings` names, over the model's parameter groups.

    `lr_tensor` keeps each group's rate in a 0-d tensor on the parameters' device, which a
    captured CUDA graph reads anew at every replay; `set_lr` then writes it in place.
    """
    if settings.name == "muon":
        groups = _muon_groups(model, settings)
    else:
        groups = parameter_groups(model, weight_decay=settings.weight_decay)
    groups = _by_layer(model, groups, settings.layer_decay)
    parameters = [parameter for group in groups for parameter in group["params"]]
    device = parameters[0].device
    for group in groups:
        group["lr"] = settings.lr * group["lr_scale"]
        if lr_tensor:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    rule, options = _rule(settings)
    if rule in (Adam, AdamW, Muon):
        options["capturable"] = lr_tensor and device.type == "cuda"
    options["lr"] = groups[0]["lr"]
    optimizer = rule(groups, **options, **_fastest_kernels(rule, parameters, options))
    optimizer.register_load_state_dict_pre_hook(_keep_own_kernels)
    if options.get("momentum") and rule is SGD:
        # Zeros, or a first step that is skipped would leave memory that nothing was written to.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def move(optimizer: Optimizer, divisor: Tensor, finite: Tensor) -> None:
    """One step with gradients over `divisor`, or none at all where they are not `finite`.

    Both are 0-d tensors that stay on their device where the rule reads them itself, by torch's
    contract for scaled losses (`grad_scale`, `found_inf`). Adafactor asks the host, and so does a
    CPU, which has nobody to wait for: that contract takes an operation more a parameter.
    """
    rule: Any = optimizer
    if divisor.device.type != "cpu" and getattr(rule, "_step_supports_amp_scaling", False):
        rule.grad_scale, rule.found_inf = divisor, 1.0 - finite.float()
        optimizer.step()
        rule.grad_scale = rule.found_inf = None
    elif finite:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if divisor != 1.0:
            torch._foreach_div_([grad for grad in grads if grad is not None], divisor)
        optimizer.step()


def set_lr(optimizer: Optimizer, base_lr: float, factor: float) -> None:
    """Give each group base_lr · factor · its lr_scale: in place where the rate is a tensor."""
    for group in optimizer.param_groups:
        rate = base_lr * factor * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def rates(optimizer: Optimizer, base_lr: float) -> str:
    """Which learning rates there are, at their height, and of how many parameters each."""
    sizes: dict[float, int] = {}
    for group in optimizer.param_groups:
        rate = base_lr * group["lr_scale"]
        sizes[rate] = sizes.get(rate, 0) + sum(p.numel() for p in group["params"])
    return ", ".join(f"{rate:.3g} for {sizes[rate]:,}" for rate in sorted(sizes, reverse=True))


def _rule(settings: OptimizerSettings) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    """The class behind a name, with the settings it reads."""
    betas = None if settings.betas is None else tuple(map(float, settings.betas))
    adam = {"betas": betas or (0.9, 0.98), "eps": EPS}
    lion = {"betas": betas or (0.9, 0.99)}
    momentum = 0.9 if settings.name == "sgd" else 0.95
    if settings.momentum is not None:
        momentum = settings.momentum
    rules: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
        "adamw": (AdamW, adam),
        "adam": (Adam, adam),
        "sgd": (SGD, {"momentum": momentum}),
        "adagrad": (Adagrad, {"eps": EPS}),
        "adafactor": (Adafactor, {}),
        "lion": (Lion, lion),
        "muon": (Muon, adam | {"momentum": momentum}),
    }
    return rules[settings.name]


def _fastest_kernels(
    rule: Callable[..., Optimizer], parameters: Sequence[Tensor], options: dict[str, Any]
) -> dict[str, bool]:
    """Fused kernels where torch has them for such parameters, else foreach, else its default.

    Which rule has which kernel on which device, for plain or sharded tensors, is in no public
    list and differs between versions: a step on blank copies of the smallest tensors tells.
    """
    by_size = sorted(parameters, key=lambda parameter: parameter.numel(), reverse=True)
    smallest = {(type(p.data), p.device, p.dtype, p.ndim): p for p in by_size}.values()
    choices: list[dict[str, bool]] = [{"fused": True}, {"foreach": True}, {}]
    for kernels in choices:
        blanks = [nn.Parameter(torch.zeros_like(parameter)) for parameter in smallest]
        for blank in blanks:
            blank.grad = torch.zeros_like(blank)
        try:
            rule(blanks, **options, **kernels).step()
        except (RuntimeError, TypeError, ValueError) as error:
            refusal = error
        else:
            return kernels
    raise HeedError(
        f"This optimizer cannot move such parameters: {str(refusal).splitlines()[0]}",
        todo="Choose another, as adamw, or train without sharding.",
    ) from refusal


def _keep_own_kernels(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Load a state saved elsewhere without the kernels chosen for that other machine."""
    sizes = [(group["name"], len(group["params"])) for group in optimizer.param_groups]
    saved_sizes = [(group.get("name"), len(group["params"])) for group in saved["param_groups"]]
    if sizes != saved_sizes:
        raise HeedError(
            f"The saved optimizer holds {saved_sizes} parameters by group, this one {sizes}.",
            todo="Resume with the model and the optimizer that were saved.",
        )
    groups = []
    for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        lr = float(group["lr"])
        kept: Group = {key: own[key] for key in ("fused", "foreach", "capturable") if key in own}
        kept["lr"] = torch.full_like(own["lr"], lr) if isinstance(own["lr"], Tensor) else lr
        groups.append(group | kept)
    return saved | {"param_groups": groups}
