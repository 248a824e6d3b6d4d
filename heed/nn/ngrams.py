"""What stands side by side: a learned vector for every run of a few tokens, summed over a text.

A linear model over runs of characters or words is hard to beat where labelled text is scarce. This
is one with vectors in the place of weights (fastText: Joulin et al. 2017), for a classifier to read
beside what its stack says (wide and deep: Cheng et al. 2016). What classes have in common tells
them not apart, so runs may weigh as much as their counts differ (Wang and Manning 2012).

Shapes: b batch, n tokens or words, k lengths of runs, m runs, r rows, c classes, v vocabulary,
w model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.nn.embedding import Table
from heed.nn.kernels.linear import Dropout

PRIME, BASE = 2**31 - 1, 1_000_003
"""Runs are numbered by Σ (id + 1) · BASE^place modulo PRIME (Karp and Rabin 1987): no product is
larger than an integer of 64 bits, on any machine."""
WORD_BASE, LONGEST_WORD = 998_244_353, 64
"""Words are numbered so, too, from another base: a word is no run of its letters. The order of
letters counts up to the longest word."""


class NgramFeatures(nn.Module):
    """One vector a text: the sum over its runs of 1, 2, … `ngrams` tokens, over √tokens.

    With `word_ngrams` those of so many words are added. Runs share `ngram_buckets` rows by their
    number, so no list of runs is kept (Weinberger et al. 2009). Rows begin at zero: one that
    training never met says nothing, and none can be told apart by chance. In training a share of
    runs is left out, so that none is relied on.
    """

    between_v: Tensor | None
    """1 for each token that parts words, 0 for others; None where words are not looked at."""
    weight_r: Tensor | None
    """What a run in this row counts for; None, all count alike."""
    powers: Tensor

    def __init__(self, config: ModelConfig, vocab: int) -> None:
        super().__init__()
        self.lengths, self.word_lengths = config.ngrams, config.word_ngrams
        self.table = Table(config.ngram_buckets, config.width, std=0.0)
        self.dropout = Dropout(config.ngram_dropout)
        weights = torch.ones(config.ngram_buckets) if config.ngram_log_count_ratio else None
        self.register_buffer("weight_r", weights)
        self.register_buffer("between_v", torch.zeros(vocab) if config.word_ngrams else None)
        powers = [pow(WORD_BASE, place + 1, PRIME) for place in range(LONGEST_WORD)]
        self.register_buffer("powers", torch.tensor(powers), persistent=False)

    def forward(self, ids_bn: Tensor, mask: Tensor | None = None) -> Tensor:
        """[b, n] to [b, w]; a text with no real token gives zeros."""
        real_bn = torch.ones_like(ids_bn, dtype=torch.bool) if mask is None else mask
        rows_bm, size_bm = self.rows(ids_bn, real_bn)
        vectors_bmw = self.table(rows_bm)
        kept_bm = self.dropout(size_bm.to(vectors_bmw.dtype))
        if self.weight_r is not None:
            kept_bm = kept_bm * self.weight_r[rows_bm]
        sum_bw = (kept_bm[:, None] @ vectors_bmw)[:, 0]
        return sum_bw / _count(real_bn).sqrt()

    def rows(self, ids_bn: Tensor, real_bn: Tensor) -> tuple[Tensor, Tensor]:
        """The row of every run that a text may have, and its size, 0 if it has it not; [b, m].

        Runs of words are few: their sum over √words is what the others' is over √tokens.
        """
        numbers_bkn, size_bkn = runs(ids_bn, real_bn, self.lengths)
        if self.between_v is not None:
            inside_bn = real_bn & (self.between_v[ids_bn] == 0)
            word_bn, there_bn = words(ids_bn, inside_bn, self.powers)
            more_bkn, whole_bkn = runs(word_bn, there_bn, self.word_lengths)
            tokens_b1, words_b1 = (_count(x_bn) for x_bn in (real_bn, there_bn))
            size_of_word_b11 = (tokens_b1 / words_b1).sqrt()[:, None]
            size_bkn = torch.cat([size_bkn, whole_bkn * size_of_word_b11], dim=1)
            numbers_bkn = torch.cat([numbers_bkn, more_bkn], dim=1)
        return numbers_bkn.flatten(1) % self.table.num_embeddings, size_bkn.flatten(1)


def contrast(counts_cr: Tensor, added: float) -> Tensor:
    """By how much the classes differ in having a run, max - min over c of log(count + added), [r].

    Counts are first made those of classes that have as many runs each. Of two classes this is the
    size of the log-count ratio (Wang and Manning 2012). 0 where all have it alike, or none has it.
    """
    sums_c1 = counts_cr.sum(dim=1, keepdim=True).clamp(min=1)
    logs_cr = (counts_cr * (sums_c1.mean() / sums_c1) + added).log()
    return logs_cr.amax(dim=0) - logs_cr.amin(dim=0)


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


def words(ids_bn: Tensor, inside_bn: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """The number of a text's first, second, … word, and whether there is one, both [b, n].

    A word is tokens side by side that are `inside` one, wherever in the text they stand.
    """
    place_bn = torch.arange(ids_bn.shape[1], device=ids_bn.device).expand_as(ids_bn)
    first_bn = inside_bn & ~_earlier(inside_bn, 1)
    which_bn = (first_bn.cumsum(dim=1) - 1).clamp(min=0)
    start_bn = torch.zeros_like(ids_bn).scatter_add(1, which_bn, place_bn * first_bn)
    within_bn = (place_bn - start_bn.gather(1, which_bn)).clamp(0, len(powers) - 1)
    part_bn = (ids_bn + 1) * powers[within_bn] % PRIME * inside_bn
    number_bn = torch.zeros_like(ids_bn).scatter_add(1, which_bn, part_bn) % PRIME
    return number_bn, place_bn < first_bn.sum(dim=1, keepdim=True)


def _earlier(x_bn: Tensor, back: int) -> Tensor:
    """What stood so many places before; zeros where nothing did."""
    return F.pad(x_bn, (back, 0))[:, : x_bn.shape[1]]


def _count(real_bn: Tensor) -> Tensor:
    """How many there are, [b, 1]; at least one, to divide by."""
    return real_bn.sum(dim=1, keepdim=True).clamp(min=1)
