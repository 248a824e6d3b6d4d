"""The token embedding of a model: learned vectors by token id, and by token type.

Shapes: b batch, n tokens, w model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heed.nn.initialization import Embedding
from heed.nn.kernels.linear import look_up


class TokenEmbedding(nn.Module):
    """Vectors for token ids, from a table that can also serve as the output projection.

    The table is initialized at w^-power and multiplied by w^power, so vectors begin at unit size.
    Another `scale` leaves the table as it is. What is added to tokens, their types or learned
    positions, begins half as large as they are.
    """

    def __init__(
        self, vocab: int, width: int, *, power: float, scale: float | None = None, types: int = 0
    ) -> None:
        super().__init__()
        unit_scale = width**power
        self.scale = unit_scale if scale is None else scale
        self.table = Embedding(vocab, width, std=1 / unit_scale)
        self.types = Embedding(types, width, std=0.5 * self.scale / unit_scale) if types else None

    def forward(self, ids_bn: Tensor, types_bn: Tensor | None = None) -> Tensor:
        """table[id] · scale, plus the vector of the token's type (type 0 unless given)."""
        x_bnw = look_up(self.table, ids_bn, self.scale)
        if self.types is None:
            return x_bnw
        return x_bnw + self.types(torch.zeros_like(ids_bn) if types_bn is None else types_bn)
