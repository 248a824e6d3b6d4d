"""Padding: sequences of token ids as one rectangular batch, with the mask of real tokens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def pad_sequences(
    sequences: list[NDArray[np.int64]], length: int, fill: int
) -> tuple[Tensor, Tensor]:
    """Pad sequences on the right to one length; also the mask of real tokens."""
    out = np.full((len(sequences), length), fill, np.int64)
    mask = np.zeros((len(sequences), length), np.bool_)
    for i, sequence in enumerate(sequences):
        out[i, : len(sequence)] = sequence
        mask[i, : len(sequence)] = True
    return torch.from_numpy(out), torch.from_numpy(mask)
