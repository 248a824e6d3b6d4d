"""Who imports whom, and what nobody may use: the house of the design, held by parsing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import heed

ROOT = Path(heed.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

ORDER = (
    "errors",
    "files",
    "config",
    "plugins",
    "device",
    "nn",
    "models",
    "runs",
    "stats",
    "metrics",
    "decode",
    "pipelines",
    "train",
    "evaluate",
    "probe",
    "study",
    "report",
    "api",
    "demo",
    "bench",
    "selfcheck",
    "export",
    "lab",
    "cli",
    "__main__",
)
"""A part may import those before it, and itself."""
DATA_FROM = ORDER.index("runs")
"""From here on, a part may read data and shipped recipes."""
ASIDE = {
    "plot": {"errors", "files"},
    "terminal": set(),
    "data": {"errors", "files", "config", "plot", "terminal"},
    "recipes": {"errors", "config", "plot", "terminal"},
}
"""Parts that stand beside the order, and all that each may see."""
EVERYWHERE = ("plot", "terminal")
"""Figures and terminal tables, which every part but `errors` may use."""
TOKENIZER = ("models/huggingface/", ("tokenizers",))
"""The one door between models and data, and what may be seen through it."""
LONGEST = 400

each_module = pytest.mark.parametrize(
    "path", MODULES, ids=[path.relative_to(ROOT).as_posix() for path in MODULES]
)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The full names of all imports, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def dotted(node: ast.AST) -> str:
    """`torch.nn.Linear` for the expression that reads so."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def part_of(path: Path) -> str:
    """The part of the house a file belongs to: its folder, or itself."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def package_of(path: Path) -> str:
    return ".".join(["heed", *path.relative_to(ROOT).parent.parts])


def forbidden(path: Path, names: Iterator[str]) -> list[str]:
    """The imports that point the wrong way."""
    part, wrong = part_of(path), []
    for name in names:
        top, _, rest = name.partition(".")
        if top != "heed":
            continue
        seen = rest.split(".")[0]
        if seen in ("", part, "__version__"):
            allowed = True
        elif part in ASIDE:
            allowed = seen in ASIDE[part]
        elif seen in EVERYWHERE:
            allowed = part != "errors"
        elif seen in ASIDE:
            door = path.relative_to(ROOT).as_posix().startswith(TOKENIZER[0])
            shown = name.startswith(tuple(f"heed.data.{module}." for module in TOKENIZER[1]))
            allowed = ORDER.index(part) >= DATA_FROM or (door and shown)
        else:
            allowed = seen in ORDER and ORDER.index(seen) < ORDER.index(part)
        if not allowed:
            wrong.append(name)
    return wrong


@each_module
def test_imports_point_one_way(path: Path) -> None:
    if path == ROOT / "__init__.py":
        return
    assert part_of(path) in {*ORDER, *ASIDE}, "a part the design does not know"
    assert forbidden(path, imported(tree_of(path), package_of(path))) == []


@each_module
def test_a_module_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


BORROWED = {"MultiheadAttention"}
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "torch.load"}


def used(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that is read anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield dotted(node)


@each_module
def test_what_the_project_shows_is_not_borrowed(path: Path) -> None:
    """No `torch.nn.Transformer*` and no `nn.MultiheadAttention`, under any import."""
    tree = tree_of(path)
    names = [*used(tree), *imported(tree, package_of(path))]
    torch_names = [n for n in names if n.startswith(("torch.", "nn.", "F."))]
    words = {word for name in torch_names for word in name.split(".")}
    assert not {word for word in words if word in BORROWED or word.startswith("Transformer")}


@each_module
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    tree = tree_of(path)
    modules = {name.split(".")[0] for name in imported(tree, package_of(path))}
    assert not modules & UNSAFE_MODULES
    calls = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & UNSAFE_CALLS
    assert "torch.load" not in imported(tree, package_of(path))


@each_module
def test_recipes_need_no_torch(path: Path) -> None:
    """A command that only helps or complains must not wait for torch."""
    if part_of(path) in ("errors", "config", "recipes"):
        names = imported(tree_of(path), package_of(path))
        assert not {name.split(".")[0] for name in names} & {"torch", "numpy"}


# ---------------------------------------------------------------------- the rule itself, tried


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("nn/masks.py", "import torch\nfrom heed.config import ModelConfig", 0),
        ("nn/masks.py", "from heed.models import build", 1),
        ("nn/masks.py", "def f():\n    from heed.train import loop", 1),
        ("nn/masks.py", "from heed import models", 1),
        ("nn/masks.py", "from ..models import build", 1),
        ("nn/masks.py", "from .cache import Cache", 0),
        ("nn/masks.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 1),
        ("nn/masks.py", "import importlib\nimportlib.import_module('heed.cli')", 1),
        ("models/huggingface/load.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 0),
        ("models/huggingface/load.py", "from heed.data.corpus import Corpus", 1),
        ("models/translator.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 1),
        (
            "data/store.py",
            "from heed.data.tokenizers.tokenizer import Tokenizer\nimport heed.errors",
            0,
        ),
        ("data/store.py", "from heed.nn.masks import Mask", 1),
        (
            "train/loop.py",
            "from heed.data.batching.bucketed import Batch\nimport heed.models, heed.plot",
            0,
        ),
        ("train/loop.py", "from heed.api import load\nimport heed.probe.attention_maps", 2),
        ("plot.py", "from heed.errors import HeedError", 0),
        ("plot.py", "from heed.config import ModelConfig", 1),
        ("errors.py", "import heed.plot", 1),
        ("recipes/__init__.py", "from heed.config import Recipe", 0),
        ("recipes/__init__.py", "from heed.runs.run import Run", 1),
        ("nn/masks.py", "from heed.recipes import find", 1),
        ("cli/writing.py", "def f():\n    from heed import api, lab, data, __version__", 0),
    ],
)
def test_the_rule_tells_right_from_wrong(path: str, source: str, wrong: int) -> None:
    place = ROOT / path
    assert len(forbidden(place, imported(ast.parse(source), package_of(place)))) == wrong
