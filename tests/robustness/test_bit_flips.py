"""Damaged files of a run and of the cache: the short form of benchmarks/robustness/bit_flips.py."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from robustness.bit_flips import SCENES, Command, Scene, make_files, run_scene
from robustness.forked_command import import_commands

CHOSEN = {
    "classify": ("recipe.toml", "labels.json", "calibration.json", "model.safetensors"),
    "score": ("test.tsv",),
    "resume": ("recent-000000006.safetensors",),
    "train": ("1.ids",),
}
"""Files that are damaged, by the command that reads them."""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="commands run in forked processes"),
    pytest.mark.filterwarnings("default"),  # in the forked commands, too
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import_commands()
    folder = tmp_path_factory.mktemp("damaged")
    make_files(folder / "trial")
    return shutil.copytree(folder / "trial", folder / "base")


@pytest.mark.slow  # a command for every damaged file
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_damage_is_recognized(scene: Scene, base: Path) -> None:
    chosen: dict[str, Path] = {}

    def is_chosen(command: Command, path: Path) -> bool:
        """Whether it is the first file of one of these names: there are several token stores."""
        known = path.name in CHOSEN.get(command.name, ())
        return known and chosen.setdefault(path.name, path) == path

    counts = run_scene(scene, base, base.parent / "trial", flips=1, chosen=is_chosen)
    assert counts.faults == []
    assert sum(counts.ends.values()) >= 5
