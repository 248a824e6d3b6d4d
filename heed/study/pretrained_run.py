"""The run that a study pretrains: trained once, in the study's folder, before the trials.

The first trial process trains it and the others wait; one that is killed is resumed. So it needs no
runner, and there is never more than one of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.files import lock_file
from heed.study.recipe_copies import find_copy
from heed.study.study_config import PRETRAINED, StudyConfig, TextsConfig
from heed.study.study_systems import write_overrides
from heed.study.study_texts import place_files

if TYPE_CHECKING:
    from heed.config import Recipe

LOCK = "pretrained.lock"


def pretrained_folder(folder: Path) -> Path:
    """The run folder of a study's pretraining."""
    return folder.resolve() / PRETRAINED


def resolve_changes(
    folder: Path,
    config: StudyConfig,
    name: str,
    changes: Mapping[str, Any],
    seed: int,
    texts: TextsConfig | None = None,
) -> Recipe:
    """A recipe of the study, from its own copy, with changed keys, a seed and other files."""
    from heed.train.resolve import resolve_recipe

    keys = {**changes, "seed": seed, "train.evaluate_test": False}
    if keys.get("init.from") == PRETRAINED:
        keys["init.from"] = str(pretrained_folder(folder))
    files = {} if texts is None else texts.tables()
    files = {split: place_files(folder, names) for split, names in files.items()}
    recipe, _ = resolve_recipe(
        str(find_copy(folder, name) or name),
        None,
        files.get("train"),
        files.get("dev"),
        write_overrides(keys),
        None,
        None if config.data is None else Path(config.data),
        test=files.get("test"),
    )
    return recipe


def resolve_pretraining(folder: Path, config: StudyConfig) -> Recipe | None:
    """The recipe of a study's pretraining; None where it has none."""
    if (pretrain := config.pretrain) is None:
        return None
    return resolve_changes(folder, config, pretrain.recipe, pretrain.set, pretrain.seed)


def train_pretrained_run(folder: Path, config: StudyConfig, device: str, console: Any) -> None:
    """Train the run of a study's [pretrain], or wait until another process has."""
    from heed.runs.run import Run
    from heed.train import run as train_run

    recipe = resolve_pretraining(folder, config)
    run = Run(pretrained_folder(folder))
    if recipe is None or run.finished:
        return
    with lock_file(folder / LOCK, wait=True):
        if run.finished:
            return
        console.print(f"Pretraining {run.folder}: the trials begin from it.")
        if run.recipe_path.exists():
            train_run.resume(run.folder, device=device, console=console)
        else:
            train_run.start(recipe, run.folder, device=device, console=console)
