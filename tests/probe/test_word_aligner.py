"""The word aligner: exact posteriors, a likelihood that never falls, and links that are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.data import synthetic
from heed.errors import DataError
from heed.metrics.alignment_error import alignment_error_rate
from heed.probe.word_aligner import (
    MAX_JUMP,
    NULL,
    SYMMETRIZATIONS,
    DirectedAligner,
    WordAligner,
    grow_diagonal,
    normalize_word,
)

HOUSES = [("das haus", "the house"), ("das buch", "the book"), ("ein buch", "a book")]
"""The example of every course on Model 1 (Knight 1999)."""
WORLD = list(synthetic.generate_sentences("train", 700))
PAIRS = [(s.english, s.french) for s in WORLD]

words = st.lists(st.sampled_from("abcde"), min_size=1, max_size=5).map(" ".join)
corpora = st.lists(st.tuples(words, words), min_size=1, max_size=12)


@given(corpora)
def test_em_never_lowers_the_likelihood(pairs: list[tuple[str, str]]) -> None:
    aligner = WordAligner.fit(pairs)
    for one in (aligner.forward, aligner.backward):
        assert len(one.log_likelihoods) == 2
        for history in one.log_likelihoods.values():
            assert (np.diff(history) >= -1e-6 * (1 + abs(history[0]))).all(), history


def test_the_houses_and_the_books() -> None:
    aligner = WordAligner.fit(HOUSES)
    assert aligner.align(HOUSES) == [{(0, 0), (1, 1)}] * 3
    known = {key for key in aligner.forward.keys_k.tolist() if key >= aligner.forward.target_count}
    assert len(known) == 10  # word pairs that occur together, the empty word apart


def brute_force(aligner: DirectedAligner, source: list[int], target: list[int]) -> np.ndarray:
    """P(source word | target word) [n, 1 + m] by adding up every path of states."""
    keys, m = aligner.keys_k.tolist(), len(source)

    def t(e: int, f: int) -> float:
        return float(aligner.translation_k[keys.index(e * aligner.target_count + f)])

    def jump(before: int, after: int) -> float:
        weights = [aligner.jump_d[min(i - before, MAX_JUMP) + MAX_JUMP] for i in range(m)]
        return float(weights[after] / sum(weights))

    posterior, null = np.zeros((len(target), 1 + m)), aligner.null_share
    for path in product(range(m), repeat=len(target)):
        for is_null in product((False, True), repeat=len(target)):
            p, before = 1.0, -1
            for state, empty, f in zip(path, is_null, target, strict=True):
                if empty and before >= 0:
                    p *= float(state == before)
                else:
                    p *= jump(before, state)
                p *= null * t(NULL, f) if empty else (1 - null) * t(source[state], f)
                before = state
            for i, (state, empty) in enumerate(zip(path, is_null, strict=True)):
                posterior[i, 0 if empty else 1 + state] += p
    return posterior / posterior.sum(axis=1, keepdims=True)


def test_posteriors_are_sums_over_all_paths() -> None:
    """Forward and backward pass against enumeration, padding of the batch included."""
    sentences = [
        (np.array([1, 2, 3]), np.array([1, 2, 1])),
        (np.array([2]), np.array([3, 2, 1])),
        (np.array([3, 1]), np.array([1, 3, 2])),
    ]
    aligner = DirectedAligner()
    aligner.fit(sentences)
    for source, target in sentences:
        expected = brute_force(aligner, source.tolist(), target.tolist())
        (best,) = aligner.align([(source, target)])
        together = aligner.align(sentences)
        assert best.tolist() == (expected.argmax(axis=1) - 1).tolist()
        assert any(np.array_equal(best, one) for one in together)
        found = aligner.posteriors([(source, target)])[0]
        assert np.allclose(found, expected, atol=1e-9)


def test_the_generated_world_is_aligned() -> None:
    """Better than each direction's first guess, and the HMM better than chance by far."""
    aligner = WordAligner.fit(PAIRS)
    gold = [s.alignment for s in WORLD]
    errors = {
        name: alignment_error_rate(aligner.align(PAIRS, symmetrize=name), gold)
        for name in SYMMETRIZATIONS
    }
    diagonal = [{(i, i) for i in range(len(s.english.split()))} for s in WORLD]
    assert errors["grow-diag-final-and"] < 0.13 < alignment_error_rate(diagonal, gold) - 0.2
    for history in (*aligner.forward.log_likelihoods.values(),):
        assert history == sorted(history)


links = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(links, links)
def test_symmetrized_links_lie_between_intersection_and_union(
    forward: set[tuple[int, int]], backward: set[tuple[int, int]]
) -> None:
    grown = grow_diagonal(set(forward), set(backward))
    assert forward & backward <= grown <= forward | backward
    assert grow_diagonal(forward, forward) == forward


def test_text_that_fitting_never_saw() -> None:
    aligner = WordAligner.fit(HOUSES)
    assert aligner.align([("", "the house"), ("das", ""), (" ", " ")]) == [set(), set(), set()]
    (unknown,) = aligner.align([("das auto faehrt", "the car moves on")])
    assert (0, 0) in unknown
    with pytest.raises(DataError, match="no sentence pairs"):
        WordAligner.fit([("", "a"), ("b", " ")])
    with pytest.raises(DataError, match="Did you mean 'union'"):
        aligner.align(HOUSES, symmetrize="unions")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("Garden.", "garden"), ("«Non»", "non"), ("l'arbre,", "l'arbre"), ("—", "—"), ("...", "...")],
)
def test_words_are_compared_without_case_and_punctuation(word: str, expected: str) -> None:
    assert normalize_word(word) == expected
