"""Normalization layers: LayerNorm or RMSNorm, as the recipe says."""

from __future__ import annotations

from torch import nn

from heed.config import ModelConfig


def build_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_eps)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.bias)
