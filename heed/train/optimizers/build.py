"""Optimizers by name, and their parameter groups.

torch's optimizers are used where it has them in one kernel; the others are in
`heed.train.optimizers.custom`. AdamW and Adam have a faster kernel
(`heed.train.optimizers.fused_adamw`).
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
from heed.errors import ConfigError, HeedError, first_line
from heed.models.layer_index import layer_indices
from heed.train.optimizers.custom import Adagrad, Group, Lion, Muon
from heed.train.optimizers.fused_adamw import FusedAdam, FusedAdamW, can_fuse

CAPTURABLE = frozenset(OPTIMIZERS) - {"adafactor"}
"""Optimizers whose step a CUDA graph can capture, built with `lr_tensor=True`. Adafactor reads
numbers back to the host."""

EPS = 1e-8
"""Epsilon of Adam, AdamW and Adagrad."""


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of an optimizer; None is the default of its paper.

    | optimizer   | reads                     | weight decay                                   |
    |-------------|---------------------------|------------------------------------------------|
    | `adamw`     | betas (0.9, 0.98)         | decoupled, Loshchilov and Hutter (2019)        |
    | `adam`      | betas (0.9, 0.98)         | in the gradient (L2), Kingma and Ba (2015)     |
    | `sgd`       | momentum 0.9              | in the gradient                                |
    | `adagrad`   |                           | in the gradient, Duchi et al. (2011)           |
    | `adafactor` | lr caps its relative step | decoupled, Shazeer and Stern (2018)            |
    | `lion`      | betas (0.9, 0.99)         | decoupled, Chen et al. (2023)                  |
    | `muon`      | momentum 0.95 (Nesterov), | decoupled, Jordan et al. (2024); `adamw` for   |
    |             | muon_lr                   | all other parameters than hidden matrices      |

    Adam's betas are those of Vaswani et al. (2017). `muon_lr` is the rate of the hidden matrices;
    None is `lr`, because Muon's update is scaled to the size of AdamW's (see `Muon`).
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    momentum: float | None = None
    muon_lr: float | None = None
    layer_decay: float = 1.0
    """The rate of layer l of L is lr · layer_decay^(L + 1 - l): the head, as layer L + 1, has lr,
    embeddings, as layer 0, the lowest rate (Howard and Ruder 2018; Clark et al. 2020)."""

    def __post_init__(self) -> None:
        complaints = list(self._complaints())
        if complaints:
            raise ConfigError(complaints)

    def _complaints(self) -> Iterator[str]:
        yield from filter(None, [unknown_name("optimizer", self.name, (*OPTIMIZERS,))])
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


def optimizer_settings(train: TrainConfig) -> OptimizerSettings:
    """The optimizer settings of a recipe."""
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
    """Parameter groups with and without weight decay, in the model's order.

    Matrices decay. Vectors (norms, biases) do not, nor do embeddings. A tied parameter decays only
    if it does in all its modules.
    """
    decays: dict[nn.Parameter, bool] = {}
    for _, module, parameter in _owners(model):
        matrix = parameter.ndim >= 2 and not isinstance(module, nn.Embedding)
        decays[parameter] = matrix and decays.get(parameter, True)
    if not decays:
        raise HeedError("This model has no parameter to train.", todo="Unfreeze some of it.")
    return _nonempty(
        _group("decay", [p for p, decay in decays.items() if decay], weight_decay),
        _group("no_decay", [p for p, decay in decays.items() if not decay], 0.0),
    )


def muon_groups(model: nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The groups of `parameter_groups`, with the hidden matrices, which Muon updates, separate.

    The output layer is not hidden: it is the module called `head` with all that is in it.
    """
    heads = {parameter for name, _, parameter in _owners(model) if "head" in name.split(".")}
    scale = 1.0 if settings.muon_lr is None else settings.muon_lr / settings.lr
    groups: list[Group] = []
    for group in parameter_groups(model, weight_decay=settings.weight_decay):
        if group["name"] == "decay":
            hidden = [p for p in group["params"] if p.ndim == 2 and p not in heads]
            groups.append(_group("muon", hidden, settings.weight_decay, lr_scale=scale))
            group["params"] = [p for p in group["params"] if p.ndim != 2 or p in heads]
        groups.append(group)
    return _nonempty(*groups)


def _by_layer(model: nn.Module, groups: list[Group], layer_decay: float) -> list[Group]:
    """Split groups by layer, each with its learning rate (layer-wise decay)."""
    if layer_decay == 1.0:
        return groups
    places = layer_indices(model)
    below = {parameter: places[name].below_top for name, parameter in model.named_parameters()}
    split_groups = []
    for group in groups:
        for steps in sorted({below[parameter] for parameter in group["params"]}):
            params = [parameter for parameter in group["params"] if below[parameter] == steps]
            scale = group["lr_scale"] * layer_decay**steps
            split_groups.append(group | {"params": params, "lr_scale": scale})
    return split_groups


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Each trainable parameter with every module that has it; a tied one comes repeatedly."""
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                yield name, module, parameter


def _group(
    name: str, params: list[nn.Parameter], weight_decay: float, *, lr_scale: float = 1.0
) -> Group:
    return {"name": name, "params": params, "weight_decay": weight_decay, "lr_scale": lr_scale}


def _nonempty(*groups: Group) -> list[Group]:
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: nn.Module, settings: OptimizerSettings, *, lr_tensor: bool = False
) -> Optimizer:
    """Build an optimizer over the model's parameter groups.

    `lr_tensor` keeps each group's rate in a 0-d tensor on the parameters' device, which a
    captured CUDA graph reads at every replay; `set_lr` then writes it in place.
    """
    if settings.name == "muon":
        groups = muon_groups(model, settings)
    else:
        groups = parameter_groups(model, weight_decay=settings.weight_decay)
    groups = _by_layer(model, groups, settings.layer_decay)
    parameters = [parameter for group in groups for parameter in group["params"]]
    device = parameters[0].device
    for group in groups:
        group["lr"] = settings.lr * group["lr_scale"]
        if lr_tensor:
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    kind, options = _optimizer_class(settings)
    if kind in (Adam, AdamW, Muon):
        options["capturable"] = lr_tensor and device.type == "cuda"
    options["lr"] = groups[0]["lr"]
    kernels = _fastest_kernels(kind, parameters, options)
    if kernels.get("fused") and can_fuse(parameters):
        kind = FusedAdamW if kind is AdamW else FusedAdam if kind is Adam else kind
    optimizer = kind(groups, **options, **kernels)
    optimizer.register_load_state_dict_pre_hook(_keep_kernels)
    if options.get("momentum") and kind is SGD:
        # Zeros: a skipped first step would otherwise leave uninitialized memory.
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def step_optimizer(optimizer: Optimizer, divisor: Tensor, finite: Tensor) -> None:
    """One step with gradients divided by `divisor`; no step where they are not `finite`.

    Both are 0-d tensors. They stay on their device if the optimizer reads them itself, by torch's
    contract for scaled losses (`grad_scale`, `found_inf`). Adafactor reads them on the host. So
    do torch's optimizers on a CPU, which waits for nothing: there the contract costs an operation
    more a parameter.
    """
    amp: Any = optimizer
    pays = divisor.device.type != "cpu" or isinstance(optimizer, FusedAdam)
    if pays and getattr(amp, "_step_supports_amp_scaling", False):
        amp.grad_scale, amp.found_inf = divisor, 1.0 - finite.float()
        optimizer.step()
        amp.grad_scale = amp.found_inf = None
    elif finite:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if divisor != 1.0:
            torch._foreach_div_([grad for grad in grads if grad is not None], divisor)
        optimizer.step()


def set_lr(optimizer: Optimizer, base_lr: float, factor: float) -> None:
    """Set each group's rate to base_lr · factor · its lr_scale, in place where it is a tensor."""
    for group in optimizer.param_groups:
        rate = base_lr * factor * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def describe_rates(optimizer: Optimizer, base_lr: float) -> str:
    """The peak learning rates, and the number of parameters of each."""
    sizes: dict[float, int] = {}
    for group in optimizer.param_groups:
        rate = base_lr * group["lr_scale"]
        sizes[rate] = sizes.get(rate, 0) + sum(p.numel() for p in group["params"])
    return ", ".join(f"{rate:.3g} for {sizes[rate]:,}" for rate in sorted(sizes, reverse=True))


def _optimizer_class(
    settings: OptimizerSettings,
) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    """The class of an optimizer, and its keyword arguments."""
    betas = None if settings.betas is None else tuple(map(float, settings.betas))
    adam = {"betas": betas or (0.9, 0.98), "eps": EPS}
    lion = {"betas": betas or (0.9, 0.99)}
    momentum = 0.9 if settings.name == "sgd" else 0.95
    if settings.momentum is not None:
        momentum = settings.momentum
    classes: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
        "adamw": (AdamW, adam),
        "adam": (Adam, adam),
        "sgd": (SGD, {"momentum": momentum}),
        "adagrad": (Adagrad, {"eps": EPS}),
        "adafactor": (Adafactor, {}),
        "lion": (Lion, lion),
        "muon": (Muon, adam | {"momentum": momentum}),
    }
    return classes[settings.name]


def _fastest_kernels(
    kind: Callable[..., Optimizer], parameters: Sequence[Tensor], options: dict[str, Any]
) -> dict[str, bool]:
    """Fused kernels where torch has them for such parameters, else foreach, else its default.

    No public list says which optimizer has which kernel for a device and for sharded tensors, and
    versions differ. So a step on zero copies of the smallest tensors is tried.
    """
    by_size = sorted(parameters, key=lambda parameter: parameter.numel(), reverse=True)
    smallest = {(type(p.data), p.device, p.dtype, p.ndim): p for p in by_size}.values()
    choices: list[dict[str, bool]] = [{"fused": True}, {"foreach": True}, {}]
    for kernels in choices:
        blanks = [nn.Parameter(torch.zeros_like(parameter)) for parameter in smallest]
        for blank in blanks:
            blank.grad = torch.zeros_like(blank)
        try:
            kind(blanks, **options, **kernels).step()
        except (RuntimeError, TypeError, ValueError) as error:
            refusal = error
        else:
            return kernels
    raise HeedError(
        f"This optimizer cannot update such parameters: {first_line(refusal)}",
        todo="Choose another, as adamw, or train without sharding.",
    ) from refusal


def _keep_kernels(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Load a saved state, but keep the kernels that were chosen for this machine."""
    sizes = [(group["name"], len(group["params"])) for group in optimizer.param_groups]
    saved_sizes = [(group.get("name"), len(group["params"])) for group in saved["param_groups"]]
    if sizes != saved_sizes:
        raise HeedError(
            f"The saved optimizer holds {saved_sizes} parameters by group, this one {sizes}.",
            todo="Resume with the model and the optimizer that were saved.",
        )
    groups = []
    for new_group, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        lr = float(group["lr"])
        current: Group = {
            key: new_group[key] for key in ("fused", "foreach", "capturable") if key in new_group
        }
        current["lr"] = (
            torch.full_like(new_group["lr"], lr) if isinstance(new_group["lr"], Tensor) else lr
        )
        groups.append(group | current)
    return saved | {"param_groups": groups}
