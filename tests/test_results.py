"""The pages of kept studies say what the kept records say."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
from common import DOCS, RESULTS

from heed.report.study_report import build_study_report
from heed.report.write_report import write_report
from heed.study.study_folder import read_study_folder
from heed.study.trials import RECORDS, RUNS, read_trials

STUDIES = sorted(path.parent for path in (RESULTS / "studies").glob("*/study.toml"))


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_page_has_the_scores_of_its_kept_study(folder: Path, tmp_path: Path) -> None:
    config, scores = read_study_folder(folder), defaultdict(list)
    for state in read_trials(folder):
        if state.status == "finished" and config.metric:
            assert (folder / RECORDS / f"{state.trial.name}.record.json").exists()
            scores[state.trial.system].append(state.scores[config.sets[0]][config.metric])
    write_report(build_study_report(folder), tmp_path / "page.md")
    pages = [DOCS / f"{folder.name}.md", tmp_path / "page.md"]
    for text in (page.read_text(encoding="utf-8").replace("\\", "") for page in pages):
        for system, values in scores.items():
            name = f"{system} (baseline)" if system == config.baseline else system
            assert f"| {name} | {len(values)} | {fmean(values):.2f} ±" in text


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_kept_study_has_no_weights_and_no_place(folder: Path) -> None:
    assert not (folder / RUNS).exists()
    for path in folder.rglob("*.json"):
        assert "/home/" not in path.read_text(encoding="utf-8")


def test_the_page_of_optimizers_counts_the_looks_at_test() -> None:
    """Test scores are kept of fresh seeds at each optimizer's own rate, and of no other run."""
    kept = json.loads((RESULTS / "optimizers.json").read_text(encoding="utf-8"))
    page = (DOCS / "optimizers.md").read_text(encoding="utf-8")
    for task in kept["tasks"].values():
        assert task["seeds"]["choice"] not in task["seeds"]["fresh"]
        rules = task["rules"].values()
        looks = sum(len(rule["own"]["test"]["each"]) for rule in rules)
        assert f"evaluated {looks} times for {looks} models" in page
        assert not any("test" in rule["shared"] for rule in rules)
