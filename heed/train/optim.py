"""Optimizers by name, and which parameters each of them decays.

torch's own rules are used where torch has them. Lion and Muon are written here: torch has no
Lion, and `torch.optim.Muon` takes matrices alone, one by one, and reads a learning rate that is
a tensor back to the host, which no CUDA graph may do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, Optimizer

from heed.errors import ConfigError, HeedError, nearest

Group = dict[str, Any]
OPTIMIZERS = ("adamw", "adam", "sgd", "adagrad", "adafactor", "lion", "muon")
CAPTURABLE = frozenset(OPTIMIZERS) - {"adafactor"}
"""Those whose step a CUDA graph can hold, built with `lr_tensor=True`; Adafactor asks the host."""


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimizer needs to know; None stands for what the rule's own paper used.

    | rule        | reads                     | weight decay                                   |
    |-------------|---------------------------|------------------------------------------------|
    | `adamw`     | betas (0.9, 0.98), eps    | decoupled, Loshchilov and Hutter (2019)        |
    | `adam`      | betas (0.9, 0.98), eps    | in the gradient (L2), Kingma and Ba (2015)     |
    | `sgd`       | momentum 0.9, nesterov no | in the gradient                                |
    | `adagrad`   | eps                       | in the gradient, Duchi et al. (2011)           |
    | `adafactor` | lr caps its relative step | decoupled, Shazeer and Stern (2018)            |
    | `lion`      | betas (0.9, 0.99)         | decoupled, Chen et al. (2023)                  |
    | `muon`      | momentum 0.95, nesterov   | decoupled, Jordan et al. (2024); `adamw` for   |
    |             | yes, muon_lr              | all that is not a hidden matrix                |

    Adam's betas are those of Vaswani et al. (2017). `muon_lr` is the rate of the hidden matrices;
    None gives them `lr`, for Muon's update is scaled to be as large as AdamW's (see `Muon`).
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    eps: float = 1e-8
    momentum: float | None = None
    nesterov: bool | None = None
    muon_lr: float | None = None

    def __post_init__(self) -> None:
        complaints = list(self._complaints())
        if complaints:
            raise ConfigError(complaints)

    def _complaints(self) -> Iterator[str]:
        if self.name not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            hint = nearest(self.name, OPTIMIZERS)
            yield f"There is no optimizer {self.name!r}; choose one of {known}.{hint}"
        for key, rate in (("lr", self.lr), ("muon_lr", self.muon_lr)):
            if rate is not None and not 0.0 < rate < math.inf:
                yield f"{key} must be a number above 0, not {rate}."
        for key, value in (("weight_decay", self.weight_decay), ("eps", self.eps)):
            if not 0.0 <= value < math.inf:
                yield f"{key} must be 0 or more, not {value}."
        if self.betas is not None and not all(0.0 <= beta < 1.0 for beta in self.betas):
            yield f"betas must each be at least 0 and below 1, not {self.betas}."
        if self.momentum is not None and not 0.0 <= self.momentum < 1.0:
            yield f"momentum must be at least 0 and below 1, not {self.momentum}."
        if self.nesterov and self.momentum == 0.0:
            yield "nesterov looks ahead along the momentum, so momentum must be above 0."


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

    The output layer is no hidden matrix: it is the module called `head`, or any that says
    `hidden = False`.
    """
    heads = {
        parameter
        for name, module, parameter in _owners(model)
        if name.rpartition(".")[2] == "head" or getattr(module, "hidden", True) is False
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
    return optimizer


def set_lr(optimizer: Optimizer, base_lr: float, factor: float) -> None:
    """Give each group base_lr · factor · its lr_scale: in place where the rate is a tensor."""
    for group in optimizer.param_groups:
        rate = base_lr * factor * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _rule(settings: OptimizerSettings) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    """The class behind a name, with the settings it reads."""
    betas = None if settings.betas is None else tuple(map(float, settings.betas))
    adam = {"betas": betas or (0.9, 0.98), "eps": settings.eps}
    lion = {"betas": betas or (0.9, 0.99)}
    momentum = 0.9 if settings.name == "sgd" else 0.95
    if settings.momentum is not None:
        momentum = settings.momentum
    sgd = {"momentum": momentum, "nesterov": settings.nesterov is True}
    muon = adam | {"momentum": momentum, "nesterov": settings.nesterov is not False}
    rules: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
        "adamw": (AdamW, adam),
        "adam": (Adam, adam),
        "sgd": (SGD, sgd),
        "adagrad": (Adagrad, {"eps": settings.eps}),
        "adafactor": (Adafactor, {}),
        "lion": (Lion, lion),
        "muon": (Muon, muon),
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


def _with_momentum(optimizer: Optimizer, group: Group) -> tuple[list[Tensor], ...]:
    """The group's parameters that have a gradient, these gradients, and their momenta."""
    params = [parameter for parameter in group["params"] if parameter.grad is not None]
    for parameter in params:
        state = optimizer.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
    momenta = [optimizer.state[parameter]["momentum"] for parameter in params]
    return params, [parameter.grad for parameter in params], momenta


def _decay_and_subtract(
    params: list[Tensor], updates: Sequence[Tensor], lr: float | Tensor, group: Group
) -> None:
    """θ ← (1 - lr λ) θ - update, with the rate a number or a 0-d tensor (never read back)."""
    if group["weight_decay"]:
        torch._foreach_mul_(params, 1.0 - lr * group["weight_decay"])
    torch._foreach_sub_(params, list(updates))


class Lion(Optimizer):
    """Symbolic Discovery of Optimization Algorithms (Chen et al., 2023): only the sign counts.

    θ ← θ - lr (sign(β₁ m + (1 - β₁) g) + λ θ), then m ← β₂ m + (1 - β₂) g. Every weight moves by
    lr, so the rate is 3 to 10 times smaller than AdamW's and the decay as many times larger.
    """

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
        """Move every parameter that has a gradient."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            params, grads, momenta = _with_momentum(self, group)
            if not params:
                continue
            beta1, beta2 = group["betas"]
            updates = torch._foreach_lerp(momenta, grads, 1.0 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(updates, group["lr"])
            _decay_and_subtract(params, updates, group["lr"], group)
            torch._foreach_lerp_(momenta, grads, 1.0 - beta2)
        return loss


class Muon(Optimizer):
    """Muon (Jordan et al., 2024) for the group named `muon`, AdamW for every other group.

    m ← μ m + (1 - μ) g and θ ← (1 - lr λ) θ - lr · 0.2 √max(rows, columns) · orth(u), where u is
    m, or (1 - μ) g + μ m with Nesterov's look-ahead. An orthogonal matrix has entries of mean
    square 1 / max(rows, columns) and an AdamW update is about 0.2 in size, so that factor (Liu et
    al., "Muon is Scalable for LLM Training", 2025) lets both rules share one learning rate.
    """

    def __init__(
        self,
        params: list[Group],
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        **adamw: Any,
    ) -> None:
        # AdamW holds no parameters of its own: at each step it is lent this one's groups and
        # state, so that there is one state to save.
        self._adamw = AdamW([{"params": []}], **adamw)
        defaults = self._adamw.defaults | {"momentum": momentum, "nesterov": nesterov}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Move every parameter that has a gradient by its group's rule."""
        loss = _evaluate(closure)
        lent = [group for group in self.param_groups if group.get("name") != "muon"]
        self._adamw.param_groups, self._adamw.state = lent, self.state
        self._adamw.step()
        for group in self.param_groups:
            if group.get("name") == "muon":
                self._orthogonal_step(group)
        return loss

    def _orthogonal_step(self, group: Group) -> None:
        params, grads, momenta = _with_momentum(self, group)
        if not params:
            return
        torch._foreach_lerp_(momenta, grads, 1.0 - group["momentum"])
        ahead = group["momentum"] if group["nesterov"] else 1.0
        same_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for index, parameter in enumerate(params):
            same_shape[parameter.shape].append(index)
        # Layers repeat, so a model has few shapes: one batched product serves all of one shape.
        for shape, chosen in same_shape.items():
            u = torch.stack([grads[i] for i in chosen])
            u = u.lerp(torch.stack([momenta[i] for i in chosen]), ahead)
            rate = group["lr"] * (0.2 * math.sqrt(max(shape)))
            updates = orthogonalise(u) * rate
            _decay_and_subtract([params[i] for i in chosen], updates.unbind(), group["lr"], group)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring every singular value of each matrix of a (count, rows, columns) batch near 1.

    Five Newton–Schulz steps X ← aX + (b XXᵀ + c (XXᵀ)²) X on X / ‖X‖. Jordan's coefficients push
    small singular values up fastest; the price is that they end between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(-2) > matrices.size(-1)
    x: Tensor = matrices.mT if tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-12)
    if x.is_cuda:
        x = x.bfloat16()  # where products are fast, and precise enough for what is rough anyway
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def _evaluate(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
