"""Which weights of a study are kept (`keep_weights`); the others are deleted once a trial ended."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from heed.config.task_metrics import LOWER_IS_BETTER
from heed.runs.run import Run
from heed.study.study_config import StudyConfig
from heed.study.trials import TrialState


def delete_weights(folder: Path, config: StudyConfig, states: Sequence[TrialState]) -> None:
    """Delete the weights that the study does not keep, of trials that have ended.

    Of those that are kept, checkpoints are deleted unless all is kept.
    """
    if config.keep_weights == "all":
        return
    kept = choose_kept(config, states)
    for state in states:
        if not state.has_ended or state.run is None:
            continue
        run = Run(folder / state.run)
        if state.trial.name not in kept:
            run.weights_path.unlink(missing_ok=True)
            shutil.rmtree(run.snapshots, ignore_errors=True)
        shutil.rmtree(run.checkpoints, ignore_errors=True)


def choose_kept(config: StudyConfig, states: Sequence[TrialState]) -> set[str]:
    """The trials whose weights are kept: of each system the final one that is best on dev."""
    best: dict[str, TrialState] = {}
    sign = -1.0 if config.metric in LOWER_IS_BETTER else 1.0
    for state in states:
        if state.status != "finished" or state.trial.stage != "final":
            continue
        before = best.get(state.trial.system)
        if before is None or sign * (state.dev or 0.0) > sign * (before.dev or 0.0):
            best[state.trial.system] = state
    return set() if config.keep_weights == "none" else {one.trial.name for one in best.values()}
