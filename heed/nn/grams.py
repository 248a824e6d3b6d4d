"""What stands side by side: a learned vector for every run of a few tokens, summed over a text.

A linear model over runs of characters or words is hard to beat where labelled text is scarce. This
is one with vectors in the place of weights (fastText: Joulin et al. 2017), for a classifier to read
beside what its stack says (wide and deep: Cheng et al. 2016).

Shapes: b batch, n tokens, k lengths of runs, w model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.layers import Table
from heed.nn.maps import Dropout

PRIME, BASE = 2**31 - 1, 1_000_003
"""Runs are numbered by Σ (id + 1) · BASE^place modulo PRIME (Karp and Rabin 1987): no product is
larger than an integer of 64 bits, on any machine."""


class Grams(nn.Module):
    """One vector a text: the sum over its runs of 1, 2, … `ngrams` tokens, over √tokens.

    Runs share `ngram_buckets` rows by their number, so no list of runs is kept (Weinberger et al.
    2009). Rows begin at zero: one that training never met says nothing, and none can be told apart
    by chance. In training a share of runs is left out, so that none is relied on.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.lengths = config.ngrams
        self.table = Table(config.ngram_buckets, config.width, std=0.0)
        self.dropout = Dropout(config.ngram_dropout)

    def forward(self, ids_bn: Tensor, mask: Tensor | None = None) -> Tensor:
        """[b, n] to [b, w]; a text with no real token gives zeros."""
        real_bn = torch.ones_like(ids_bn, dtype=torch.bool) if mask is None else mask
        rows_bkn, whole_bkn = runs(ids_bn, real_bn, self.lengths)
        vectors_bmw = self.table(rows_bkn.flatten(1) % self.table.num_embeddings)
        kept_bm = self.dropout(whole_bkn.flatten(1).to(vectors_bmw.dtype))
        sum_bw = (kept_bm[:, None] @ vectors_bmw)[:, 0]
        return sum_bw / real_bn.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


def runs(ids_bn: Tensor, real_bn: Tensor, lengths: int) -> tuple[Tensor, Tensor]:
    """The number of the run of 1, 2, … `lengths` tokens that ends at each token, both [b, k, n].

    And whether there is one: all its tokens are in the text, and real.
    """
    number_bn, whole_bn = torch.zeros_like(ids_bn), torch.ones_like(real_bn)
    numbers, wholes, power = [], [], 1
    for back in range(lengths):
        id_bn, there_bn = (_earlier(x, back) for x in (ids_bn, real_bn))
        number_bn = (number_bn + (id_bn + 1) * power) % PRIME
        whole_bn = whole_bn & there_bn
        power = power * BASE % PRIME
        numbers.append(number_bn)
        wholes.append(whole_bn)
    return torch.stack(numbers, dim=1), torch.stack(wholes, dim=1)


def _earlier(x_bn: Tensor, back: int) -> Tensor:
    """What stood so many places before; zeros where nothing did."""
    return F.pad(x_bn, (back, 0))[:, : x_bn.shape[1]]
