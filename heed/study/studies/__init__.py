"""Ready studies, found by name: `heed study NAME`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from heed.errors import ConfigError, nearest
from heed.recipes import first_sentence, shipped_names, shipped_table
from heed.recipes import names as recipe_names

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every shipped study."""
    return shipped_names(FOLDER)


def about(name: str) -> str:
    """The first sentence of the comment at a shipped study's head."""
    return first_sentence(FOLDER / f"{name}.toml")


def table() -> Table:
    """Every shipped study and the question that it answers."""
    return shipped_table(FOLDER)


def find(name: str) -> Path:
    """The file of a study, by its path or by the name of a shipped one."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ConfigError([f"There is no study file {name!r}."])
        return path
    if name not in names():
        recipes = recipe_names()
        raise ConfigError(
            [
                f"There is no study or recipe {name!r}, neither a file nor a folder nor a shipped "
                f"one. Studies: {', '.join(names())}. Recipes: {', '.join(recipes)}."
                f"{nearest(name, [*names(), *recipes])}"
            ]
        )
    return FOLDER / f"{name}.toml"
