"""The small parts of a block, and how every weight begins.

Shapes: b batch, n tokens, w model width, f feed-forward width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.kernels.linear import GATES, Dropout, Linear, activated


class Table(nn.Embedding):
    """Learned vectors by number, with the spread they begin with."""

    def __init__(self, rows: int, width: int, *, std: float | None = None) -> None:
        self.std = width**-0.5 if std is None else std
        super().__init__(rows, width)


class OutputLinear(Linear):
    """The last map of a residual branch: it begins smaller the more branches add up."""


class TokenEmbedding(nn.Module):
    """Vectors for ids, from a table that can also serve as the output map.

    The table begins at w^-power and is multiplied by w^power, so vectors begin at unit size.
    Another `scale` leaves the table as it is. What is added to tokens, their types or learned
    positions, begins half as large as they are.
    """

    def __init__(
        self, vocab: int, width: int, *, power: float, scale: float | None = None, types: int = 0
    ) -> None:
        super().__init__()
        even = width**power
        self.scale = even if scale is None else scale
        self.table = Table(vocab, width, std=1 / even)
        self.types = Table(types, width, std=0.5 * self.scale / even) if types else None

    def forward(self, ids_bn: Tensor, types_bn: Tensor | None = None) -> Tensor:
        """table[id] · scale, and the vector of its type where there are types: untold, type 0."""
        x_bnw = self.table(ids_bn) * self.scale
        if self.types is None:
            return x_bnw
        return x_bnw + self.types(torch.zeros_like(ids_bn) if types_bn is None else types_bn)


def token_power(config: ModelConfig) -> float:
    """The power of the width that a table of tokens is divided and multiplied by.

    The 2017 paper has a half. A residual stream then brings a token's own vector to the head and
    gives it a logit of √w: a fresh tied model repeats what it reads, and its loss begins far above
    log(vocab). Three quarters leave that logit at the fourth root. But what Adam adds is multiplied
    as well, and vectors soon have several times their size: sinusoids, which do not grow, would
    drown among them. Beside those it is the paper's half.
    """
    sinusoids = config.family == "transformer" and config.position == "sinusoidal"
    return 0.5 if sinusoids else 0.75


def token_scale(config: ModelConfig) -> float:
    """What multiplies a token's vector."""
    if config.embedding_scale is not None:
        return config.embedding_scale
    return float((config.embedding_width or config.width) ** token_power(config))


def token_size(config: ModelConfig) -> float:
    """How large the vectors of tokens begin."""
    return token_scale(config) * (config.embedding_width or config.width) ** -token_power(config)


def position_scale(config: ModelConfig) -> float:
    """What multiplies a table of positions, for Adam moves a number by no more than its rate.

    Vectors added to those of tokens have to keep up with them. A bias must grow to some units
    before a head looks at its neighbours, which by itself takes thousands of updates.
    """
    if config.position_scale is not None:
        return config.position_scale
    return {"learned": token_scale(config), "t5": 16.0}.get(config.position, 1.0)


class FeedForward(nn.Module):
    """Two maps with an activation between; some multiply by a gate (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.feed_forward or 4 * config.width
        self.activation = config.activation
        gates = 2 if config.activation in GATES else 1
        self.up = nn.Linear(config.width, gates * hidden, bias=config.bias)
        self.down = OutputLinear(hidden, config.width, bias=config.bias)
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
            shrink = math.sqrt(branches) if isinstance(module, OutputLinear) else 1.0
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
