"""Optimizers are compared with as many trials each, and the page says what its figures say."""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from descent import paired
from descent.figures import gather
from descent.systems import (
    BEYOND,
    FIRST_SEED,
    FRESH_SEEDS,
    HIGHEST,
    LOWEST,
    RULES,
    SHARED,
    TASKS,
    Rule,
    Task,
    best,
    folder_name,
    grid,
    rate,
)
from descent.telling import Telling
from descent.training import TABLES, chosen, fresh, split_plays, sweep, train, widened
from hypothesis import given
from hypothesis import strategies as st
from optimizers import report
from reading import rounded
from running import DIVERGED, FailedError, Plan, learnt, pack, settings

from heed.config import Recipe
from heed.recipes import find
from heed.runs.run import Run

CLASSIFY, GENERATE = TASKS
RULE = {rule.name: rule for rule in RULES}
TEXTS = 60
BEST = dict.fromkeys(RULE, SHARED) | {"sgd": 0, "sgd-momentum": -2}
"""The half decade at which each rule is made to do best."""
tasks = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


# ------------------------------------------------------------------------------------ the trials


@tasks
def test_all_rules_try_the_same_rates(task: Task) -> None:
    rates = {rule.name: set[int]() for rule in RULES}
    for one in sweep(task, grid()):
        rates[one.rule.name].add(one.half)
    assert set(map(frozenset, rates.values())) == {frozenset(grid())}
    assert SHARED in grid()


@tasks
def test_only_the_chosen_rate_with_fresh_seeds_sees_the_test_set(task: Task) -> None:
    assert not any(one.tested for one in sweep(task, grid()))
    runs = fresh(task, BEST)
    assert len({one.name for one in runs}) == len(runs)
    assert {one.seed for one in runs} == set(FRESH_SEEDS)
    assert FIRST_SEED not in FRESH_SEEDS
    assert all(one.tested == (one.half == BEST[one.rule.name]) for one in runs)
    assert {one.rule.name for one in runs if one.half == SHARED} == set(RULE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@tasks
def test_a_trial_is_a_recipe_that_can_be_read(task: Task, rule: Rule) -> None:
    read = Recipe.read(find(task.recipe), [*task.changes, *rule.changes])
    assert rule.name.startswith(read.train.optimizer)


@tasks
@given(figures=st.dictionaries(st.integers(-9, 9), st.sampled_from([0.1, 0.2, 0.3])))
def test_the_best_rate_is_the_lowest_that_none_beats(task: Task, figures: dict[int, float]) -> None:
    at = best(task, figures)
    if at is None:
        assert not figures
        return
    top = (max if task.rises else min)(figures.values())
    assert at == min(half for half, figure in figures.items() if figure == top)


def test_the_rates_are_half_a_decade_apart() -> None:
    rates = [rate(half) for half in grid((BEYOND, BEYOND))]
    assert np.diff(np.log10(rates)) == pytest.approx(0.5, abs=1e-3)


def test_plays_are_parted_in_their_order_and_nothing_is_lost(tmp_path: Path) -> None:
    speeches = [f"A:\nline {i}." for i in range(101)]
    (tmp_path / "play.txt").write_text("\n\n".join(speeches) + "\n", encoding="utf-8")
    split_plays(tmp_path / "play.txt", tmp_path / "text")
    parts = [(tmp_path / "text" / f"{p}.txt").read_text("utf-8") for p in ("train", "dev", "test")]
    assert [one.strip() for part in parts for one in part.split("\n\n")] == speeches
    assert all(part.strip() for part in parts)


def test_too_high_a_rate_is_a_result_and_other_errors_are_not(tmp_path: Path) -> None:
    """By the last words of a command that fails, not by those of one before it."""
    soon = time.monotonic() + 100
    plan = Plan(tmp_path, tmp_path, [], "cpu", jobs=1, deadline=soon, stop=soon)
    run, changes = (
        Run(tmp_path / "one"),
        ("train.lr=1e30", "data.synthetic=50", "train.max_skipped_steps=1"),
    )
    assert learnt(plan, run, "demo-generate", *settings(changes)) == DIVERGED
    shutil.rmtree(run.folder)  # its log stays
    with pytest.raises(FailedError, match="train ended with"):
        learnt(plan, run, "no-such-recipe")
    assert not run.folder.exists()


def test_nothing_is_begun_after_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare.txt").write_text("A:\nb.\n\nB:\nc.\n", encoding="utf-8")
    now, runs = time.monotonic(), tmp_path / "runs"
    late = Plan(tmp_path, runs, [], "cpu", jobs=2, deadline=now - 1, stop=now - 1)
    packed: list[bool] = []
    assert not train(late, lambda: packed.append(True))
    assert packed
    assert [path.name for path in runs.iterdir()] == ["text"]


# ------------------------------------------------------------------------------------- the tests


def answers(share: float, seeds: tuple[int, ...] = FRESH_SEEDS) -> dict[int, paired.Table]:
    """Tables of models that are right this often."""
    tables = {}
    for seed in seeds:
        random = np.random.default_rng(seed)
        right = (random.random(400) < share).astype(np.float64)
        tables[seed] = np.stack([right, np.ones(400)], axis=1)
    return tables


def test_an_optimizer_does_not_differ_from_itself() -> None:
    own = answers(0.7)
    found = paired.against(CLASSIFY, own, own)
    assert found.gain == 0
    assert found.p == 1.0


@tasks
def test_who_is_held_against_whom_only_turns_the_sign(task: Task) -> None:
    high, low = answers(0.9), answers(0.6)
    one, other = paired.against(task, high, low), paired.against(task, low, high)
    assert one.gain == pytest.approx(-other.gain)
    assert (one.gain > 0) == task.rises
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p == pytest.approx(other.p)
    assert one.p < 0.05


# -------------------------------------------------------------------------------------- the page


def made(folder: Path, task: Task, half: int, seed: int, rule: Rule, *, tested: bool) -> None:
    """A run as training leaves it: the farther from the rule's own rate, the worse."""
    run = folder / folder_name(task, rule, half, seed)
    run.mkdir(parents=True)
    away, luck = abs(half - BEST[rule.name]), 0.001 * (seed + 1)
    figure = 0.8 - 0.04 * away + luck if task.rises else 4.0 + 0.3 * away + luck
    lines = [
        {"event": "evaluate", "step": step, "dev": {"loss": 1.0, task.metric: figure}}
        for step in (50, 100)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    noted = {"ended": "finished", "jobs": 1, "seconds": {"train": 1.0}}
    (run / "benchmark.json").write_text(json.dumps(noted))
    if tested:
        _tested(run, task, seed, figure)


def _tested(run: Path, task: Task, seed: int, figure: float) -> None:
    """What `heed evaluate` leaves: a row a text, and the sums."""
    random = np.random.default_rng(seed)
    told = {"texts": TEXTS, "in_train": 2, "hash": "0", "clean": None, "bits_per_byte": 2.0}
    (run / "evaluation.json").write_text(json.dumps({"test": told | {task.metric: figure}}))
    if task is CLASSIFY:
        said = random.random(TEXTS) < 0.8
        rows = [["secret", "1", str(int(right)), "no", "0.5", "0.5"] for right in said]
        head = ["text", "label", "answer", "in_train", "p:0", "p:1"]
    else:
        rows = [["a:1", "7", f"{4 + random.random():.4f}", "no", "secret"] for _ in range(TEXTS)]
        head = ["place", "tokens", "loss", "in_train", "text"]
    (run / TABLES[task.name]).mkdir()
    table = "".join("\t".join(row) + "\n" for row in [head, *rows])
    (run / TABLES[task.name] / "test.tsv").write_text(table)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All rules are as good, each at its own rate; one run had too high a rate."""
    folder = tmp_path_factory.mktemp("runs")
    for task in TASKS:
        for one in [*sweep(task, grid()), *fresh(task, BEST)]:
            made(folder, task, one.half, one.seed, one.rule, tested=one.tested)
    broken = folder / folder_name(CLASSIFY, RULE["lion"], HIGHEST, FIRST_SEED)
    (broken / "benchmark.json").write_text(json.dumps({"ended": "diverged"}))
    return folder


@pytest.fixture(scope="module")
def told(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, its figure and its numbers."""
    folder = tmp_path_factory.mktemp("told")
    report(runs, folder, folder)
    return folder


@tasks
def test_the_rate_of_each_rule_is_chosen_on_dev(runs: Path, task: Task) -> None:
    assert chosen(runs, task, grid()) == BEST
    assert widened(runs, task, (0, 0)) == (0, 0)


@tasks
def test_a_rule_that_wins_at_an_edge_gives_all_a_rate_more(runs: Path, task: Task) -> None:
    """Of the rates below the best one only, the last wins; never more than may be added."""
    low = [half for half in grid() if half <= min(BEST.values())]
    assert set(chosen(runs, task, low).values()) == {low[-1]}
    assert widened(runs, task, (0, SHARED - HIGHEST)) == (0, SHARED - HIGHEST + 1)
    assert widened(runs, task, (BEYOND, BEYOND)) == (BEYOND, BEYOND)
    assert grid((1, 1)) == [LOWEST - 1, *grid(), HIGHEST + 1]


def test_the_page_says_what_the_figures_say(told: Path) -> None:
    page = (told / "optimizers.md").read_text(encoding="utf-8")
    figures = json.loads((told / "optimizers.json").read_text(encoding="utf-8"))
    for task in TASKS:
        own = figures["tasks"][task.name]
        assert own["at_one_rate"]["sgd"]["gain"] < 0
        assert own["at_one_rate"]["sgd"]["p_holm"] < 0.05
        assert own["at_own_rate"]["sgd"]["gain"] == pytest.approx(0)
        assert {name: one["best"] for name, one in own["rules"].items()} == {
            name: rate(half) for name, half in BEST.items()
        }
        assert own["wins"]["1"]["first"] == "sgd"
    assert page.count("the rate made 100% for SGD and 100% for SGD with momentum") == len(TASKS)
    assert page.count("SGD and SGD with momentum come within") == len(TASKS)
    assert "diverged" in page
    assert "](optimizers.png)" in page
    assert (told / "optimizers.png").exists()


@given(gain=st.floats(-3.0, 1.0), p=st.floats(0.0, 1.0))
def test_what_is_not_shown_is_not_called_equal(told: Path, gain: float, p: float) -> None:
    """A large difference that too few seeds leave open does not clear an optimizer."""
    figures = json.loads((told / "optimizers.json").read_text(encoding="utf-8"))
    own = figures["tasks"]["generate"]
    own["on_test"]["sgd"] |= {"gain": gain, "p_holm": p}
    said = Telling(GENERATE, own).finding()
    assert ('"SGD fails" is true of that rate' in said) == (gain >= -GENERATE.near)
    assert ("not confirmed" in said) == (gain < -GENERATE.near and p >= 0.05)


def test_no_text_of_the_corpora_gets_into_the_project(told: Path) -> None:
    kept = [(told / f"optimizers.{kind}").read_text(encoding="utf-8") for kind in ("json", "md")]
    assert not any("secret" in text for text in kept)


def test_what_is_packed_is_enough(runs: Path, told: Path, tmp_path: Path) -> None:
    pack(runs, tmp_path / "runs.tar.gz", folders=tuple(TABLES.values()))
    with tarfile.open(tmp_path / "runs.tar.gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    figures = json.dumps(rounded(gather(tmp_path / "unpacked")), indent=1, ensure_ascii=False)
    assert figures + "\n" == (told / "optimizers.json").read_text(encoding="utf-8")


def test_without_runs_there_is_little_to_say(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "Nothing is trained yet" in (tmp_path / "optimizers.md").read_text(encoding="utf-8")
