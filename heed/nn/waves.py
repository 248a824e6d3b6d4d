"""Sines and cosines of positions, and the wavelengths they share with rotations."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int, *, halves: bool = False) -> Tensor:
    """The sinusoids of integer positions, in pairs as the paper prints them, or in two halves."""
    angles = positions[..., None].float() * wavelengths(width, 10000.0, positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-2 if halves else -1).flatten(-2)


def wavelengths(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width) for i = 0 … width/2 - 1, in float32."""
    even = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    return torch.exp(even * (-math.log(base) / width))
