"""Low-rank adapters (LoRA, Hu et al. 2021): W is frozen, and W + (α / r) B A is used.

Reading a layer's `weight` gives the sum, computed anew in every pass, so each kernel that takes a
weight takes an adapted one. That costs one product of [rows, r] and [r, w] per layer, negligible
beside its tokens. B begins with zeros: a fresh adapter changes nothing.

Queries, keys and values are rows of one matrix. Each has its own factors, as if it were a separate
matrix: one pair for all three would have to share its rank among them.

Shapes: w width, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heed.errors import ConfigError
from heed.nn.attention import MultiHeadAttention
from heed.nn.feed_forward import FeedForward
from heed.nn.kernels.linear import GATES, without_autocast

Targets = Literal["qv", "attention", "all"]
"""Which linear layers are adapted, as `adapt` names them."""
Projections = list[tuple[int, bool]]
"""For each projection in a matrix: its rows, and whether it is adapted."""
SUFFIX = ".parametrizations.weight"


class LowRank(nn.Module):
    """W + (α / r) B A for each adapted projection, W for the others."""

    def __init__(self, parts: Projections, columns: int, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.rows, self.adapted = zip(*parts, strict=True)
        self.scale = alpha / rank
        sizes = [rows for rows, adapted in parts if adapted]
        # A as `initialize` draws a linear layer: its output is as large as its input.
        self.down = nn.ParameterList(torch.randn(rank, columns) * columns**-0.5 for _ in sizes)
        self.up = nn.ParameterList(torch.zeros(rows, rank) for rows in sizes)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight to use [rows, w]."""
        return self.add_factors(weight, list(self.down), list(self.up))

    def add_factors(self, weight: Tensor, down: Sequence[Tensor], up: Sequence[Tensor]) -> Tensor:
        """The weight plus the product of these factors, in full precision even under autocast."""
        factors = iter(zip(up, down, strict=True))
        with without_autocast(weight):
            parts = [
                torch.addmm(part, *next(factors), alpha=self.scale) if adapted else part
                for part, adapted in zip(weight.split(self.rows), self.adapted, strict=True)
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts)


def adapt(
    model: nn.Module,
    *,
    rank: int,
    alpha: float | None = None,
    targets: Targets = "attention",
    exclude: Set[nn.Parameter] = frozenset(),
) -> None:
    """Add adapters to the linear layers that `targets` names, and freeze those layers.

    "qv" are the projections to queries and values, as in the paper, "attention" all four of every
    attention, "all" the feed-forward's layers as well. `alpha` is twice the rank unless given. All
    other parameters, and layers whose weights are in `exclude`, are left as they are.
    """
    layers = [
        (linear, parts) for linear, parts in _layers(model, targets) if linear.weight not in exclude
    ]
    if not layers:
        what = "the model has no attention, or all of its layers are new"
        raise ConfigError([f"[init] lora finds no layer to adapt: {what}."])
    for linear, parts in layers:
        device, dtype = linear.weight.device, linear.weight.dtype
        factors = LowRank(parts, linear.in_features, rank=rank, alpha=alpha or 2.0 * rank)
        linear.weight.requires_grad_(False)
        parametrize.register_parametrization(linear, "weight", factors.to(device, dtype))


def _layers(model: nn.Module, targets: Targets) -> Iterator[tuple[nn.Linear, Projections]]:
    """The linear layers to adapt, each with the projections it packs."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            yield from _projections(module, every=targets != "qv")
        elif isinstance(module, FeedForward) and targets == "all":
            gates = 2 if module.activation in GATES else 1
            yield module.up, [(module.up.out_features // gates, True)] * gates
            yield module.down, [(module.down.out_features, True)]


def _projections(
    module: MultiHeadAttention, *, every: bool
) -> Iterator[tuple[nn.Linear, Projections]]:
    query, shared = (n * module.head_width for n in (module.heads, module.kv_heads))
    q, k, v = (query, True), (shared, every), (shared, True)
    if module.crosses:
        yield module.q, [q]
        yield module.kv, [k, v]
    else:
        yield module.qkv, [q, k, v]
    if every:
        yield module.out, [(module.out.out_features, True)]


def merge_adapters(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of an adapted model as those of a plain one, by the same sums that it uses."""
    plain = dict(weights)
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            layer = name.removesuffix(f"{SUFFIX}.0")
            down, up = (
                [plain.pop(f"{name}.{side}.{i}") for i in range(len(module.up))]
                for side in ("down", "up")
            )
            frozen = plain.pop(f"{layer}{SUFFIX}.original")
            plain[f"{layer}.weight"] = module.add_factors(frozen, down, up)
    return plain
