"""Every sentence of a study's answer holds against the comparison that it is made from."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from comparison_level import Experiment, mean_value
from hypothesis import given, settings
from hypothesis import strategies as st
from report_claims import check_sentence, shown_pairs

from heed.report.answer import answer_question, answer_without_runs
from heed.report.claims import Question
from heed.report.study_figures import difference_plot, pairs_table
from heed.report.wording import format_interval, join_names, name_level
from heed.stats.comparison import SumMetric, compare_systems
from heed.stats.variance import System
from heed.stats.verdicts import Verdict, format_differences, format_minutes, judge_pair

NAMES = ("rope", "t5", "none", "merge=concat, layers=2", "a b", "shaw", "x.y-1", "alibi", "nope")
SCORE = SumMetric("BLEU", mean_value)
LOSS = SumMetric("loss", mean_value, higher_is_better=False, digits=4)


def ask(
    seeds: int | list[int],
    effects: list[float],
    *,
    baseline: bool = False,
    margin: float | None = None,
    metric: SumMetric = SCORE,
    seed: int = 0,
    alpha: float = 0.05,
    items: int = 60,
) -> Question:
    """A simulated study: systems with these effects, and as many seeds each."""
    counts = [seeds] * len(effects) if isinstance(seeds, int) else seeds
    experiment = Experiment(max(counts), items, (0.5, 0.3, 0.5), systems=len(effects))
    drawn = experiment.draw(np.random.default_rng(seed), tuple(effects))
    systems = [
        System(NAMES[i] if i < len(NAMES) else f"s{i}", system.counts_snc[:count])
        for i, (system, count) in enumerate(zip(drawn, counts, strict=True))
    ]
    base = NAMES[0] if baseline and len(systems) > 1 else None
    comparison = compare_systems(systems, metric, baseline=base, alpha=alpha)
    judgements = [judge_pair(pair, metric, margin=margin) for pair in comparison.pairs]
    return Question(comparison, judgements, "test", margin=margin, minutes_per_run=4.0)


studies = st.builds(
    ask,
    st.integers(1, 5),
    st.lists(st.sampled_from([0.0, 0.0, 0.2, -1.0, 3.0]), min_size=1, max_size=6),
    baseline=st.booleans(),
    margin=st.none() | st.sampled_from([0.3, 0.5, 2.0]),
    metric=st.sampled_from([SCORE, LOSS]),
    seed=st.integers(0, 2**32),
    alpha=st.sampled_from([0.05, 0.0221]),
)


@settings(deadline=None, max_examples=25)
@given(studies, st.booleans())
def test_every_claim_of_the_answer_has_its_interval(question: Question, declared: bool) -> None:
    question = replace(question, is_declared=declared)
    sentences = answer_question(question)
    assert len(sentences) == 3
    for sentence in sentences:
        check_sentence(sentence, question)
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence)
        assert "nan" not in sentence
    if not declared:
        assert not sentences[0].startswith("Shown")


@settings(deadline=None, max_examples=10)
@given(studies)
def test_the_answer_leaves_no_shown_difference_out(question: Question) -> None:
    shown, left_open, _ = answer_question(question)
    pairs = list(shown_pairs(question))
    assert (" better than " in shown or " worse than " in shown) == bool(pairs)
    if "further relation" not in shown:
        for pair, _ in pairs:
            for name in (pair.a, pair.b):
                assert name in shown or "others" in shown or "systems" in shown
    verdicts = {judgement.verdict for _, judgement in question.pairs}
    if Verdict.UNDECIDED in verdicts:
        assert "in 8 of 10 cases these runs would show a difference of" in left_open


@pytest.mark.parametrize(
    "text",
    [
        "t5 is better than rope.",
        "t5 is the best.",
        "t5 outperforms rope.",
        "Most systems beat rope.",
        "t5 is as good as rope.",
        "The hardest group is “none”.",
        "t5 is better than rope: +9.00 BLEU (95% interval -1.00 to +19.00).",
        "t5 is worse than rope: {difference} BLEU ({level} interval {interval}).",
        "t5 is better than rope: +99.00 BLEU ({level} interval +98.00 to +100.00).",
        "t5 is better than rope: {difference} BLEU (90% interval {interval}).",
        "“none” is better than rope: {difference} BLEU ({level} interval {interval}).",
        "t5 is as good as rope, within 0.5 BLEU (90% interval -0.40 to +0.40).",
        "Choose rope, the only one that may be best (Hsu's 95% interval of it -1.00 to +1.00).",
    ],
)
def test_a_claim_that_the_comparison_does_not_support_is_noticed(text: str) -> None:
    question = ask(3, [0.0, 9.0, 0.0], baseline=True, margin=0.5)
    pair = question.comparison.pairs[0]
    [difference] = format_differences([pair.difference], SCORE)
    interval = format_interval(pair.interval, SCORE)
    level = name_level(question.comparison)
    support = {"difference": difference, "interval": interval, "level": level}
    true = "t5 is better than rope: {difference} BLEU ({level} interval {interval})."
    check_sentence(true.format(**support), question)
    with pytest.raises(AssertionError):
        check_sentence(text.format(**support), question)


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("baseline", [True, False])
def test_fewer_than_three_seeds_compare_these_models_only(seeds: int, baseline: bool) -> None:
    question = ask(seeds, [0.0, 9.0, 3.0], baseline=baseline, margin=0.5)
    sentences = answer_question(question)
    assert "only these models are compared" in sentences[0]
    assert "these models differ" in sentences[1]
    assert f"{3 * (3 - seeds)} more runs (3 seeds each, about" in sentences[2]
    assert not re.search(r"better|worse|best|as good", " ".join(sentences))


def test_a_p_below_its_resolution_is_told_as_a_bound() -> None:
    sentences = answer_question(ask(1, [0.0, 9.0]))
    assert "p < 0.0001" in sentences[1]


def test_systems_with_too_few_seeds_beside_others_get_no_verdict() -> None:
    question = ask([3, 3, 1], [0.0, 9.0, -9.0], baseline=True)
    shown, left_open, following = answer_question(question)
    assert "none" not in shown
    assert "the recipes of “none”" in left_open
    assert "train 2 more runs" in following


def test_systems_without_a_score_are_named_with_what_to_do() -> None:
    question = replace(ask(3, [0.0, 9.0], baseline=True), without_runs=("alibi",))
    _, left_open, following = answer_question(question)
    assert "anything about alibi, which has no score" in left_open
    assert "fix alibi: the table of trials gives the reasons" in following
    nothing = answer_without_runs(["rope", "t5"])
    assert len(nothing) == 3
    assert "no trial has finished" in nothing[0]


def test_one_system_is_compared_with_nothing() -> None:
    shown, left_open, following = answer_question(ask(4, [1.0]))
    assert "rope is the only system with a score" in shown
    assert "standard deviation" in shown
    assert "no other system" in left_open
    assert "three seeds" in following


def test_an_open_question_is_told_with_the_seeds_that_would_decide_it() -> None:
    question = ask(3, [0.0, 0.25], items=2000, seed=3)
    [(pair, judgement)] = question.pairs
    if judgement.verdict is Verdict.UNDECIDED and pair.seeds_needed:
        assert f"with {pair.seeds_needed} seeds each" in answer_question(question)[2]
    look = answer_question(replace(question, next_look=5))[2]
    assert "declared look at 5 seeds" in look or judgement.verdict is not Verdict.UNDECIDED


def test_two_models_are_told_with_a_direction() -> None:
    [_, left_open, _] = answer_question(ask(1, [0.0, 9.0]))
    assert "of these models, t5 − rope is +" in left_open
    for seeds, words in ((1, "Two models only"), (3, "Can't tell yet")):
        [judgement] = ask(seeds, [0.0, 0.0]).judgements
        assert judgement.sentence.startswith(f"{words}: t5 − rope is ")
        assert "differ by" not in judgement.sentence


def test_a_study_to_declare_counts_all_its_runs() -> None:
    drawn = (ask(3, [0.0, 0.2], seed=seed) for seed in range(20))
    question = next(
        one
        for one in drawn
        if one.judgements[0].verdict is Verdict.UNDECIDED and one.comparison.pairs[0].seeds_needed
    )
    [pair] = question.comparison.pairs
    assert pair.seeds_needed is not None
    following = answer_question(question)[2]
    runs = 2 * pair.seeds_needed
    minutes = format_minutes(4.0 * runs)
    assert f"with {pair.seeds_needed} seeds each" in following
    assert f"({runs} runs, {minutes})" in following


def test_an_interval_of_equivalence_is_said_to_be_of_its_pair_alone() -> None:
    for effects, alone in (([0.0, 0.0, 0.0], True), ([0.0, 0.0], False)):
        question = ask(5, effects, margin=9.0)
        pairs = question.comparison.pairs
        judged = judge_pair(pairs[0], SCORE, margin=9.0, comparisons=len(pairs))
        assert judged.verdict is Verdict.AS_GOOD
        assert (", of this pair alone, inside" in judged.sentence) == alone
        assert ("of each pair alone" in answer_question(question)[0]) == alone
        table = pairs_table(question)
        column = table.columns.index("90% interval")
        spans = {format_interval(pair.equivalence_interval, SCORE) for pair in pairs}
        assert {row[column] for row in table.rows} == spans
        assert not [cell for row in table.rows for cell in row if "90%" in cell]
        assert ("not corrected" in table.caption) == alone


def test_a_filled_dot_is_a_verdict_as_its_caption_says() -> None:
    hollow = 'fill="var(--paper)"'
    question = ask(5, [0.0, 0.0], margin=9.0)
    assert question.judgements[0].verdict is Verdict.AS_GOOD
    assert hollow not in difference_plot(question).svg
    assert "Filled: shown" in difference_plot(question).caption
    explored = difference_plot(replace(question, is_declared=False)).caption
    assert "shown" not in explored
    assert hollow in difference_plot(ask(3, [0.0, 0.0])).svg


def test_exploratory_differences_are_never_called_shown() -> None:
    question = replace(ask(3, [0.0, 9.0]), is_declared=False)
    assert answer_question(question)[0].startswith("Seen, exploratory")


def test_lists_of_names_are_unambiguous_and_short() -> None:
    assert join_names(["a"]) == "a"
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(["x=1, y=2", "b", "c"]) == "x=1, y=2; b and c"
    assert join_names(map(str, range(40))) == "40 systems"
    assert [format_minutes(m) for m in (0.2, 1, 12.1, 300, 6010)] == [
        "less than a minute",
        "about 1 minute",
        "about 12 minutes",
        "about 5 hours",
        "about 100 hours",
    ]
