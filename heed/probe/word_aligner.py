"""A statistical word aligner: IBM Model 1 and an HMM, both directions, symmetrized.

Model 1 (Brown et al. 1993) learns translation probabilities t(f | e) of words. The HMM (Vogel et
al. 1996) adds the probability of the jump from the source word of one target word to that of the
next. A target word may come from no source word, as in Och and Ney (2003). Both are fitted by EM,
which never lowers the likelihood of the pairs.

Shapes: b pairs, n target words, m source words, k entries of the translation table, d jumps.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from heed.arrays import Floats, Ints
from heed.errors import DataError, nearest

Links = set[tuple[int, int]]
"""(source word, target word), counted from 0."""
Pair = tuple[str, str]

MODEL_1_ITERATIONS, HMM_ITERATIONS = 5, 5
FIRST_NULL_SHARE = 0.05
"""The share of target words that come from no source word, before the HMM is fitted."""
MAX_JUMP = 10
"""Longer jumps share one probability in each direction."""
UNSEEN = 1e-9
"""The probability of a word pair, or of a jump, that fitting never saw."""
BATCH_CELLS = 1 << 20
"""Cells [b, n, m] in memory at once."""
NULL, PADDING = 0, -1
"""The ids of the empty source word and of no word; those of words start at 1."""
JUMP_STEPS = 3
"""Steps towards the best jump weights in each iteration of EM."""
TINY = 1e-300
"""Divisors and arguments of logarithms are at least this."""


def normalize_word(word: str) -> str:
    """A word without case and without the punctuation around it; punctuation alone stays."""
    letters = [unicodedata.category(character)[0] not in "PS" for character in word]
    if not any(letters):
        return word
    first, last = letters.index(True), len(letters) - letters[::-1].index(True)
    return word[first:last].casefold()


@dataclass
class DirectedAligner:
    """P(target | source) of Model 1 and then of the HMM, for sentences of word ids."""

    keys_k: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Source id · targets + target id, of the word pairs that occur in a sentence pair, sorted."""
    translation_k: Floats = field(default_factory=lambda: np.zeros(0))
    """t(target | source), the last entry standing for every pair that does not occur."""
    jump_d: Floats = field(default_factory=lambda: np.ones(2 * MAX_JUMP + 1))
    """Weights of the jumps -MAX_JUMP … MAX_JUMP, normalized over the words of a source."""
    null_share: float = FIRST_NULL_SHARE
    """The probability that a target word comes from no source word."""
    target_count: int = 1
    log_likelihoods: dict[str, list[float]] = field(default_factory=dict)
    """By model, of all pairs before each iteration of EM and after the last."""

    def fit(self, sentences: Sequence[tuple[Ints, Ints]]) -> None:
        """Fit to pairs of source and target ids."""
        self.target_count = 1 + max(int(target.max()) for _, target in sentences)
        self.keys_k = np.unique(
            np.concatenate(
                [self._keys(source[None], target[None]).ravel() for source, target in sentences]
            )
        )
        source_of_k = self.keys_k // self.target_count
        self.translation_k = np.append(1.0 / np.bincount(source_of_k)[source_of_k], UNSEEN)
        batches = [
            _Batch(lengths, self._entries(sources, targets))
            for _, lengths, sources, targets in _group_by_length(sentences)
        ]
        expect: tuple[tuple[str, int, Callable[[_Batch, Floats], _Posteriors]], ...] = (
            ("model 1", MODEL_1_ITERATIONS, _expect_model_1),
            ("hmm", HMM_ITERATIONS, self._expect_hmm),
        )
        for name, iterations, expectations in expect:
            history = self.log_likelihoods[name] = []
            for i in range(iterations + 1):
                counts = _Counts(len(self.translation_k), max(b.sources for b in batches))
                for batch in batches:
                    counts.add(batch, expectations(batch, self.translation_k))
                history.append(counts.log_likelihood)
                if i < iterations:
                    self._maximize(source_of_k, counts)

    def align(self, sentences: Sequence[tuple[Ints, Ints]]) -> list[Ints]:
        """The most probable source word of each target word [n], -1 where none is."""
        return [words_nm.argmax(axis=-1) - 1 for words_nm in self.posteriors(sentences)]

    def posteriors(self, sentences: Sequence[tuple[Ints, Ints]]) -> list[Floats]:
        """P(source word | target word) [n, 1 + m] by the HMM, the empty word first."""
        posteriors = [np.zeros((0, 1))] * len(sentences)
        translation_k = np.maximum(self.translation_k, UNSEEN)
        for rows, lengths, sources, targets in _group_by_length(sentences):
            batch = _Batch(lengths, self._entries(sources, targets))
            words_bnm = self._expect_hmm(batch, translation_k).words_bnm
            for row, length, words_nm in zip(rows, lengths, words_bnm, strict=True):
                posteriors[row] = words_nm[:, : length + 1]
        return posteriors

    def _keys(self, sources_bm: Ints, targets_bn: Ints) -> Ints:
        """[b, n, 1 + m]: the key of each word pair, the empty source word first."""
        with_null = np.concatenate([np.full((len(sources_bm), 1), NULL), sources_bm], axis=1)
        return with_null[:, None, :] * self.target_count + targets_bn[:, :, None]

    def _entries(self, sources_bm: Ints, targets_bn: Ints) -> Ints:
        """[b, n, 1 + m]: the entry of each word pair in the table, the last where it has none."""
        keys = self._keys(sources_bm, targets_bn)
        entries = np.searchsorted(self.keys_k, keys)
        known = self.keys_k[np.minimum(entries, len(self.keys_k) - 1)] == keys
        # Padding of sources is -1, whose keys are negative; ids beyond the table belong to no key.
        in_range = (targets_bn < self.target_count)[:, :, None]
        return np.where(known & in_range, entries, len(self.keys_k))

    def _maximize(self, source_of_k: Ints, counts: _Counts) -> None:
        """The M-step: t(f | e) by its expected counts, and the jumps."""
        words_k = counts.words_k[:-1]
        totals = np.bincount(source_of_k, words_k)
        self.translation_k[:-1] = words_k / np.maximum(totals[source_of_k], TINY)
        if counts.jumps_d.any():
            self.jump_d = _fit_jumps(self.jump_d, counts)
            self.null_share = float(words_k[source_of_k == NULL].sum() / words_k.sum())

    def _expect_hmm(self, batch: _Batch, translation_k: Floats) -> _Posteriors:
        """The forward and the backward pass, scaled at every word (Rabiner 1989).

        The state is a source word. The first is drawn as a jump from before the source. Each target
        word is translated from the state after a jump, or it comes from the empty word and the
        state stays.
        """
        emit_nbm = batch.probabilities(translation_k).transpose(1, 0, 2)
        null_nb = self.null_share * emit_nbm[..., 0]
        emit_nbm = (1 - self.null_share) * emit_nbm[..., 1:]
        transitions = _transitions(self.jump_d, batch)
        start_bm, move_bmm = transitions[:, 0], transitions[:, 1:]
        forward_nbm, moved_nbm = np.empty_like(emit_nbm), np.empty_like(emit_nbm)
        scale_nb = np.empty(null_nb.shape)
        stay_bm = jump_bm = start_bm
        for i in range(len(emit_nbm)):
            if i:
                stay_bm = forward_nbm[i - 1]
                jump_bm = (stay_bm[:, None] @ move_bmm)[:, 0]
            moved_nbm[i] = jump_bm * emit_nbm[i]
            forward_nbm[i] = moved_nbm[i] + stay_bm * null_nb[i][:, None]
            scale_nb[i] = np.maximum(forward_nbm[i].sum(axis=-1), TINY)
            forward_nbm[i] /= scale_nb[i][:, None]
            moved_nbm[i] /= scale_nb[i][:, None]
        words_bnm = np.empty((emit_nbm.shape[1], len(emit_nbm), 1 + emit_nbm.shape[2]))
        moves_bmm, backward_bm = np.zeros_like(move_bmm), np.ones_like(start_bm)
        for i in range(len(emit_nbm) - 1, -1, -1):
            words_bnm[:, i, 1:] = moved_nbm[i] * backward_bm
            words_bnm[:, i, 0] = ((forward_nbm[i] - moved_nbm[i]) * backward_bm).sum(axis=-1)
            if i:
                arrive_bm = emit_nbm[i] * backward_bm / scale_nb[i][:, None]
                moves_bmm += forward_nbm[i - 1][:, :, None] * move_bmm * arrive_bm[:, None]
                stays = backward_bm * (null_nb[i] / scale_nb[i])[:, None]
                backward_bm = (move_bmm @ arrive_bm[:, :, None])[:, :, 0] + stays
        starts_bm = forward_nbm[0] * backward_bm
        return _Posteriors(float(np.log(scale_nb).sum()), words_bnm, starts_bm, moves_bmm)


class _Batch:
    """Sentence pairs of one target length, as entries [b, n, 1 + m] of the translation table."""

    def __init__(self, lengths_b: Ints, entries_bnm: Ints) -> None:
        self.lengths_b, self.entries_bnm = lengths_b, entries_bnm
        self.sources = entries_bnm.shape[2] - 1
        self.real_bm = np.arange(self.sources) < lengths_b[:, None]

    def probabilities(self, translation_k: Floats) -> Floats:
        """[b, n, 1 + m]: t of every word pair, zero at the padding of sources."""
        real_bm = np.pad(self.real_bm, ((0, 0), (1, 0)), constant_values=True)
        return np.asarray(translation_k[self.entries_bnm] * real_bm[:, None])


@dataclass(frozen=True)
class _Posteriors:
    """What the E-step knows of a batch."""

    log_likelihood: float
    words_bnm: Floats
    """[b, n, 1 + m]: P(source word | target word), the empty word first."""
    starts_bm: Floats | None = None
    """P(first state); None for Model 1, which has no states."""
    moves_bmm: Floats | None = None
    """Expected moves from each source word to each."""


class _Counts:
    """Expected counts of EM, summed over batches."""

    def __init__(self, entries: int, longest: int) -> None:
        self.log_likelihood = 0.0
        self.words_k = np.zeros(entries)
        self.jumps_d = np.zeros(2 * MAX_JUMP + 1)
        self.left_mm = np.zeros((longest + 1, longest + 1))
        """[m, 1 + words]: for sources of m words, how often the start and each word was left."""

    def add(self, batch: _Batch, part: _Posteriors) -> None:
        self.log_likelihood += part.log_likelihood
        entries, weights = batch.entries_bnm.ravel(), part.words_bnm.ravel()
        self.words_k += np.bincount(entries, weights, len(self.words_k))
        if part.starts_bm is None or part.moves_bmm is None:
            return
        index = _jump_index(batch.sources)
        cells = np.concatenate([part.starts_bm.sum(axis=0)[None], part.moves_bmm.sum(axis=0)])
        self.jumps_d += np.bincount(index.ravel(), cells.ravel(), len(self.jumps_d))
        left = np.concatenate(
            [part.starts_bm.sum(axis=1, keepdims=True), part.moves_bmm.sum(axis=2)], axis=1
        )
        np.add.at(self.left_mm[:, : left.shape[1]], batch.lengths_b, left)


def _expect_model_1(batch: _Batch, translation_k: Floats) -> _Posteriors:
    """Model 1: every source word, and the empty one, is as probable as any other before t."""
    joint_bnm = batch.probabilities(translation_k)
    total_bn = np.maximum(joint_bnm.sum(axis=-1), TINY)
    choices = joint_bnm.shape[1] * float(np.log(batch.lengths_b + 1).sum())
    return _Posteriors(float(np.log(total_bn).sum()) - choices, joint_bnm / total_bn[..., None])


def _jump_index(sources: int) -> Ints:
    """[1 + m, m]: the index of the jump from the start (row 0) or from a word to each word."""
    jumps = np.arange(sources)[None] - np.arange(-1, sources)[:, None]
    return np.clip(jumps, -MAX_JUMP, MAX_JUMP) + MAX_JUMP


def _transitions(jump_d: Floats, batch: _Batch) -> Floats:
    """[b, 1 + m, m]: P(next source word | start or source word)."""
    weights_bmm = jump_d[_jump_index(batch.sources)] * batch.real_bm[:, None]
    return np.asarray(weights_bmm / np.maximum(weights_bmm.sum(axis=-1, keepdims=True), TINY))


def _fit_jumps(jump_d: Floats, counts: _Counts) -> Floats:
    """Jump weights that raise the expected log-likelihood.

    They are normalized over the words of each source, so there is no closed form. Hunter's
    minorize-maximize step (2004) for such ratios never lowers it.
    """
    longest = len(counts.left_mm) - 1
    index = _jump_index(longest)  # [1 + longest, longest]
    for _ in range(JUMP_STEPS):
        shares_d = np.zeros_like(jump_d)
        for words in np.flatnonzero(counts.left_mm.any(axis=1)):
            part = index[: words + 1, :words]
            left = counts.left_mm[words, : words + 1]
            per_weight = left / np.maximum(jump_d[part].sum(axis=1), TINY)
            spread = np.broadcast_to(per_weight[:, None], part.shape)
            shares_d += np.bincount(part.ravel(), spread.ravel(), len(jump_d))
        jump_d = np.where(shares_d > 0, counts.jumps_d / np.maximum(shares_d, TINY), jump_d)
    return np.maximum(jump_d / jump_d.sum(), UNSEEN)


def _group_by_length(
    sentences: Sequence[tuple[Ints, Ints]],
) -> Iterator[tuple[list[int], Ints, Ints, Ints]]:
    """Rows, source lengths, padded sources [b, m] and targets [b, n], by the target's length."""
    usable = [i for i, (source, target) in enumerate(sentences) if len(source) and len(target)]
    usable.sort(key=lambda i: (len(sentences[i][1]), len(sentences[i][0])))
    for n, group in groupby(usable, key=lambda i: len(sentences[i][1])):
        rows = list(group)
        while rows:
            longest = len(sentences[rows[-1]][0])
            count = max(1, BATCH_CELLS // ((n + longest) * (longest + 1)))
            part, rows = rows[-count:], rows[:-count]
            lengths = np.array([len(sentences[i][0]) for i in part])
            sources = np.full((len(part), longest), PADDING)
            for row, i in enumerate(part):
                sources[row, : lengths[row]] = sentences[i][0]
            yield part, lengths, sources, np.stack([sentences[i][1] for i in part])


# ----------------------------------------------------------------------------- both directions


class WordAligner:
    """Links between the words of sentence pairs; make one with `fit`.

    Words are those between white space; case and the punctuation around them are ignored.
    """

    def __init__(self) -> None:
        self._ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.forward, self.backward = DirectedAligner(), DirectedAligner()
        """P(target | source) and P(source | target)."""
        self.pairs = 0
        """Sentence pairs that it was fitted to."""

    @classmethod
    def fit(cls, pairs: Iterable[Pair]) -> WordAligner:
        """Fit both directions to pairs of sentences; blank ones are left out."""
        aligner = cls()
        sentences = [aligner._encode(pair, learn=True) for pair in pairs]
        sentences = [
            (source, target) for source, target in sentences if len(source) and len(target)
        ]
        if not sentences:
            what = "there are no sentence pairs to fit a word aligner to."
            raise DataError(what, todo="Give pairs in which neither side is blank.")
        aligner.pairs = len(sentences)
        aligner.forward.fit(sentences)
        aligner.backward.fit([(target, source) for source, target in sentences])
        return aligner

    def align(
        self, pairs: Sequence[Pair], *, symmetrize: str = "grow-diag-final-and"
    ) -> list[Links]:
        """The links of each pair; `symmetrize` says how the two directions are combined."""
        if symmetrize not in SYMMETRIZATIONS:
            known = [*SYMMETRIZATIONS]
            raise DataError(
                f"there is no symmetrization {symmetrize!r}.{nearest(symmetrize, known)}",
                todo=f"Choose from {', '.join(known)}.",
            )
        combine = SYMMETRIZATIONS[symmetrize]
        sentences = [self._encode(pair) for pair in pairs]
        forward = self.forward.align(sentences)
        backward = self.backward.align([(target, source) for source, target in sentences])
        return [
            combine(
                {(int(s), t) for t, s in enumerate(source_of) if s >= 0},
                {(s, int(t)) for s, t in enumerate(target_of) if t >= 0},
            )
            for source_of, target_of in zip(forward, backward, strict=True)
        ]

    def _encode(self, pair: Pair, *, learn: bool = False) -> tuple[Ints, Ints]:
        """The word ids of both sides; an unknown word has an id that no table contains."""
        sides = []
        for text, ids in zip(pair, self._ids, strict=True):
            words = [normalize_word(word) for word in text.split()]
            if learn:
                for word in words:
                    ids.setdefault(word, len(ids) + 1)
            sides.append(np.array([ids.get(word, len(ids) + 1) for word in words], np.int64))
        return sides[0], sides[1]


def grow_diagonal(forward: Links, backward: Links) -> Links:
    """grow-diag-final-and (Koehn et al. 2005).

    The links of both directions grow by those of either that are adjacent to one and align a free
    word. Then links of either direction are added whose words are both free.
    """
    links, union = forward & backward, forward | backward
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    grown = True
    while grown:
        grown = False
        for s, t in sorted(links):
            for near in sorted(union - links):
                is_near = max(abs(near[0] - s), abs(near[1] - t)) == 1
                if is_near and (near[0] not in sources or near[1] not in targets):
                    links.add(near)
                    sources.add(near[0])
                    targets.add(near[1])
                    grown = True
    for s, t in [*sorted(forward - links), *sorted(backward - links)]:
        if s not in sources and t not in targets:
            links.add((s, t))
            sources.add(s)
            targets.add(t)
    return links


SYMMETRIZATIONS: dict[str, Callable[[Links, Links], Links]] = {
    "grow-diag-final-and": grow_diagonal,
    "intersection": set.intersection,
    "union": set.union,
    "forward": lambda forward, backward: forward,
    "backward": lambda forward, backward: backward,
}
