"""Sentence-level BLEU: NLTK's formula, groups by length, the TSV."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.metrics.sentence_bleu import (
    MIN_GROUP,
    best_and_worst,
    length_groups,
    mean_nltk_bleu,
    nltk_bleu,
    sentence_bleu,
    sentence_tsv,
)

words = st.lists(st.sampled_from("abc"), max_size=9)
texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)


def by_hand(hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Papineni et al. 2002, counted one n-gram at a time, with products and roots."""
    product = 1.0
    for n in (1, 2, 3, 4):
        said = [tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1)]
        left = [
            [tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)]
            for reference in references
        ]
        right = sum(
            min(said.count(gram), max(grams.count(gram) for grams in left)) for gram in set(said)
        )
        if right == 0:
            return 0.0
        product *= right / len(said)
    c = len(hypothesis)
    r = sorted((abs(len(reference) - c), len(reference)) for reference in references)[0][1]
    return (math.exp(1 - r / c) if c < r else 1.0) * product**0.25


@given(words, st.lists(words, min_size=1, max_size=3))
def test_nltk_bleu_equals_its_definition(
    hypothesis: list[str], references: list[list[str]]
) -> None:
    ours = nltk_bleu(" ".join(hypothesis), [" ".join(reference) for reference in references])
    assert ours == pytest.approx(by_hand(hypothesis, references), abs=1e-12)


def test_nltk_bleu_of_small_examples() -> None:
    assert nltk_bleu("a b c d e", ["a b c d e"]) == 1
    assert nltk_bleu("a b c", ["a b c"]) == 0, "no four words in a row, and nothing is smoothed"
    assert nltk_bleu("", ["a b c d"]) == 0
    shares = 4 / 4 * 3 / 3 * 2 / 2 * 1 / 1
    assert nltk_bleu("a b c d", ["a b c d e f"]) == pytest.approx(math.exp(1 - 6 / 4) * shares)
    shares = 5 / 6 * 4 / 5 * 3 / 4 * 2 / 3
    assert nltk_bleu("a b c d e x", ["a b c d e"]) == pytest.approx(shares**0.25)


def test_mean_nltk_bleu_is_a_mean_over_sentences() -> None:
    hypotheses, references = ["a b c d", "x"], ["a b c d", "a b c d"]
    assert mean_nltk_bleu(hypotheses, [references]) == 0.5


def test_sentence_scores_are_in_order() -> None:
    scores = sentence_bleu(["a b c d", "x y", "a b"], [["a b c d", "a b", "a b"]])
    assert scores[0] == pytest.approx(100)
    assert scores[1] == 0
    assert scores[2] == pytest.approx(100), "a short sentence is judged by the orders it has"


@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=20), st.integers(1, 5))
def test_best_and_worst_share_no_sentence(scores: list[float], count: int) -> None:
    best, worst = best_and_worst(scores, count)
    assert not set(best) & set(worst)
    assert 1 <= len(best) <= max(1, count)
    for i in best:
        assert all(scores[i] >= scores[j] for j in worst)
    assert [scores[i] for i in best] == sorted((scores[i] for i in best), reverse=True)
    assert [scores[i] for i in worst] == sorted(scores[i] for i in worst)
    if worst:
        assert scores[worst[0]] == min(scores)
    assert scores[best[0]] == max(scores)


@given(st.lists(st.integers(0, 90), max_size=300))
def test_groups_by_length(lengths: list[int]) -> None:
    groups = length_groups(lengths)
    assert sorted(i for group in groups for i in group.rows) == list(range(len(lengths)))
    for before, after in pairwise(groups):
        assert before.longest < after.shortest
    for group in groups:
        within = [lengths[i] for i in group.rows]
        assert (group.shortest, group.longest) == (min(within), max(within))
        assert len(group.rows) >= MIN_GROUP or len(groups) == 1


def restored(cell: str) -> str:
    """The text before escaping."""
    marks = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}
    return re.sub(r"\\(.)", lambda found: marks[found[1]], cell)


@given(st.lists(st.tuples(texts, texts, texts, st.floats(0, 100)), min_size=1, max_size=5))
def test_the_tsv_has_one_row_per_sentence(rows: list[tuple[str, str, str, float]]) -> None:
    sources, references, hypotheses, scores = (list(column) for column in zip(*rows, strict=True))
    text = sentence_tsv(sources, [references], [(hypotheses, scores)])
    assert text.endswith("\n")
    head, *lines = text[:-1].split("\n")
    assert head.split("\t") == ["source", "reference", "hypothesis", "score"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        cells = line.split("\t")
        assert tuple(map(restored, cells[:3])) == row[:3]
        assert float(cells[3]) == pytest.approx(row[3], abs=1e-4)


def test_further_systems_and_references_have_numbered_columns() -> None:
    text = sentence_tsv(None, [["r"], ["s"]], [(["h"], [1.0]), (["i"], [2.0])])
    names, cells = text.splitlines()
    assert names.split() == [
        *("source", "reference", "reference_2"),
        *("hypothesis", "score", "hypothesis_2", "score_2"),
    ]
    assert cells.split("\t") == ["", "r", "s", "h", "1.0000", "i", "2.0000"]
