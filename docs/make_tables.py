"""Tables of README.md, CONTRIBUTING.md and two pages of docs/, made from the code and the pages.

    python docs/make_tables.py            writes them
    python docs/make_tables.py --check    exits with 1 if a page is not what the code says

A page marks the place of a table by two comments, `<!-- table: NAME -->` and `<!-- end -->`. Each
table has one place. A page of docs/ that is in no group of `GROUPS` is an error.
"""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
"""The page that lists the others."""
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", INDEX, DOCS / "modules.md")
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
GROUPS = {
    "Start and train": (
        *("training", "python", "doctor", "synthetic", "small-data", "classification"),
        *("language-models", "fine-tuning", "pretrained", "distributed"),
    ),
    "Use": ("decoding", "lab", "serve", "export"),
    "Look inside": ("attention", "heads", "patching", "design"),
    "Compare": ("scoring", "comparing", "studies", "reports"),
    "Extend and understand": ("core", "modules", "speed", "log"),
}
"""The pages of docs/ in the order in which they are listed; those of docs/results follow."""
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
    """A row a package of heed, at any depth. Links are those of a page in docs/."""
    rows = ["| folder | holds |", "|---|---|"]
    for init in sorted((ROOT / "heed").rglob("*/__init__.py")):
        name = init.parent.relative_to(ROOT).as_posix()
        rows.append(f"| [`{name}`](../{name}) | {first_line(init)} |")
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


def imports() -> str:
    """Which part of heed may import which, as `tests/test_architecture.py` checks it."""
    rule = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "test_architecture.py")))
    beside = [part for part in rule.RESTRICTED if part not in rule.ORDER]
    within = [part for part in rule.RESTRICTED if part in rule.ORDER]
    later = [part for part in beside if part not in rule.EVERYWHERE]
    folder, visible = rule.TOKENIZER_EXCEPTION
    rows = ["| part | may import |", "|---|---|"]
    for part, others in rule.RESTRICTED.items():
        rows.append(f"| `{part}` | {_names(sorted(others)) or 'no other part'} |")
    paragraphs = [
        "A part is a folder or a module of `heed/`. It may import the parts to its left:",
        " ← ".join(f"`{part}`" for part in rule.ORDER),
        f"{_names(beside)} are not in this order. They and {_names(within)} have lists:",
        "\n".join(rows),
        f"All other parts, {_names(['errors'])} apart, may import {_names(rule.EVERYWHERE)}. From"
        f" `{rule.ORDER[rule.DATA_FROM]}` on, they may import {_names(later)}. Of the parts before"
        f" it, only `{folder.rstrip('/')}` imports from `data`, and only"
        f" `{visible.removeprefix('heed.').rstrip('.')}`.",
        f"Within `nn`, {_names(sorted(rule.PLAIN_PARTS))} import only each other; `nn/kernels`"
        " imports these and itself; the other modules import all of them.",
    ]
    return "\n\n".join(
        text if text.startswith("|") else textwrap.fill(text, 110, break_on_hyphens=False)
        for text in paragraphs
    )


def _names(names: Iterable[str]) -> str:
    """`a`, `b` and `c`."""
    *first, last = [f"`{name}`" for name in names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def pages() -> str:
    """The pages of docs/ by group, a row each: its title and its first sentence."""
    check_groups()
    lines: list[str] = []
    for group, names in GROUPS.items():
        lines += [f"## {group}", "", *_page_table([DOCS / f"{name}.md" for name in names]), ""]
    return "\n".join(lines[:-1])


def results() -> str:
    """A row a page of docs/results."""
    return "\n".join(_page_table(sorted((DOCS / "results").glob("*.md"))))


def _page_table(listed: Iterable[Path]) -> list[str]:
    rows = ["| page | for |", "|---|---|"]
    for page in listed:
        title, sentence = page_summary(page)
        rows.append(f"| [{title}]({page.relative_to(DOCS).as_posix()}) | {sentence} |")
    return rows


def check_groups() -> None:
    """Exit with an error unless every page of docs/ is in one group, and every group's page is."""
    grouped = [name for names in GROUPS.values() for name in names]
    there = {page.stem for page in DOCS.glob("*.md") if page != INDEX}
    wrong = {
        "in no group": there - {*grouped},
        "in a group, but not in docs/": {*grouped} - there,
        "in a group more than once": {name for name in grouped if grouped.count(name) > 1},
    }
    for what, names in wrong.items():
        if names:
            raise SystemExit(f"{', '.join(sorted(names))}: {what} (GROUPS in docs/make_tables.py).")


def page_summary(page: Path) -> tuple[str, str]:
    """A page's title and the first sentence below it."""
    title, _, rest = page.read_text(encoding="utf-8").partition("\n")
    paragraph = " ".join(rest.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?= |$)", paragraph)
    if finding := re.search(r"^\*\*(.*?\.) \(", rest, re.MULTILINE):  # a page of `heed report`
        sentence = re.match(".*", finding[1].replace("\\", ""))
    if not title.startswith("# ") or sentence is None:
        raise SystemExit(f"{page.relative_to(ROOT)} does not begin with a title and a sentence.")
    # A link of the page leads elsewhere from the page that lists it.
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
    "choices": choices,
    "folders": folders,
    "imports": imports,
    "modules": modules,
    "pages": pages,
    "results": results,
}


def fill(text: str) -> str:
    """A page's text with every table made anew."""
    return PLACE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> None:
    """Write the tables, or check that they are current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale: list[str] = []
    places: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        places += [place[2] for place in PLACE.finditer(text)]
        if (made := fill(text)) != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if not options.check:
                page.write_text(made, encoding="utf-8")
    if sorted(places) != sorted(TABLES):
        sys.exit(f"The pages have places for {sorted(places)}, not one for each of {[*TABLES]}.")
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: run python docs/make_tables.py.")


if __name__ == "__main__":
    main()
