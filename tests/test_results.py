"""The pages of kept studies say what the kept records say."""

from __future__ import annotations

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
