"""Properties of corpus scores and paired tests, for any text."""

from __future__ import annotations

import itertools
import math
import os
import random
from typing import TYPE_CHECKING, Any

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
from heed.metrics.systems import score_systems

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


def paired_results(
    systems: dict[str, list[str]], references: list[str], metrics: tuple[str, ...] = tuple(METRICS)
) -> dict[str, dict[str, Any]]:
    """The comparison of the last system with the first, by metric."""
    result = score_systems(systems, [references], metrics=metrics, resamples=0).to_dict()
    assert "paired" not in result["systems"][0]
    paired: dict[str, dict[str, Any]] = result["systems"][-1]["paired"]
    return paired


def test_a_system_does_not_differ_from_itself(texts: Texts) -> None:
    systems = {"one": texts.better, "the same": list(texts.better)}
    for paired in paired_results(systems, texts.references).values():
        assert (paired["difference"], paired["p"], paired["p_corrected"]) == (0, 1, 1)
        assert paired["interval"] == {"low": 0, "high": 0}


def test_a_difference_that_a_metric_ignores_has_p_1(texts: Texts) -> None:
    """TER folds case; BLEU does not."""
    systems = {"one": texts.better, "loud": [text.upper() for text in texts.better]}
    paired = paired_results(systems, texts.references)
    assert paired["ter"]["p"] == 1
    assert paired["bleu"]["p"] < 0.05


@pytest.mark.parametrize("count", [1, 3, 5])
def test_p_nears_the_exact_p(texts: Texts, count: int) -> None:
    """The exact p-value, by enumerating all exchanges of the differing texts."""
    changed = [*["oui"] * count, *texts.references[count:]]
    systems = {"right": texts.references, "changed": changed}
    paired = paired_results(systems, texts.references, ("bleu",))["bleu"]

    def bleu(said: list[str]) -> float:
        return corpus_scores(said, [texts.references], metrics=("bleu",), resamples=0)["bleu"].score

    real, exchanged = 100 - bleu(changed), []
    for swapped in itertools.product([False, True], repeat=count):
        pairs = zip(swapped, changed, texts.references, strict=False)  # those that differ
        one, other = zip(*((b, a) if swap else (a, b) for swap, a, b in pairs), strict=True)
        rest = texts.references[count:]
        exchanged.append(abs(bleu([*one, *rest]) - bleu([*other, *rest])))
    exact = sum(difference >= real - 1e-9 for difference in exchanged) / len(exchanged)
    assert paired["p"] >= 2 / len(exchanged)
    assert paired["p"] == pytest.approx(exact, abs=0.03)
    assert not paired["p_is_bound"]


def test_a_large_difference_is_significant_and_has_a_sign(texts: Texts) -> None:
    systems = {"words": texts.better, "nothing": ["oui"] * len(texts.better)}
    paired = paired_results(systems, texts.references)
    assert paired["bleu"]["difference"] < 0 < paired["ter"]["difference"]
    assert paired["bleu"]["interval"]["high"] < 0 < paired["ter"]["interval"]["low"]
    for one in paired.values():
        assert one["p"] == 1 / 10_001
        assert one["p_is_bound"]


def test_several_comparisons_are_corrected(texts: Texts) -> None:
    """Systems of one metric together, and all ranges of length together."""
    systems = {"one": texts.better, "two": texts.worse, "three": texts.better[::-1]}
    result = score_systems(systems, [texts.references], texts.sources, resamples=0).to_dict()
    for name, system in zip(("two", "three"), result["systems"][1:], strict=True):
        alone = score_systems(
            {"one": texts.better, name: systems[name]},
            [texts.references],
            texts.sources,
            resamples=0,
        ).to_dict()["systems"][1]
        for metric, one in alone["paired"].items():
            many = system["paired"][metric]
            assert many["difference"] == one["difference"]
            assert one["p"] == one["p_corrected"] == many["p"] <= many["p_corrected"]
            assert many["interval"]["low"] < one["interval"]["low"]
        groups = [group["paired"] for group in alone["by_source_length"]]
        assert len(groups) > 1
        for group in groups:
            assert group["p_corrected"] == pytest.approx(min(1, len(groups) * group["p"]))


def test_equal_systems_have_a_small_p_as_often_as_it_says() -> None:
    draw, trials, level, small = np.random.default_rng(1), 60, 0.2, 0
    vocabulary = np.array(["un", "deux", "trois", "quatre", "cinq", "six"])

    def translate(references: list[str]) -> list[str]:
        return [" ".join(np.where(draw.random(6) < 0.2, "non", r.split())) for r in references]

    for _ in range(trials):
        references = [" ".join(draw.choice(vocabulary, 6)) for _ in range(25)]
        systems = {"one": translate(references), "two": translate(references)}
        small += paired_results(systems, references, ("bleu",))["bleu"]["p"] < level
    assert small / trials <= level + 4 * math.sqrt(level * (1 - level) / trials)


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
