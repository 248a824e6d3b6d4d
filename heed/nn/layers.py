"""The small parts of a block, and how every weight begins.

Shapes: b batch, n tokens, w model width, f feed-forward width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.maps import GATES, Dropout, Linear, activated


class Table(nn.Embedding):
    """Learned vectors by number, with the spread they begin with."""

    def __init__(self, rows: int, width: int, *, std: float | None = None) -> None:
        self.std = width**-0.5 if std is None else std
        super().__init__(rows, width)


class BranchOut(Linear):
    """The last map of a residual branch: it begins smaller the more branches add up."""


class TokenEmbedding(nn.Module):
    """Vectors for ids, from a table that can also serve as the output map.

    The 2017 paper multiplies a table of size 1/√w by √w. A residual stream then brings a token's
    own vector to the head and gives it a logit of √w: a fresh model repeats what it reads, and its
    loss begins far above log(vocab). Powers of three quarters leave that logit at the fourth root,
    and vectors of unit size. Another `scale` leaves the table as it is. What is added to tokens,
    their types or learned positions, begins half as large as they are.
    """

    def __init__(
        self, vocab: int, width: int, *, scale: float | None = None, types: int = 0
    ) -> None:
        super().__init__()
        even = width**0.75
        self.scale = even if scale is None else scale
        self.table = Table(vocab, width, std=1 / even)
        self.types = Table(types, width, std=0.5 * self.scale / even) if types else None

    def forward(self, ids_bn: Tensor, types_bn: Tensor | None = None) -> Tensor:
        """table[id] · w^¾, and the vector of its type where there are types; told none, type 0."""
        x_bnw = self.table(ids_bn) * self.scale
        if self.types is None:
            return x_bnw
        return x_bnw + self.types(torch.zeros_like(ids_bn) if types_bn is None else types_bn)


def token_size(config: ModelConfig) -> float:
    """How large the vectors of tokens begin."""
    return 1.0 if config.embedding_scale is None else config.embedding_scale * config.width**-0.75


class FeedForward(nn.Module):
    """Two maps with an activation between; some multiply by a gate (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.feed_forward or 4 * config.width
        self.activation = config.activation
        gates = 2 if config.activation in GATES else 1
        self.up = nn.Linear(config.width, gates * hidden, bias=config.bias)
        self.down = BranchOut(hidden, config.width, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)

    def forward(self, x_bnw: Tensor) -> Tensor:
        """down(activation(up(x))), or down(silu(gate(x)) · up(x))."""
        return self.down(self.dropout(activated(x_bnw, self.up, self.activation)))


def build_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.bias)


@torch.no_grad()
def initialise(model: nn.Module, *, branches: int) -> None:
    """Draw every weight of a model whose residual stream sums `branches` branches.

    A map begins with variance 1 / fan-in, so that it keeps its input's size. The last map of each
    residual branch is smaller by √branches, so that their sum, too, keeps the stream's size at any
    depth (depth-scaled initialisation, Zhang et al. 2019).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            shrink = math.sqrt(branches) if isinstance(module, BranchOut) else 1.0
            module.weight.normal_(std=module.in_features**-0.5 / shrink)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, Table):
            module.weight.normal_(std=module.std)
        elif isinstance(module, nn.LSTM):
            for name, weight in module.named_parameters():
                if "bias" in name:
                    weight.zero_()
                    if "bias_ih" in name:  # gates in the order i, f, g, o: begin by remembering
                        weight[module.hidden_size : 2 * module.hidden_size] = 1.0
                else:
                    weight.uniform_(-(module.hidden_size**-0.5), module.hidden_size**-0.5)
