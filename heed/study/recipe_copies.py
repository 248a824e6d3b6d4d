"""Copies of recipes in a study's folder: the files themselves may change while it runs.

`recipes/checksums.json` has the checksum of each copy, which is verified whenever one is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from heed import checksums, recipes
from heed.checksums import DamagedError
from heed.files import make_folder, write_atomic

RECIPES = "recipes"
"""The subfolder of the copies."""
RESTORE = "Restore it from a copy of the study, or from the recipe as it was when the study began."
RESTORE_LIST = "Restore it from a copy of the study, or delete it: copies are not verified then."


def copy_recipes(folder: Path, names: Iterable[str]) -> None:
    """Copy recipes into a study's folder; those that are there stay as they are.

    A copy counts once its checksum is written: what a killed command left is copied again.
    """
    make_folder(folder / RECIPES)
    known = _read_checksums(folder)
    hashes = dict(known or {})
    for name in dict.fromkeys(names):
        copy = copy_path(folder, name)
        if copy.name not in hashes and (known is not None or not copy.exists()):
            write_atomic(copy, recipes.find(name).read_bytes())
        hashes.setdefault(copy.name, checksums.hash_file(copy))
    if hashes != known:
        checksums.write_json(folder / RECIPES / checksums.MANIFEST, hashes)


def find_copy(folder: Path, name: str) -> Path | None:
    """The study's copy of a recipe, verified; None before there is one."""
    copy, hashes = copy_path(folder, name), _read_checksums(folder) or {}
    if copy.name in hashes:
        _verify(copy, hashes[copy.name])
    return copy if copy.is_file() else None


def verify_copies(folder: Path) -> None:
    """Raise an error for the first copy that is missing or damaged."""
    for name, checksum in (_read_checksums(folder) or {}).items():
        _verify(folder / RECIPES / name, checksum)


def copy_path(folder: Path, name: str) -> Path:
    """Where a study keeps its copy of a recipe."""
    plain = re.sub(r"[^\w.-]+", "-", name.removesuffix(".toml"), flags=re.ASCII).strip("-.")
    if plain != name:
        plain += f"-{blake2b(name.encode(), digest_size=3).hexdigest()}"
    return folder / RECIPES / f"{plain[-100:]}.toml"


def _read_checksums(folder: Path) -> dict[str, str] | None:
    """The checksums of the copies by file name; None where none were written."""
    path = folder / RECIPES / checksums.MANIFEST
    return checksums.read_json(path, todo=RESTORE_LIST) if path.exists() else None


def _verify(copy: Path, checksum: str) -> None:
    if not copy.exists():
        what = "this copy of a recipe is missing."
        raise DamagedError(what, where=str(copy), todo=RESTORE)
    if checksums.hash_file(copy) != checksum:
        raise checksums.damage(str(copy), RESTORE)
