"""The analysis of a study: planted effects are found, and equal systems are left alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_level import binomial_bound
from rich.console import Console
from study_folders import make_items, write_finished, write_study
from typer.testing import CliRunner

import heed
from heed.cli.main import app
from heed.metrics.item_metrics import item_metrics
from heed.report.document import Table
from heed.report.study_report import build_study_report
from heed.runs.item_counts import GROUP
from heed.stats.variance import System
from heed.study.analysis import analyze_study
from heed.study.class_scores import score_by_class
from heed.study.comparison_tables import render_comparison
from heed.study.costs import measure_costs
from heed.study.finding import Finding, correct_findings
from heed.study.hardness import TextLosses, find_hard_groups, open_text_losses, score_groups
from heed.study.key_importance import grid_importance, search_importance
from heed.study.length_scores import find_length_effects, score_by_length
from heed.study.overfitting import EVALUATED, WHILE_TRAINING, _rises, measure_gaps
from heed.study.scored_systems import ScoredSystems, estimate_value, open_scored_systems
from heed.study.study_folder import read_study_folder
from heed.study.study_results import StudyResults
from heed.study.trials import Trial, read_trials, write_state

TWO = {"none": 0.6, "rope": 0.62}


def of_kind(findings: list[Finding], kind: str) -> list[Finding]:
    return [one for one in findings if one.kind == kind]


def read(folder: Path) -> StudyResults:
    return StudyResults.read(folder)


def simulate(random: np.random.Generator, falls: dict[str, float]) -> ScoredSystems:
    """Systems of equal quality on short texts, which fall by so much on long ones."""
    runs = {
        name: [make_items(random, 0.6 + random.normal(0, 0.01), "test", fall=fall) for _ in "123"]
        for name, fall in falls.items()
    }
    metrics = {name: [item_metrics(one)["bleu"] for one in items] for name, items in runs.items()}
    systems = [System(k, np.stack([one.counts_nc for one in v])) for k, v in metrics.items()]
    first = next(iter(runs.values()))[0]
    metric = metrics["a"][0].metric
    return ScoredSystems("test", "bleu", metric, systems, first, runs, None, "a", False)


def test_a_system_that_falls_on_long_texts_is_found_and_others_rarely() -> None:
    random = np.random.default_rng(1)
    [finding] = find_length_effects(simulate(random, {"a": 0.0, "b": 0.2}))
    assert finding.p is not None
    assert finding.p < 0.05
    assert finding.numbers["long"] < finding.numbers["short"]
    assert finding.numbers["change"] == pytest.approx(
        finding.numbers["long"] - finding.numbers["short"], abs=0.5
    )
    trials, claims = 100, 0
    for _ in range(trials):
        [one] = find_length_effects(simulate(random, {"a": 0.1, "b": 0.1}))
        assert one.p is not None
        claims += one.p < 0.05
    assert claims <= binomial_bound(trials, 0.065)


def test_scores_by_length_divide_the_texts(tmp_path: Path) -> None:
    scored = open_scored_systems(read(write_study(tmp_path / "s", TWO, fall={"none": 0.3})))
    assert scored is not None
    lengths = score_by_length(scored)
    assert lengths is not None
    assert sum(one.items for one in lengths.bins) == len(scored.items)
    assert lengths.unit == "words of the source"
    short, *_, long = lengths.scores["none"]
    assert long[0] < short[0]
    assert short[1] is not None
    assert short[1].low < short[0] < short[1].high
    # Records from before texts were described have the length of the reference.
    columns = {k: v for k, v in scored.items.columns.items() if not k.startswith("text.")}
    scored.items.columns.clear()
    scored.items.columns.update(columns)
    older = score_by_length(scored)
    assert older is not None
    assert older.unit == "tokens of the reference"


def test_overfitting_is_told_on_comparable_terms(tmp_path: Path) -> None:
    results = read(write_study(tmp_path / "s", TWO, overfit={"rope": 0.8}))
    gaps = measure_gaps(results)
    assert gaps is not None
    assert gaps.train_loss == EVALUATED
    assert [run.last_gap for run in gaps.of("none")] == pytest.approx([0.1] * 3)
    assert [run.last_gap for run in gaps.of("rope")] == pytest.approx([1.7] * 3)
    rises = {one.numbers.get("system"): one for one in of_kind(analyze_study(results), "overfit")}
    assert rises["rope"].is_selected
    assert rises["rope"].numbers["rise"] > 0.1
    assert not rises["none"].is_selected
    # Without an evaluated train loss, that of training is labeled as such.
    for state in results.trials:
        for row in results.record(state.trial.name).history:
            row.pop(EVALUATED, None)
    labeled = measure_gaps(results)
    assert labeled is not None
    assert labeled.train_loss == WHILE_TRAINING
    assert "dropout" in labeled.label


def test_the_rise_of_a_flat_dev_loss_is_zero_on_average() -> None:
    """The lowest of noisy values is too low; the step that other seeds choose is not."""
    random = np.random.default_rng(2)
    trials, claims, naive = 300, 0, 0
    for _ in range(trials):
        curves = [dict(enumerate(random.normal(0, 1, 12).tolist())) for _ in range(4)]
        one = estimate_value(np.array(_rises(curves))[:, None, None], lambda sums: sums[..., 0])
        claims += one.p < 0.05
        lowest = [max(0.0, curve[11] - min(curve.values())) for curve in curves]
        two = estimate_value(np.array(lowest)[:, None, None], lambda sums: sums[..., 0])
        naive += two.p < 0.05
    assert claims <= binomial_bound(trials, 0.05)
    assert naive > 5 * claims


def test_a_classifier_is_told_by_class(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", {"none": 0.5, "rope": 0.9}, task="classify")
    results = read(folder)
    scored = open_scored_systems(results)
    assert scored is not None
    classes = score_by_class(scored)
    assert classes is not None
    assert classes.classes == ["a", "b", "c"]
    assert sum(classes.texts) == len(scored.items)
    found = of_kind(analyze_study(results), "class")
    assert len(found) == 3
    # rope is the better one on dev, so the others are compared with it.
    assert all(one.numbers["b"] == "rope" for one in found)
    assert any(one.is_selected for one in found)
    assert all(one.numbers["difference"] < 0 for one in found)


def planted_groups(random: np.random.Generator, unseen: float, direct: float) -> TextLosses:
    """Two groups of texts: one has more words not in train, or is harder for no stated reason.

    Rare words are the same words: a property that overlaps with unseen ones, as in real text.
    """
    groups = np.repeat([0, 1], 60)
    share = random.random(120) + unseen * groups
    noise = random.normal(0, 0.3, 120) + random.normal(0, 0.2, (3, 120))
    loss = 4 + 0.5 * share + direct * groups + noise + random.normal(0, 0.02, (3, 1))
    weight = random.integers(10, 40, 120).astype(float)
    rare = share + random.normal(0, 0.05, 120)
    properties = {"unseen": share, "surprisal": rare, "length": random.random(120)}
    return TextLosses("a", "generate", loss * weight, weight, properties, groups, ["anna", "bob"])


def test_the_gap_of_a_group_goes_with_its_causes() -> None:
    random = np.random.default_rng(3)
    trials, missed, claims = 50, 0, 0
    for _ in range(trials):
        losses = planted_groups(random, 2.0, 0.0)  # 0.5 nats for each unit, two units more
        gap, unseen, rare, length, together = find_hard_groups(losses)
        assert (gap.numbers["hard"], gap.numbers["easy"]) == ("bob", "anna")
        assert gap.p is not None
        assert gap.p < 0.001
        # Each of two properties that overlap has the sign that it has alone.
        assert min(unseen.numbers["part"], rare.numbers["part"]) > 0
        assert abs(length.numbers["part"]) < 0.1
        for one in (unseen, together):
            assert one.interval is not None
            missed += not one.interval.low < 1.0 < one.interval.high
        # A gap without a stated cause is not put down to one.
        _, unrelated, *_ = find_hard_groups(planted_groups(random, 0.0, 0.6))
        assert unrelated.p is not None
        claims += unrelated.p < 0.05
    assert missed <= binomial_bound(2 * trials, 0.05)
    assert claims <= binomial_bound(trials, 0.05)
    assert [score.texts for score in score_groups(losses)] == [60, 60]


def test_a_gap_that_is_not_there_has_no_causes() -> None:
    random = np.random.default_rng(5)
    answers = [find_hard_groups(planted_groups(random, 0.0, 0.0)) for _ in range(20)]
    for gap, *parts in answers:
        assert gap.p is not None
        assert gap.interval is not None
        assert (gap.interval.low > 0) == (gap.p < 0.05)
        assert bool(parts) == (gap.p < 0.05)
    assert sum(len(one) > 1 for one in answers) <= binomial_bound(20, 0.05)


def test_sets_and_recorded_groups_are_groups(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO, task="generate", sets=["anna", "bob"])
    losses = open_text_losses(read(folder))
    assert losses is not None
    assert losses.names == ["anna", "bob"]
    windows = ["test", "test@window-32", "test@window-64"]  # one text, scored three times
    again = open_text_losses(
        read(write_study(tmp_path / "w", TWO, task="generate", sets=windows, items=30))
    )
    assert again is not None
    assert again.groups is None
    assert len(again.weight_n) == 30
    findings = analyze_study(read(folder))
    assert len(of_kind(findings, "group")) == 6
    words = {one.numbers["property"]: one for one in of_kind(findings, "hardness")}
    assert words["unseen"].is_selected
    results = read(write_study(tmp_path / "t", TWO, task="generate"))
    assert results.comparison is not None
    for state in results.trials:
        items = results.record(state.trial.name).run.evaluations["test"]
        items.columns[GROUP] = (np.arange(len(items)) % 3).astype(np.float64)
    grouped = open_text_losses(results)
    assert grouped is not None
    assert grouped.names == ["group 1", "group 2", "group 3"]


def test_keys_of_a_grid_get_their_shares(tmp_path: Path) -> None:
    def quality(changes: Any) -> float:
        return 0.5 + 0.05 * (changes["model.position"] == "rope") + 0.01 * changes["model.layers"]

    grid = {"model.position": ["rope", "none"], "model.layers": [1, 2, 3]}
    results = read(write_study(tmp_path / "s", quality, grid=grid))
    importance = grid_importance(results)
    assert importance is not None
    first, second, third = importance.effects
    assert first.label == "model.position"
    assert first.share > 0.7
    assert second.p is not None
    assert third.label == "model.position × model.layers"
    assert len(of_kind(analyze_study(results), "importance")) == 3
    # Named systems are a factor of their own, beside the grid.
    systems = [{"name": "big", "set": {"model.width": 64}}, {"name": "small"}]
    named = read(
        write_study(tmp_path / "t", lambda c: 0.5, systems=systems, grid={"model.layers": [1, 2]})
    )
    both = grid_importance(named)
    assert both is not None
    assert {effect.label for effect in both.effects} == {
        "system",
        "model.layers",
        "system × model.layers",
    }


@pytest.mark.parametrize("has_forest", [pytest.param(True, marks=pytest.mark.slow), False])
def test_keys_of_a_search_are_ranked(
    tmp_path: Path, has_forest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate matters, the optimizer does not; two systems of different quality."""
    if not has_forest:
        monkeypatch.setattr("heed.study.key_importance.find_spec", lambda name: None)
    space = {
        "train.lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "train.optimizer": {"choices": ["adamw", "sgd"]},
    }
    folder = write_study(tmp_path / "s", TWO, search={"trials": 10, "space": space})
    config, random = read_study_folder(folder), np.random.default_rng(4)
    for number in range(20):
        lr = float(10 ** random.uniform(-4, -2))
        changes = {"train.lr": lr, "train.optimizer": ("adamw", "sgd")[number // 2 % 2]}
        system = ("none", "rope")[number % 2]
        name = f"{system}-trial{number:03}"
        trial = Trial(name, 10 + number, system, changes, "demo-translate", 9, "search")
        value = 0.7 + 0.05 * np.log10(lr) + 0.2 * (number % 2)
        write_finished(folder, config, trial, random, value, has_record=False)
    importance = search_importance(read(folder))
    assert importance is not None
    assert ("fANOVA" in importance.method) == has_forest
    rate, optimizer = importance.effects
    assert rate.keys == ("train.lr",)
    assert rate.share > 0.6 > optimizer.share
    assert rate.direction > 0.8
    assert rate.p is not None
    assert rate.p < 0.01


def test_exploratory_findings_are_corrected_together_and_never_called_shown(
    tmp_path: Path,
) -> None:
    findings = analyze_study(read(write_study(tmp_path / "s", TWO, fall={"none": 0.3})))
    tested = [one for one in findings if one.p is not None]
    assert len(tested) > 2
    for one in tested:
        assert one.exploratory
        assert one.q is not None
        assert one.p is not None
        assert one.q >= one.p
        assert "exploratory, q" in one.text
        chance = "Not distinguishable from chance" in one.text
        assert chance != one.is_selected
    for one in findings:
        assert not re.search(r"\b(better|worse|best|most|shown|shows|as good)\b", one.text)
    assert correct_findings([]) == []
    declared = Finding("length", "Asked before.", "by-length", p=0.01, exploratory=False)
    assert correct_findings([declared]) == [declared]
    assert declared.is_selected


def test_costs_stand_beside_scores(tmp_path: Path) -> None:
    results = read(write_study(tmp_path / "s", TWO))
    first, second = measure_costs(results)
    assert first.tokens_per_second == 1000.0
    assert first.parameters == 1_000_000
    assert first.score is not None
    assert second.score is not None
    assert first.score < second.score
    [cost] = of_kind(analyze_study(results), "cost")
    assert cost.interval is not None
    assert cost.interval.low < 1.0 < cost.interval.high


def test_a_ratio_of_times_is_said_to_be_of_geometric_means(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO)
    for minutes, state in zip([0.2, 1.0, 0.9, 1.1, 0.9, 0.9], read_trials(folder), strict=True):
        write_state(folder, replace(state, minutes=minutes))
    results = read(folder)
    [cost] = of_kind(analyze_study(results), "cost")
    logs = {
        system.name: np.mean([np.log(state.minutes or 0) for state in system.finished])
        for system in results.systems
    }
    ratio = np.exp(logs[cost.numbers["a"]] - logs[cost.numbers["b"]])
    assert cost.numbers["ratio"] == pytest.approx(ratio)
    assert "(geometric means over seeds; 95% interval" in cost.text
    [table] = [
        block
        for block in build_study_report(folder).blocks()
        if isinstance(block, Table) and block.id == "costs"
    ]
    assert "Ratios of times are of geometric means" in table.caption


def test_nothing_is_found_before_there_are_results(tmp_path: Path) -> None:
    names = [f"{system}-seed{seed}" for seed in range(3) for system in TWO]
    assert analyze_study(read(write_study(tmp_path / "s", TWO, waiting=names))) == []
    # Two seeds: no question about recipes.
    two = read(write_study(tmp_path / "t", TWO, seeds=2))
    assert not of_kind(analyze_study(two), "length")


def test_compare_takes_a_study(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO | {"t5": 0.63}, baseline="none", looks=[3, 5])
    for name in (folder, folder / "records"):
        shown = CliRunner().invoke(app, ["compare", str(name), "--json"])
        assert shown.exit_code == 0, shown.output
        answer = json.loads(shown.output)
        assert answer["declared"]
        assert answer["alpha"] == 0.0294
        assert [system["name"] for system in answer["systems"]] == ["none", "rope", "t5"]
    comparison = heed.compare([folder], metric="bleu")
    assert comparison.is_declared
    screen = StringIO()
    Console(file=screen, width=80).print(render_comparison(comparison))
    assert max(map(len, screen.getvalue().splitlines())) <= 80
    assert "97.1% interval" in screen.getvalue()
    # Two studies together are runs like any others.
    other = write_study(tmp_path / "t", {"none": 0.7}, set={"train.lr": 0.5})
    both = heed.compare([folder, other])
    assert len(both.groups) == 4
    assert not both.is_declared
