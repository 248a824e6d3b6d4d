"""The small parts of a block, and how every weight begins.

Shapes: b batch, n tokens, w model width, f feed-forward width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.maps import Dropout, Linear, activated


class Table(nn.Embedding):
    """Learned vectors by number, with the spread they begin with."""

    def __init__(self, rows: int, width: int, *, std: float | None = None) -> None:
        self.std = width**-0.5 if std is None else std
        super().__init__(rows, width)


class BranchOut(Linear):
    """The last map of a residual branch: it begins smaller the more branches add up."""


class TokenEmbedding(nn.Module):
    """Vectors of unit size for ids, from a table that can also serve as the output map.

    The 2017 paper multiplies a table of size 1/√w by √w. A residual stream then brings a token's
    own vector to the head and gives it a logit of √w: a fresh model repeats what it reads, and its
    loss begins far above log(vocab). Powers of three quarters leave that logit at the fourth root.
    """

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.scale = width**0.75
        self.table = Table(vocab, width, std=1 / self.scale)

    def forward(self, ids_bn: Tensor) -> Tensor:
        """table[id] · w^¾."""
        return self.table(ids_bn) * self.scale


class FeedForward(nn.Module):
    """Two maps with an activation between; `swiglu` multiplies by a gate (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.feed_forward or 4 * config.width
        self.activation = config.activation
        gates = 2 if config.activation == "swiglu" else 1
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
