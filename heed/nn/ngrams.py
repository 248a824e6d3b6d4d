"""Hashed n-gram features: a learned vector for every n-gram of tokens or words, summed.

A linear model over n-grams of characters or words is hard to beat where labeled text is scarce.
This is one with vectors in the place of weights (fastText: Joulin et al. 2017), added to what a
classifier's stack computes (wide and deep: Cheng et al. 2016). N-grams that all classes share carry
no information, so they may be weighted by how much their counts differ between classes (Wang and
Manning 2012).

Shapes: b batch, n tokens or words, k lengths of n-grams, m n-grams, r rows, c classes,
v vocabulary, w model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.initialization import Embedding
from heed.nn.kernels.linear import Dropout

PRIME, BASE = 2**31 - 1, 1_000_003
"""The hash of an n-gram is Σ (id + 1) · BASE^index modulo PRIME (Karp and Rabin 1987): no product
is larger than an integer of 64 bits, on any machine."""
WORD_BASE, MAX_WORD_LENGTH = 998_244_353, 64
"""Words are hashed with another base, so that a word differs from the n-gram of its letters. The
order of letters counts up to this length."""


class NgramFeatures(nn.Module):
    """One vector per text: the sum over its n-grams of 1, 2, … `ngrams` tokens, over √tokens.

    With `word_ngrams`, n-grams of up to so many words are added. N-grams share `ngram_buckets` rows
    by their hash, so no list of them is needed (Weinberger et al. 2009). Rows begin at zero: one
    that training never met contributes nothing. In training a share of n-grams is dropped, so that
    none is relied on.
    """

    between_v: Tensor | None
    """1 for each token that separates words, 0 for others; None without `word_ngrams`."""
    weight_r: Tensor | None
    """The weight of an n-gram in this row; None where all weigh the same."""
    powers: Tensor

    def __init__(self, config: ModelConfig, vocab: int) -> None:
        super().__init__()
        self.lengths, self.word_lengths = config.ngrams, config.word_ngrams
        self.table = Embedding(config.ngram_buckets, config.width, std=0.0)
        self.dropout = Dropout(config.ngram_dropout)
        weights = torch.ones(config.ngram_buckets) if config.ngram_log_count_ratio else None
        self.register_buffer("weight_r", weights)
        self.register_buffer("between_v", torch.zeros(vocab) if config.word_ngrams else None)
        powers = [pow(WORD_BASE, place + 1, PRIME) for place in range(MAX_WORD_LENGTH)]
        self.register_buffer("powers", torch.tensor(powers), persistent=False)

    def forward(self, ids_bn: Tensor, mask: Tensor | None = None) -> Tensor:
        """[b, n] to [b, w]; a text with no real token gives zeros."""
        real_bn = torch.ones_like(ids_bn, dtype=torch.bool) if mask is None else mask
        rows_bm, factor_bm = self.rows(ids_bn, real_bn)
        vectors_bmw = self.table(rows_bm)
        factor_bm = self.dropout(factor_bm.to(vectors_bmw.dtype))
        if self.weight_r is not None:
            factor_bm = factor_bm * self.weight_r[rows_bm]
        sum_bw = (factor_bm[:, None] @ vectors_bmw)[:, 0]
        return sum_bw / _count(real_bn).sqrt()

    def rows(self, ids_bn: Tensor, real_bn: Tensor) -> tuple[Tensor, Tensor]:
        """The row of every possible n-gram of a text, and its factor, 0 where absent; [b, m].

        N-grams of words are fewer: they are scaled up by √(tokens / words).
        """
        rows_bkn, factor_bkn = ngram_ids(ids_bn, real_bn, self.lengths)
        if self.between_v is not None:
            inside_bn = real_bn & (self.between_v[ids_bn] == 0)
            word_bn, present_bn = word_ids(ids_bn, inside_bn, self.powers)
            word_rows_bkn, complete_bkn = ngram_ids(word_bn, present_bn, self.word_lengths)
            tokens_b1, words_b1 = (_count(x_bn) for x_bn in (real_bn, present_bn))
            word_factor_b11 = (tokens_b1 / words_b1).sqrt()[:, None]
            factor_bkn = torch.cat([factor_bkn, complete_bkn * word_factor_b11], dim=1)
            rows_bkn = torch.cat([rows_bkn, word_rows_bkn], dim=1)
        return rows_bkn.flatten(1) % self.table.num_embeddings, factor_bkn.flatten(1)


def log_count_ratios(counts_cr: Tensor, added: float) -> Tensor:
    """How much classes differ in an n-gram's count: max - min over c of log(count + added), [r].

    Counts are first scaled to the same total for each class. For two classes this is the absolute
    log-count ratio (Wang and Manning 2012). 0 where all classes have it equally often, or none has.
    """
    sums_c1 = counts_cr.sum(dim=1, keepdim=True).clamp(min=1)
    logs_cr = (counts_cr * (sums_c1.mean() / sums_c1) + added).log()
    return logs_cr.amax(dim=0) - logs_cr.amin(dim=0)


def ngram_ids(ids_bn: Tensor, real_bn: Tensor, lengths: int) -> tuple[Tensor, Tensor]:
    """The hash of the n-gram of 1, 2, … `lengths` tokens that ends at each token, [b, k, n].

    And whether it is complete, [b, k, n]: all its tokens are in the text, and real.
    """
    hash_bn, complete_bn = torch.zeros_like(ids_bn), torch.ones_like(real_bn)
    hashes, completes, power = [], [], 1
    for back in range(lengths):
        id_bn, present_bn = (_shift_right(x, back) for x in (ids_bn, real_bn))
        hash_bn = (hash_bn + (id_bn + 1) * power) % PRIME
        complete_bn = complete_bn & present_bn
        power = power * BASE % PRIME
        hashes.append(hash_bn)
        completes.append(complete_bn)
    return torch.stack(hashes, dim=1), torch.stack(completes, dim=1)


def word_ids(ids_bn: Tensor, inside_bn: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """The hash of a text's first, second, … word, and whether there is such a word, both [b, n].

    A word is a maximal run of consecutive tokens that are `inside` one.
    """
    index_bn = torch.arange(ids_bn.shape[1], device=ids_bn.device).expand_as(ids_bn)
    first_bn = inside_bn & ~_shift_right(inside_bn, 1)
    which_bn = (first_bn.cumsum(dim=1) - 1).clamp(min=0)
    start_bn = torch.zeros_like(ids_bn).scatter_add(1, which_bn, index_bn * first_bn)
    within_bn = (index_bn - start_bn.gather(1, which_bn)).clamp(0, len(powers) - 1)
    term_bn = (ids_bn + 1) * powers[within_bn] % PRIME * inside_bn
    hash_bn = torch.zeros_like(ids_bn).scatter_add(1, which_bn, term_bn) % PRIME
    return hash_bn, index_bn < first_bn.sum(dim=1, keepdim=True)


def _shift_right(x_bn: Tensor, back: int) -> Tensor:
    """The token `back` positions earlier; zero where there is none."""
    return F.pad(x_bn, (back, 0))[:, : x_bn.shape[1]]


def _count(real_bn: Tensor) -> Tensor:
    """The number of real tokens, [b, 1]; at least one, to divide by."""
    return real_bn.sum(dim=1, keepdim=True).clamp(min=1)
