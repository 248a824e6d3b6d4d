"""The run that a study pretrains: one for all trials that begin from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from studying import RECIPE, ForkExecutor, on_cpu

from heed.runs.run import Run
from heed.study.pretrained_run import pretrained_folder
from heed.study.runner import carry_out_study
from heed.study.study_file import read_study
from heed.study.study_folder import create_study_folder
from heed.study.study_lock import study_lock

STUDY = """
recipe = "tuned.toml"
seeds = 1
[pretrain]
recipe = "tiny.toml"
set = { "train.objective" = "masked" }
[[systems]]
name = "low"
set = { "init.from" = "pretrained", "train.lr" = 0.001 }
[[systems]]
name = "high"
set = { "init.from" = "pretrained", "train.lr" = 0.01 }
"""
TUNED = """
task = "classify"
[data]
synthetic = 60
synthetic_test = 20
max_length = 32
[train]
steps = 4
batch_size = 8
evaluate_every = 4
precision = "float32"
"""


def test_trials_begin_from_one_pretrained_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("heed.train.run.draw_curves", lambda run: None)
    for name, text in (("tiny", RECIPE), ("tuned", TUNED), ("study", STUDY)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    config, folder = read_study(tmp_path / "study.toml"), tmp_path / "out"
    with study_lock(folder):
        create_study_folder(folder, config)
        states = carry_out_study(folder, config, ForkExecutor(), on_cpu(jobs=2))
    assert [state.status for state in states] == ["finished", "finished"]
    pretrained = Run(pretrained_folder(folder))
    assert pretrained.finished
    assert pretrained.recipe().train.objective == "masked"
    for state in states:
        recipe = Run(folder / str(state.run)).recipe()
        assert recipe.init.from_model == str(pretrained.folder)
        assert recipe.model.width == pretrained.recipe().model.width
