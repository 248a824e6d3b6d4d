"""Ready studies, found by name: `heed study NAME`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from heed.errors import ConfigError, nearest
from heed.recipes import first_sentence, shipped_names, shipped_table

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
        shipped = f" Shipped: {', '.join(names())}." if names() else ""
        raise ConfigError(
            [
                f"There is no study {name!r}, neither a file nor a folder nor a shipped one."
                f"{shipped}{nearest(name, names())}"
            ]
        )
    return FOLDER / f"{name}.toml"
