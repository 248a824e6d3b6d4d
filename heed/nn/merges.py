"""Merges: four ways to make one vector of the heads.

`concat` is the paper's. `shuffle` permutes the heads at random in training and takes their mean at
inference, `shift` rolls them by one, and `reweight` scales each head by its share of the norm. A
norm over more than one token lets a token see others that attention hid from it: over a sequence
its future, over a batch other sequences. Only training draws random numbers.

Shapes: b batch, h heads, n tokens, d head width.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from heed.config import MERGES, ModelConfig
from heed.config.registry import register

NORM_AXES = {"token": (3,), "sequence": (2, 3), "batch": (0, 2, 3)}


@register
class Merge(nn.Module):
    """The base class of head merges, and `concat`: the heads side by side.

    Other merges change the heads before that.
    """

    name: ClassVar[str] = "concat"

    def __init__(self, *, training_only: bool = False) -> None:
        super().__init__()
        self.training_only = training_only

    @classmethod
    def from_config(cls, config: ModelConfig) -> Self:
        """The merge as a config describes it."""
        return cls(training_only=config.merge_when == "training")

    def forward(self, heads_bhnd: Tensor, real_bn: Tensor | None = None) -> Tensor:
        """One vector [b, n, h·d] a token. `real_bn` marks the tokens that are not padding."""
        if self.training or not self.training_only:
            heads_bhnd = self.change(heads_bhnd, real_bn)
        return heads_bhnd.transpose(1, 2).flatten(2)

    def change(self, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        """The heads as this merge changes them; `concat` leaves them as they are.

        A merge may draw random numbers where `self.training` is True, and only there.
        """
        return heads_bhnd


@register
class Shuffle(Merge):
    """In training a new random order of the heads at every call, the same for all tokens.

    Inference draws nothing and takes the expectation: every head is as often in one place as in
    another, so each place gets the mean of the heads. The linear layer that follows makes this the
    exact mean of its outputs over all orders, as dropout's scaling is for one layer.
    """

    name = "shuffle"

    def change(self, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        if not self.training:
            return heads_bhnd.mean(dim=1, keepdim=True).expand_as(heads_bhnd)
        order = torch.rand(heads_bhnd.shape[1], device=heads_bhnd.device).argsort()
        return heads_bhnd.index_select(1, order)


@register
class Shift(Merge):
    """Each head takes the place of the next, the last that of the first."""

    name = "shift"

    def change(self, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        return heads_bhnd.roll(1, dims=1)


@register
class Reweight(Merge):
    """Each head times its share of the norm: head · ‖head‖ / Σ ‖heads‖."""

    name = "reweight"

    def __init__(self, *, over: str = "token", training_only: bool = False) -> None:
        super().__init__(training_only=training_only)
        self.axes = NORM_AXES[over]

    @classmethod
    def from_config(cls, config: ModelConfig) -> Self:
        """The merge as a config describes it."""
        return cls(over=config.reweight_over, training_only=config.merge_when == "training")

    def change(self, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        heads_f32 = heads_bhnd.float()
        if real_bn is not None:  # padding must not count towards a norm
            heads_f32 = heads_f32 * real_bn[:, None, :, None]
        # The floor keeps the gradient of the norm finite where a head is all zeros.
        squares = heads_f32.square().sum(self.axes, keepdim=True)
        norms = squares.clamp(min=torch.finfo(torch.float32).tiny).sqrt()
        return heads_bhnd * (norms / norms.sum(1, keepdim=True)).to(heads_bhnd.dtype)


def build_merge(config: ModelConfig) -> Merge:
    """The merge that a config names."""
    merge: Merge = MERGES[config.merge].from_config(config)
    return merge
