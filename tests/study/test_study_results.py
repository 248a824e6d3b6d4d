"""The results of a study from its folder: comparison, declaration, looks, tables, curves."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from study_folders import write_finished, write_study

from heed.api.python_study import open_study
from heed.errors import HeedError
from heed.stats.comparison import SumMetric
from heed.stats.selection import winner_fall
from heed.stats.verdicts import Verdict
from heed.study.compare_named import compare_named
from heed.study.comparison_tables import to_markdown
from heed.study.recipe_comparison import RecipeComparison
from heed.study.search.search_findings import tell_fall
from heed.study.study_folder import extend_study, read_study_folder
from heed.study.study_results import StudyResults
from heed.study.trials import Trial, read_trials

TWO = {"none": 0.5, "rope": 0.62}


def compared(results: StudyResults) -> RecipeComparison:
    assert results.comparison is not None
    return results.comparison


def test_the_declared_question_is_answered_by_the_studys_names(tmp_path: Path) -> None:
    results = StudyResults.read(write_study(tmp_path / "s", TWO, baseline="none", margin=1.0))
    comparison = compared(results)
    assert comparison.is_declared
    assert [group.name for group in comparison.groups] == ["none", "rope"]
    [pair] = comparison.whole.pairs
    assert (pair.a, pair.b, pair.seeds) == ("rope", "none", (3, 3))
    assert comparison.judgements[0].verdict is Verdict.BETTER_BY_MARGIN
    notes = " ".join(comparison.notes)
    assert "Declared before training" in notes
    assert "Exploratory" not in notes
    assert results.best == "rope"
    assert results.looks == {"test": 6}
    assert results.tokens == 60_000
    assert results.minutes == pytest.approx(6, rel=0.02)
    assert "6 of 6 trials finished" in repr(results)
    # Another metric or baseline than the declared ones is exploratory.
    other = results.compare(baseline="rope")
    assert not other.is_declared
    assert "the baseline rope was asked after training; declared was none" in " ".join(other.notes)
    with pytest.raises(HeedError, match=r"no system 'ropf'\. Did you mean 'rope'"):
        results.system("ropf")


def test_no_study_and_no_finished_trials(tmp_path: Path) -> None:
    with pytest.raises(HeedError, match=r"study\.toml is missing"):
        StudyResults.read(tmp_path)
    names = [f"{system}-seed{seed}" for seed in range(3) for system in TWO]
    results = StudyResults.read(write_study(tmp_path / "s", TWO, waiting=names))
    assert results.comparison is None
    assert results.best is None
    assert results.curves() == []
    assert [row["seeds"] for row in results.summary()] == [0, 0]


def test_tables_have_a_row_for_each_trial_and_each_system(tmp_path: Path) -> None:
    results = StudyResults.read(write_study(tmp_path / "s", TWO, baseline="none"))
    assert [row["trial"] for row in results.rows()][:2] == ["none-seed0", "rope-seed0"]
    first, second = results.summary()
    assert (first["system"], first["seeds"], first["failed"]) == ("none", 3, 0)
    assert second["difference"] == pytest.approx(second["mean"] - first["mean"])
    assert second["verdict"] == "better"
    assert second["dev_mean"] > first["dev_mean"]


def test_curves_are_means_over_seeds_with_a_band(tmp_path: Path) -> None:
    results = StudyResults.read(write_study(tmp_path / "s", TWO))
    curves = results.curves("dev/loss", "epoch")
    assert [curve.group.name for curve in curves] == ["none", "rope"]
    curve = curves[0]
    assert (curve.runs, len(curve.points), len(curve.band)) == (3, 10, 10)
    last = [results.record(f"none-seed{seed}").history[-1]["dev/loss"] for seed in range(3)]
    assert curve.points[-1] == pytest.approx((1.0, np.mean(last)))
    assert curve.band[-1] == pytest.approx((min(last), max(last)))
    assert "seen/loss" in results.metrics()
    assert results.curves("dev/nothing") == []
    with pytest.raises(HeedError, match="x cannot be 'time'"):
        results.curves("dev/loss", "time")


def test_failed_seeds_are_told_and_the_others_compared(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO, failed=["rope-seed1"], paired_seeds=True)
    results = StudyResults.read(folder)
    comparison = compared(results)
    assert comparison.is_declared
    assert comparison.whole.pairs[0].seeds == (2, 2)  # seeds are pairs: seed 1 of both is left out
    notes = " ".join(comparison.notes)
    assert "1 of 3 seeds of rope failed (rope-seed1: CUDA out of memory)" in notes
    assert "Left out: 1 finished trial of seeds that not all have" in notes
    assert [state.trial.name for state in results.failures] == ["rope-seed1"]


def test_a_baseline_without_trials_leaves_all_pairs(tmp_path: Path) -> None:
    failed = [f"none-seed{seed}" for seed in range(3)]
    three = TWO | {"t5": 0.6}
    folder = write_study(tmp_path / "s", three, failed=failed, baseline="none")
    comparison = compared(StudyResults.read(folder))
    assert [(pair.a, pair.b) for pair in comparison.whole.pairs] == [("t5", "rope")]
    assert not comparison.is_declared
    assert "the baseline none has no finished trial" in " ".join(comparison.notes)


def test_an_unfinished_study_is_exploratory(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO, waiting=["rope-seed2"])
    comparison = compared(StudyResults.read(folder))
    assert not comparison.is_declared
    assert "5 of 6 final trials have ended" in " ".join(comparison.notes)


def add_seeds(folder: Path, count: int) -> None:
    """Add seeds to a study, and their finished trials."""
    config = read_study_folder(folder)
    config = config.model_copy(update={"seeds": list(range(count))})
    config = extend_study(folder, config)
    states = read_trials(folder)
    names = {state.trial.name for state in states}
    random, number = np.random.default_rng(2), len(states)
    for seed in config.seeds:
        for system in TWO:
            trial = Trial(f"{system}-seed{seed}", number, system, {}, "demo-translate", seed)
            if trial.name not in names:
                trial, number = replace(trial, added=True), number + 1
                write_finished(folder, config, trial, random, TWO[system])


def test_added_seeds_are_exploratory_unless_their_look_was_declared(tmp_path: Path) -> None:
    plain = write_study(tmp_path / "plain", TWO)
    declared = write_study(tmp_path / "declared", TWO, looks=[3, 5, 10])
    before = compared(StudyResults.read(declared))
    assert before.is_declared
    assert before.whole.alpha == 0.0221
    assert "Look 1 of 3 (at 3, 5, 10 seeds)" in " ".join(before.notes)
    for folder in (plain, declared):
        add_seeds(folder, 5)
    exploratory = compared(StudyResults.read(plain))
    assert not exploratory.is_declared
    assert "2 seeds were added after training began" in " ".join(exploratory.notes)
    study = open_study(plain)
    for text in (str(exploratory), repr(exploratory), str(study), repr(study)):
        assert "Exploratory: 2 seeds were added after training began" in text
    second = compared(StudyResults.read(declared))
    assert second.is_declared
    assert "Exploratory" not in repr(open_study(declared))
    assert "Look 2 of 3" in " ".join(second.notes)
    assert "97.8% interval" in second.sentences[0]
    assert "97.8% interval" in to_markdown(second)
    assert second.whole.pairs[0].seeds == (5, 5)
    # The interval of a look is wider than that of the same seeds at 5%.
    wide, narrow = (one.whole.pairs[0].interval for one in (second, exploratory))
    assert wide.high - wide.low > narrow.high - narrow.low
    # Between two looks, the earlier one is told.
    add_seeds(declared, 7)
    between = compared(StudyResults.read(declared))
    assert between.whole.pairs[0].interval == second.whole.pairs[0].interval
    assert "Left out: 4 finished trials beyond this look" in " ".join(between.notes)


def test_a_baseline_is_a_system_or_the_path_of_a_run(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO)
    wanted = compare_named(folder, baseline="none").to_dict()["pairs"]
    for name in (
        "none-seed0",
        f"{folder}/runs/none-seed0",
        f"{folder}/records/none-seed0.record.json",
    ):
        for named in (folder, folder / "runs"):
            assert compare_named(named, baseline=name).to_dict()["pairs"] == wanted
    with pytest.raises(HeedError, match="is none of the runs"):
        compare_named(folder, baseline="elsewhere/runs/none-seed0")


def test_what_a_study_was_not_scored_by_is_told_with_what_to_do(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO)
    with pytest.raises(HeedError, match="not on 'train'") as error:
        compare_named(folder, set_name="train")
    assert "The weights of 6 of 6 runs were not kept" in str(error.value)
    for state in read_trials(folder):
        run = folder / "runs" / state.trial.name
        run.mkdir(parents=True)
        (run / "model.safetensors").touch()
    with pytest.raises(HeedError, match="not on 'train'") as error:
        compare_named(folder, set_name="train")
    assert f"heed evaluate {folder}/runs/none-seed0 --split train" in str(error.value)
    with pytest.raises(HeedError, match="were not all scored with ter") as error:
        compare_named(folder, metric="ter")
    assert "heed evaluate RUN --metric ter" in str(error.value)


def test_too_few_seeds_for_the_first_look_are_exploratory(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", TWO, looks=[4, 8])
    comparison = compared(StudyResults.read(folder))
    assert not comparison.is_declared
    assert "3 seeds each are none of the declared looks (4, 8)" in " ".join(comparison.notes)


def test_a_search_tells_the_expected_best_and_the_winners_fall(tmp_path: Path) -> None:
    search = {"trials": 4, "space": {"train.lr": {"low": 1e-4, "high": 1e-2, "log": True}}}
    folder = write_study(
        tmp_path / "s", lambda changes: 0.6, systems=[{"name": "a"}], search=search, sets=[]
    )
    config, random = read_study_folder(folder), np.random.default_rng(3)
    for number, quality in enumerate((0.5, 0.7, 0.55, 0.6)):
        changes = {} if quality == 0.7 else {"train.lr": 10.0**-number}
        trial = Trial(
            f"a-trial{number:03}", 10 + number, "a", changes, "demo-translate", 7, "search"
        )
        write_finished(folder, config, trial, random, quality, has_record=False)
    results = StudyResults.read(folder)
    [curve] = results.expected_best().values()
    assert len(curve) == 4
    assert curve == sorted(curve)
    fall = results.winner_falls()["a"]
    assert fall.fall > 5
    assert fall.interval is not None
    assert results.set_name == "dev"
    best = results.best_trial("a")
    assert best is not None
    assert best.dev == max(results.system("a").dev_scores)


@pytest.mark.parametrize(
    ("higher_is_better", "fresh", "words"),
    [
        (True, [9.0, 9.5, 9.1], "falls by 0.80 from the search to fresh seeds (95% interval of "),
        (True, [10.5, 11.5, 11.0], "rises by 1.00 from the search"),
        (False, [9.0, 9.5, 9.1], "falls by 0.80 from the search"),
        (False, [10.5, 11.5, 11.0], "rises by 1.00 from the search"),
    ],
)
def test_the_change_of_a_winner_is_told_with_its_direction(
    higher_is_better: bool, fresh: list[float], words: str
) -> None:
    metric = SumMetric("score", lambda sums: sums[..., 0], higher_is_better=higher_is_better)
    fall = winner_fall([10.0], fresh, higher_is_better=higher_is_better)
    text = tell_fall(fall, metric)
    assert words in text
    low, high = map(float, re.findall(r"change (\S+) to (.+?)\)", text)[0])
    assert low < np.mean(fresh) - 10 < high


@pytest.mark.slow
def test_two_hundred_trials_are_read_in_seconds(tmp_path: Path) -> None:
    """Forty systems of five seeds, by the time of this process: others may be busy, too."""
    folder = write_study(
        tmp_path / "s",
        lambda changes: 0.5 + 0.001 * changes["model.width"],
        grid={"model.width": list(range(8, 328, 8))},
        baseline="width8",
        seeds=5,
        items=20,
    )
    start = time.process_time()
    results = StudyResults.read(folder)
    assert len(results.rows()) == 200
    assert len(results.summary()) == 40
    assert len(results.curves()) == 40
    assert time.process_time() - start < 10
