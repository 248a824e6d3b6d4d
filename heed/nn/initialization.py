"""How every weight is initialized, and the factors that multiply embeddings and positions.

A module that begins differently says so itself: `Embedding.std`, `OutputLinear.ends_branch`.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from heed.config import ModelConfig


class Embedding(nn.Embedding):
    """Learned vectors by index, with the standard deviation they are initialized with."""

    def __init__(self, rows: int, width: int, *, std: float | None = None) -> None:
        self.std = width**-0.5 if std is None else std
        super().__init__(rows, width)


@torch.no_grad()
def initialize(model: nn.Module, *, branches: int) -> None:
    """Draw every weight of a model whose residual stream sums `branches` branches.

    A linear layer has variance 1 / fan-in, so that its output is as large as its input. The last
    linear layer of each residual branch is smaller by √branches, so that their sum keeps the
    stream's size at any depth (depth-scaled initialization, Zhang et al. 2019).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            shrink = math.sqrt(branches) if getattr(module, "ends_branch", False) else 1.0
            module.weight.normal_(std=module.in_features**-0.5 / shrink)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, Embedding):
            module.weight.normal_(std=module.std)
        elif isinstance(module, nn.LSTM):
            _initialize_lstm(module)


def _initialize_lstm(lstm: nn.LSTM) -> None:
    """Uniform weights; biases zero, except the forget gate's, which starts open."""
    for name, weight in lstm.named_parameters():
        if "bias" in name:
            weight.zero_()
            if "bias_ih" in name:  # gates in the order i, f, g, o
                weight[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
        else:
            weight.uniform_(-(lstm.hidden_size**-0.5), lstm.hidden_size**-0.5)


def token_power(config: ModelConfig) -> float:
    """The power of the width that a token table is divided and multiplied by.

    The 2017 paper uses a half. A residual stream then carries a token's own vector to the head and
    gives it a logit of √w: a fresh tied model repeats its input, and its loss begins far above
    log(vocab). Three quarters leave that logit at the fourth root. But Adam's steps are multiplied
    as well, so vectors soon grow to several times their size, and sinusoids, which do not grow,
    would be drowned out. With those it is the paper's half.
    """
    sinusoids = config.family == "transformer" and config.position == "sinusoidal"
    return 0.5 if sinusoids else 0.75


def token_scale(config: ModelConfig) -> float:
    """The factor that multiplies a token's vector."""
    if config.embedding_scale is not None:
        return config.embedding_scale
    return float((config.embedding_width or config.width) ** token_power(config))


def token_size(config: ModelConfig) -> float:
    """The standard deviation that token vectors begin with, after scaling."""
    return token_scale(config) * (config.embedding_width or config.width) ** -token_power(config)


def position_scale(config: ModelConfig) -> float:
    """The factor that multiplies a table of positions.

    Adam changes a number by no more than its learning rate. Vectors added to those of tokens have
    to keep up with them. A bias must grow to several units before a head attends to its neighbors,
    which without a factor takes thousands of steps.
    """
    if config.position_scale is not None:
        return config.position_scale
    return {"learned": token_scale(config), "t5": 16.0}.get(config.position, 1.0)
