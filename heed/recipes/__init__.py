"""Ready recipes, found by name: `heed train NAME`."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from rich.table import Table
from rich.text import Text

from heed.config import SECTIONS, Recipe
from heed.config.recipe import toml_value
from heed.errors import ConfigError, nearest
from heed.terminal import build_grid

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every shipped recipe."""
    return shipped_names(FOLDER)


def about(name: str) -> str:
    """The first sentence of the comment at a shipped recipe's head."""
    return first_sentence(FOLDER / f"{name}.toml")


def table() -> Table:
    """Every shipped recipe and what it is for."""
    return shipped_table(FOLDER)


def shipped_names(folder: Path) -> list[str]:
    """The names of the TOML files in a folder and below it."""
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml")
    )


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at the head of a TOML file."""
    head = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in head)
    return re.split(r"(?<=[.?])\s+(?=[A-Z-])", comment)[0]


def shipped_table(folder: Path) -> Table:
    """Every TOML file in a folder and below it, with its first sentence."""
    grid = build_grid(no_wrap_first=True)
    for name in shipped_names(folder):
        grid.add_row(Text(name), Text(first_sentence(folder / f"{name}.toml")))
    return grid


def find(name: str) -> Path:
    """The file of a recipe, by its path or by the name of a shipped one."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            todo = "Check the path, or name a shipped recipe: `heed recipes` lists them."
            raise ConfigError([f"There is no recipe file {name!r}. {todo}"])
        return path
    if name not in names() and (path / "recipe.toml").is_file():
        message = f"{name!r} is a run, not a recipe. Its recipe is {name.rstrip('/')}/recipe.toml"
        raise ConfigError([f"{message}; to continue the run, use heed resume {name}."])
    if name not in names():
        known = ", ".join(names())
        raise ConfigError(
            [f"There is no recipe {name!r}.{nearest(name, names())} Shipped: {known}."]
        )
    return FOLDER / f"{name}.toml"


def show(name: str) -> str:
    """A recipe with every key, its value and what it means."""
    recipe = Recipe.read(find(name))
    lines = [f"# {name}", f"task = {toml_value(recipe.task)}", f"seed = {recipe.seed}"]
    for section, kind in SECTIONS.items():
        lines += ["", f"[{section}]  # {(kind.__doc__ or '').strip()}"]
        values = getattr(recipe, section)
        for name_in_python, field in kind.model_fields.items():
            key, value = field.alias or name_in_python, getattr(values, name_in_python)
            text = f"# {key} is unset" if value is None else f"{key} = {toml_value(value)}"
            lines += [f"# {' '.join((field.description or '').split())}", text]
    return "\n".join(lines)
