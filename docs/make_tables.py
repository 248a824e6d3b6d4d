"""Tables of README.md and CONTRIBUTING.md, made from the code so that they can't drift.

    python docs/make_tables.py            writes them
    python docs/make_tables.py --check    exits with 1 if a page is not what the code says

A page marks the place of a table by two comments, `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CHOICES = (
    *("model.position", "model.merge", "model.family", "model.norm", "model.norm_place"),
    *("model.activation", "train.optimizer", "train.schedule", "tokenizer.kind"),
)
"""Recipe keys whose values the README lists."""


def first_line(module: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{module.relative_to(ROOT)} has no docstring.")
    return docstring.splitlines()[0].rstrip(".")


def folders() -> str:
    """A row a folder of heed, and below it the packages inside."""
    rows = ["| folder | holds |", "|---|---|"]
    for init in sorted((ROOT / "heed").glob("*/__init__.py")):
        folder = init.parent
        rows.append(f"| [`heed/{folder.name}`](heed/{folder.name}) | {first_line(init)} |")
        for inner in sorted(folder.glob("*/__init__.py")):
            name = inner.parent.relative_to(ROOT).as_posix()
            rows.append(f"| [`{name}`]({name}) | {first_line(inner)} |")
    return "\n".join(rows)


def modules() -> str:
    """Every module of heed with what it holds, as a tree."""
    lines = ["```text", "heed/"]
    lines += _tree(ROOT / "heed", "  ")
    return "\n".join([*lines, "```"])


def _tree(folder: Path, indent: str) -> list[str]:
    modules = [path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("__")]
    lines = [f"{indent + module.stem:<34}{first_line(module)}" for module in modules]
    for init in sorted(folder.glob("*/__init__.py")):
        lines.append(f"{indent + init.parent.name + '/':<34}{first_line(init)}")
        lines += _tree(init.parent, indent + "  ")
    return lines


def pages() -> str:
    """A row a page of the docs: its title and its first sentence."""
    rows = ["| page | for |", "|---|---|"]
    for page in sorted((ROOT / "docs").glob("*.md")):
        title, sentence = page_summary(page)
        rows.append(f"| [{title}](docs/{page.name}) | {sentence} |")
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        title, sentence = page_summary(page)
        rows.append(f"| [Results: {title}](docs/results/{page.name}) | {sentence} |")
    return "\n".join(rows)


def page_summary(page: Path) -> tuple[str, str]:
    """A page's title and the first sentence below it."""
    title, _, rest = page.read_text(encoding="utf-8").partition("\n")
    paragraph = " ".join(rest.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?= |$)", paragraph)
    if finding := re.search(r"^\*\*(.*?\.) \(", rest, re.MULTILINE):  # a page of `heed report`
        sentence = re.match(".*", finding[1].replace("\\", ""))
    if not title.startswith("# ") or sentence is None:
        raise SystemExit(f"{page.relative_to(ROOT)} does not begin with a title and a sentence.")
    # A link of the page leads elsewhere from the README.
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", sentence[0])
    return title[2:], plain.rstrip(".:") + "."


def choices() -> str:
    """A row a recipe key that swaps a part of the model or of its training."""
    from heed.config import SECTIONS

    rows = ["| key | one of |", "|---|---|"]
    for key in CHOICES:
        section, _, name = key.partition(".")
        values = _values(section, name, SECTIONS[section])
        rows.append(f"| `{key}` | {' '.join(f'`{value}`' for value in values)} |")
    return "\n".join(rows)


def _values(section: str, name: str, config: Any) -> tuple[str, ...]:
    from heed.config.registry import MERGES, POSITIONS
    from heed.config.train import OPTIMIZERS, SCHEDULES

    registered = {"model.position": POSITIONS.names(), "model.merge": MERGES.names()}
    listed = {"train.optimizer": OPTIMIZERS, "train.schedule": SCHEDULES}
    if (names := (registered | listed).get(f"{section}.{name}")) is not None:
        return tuple(names)
    return get_args(config.model_fields[name].annotation)


TABLES: dict[str, Callable[[], str]] = {
    "folders": folders,
    "modules": modules,
    "pages": pages,
    "choices": choices,
}


def fill(text: str) -> str:
    """A page's text with every table made anew."""
    return PLACE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> None:
    """Write the tables, or check that they are current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (made := fill(text)) != text:
            stale.append(page.name)
            if not options.check:
                page.write_text(made, encoding="utf-8")
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: run python docs/make_tables.py.")


if __name__ == "__main__":
    main()
