"""The feed-forward sublayer. Shapes: b batch, n tokens, w model width."""

from __future__ import annotations

from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.kernels.linear import GATES, Dropout, OutputLinear, feed_forward


class FeedForward(nn.Module):
    """Two linear layers with an activation between; some multiply by a gate (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.feed_forward or 4 * config.width
        self.activation = config.activation
        gates = 2 if config.activation in GATES else 1
        self.up = nn.Linear(config.width, gates * hidden, bias=config.bias)
        self.down = OutputLinear(hidden, config.width, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)

    def forward(self, x_bnw: Tensor) -> Tensor:
        """down(activation(up(x))), or down(activation(gate(x)) · up(x))."""
        return feed_forward(x_bnw, self.up, self.activation, self.dropout, self.down)
