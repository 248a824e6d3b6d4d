"""What a head attends to, as sums over a batch of attention weights.

Most metrics are shares: the weight on some keys, summed over the queries that have such a key, and
divided by the number of these queries. So a metric is a mask of cells, and all metrics of all heads
of a layer are one matrix product. Queries that see a single key have no choice and do not count.

Shapes: b examples, h heads, n queries, m keys, k metrics; N target words, M source words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heed.arrays import Floats
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.probe.examples import Inputs, Links

ENTROPY, EVENNESS, DISTANCE, REACH = "entropy", "evenness", "distance", "reach"
HIDDEN_FROM_CAUSAL = ("next", "end")
"""Metrics of later tokens, which a causal head does not see."""
INDUCTION = "induction"
METRICS = {
    ENTROPY: "entropy of a query's weights, in bits",
    EVENNESS: "entropy as a share of that of uniform attention over the visible keys",
    DISTANCE: "mean distance of query and key in tokens; across, of the key from the diagonal",
    REACH: "distance as a share of that of uniform attention",
    "previous": "share of weight on the token before the query",
    "next": "share of weight on the token after the query",
    "same": "share of weight on the query itself",
    "duplicate": "share of weight on other occurrences of the query's token",
    "first": "share of weight on the first token",
    "end": "share of weight on the last token",
    "punctuation": "share of weight on punctuation",
    INDUCTION: "share of weight on tokens that followed earlier occurrences of the query's token",
}
"""What each metric measures."""
ENDS = {
    ENTROPY: ("looks at fewer tokens", "spreads its weight over more"),
    EVENNESS: ("looks at fewer tokens", "is more even; uniform attention has 1"),
    DISTANCE: ("looks nearer", "looks farther"),
    REACH: ("looks nearer", "looks farther; uniform attention has 1"),
}
"""What a lower and a higher value of a metric mean."""
SHARE_ENDS = ("least weight there", "most weight there")
"""The same for metrics that are a share of the weight."""


@dataclass(frozen=True)
class TokenKinds:
    """Which ids of a vocabulary are punctuation, and which are special tokens."""

    punctuation_v: Tensor
    special_v: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, device: torch.device) -> TokenKinds:
        """The kinds of all ids of a tokenizer."""
        vocab = range(tokenizer.vocab_size)
        ordinary = set(tokenizer.strip_special_tokens(vocab))
        is_punctuation = [
            i in ordinary and _is_punctuation(token)
            for i, token in enumerate(tokenizer.ids_to_tokens(vocab))
        ]
        is_special = [i not in ordinary for i in vocab]
        return cls(
            torch.tensor(is_punctuation, device=device), torch.tensor(is_special, device=device)
        )


def _is_punctuation(token: str) -> bool:
    """Whether a token has signs alone, white space apart."""
    signs = [c for c in token if not c.isspace() and c != "▁"]
    return bool(signs) and not any(c.isalnum() for c in signs)


@dataclass(frozen=True)
class Cells:
    """Which cells of a batch's attention maps each metric adds up."""

    names: tuple[str, ...]
    cells_bnmk: Tensor
    """What a weight counts for: 1 or 0, or a distance; 0 where the query does not count."""
    counts_bk: Tensor
    """Queries that count."""
    visible_bnm: Tensor
    counted_bn: Tensor
    """Queries that see two or more keys."""

    @classmethod
    def build(cls, metrics: dict[str, tuple[Tensor, Tensor]], visible_bnm: Tensor) -> Cells:
        """From the cells [b, n, m] of each metric, and the queries [b, n] that have such keys."""
        counted_bn = visible_bnm.sum(dim=-1) > 1
        cells = [
            (cells_bnm * visible_bnm * (has_bn & counted_bn)[..., None]).float()
            for cells_bnm, has_bn in metrics.values()
        ]
        counts = [(has_bn & counted_bn).sum(dim=1) for _, has_bn in metrics.values()]
        return cls(
            (ENTROPY, EVENNESS, REACH, *metrics),
            torch.stack(cells, dim=-1),
            torch.stack(counts, dim=-1),
            visible_bnm,
            counted_bn,
        )

    def denominators(self) -> Floats:
        """[b, k]: what the sums of each metric are divided by."""
        seen_bn = self.visible_bnm.sum(dim=-1).clamp(min=1)
        largest_b = (seen_bn.log2() * self.counted_bn).sum(dim=1)
        distance_b = self._sums(self._uniform_weights())[:, 0, self._distance]
        compared = torch.stack([self.counted_bn.sum(dim=1), largest_b, distance_b], dim=1)
        return _to_numpy(torch.cat([compared, self.counts_bk], dim=1))

    def numerators(self, weights_bhnm: Tensor) -> Floats:
        """[b, h, k]: the sums of each metric of a layer's heads."""
        entropy_bhn = torch.special.entr(weights_bhnm.float()).sum(dim=-1) / math.log(2)
        entropy_bh = (entropy_bhn * self.counted_bn[:, None]).sum(dim=-1)
        sums_bhk = self._sums(weights_bhnm)
        compared = [entropy_bh, entropy_bh, sums_bhk[..., self._distance]]
        return _to_numpy(torch.cat([torch.stack(compared, dim=-1), sums_bhk], dim=-1))

    def uniform(self) -> Floats:
        """[b, 1, k]: the sums that uniform attention over the visible keys would have."""
        return self.numerators(self._uniform_weights())

    @property
    def _distance(self) -> int:
        return self.names.index(DISTANCE) - (len(self.names) - self.counts_bk.shape[1])

    def _sums(self, weights_bhnm: Tensor) -> Tensor:
        """[b, h, k]: the sums over cells."""
        return weights_bhnm.float().flatten(2) @ self.cells_bnmk.flatten(1, 2)

    def _uniform_weights(self) -> Tensor:
        seen_bn1 = self.visible_bnm.sum(dim=-1, keepdim=True).clamp(min=1)
        return (self.visible_bnm / seen_bn1)[:, None]


def self_cells(ids_bn: Tensor, real_bn: Tensor, kinds: TokenKinds, *, causal: bool) -> Cells:
    """The cells of self-attention's metrics; with `causal` also those of induction."""
    n = ids_bn.shape[1]
    index = torch.arange(n, device=ids_bn.device)
    offset_nm = index[None] - index[:, None]
    visible_bnm = (real_bn[:, :, None] & real_bn[:, None]).clone()
    if causal:
        visible_bnm &= offset_nm <= 0
    last_b = real_bn.sum(dim=1) - 1
    everywhere = torch.ones_like(real_bn)
    equal_bnm = (ids_bn[:, :, None] == ids_bn[:, None]) & ~kinds.special_v[ids_bn][:, :, None]
    twin_bnm = equal_bnm & visible_bnm & (offset_nm != 0)
    metrics = {
        DISTANCE: (offset_nm.abs(), everywhere),
        "previous": (offset_nm == -1, index > 0),
        "next": (offset_nm == 1, index < last_b[:, None]),
        "same": (offset_nm == 0, everywhere),
        "duplicate": (twin_bnm, twin_bnm.any(dim=-1)),
        "first": (index == 0, index > 0),
        "end": (index == last_b[:, None, None], index < last_b[:, None]),
        "punctuation": (kinds.punctuation_v[ids_bn][:, None], everywhere),
    }
    if causal:
        # Key j follows an earlier occurrence, j - 1, of the query's token.
        follows_bnm = torch.zeros_like(twin_bnm)
        follows_bnm[:, :, 1:] = twin_bnm[:, :, :-1]
        follows_bnm &= offset_nm < 0
        metrics = {name: metrics[name] for name in metrics if name not in HIDDEN_FROM_CAUSAL}
        metrics[INDUCTION] = (follows_bnm, follows_bnm.any(dim=-1))
    return Cells.build(_expand(metrics, visible_bnm), visible_bnm)


def cross_cells(inputs: Inputs, kinds: TokenKinds) -> Cells:
    """The cells of cross-attention's metrics."""
    source_bm, source_real_bm, real_bn = inputs.source_bm, inputs.source_real_bm, inputs.real_bn
    if source_bm is None or source_real_bm is None:
        raise ValueError("Cross-attention needs sources.")
    index_n, index_m = (
        torch.arange(size, device=real_bn.device) for size in (real_bn.shape[1], source_bm.shape[1])
    )
    visible_bnm = real_bn[:, :, None] & source_real_bm[:, None]
    n_b, m_b = real_bn.sum(dim=1), source_real_bm.sum(dim=1)
    diagonal_bn = index_n * ((m_b - 1) / (n_b - 1).clamp(min=1))[:, None]
    everywhere = torch.ones_like(real_bn)
    metrics = {
        DISTANCE: ((index_m - diagonal_bn[..., None]).abs(), everywhere),
        "first": (index_m == 0, everywhere),
        "end": (index_m == (m_b - 1)[:, None, None], everywhere),
        "punctuation": (kinds.punctuation_v[source_bm][:, None], everywhere),
    }
    return Cells.build(_expand(metrics, visible_bnm), visible_bnm)


class WordMaps:
    """Attention by word, and its links, for the sentence pairs of a batch that were read whole."""

    def __init__(self, inputs: Inputs, tokenizer: Tokenizer) -> None:
        examples, device = inputs.examples, inputs.ids_bn.device
        self.whole_b = np.array([one.is_whole for one in examples])
        sizes = np.array([[len(text.split()) for text in one.texts] for one in examples])
        self.source_words, self.target_words = sizes[:, 0], sizes[:, 1]
        n, m = inputs.ids_bn.shape[1], 0 if inputs.source_bm is None else inputs.source_bm.shape[1]
        rows = np.zeros((len(examples), int(self.target_words.max()), n))
        columns = np.zeros((len(examples), m, int(self.source_words.max())))
        for i, one in enumerate(examples):
            if one.is_whole:
                source_of, target_of = map(tokenizer.word_indices, one.texts)
                columns[i, np.arange(len(source_of)), source_of] = 1
                rows[i, target_of, np.arange(len(target_of))] = 1
        rows /= np.maximum(1, rows.sum(axis=2, keepdims=True))
        self._rows_bNn = torch.from_numpy(rows).to(device)[:, None]
        self._columns_bmM = torch.from_numpy(columns).to(device)[:, None]

    def weights(self, weights_bhnm: Tensor) -> Tensor:
        """[b, h, N, M]: summed over a source word's tokens, averaged over a target word's."""
        return self._rows_bNn @ weights_bhnm.double() @ self._columns_bmM

    def hits(self, weights_bhnm: Tensor, gold_bNM: Tensor) -> Floats:
        """[b, h]: target words whose most attended source word is linked to them in `gold`."""
        best_bhN1 = self.weights(weights_bhnm).argmax(dim=-1, keepdim=True)
        gold_bhNM = gold_bNM[:, None].expand(-1, best_bhN1.shape[1], -1, -1)
        return _to_numpy(gold_bhNM.gather(-1, best_bhN1).sum(dim=(-1, -2)))

    def link_matrix(self, links: list[Links | None], device: torch.device) -> Tensor:
        """[b, N, M]: 1 where two words are linked."""
        matrix = np.zeros(
            (len(links), int(self.target_words.max()), int(self.source_words.max())), np.float32
        )
        for i, pair_links in enumerate(links):
            for source, target in pair_links or ():
                matrix[i, target, source] = 1
        return torch.from_numpy(matrix).to(device)

    def alignment_errors(
        self, weights_bhnm: Tensor, links: list[Links | None]
    ) -> tuple[Floats, Floats]:
        """[b, h] and [b, 1]: numerators and denominators of the alignment error rate.

        |A| + |G| - 2 |A ∩ G| over |A| + |G| (Och and Ney 2003), with one link a target word in A. A
        pair whose links are not known, or one that was cut, adds nothing.
        """
        usable_b = self.whole_b & np.array([pair_links is not None for pair_links in links])
        gold_bNM = self.link_matrix(links, weights_bhnm.device)
        sizes_b = self.target_words + _to_numpy(gold_bNM.sum(dim=(1, 2)))
        errors_bh = sizes_b[:, None] - 2 * self.hits(weights_bhnm, gold_bNM)
        return errors_bh * usable_b[:, None], (sizes_b * usable_b)[:, None]


def _expand(
    metrics: dict[str, tuple[Tensor, Tensor]], like_bnm: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Cells as [b, n, m] and queries as [b, n]."""
    return {
        name: (cells.expand_as(like_bnm), queries.expand_as(like_bnm[..., 0]))
        for name, (cells, queries) in metrics.items()
    }


def _to_numpy(x: Tensor) -> Floats:
    return np.asarray(x.double().cpu().numpy())
