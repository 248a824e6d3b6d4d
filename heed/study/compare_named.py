"""Compare what is named: runs, records, or the folder of a study, which declared its question.

The folder of a study stands for its final trials, under its own names of systems, with the metric,
set, baseline and margin that it declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heed.study.recipe_comparison import RecipeComparison, compare_runs
from heed.study.run_records import SUFFIX, ScoredRun, open_scored_runs
from heed.study.study_folder import is_study_folder, refuse_lost_study
from heed.study.study_results import StudyResults
from heed.study.trials import RECORDS, RUNS


def compare_named(
    runs: str | Path | Sequence[str | Path] | Sequence[ScoredRun],
    *,
    baseline: str | Path | None = None,
    metric: str | None = None,
    margin: float | None = None,
    set_name: str | None = None,
    paired_seeds: bool = False,
) -> RecipeComparison:
    """Compare runs grouped by recipe without seed, or the systems of one study, as it declared.

    `runs` are paths or patterns, or a single one: a study, or a folder of runs.
    """
    if isinstance(runs, str | Path):
        runs = [runs]
    named = [run for run in runs if not isinstance(run, ScoredRun)]
    study = find_study(named)
    if study is not None:
        return study.compare(
            baseline=None if baseline is None else _name_system(study, str(baseline)),
            metric=metric,
            margin=margin,
            set_name=set_name,
            paired_seeds=paired_seeds,
        )
    scored = [run for run in runs if isinstance(run, ScoredRun)]
    return compare_runs(
        scored or open_scored_runs(expand_studies(named)),
        baseline=baseline,
        metric=metric,
        margin=margin,
        set_name=set_name,
        paired_seeds=paired_seeds,
    )


def find_study(names: Sequence[str | Path]) -> StudyResults | None:
    """The study that is named alone, by its folder or by its records; else None."""
    folder = _study_folder(names[0]) if len(names) == 1 else None
    return None if folder is None else StudyResults.read(folder)


def _name_system(study: StudyResults, name: str) -> str:
    """The system of a study that a name stands for: its own, or that of a run or a record."""
    path = Path(name)
    places = ((study.folder / part).resolve() for part in (RUNS, RECORDS))
    if path.name != name and path.resolve().parent not in places:
        return name
    trial = path.name.removesuffix(SUFFIX)
    systems = {state.trial.name: state.trial.system for state in study.trials}
    known = {system.name for system in study.systems}
    return name if name in known else systems.get(trial, name)


def expand_studies(names: Sequence[str | Path]) -> list[str]:
    """The names, with the folder of a study replaced by the records of its final trials."""
    expanded = []
    for name in names:
        folder = _study_folder(name)
        if folder is None:
            expanded.append(str(name))
        else:
            finished = [
                state for one in StudyResults.read(folder).systems for state in one.finished
            ]
            records = (folder / RECORDS / f"{state.trial.name}{SUFFIX}" for state in finished)
            expanded += map(str, records)
    return expanded


def _study_folder(name: str | Path) -> Path | None:
    """The folder of the study that a path names; its records and runs stand for it."""
    path = Path(name)
    refuse_lost_study(path)
    if is_study_folder(path):
        return path
    if path.resolve().name not in (RECORDS, RUNS):
        return None
    refuse_lost_study(path.resolve().parent)
    if is_study_folder(path.resolve().parent):
        return path.parent if path.name in (RECORDS, RUNS) else path.resolve().parent
    return None
