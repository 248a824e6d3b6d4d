"""Properties of corpus scores and paired tests, for any text."""

from __future__ import annotations

import itertools
import math
import os
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from heed.metrics.alignment_error import alignment_error_rate
from heed.metrics.corpus_bleu import (
    METRICS,
    SEED_VARIABLE,
    bleu,
    corpus_scores,
    exact_match,
    length_ratio,
    sacrebleu_seed,
)
from heed.metrics.significance import compare_systems
from heed.metrics.systems import score_systems
from heed.stats.correction import holm

if TYPE_CHECKING:
    from scored_texts import Texts

words = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12).map(" ".join)
pairs = st.lists(st.tuples(words, words), min_size=1, max_size=8)


@given(pairs, st.randoms(use_true_random=False))
def test_corpus_scores_ignore_the_order_of_sentences(
    found: list[tuple[str, str]], draw: random.Random
) -> None:
    shuffled = draw.sample(found, len(found))
    before, after = (
        corpus_scores([h for h, _ in some], [[r for _, r in some]]) for some in (found, shuffled)
    )
    for name in METRICS:
        assert before[name].score == pytest.approx(after[name].score, abs=1e-9)


@given(
    st.lists(st.lists(st.sampled_from("abcdefg"), min_size=4, max_size=9).map(" ".join), min_size=1)
)
def test_a_hypothesis_equal_to_its_reference_is_perfect(texts: list[str]) -> None:
    scores = corpus_scores(texts, [texts])
    assert scores["bleu"].score == pytest.approx(100)
    assert scores["chrf"].score == pytest.approx(100)
    assert scores["ter"].score == 0
    assert exact_match(texts, texts) == 1
    assert length_ratio(texts, [texts]) == 1


@pytest.mark.parametrize("name", METRICS)
@given(found=st.lists(st.tuples(words, words, words), min_size=1, max_size=8))
def test_cached_metrics_equal_the_plain_ones(name: str, found: list[tuple[str, str, str]]) -> None:
    """On the first call, and on a second one that reads the cache."""
    written, references = (
        [h for h, _, _ in found],
        [[r for _, r, _ in found], [r for *_, r in found]],
    )
    plain = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()
    score = plain.corpus_score(written, references)
    for _ in range(2):
        metric = METRICS[name]()
        assert vars(metric.corpus_score(written, references)) == vars(score)
        assert str(metric.get_signature()) == str(plain.get_signature())


@given(pairs)
def test_scores_stay_in_their_range(found: list[tuple[str, str]]) -> None:
    scores = corpus_scores([h for h, _ in found], [[r for _, r in found]])
    assert 0 <= scores["bleu"].score <= 100 + 1e-9
    assert 0 <= scores["chrf"].score <= 100 + 1e-9
    assert scores["ter"].score >= 0


def test_an_interval_contains_the_score(texts: Texts) -> None:
    scores = corpus_scores(texts.better, [texts.references], resamples=200)
    for score in scores.values():
        assert score.interval is not None
        assert score.interval.low <= score.score <= score.interval.high
        assert score.interval.low < score.interval.center < score.interval.high


def test_a_nearly_useless_system_has_an_interval() -> None:
    """Some bootstrap samples have a chrF of 0."""
    hypotheses, references = ["xx"] * 29 + ["ab"], ["ab"] * 30
    for score in corpus_scores(hypotheses, [references], resamples=100).values():
        assert score.interval is not None
        assert score.interval.low <= score.score <= score.interval.high
        assert "bs:100" in score.signature


def test_a_second_reference_can_only_help(texts: Texts) -> None:
    one = bleu(texts.worse, texts.references).score
    two = corpus_scores(texts.worse, [texts.references, texts.better], metrics=("bleu",))
    assert two["bleu"].score >= one
    assert "nrefs:2" in two["bleu"].signature


def test_the_seed_variable_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "5"):
        if before is None:
            monkeypatch.delenv(SEED_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(SEED_VARIABLE, before)
        with sacrebleu_seed(9):
            assert os.environ[SEED_VARIABLE] == "9"
        assert os.environ.get(SEED_VARIABLE) == before


# ---------------------------------------------------------------------------------- paired tests


def test_a_system_does_not_differ_from_itself(texts: Texts) -> None:
    systems = {"one": texts.better, "the same": list(texts.better)}
    found = compare_systems(systems, [texts.references], resamples=50).systems["the same"]
    for paired in found.paired.values():
        assert (paired.difference, paired.p, paired.p_bootstrap_one_sided) == (0, 1, 1)


def test_a_difference_that_a_metric_ignores_has_p_1(texts: Texts) -> None:
    """TER folds case; BLEU does not."""
    systems = {"one": texts.better, "loud": [text.upper() for text in texts.better]}
    paired = compare_systems(systems, [texts.references], resamples=50).systems["loud"].paired
    assert paired["ter"].p_randomization == 1
    assert paired["bleu"].p_randomization < 0.05


@pytest.mark.parametrize("count", [1, 3, 5])
def test_smallest_p_bounds_the_exact_p(texts: Texts, count: int) -> None:
    """The exact p-value, by enumerating all exchanges of the differing texts."""
    changed = [*["oui"] * count, *texts.references[count:]]
    systems = {"right": texts.references, "changed": changed}
    found = compare_systems(systems, [texts.references], metrics=("bleu",), resamples=20)
    paired = found.systems["changed"].paired["bleu"]
    assert paired.differing == count

    def bleu(said: list[str]) -> float:
        return corpus_scores(said, [texts.references], metrics=("bleu",), resamples=0)["bleu"].score

    real, exchanged = 100 - bleu(changed), []
    for swapped in itertools.product([False, True], repeat=count):
        pairs = zip(swapped, changed, texts.references, strict=False)  # those that differ
        one, other = zip(*((b, a) if swap else (a, b) for swap, a, b in pairs), strict=True)
        rest = texts.references[count:]
        exchanged.append(abs(bleu([*one, *rest]) - bleu([*other, *rest])))
    exact = sum(difference >= real - 1e-9 for difference in exchanged) / len(exchanged)
    assert paired.smallest_p <= exact
    assert paired.smallest_p == 2 / len(exchanged)
    assert paired.p >= paired.smallest_p


def test_a_large_difference_is_significant_and_has_a_sign(texts: Texts) -> None:
    systems = {"words": texts.better, "nothing": ["oui"] * len(texts.better)}
    found = compare_systems(systems, [texts.references], resamples=50).systems["nothing"]
    assert found.paired["bleu"].difference < 0 < found.paired["ter"].difference
    for paired in found.paired.values():
        assert paired.p_bootstrap_one_sided < 0.05
        assert paired.p < 0.05


def test_the_baseline_has_no_tests(texts: Texts) -> None:
    systems = {"better": texts.better, "worse": texts.worse}
    found = compare_systems(systems, [texts.references], metrics=("bleu",), resamples=20)
    assert not found.systems["better"].paired
    assert found.systems["worse"].paired.keys() == {"bleu"}
    assert "bs:20" in found.signatures["bootstrap"]["bleu"]
    assert "ar:200" in found.signatures["randomization"]["bleu"]


def test_several_comparisons_are_corrected(texts: Texts) -> None:
    """By Holm's method: systems of one metric together, and all tests by length together."""
    systems = {"one": texts.better, "two": texts.worse, "three": texts.better[::-1]}
    result = score_systems(systems, [texts.references], texts.sources, resamples=20).to_dict()
    others = result["systems"][1:]
    for metric in ("bleu", "chrf", "ter"):
        family = [system["paired"][metric] for system in others]
        assert holm([one["p"] for one in family]) == [one["p_corrected"] for one in family]
    groups = [group["paired"] for system in others for group in system["by_source_length"]]
    assert len(groups) > 2
    corrected = sorted(one["p_corrected"] for one in groups)
    assert sorted(holm([one["p"] for one in groups])) == corrected


def test_equal_systems_have_a_small_p_as_often_as_it_says() -> None:
    """sacreBLEU's bootstrap p is small about twice as often, because it looks at one side."""
    draw, trials, level, small, one_sided = np.random.default_rng(1), 60, 0.2, 0, 0
    vocabulary = np.array(["un", "deux", "trois", "quatre", "cinq", "six"])

    def translate(references: list[str]) -> list[str]:
        return [" ".join(np.where(draw.random(6) < 0.2, "non", r.split())) for r in references]

    for _ in range(trials):
        references = [" ".join(draw.choice(vocabulary, 6)) for _ in range(25)]
        systems = {"one": translate(references), "two": translate(references)}
        found = compare_systems(systems, [references], metrics=("bleu",), resamples=20)
        paired = found.systems["two"].paired["bleu"]
        small += paired.p < level
        one_sided += paired.p_bootstrap_one_sided < level
    assert small / trials <= level + 4 * math.sqrt(level * (1 - level) / trials)
    assert one_sided > small


# -------------------------------------------------------------------------------- results as JSON


def test_a_system_has_the_same_result_alone_and_in_a_comparison(texts: Texts) -> None:
    def result(**systems: list[str]) -> dict[str, object]:
        found = score_systems(systems, [texts.references], texts.sources, resamples=20).to_dict()
        return found["systems"][1] if "systems" in found else found

    alone, beside = result(worse=texts.worse), result(better=texts.better, worse=texts.worse)
    for key in ("texts", "bleu", "chrf", "ter", "length_ratio", "nltk_mean_sentence_bleu", "best"):
        assert alone[key] == beside[key]


def test_by_length_covers_every_sentence(texts: Texts) -> None:
    found = score_systems(
        {"a": texts.worse}, [texts.references], texts.sources, resamples=0
    ).to_dict()
    assert sum(group["texts"] for group in found["by_source_length"]) == len(texts.sources)
    assert len(found["by_source_length"]) > 1


def test_alignment_error_counts_links() -> None:
    gold = [{(0, 0), (1, 1)}]
    assert alignment_error_rate(gold, gold) == 0
    assert alignment_error_rate([set()], gold) == 1
    assert alignment_error_rate([{(0, 0), (2, 1)}], gold) == pytest.approx(0.5)
