"""The import order of the design and the rules of the core, checked by parsing every module."""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import heed

ROOT = Path(heed.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

ORDER = (
    "arrays",
    "child_process",
    "errors",
    "files",
    "checksums",
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
"""The import order: a part may import those before it, and itself."""
DATA_FROM = ORDER.index("runs")
"""From here on, a part may import `data` and `recipes`."""
RESTRICTED = {
    "assets": {"errors"},
    "plot": {"errors", "files"},
    "terminal": {"errors"},
    "notebook": set(),
    "data": {"child_process", "errors", "files", "checksums", "config", "plot", "terminal"},
    "recipes": {"errors", "config", "plot", "terminal"},
    "stats": {"arrays", "errors"},
}
"""Parts with a short list of imports, and that list."""
BESIDE_THE_ORDER = RESTRICTED.keys() - {"stats"}
EVERYWHERE = ("plot", "terminal", "notebook", "assets")
"""Figures, tables and built web files, which every part but `errors` may import."""
TOKENIZER_EXCEPTION = ("models/huggingface/", "heed.data.tokenizers.")
"""The only modules of `models` that may import data, and the part of data that they may import."""
PLAIN_PARTS = {
    "initialization",
    "masks",
    "merges",
    "norm",
    "positions",
    "rdrop",
    "tokens",
}
"""Modules of `nn` that know no kernel: nn.kernels may import these, and the rest of `nn` both."""
LONG = 400
"""Lines above which a module is listed in a warning."""

each_module = pytest.mark.parametrize(
    "path", MODULES, ids=[path.relative_to(ROOT).as_posix() for path in MODULES]
)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """The full names of all imports, including those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted_name(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def dotted_name(node: ast.AST) -> str:
    """`torch.nn.Linear` for the expression that reads so."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def part_of(path: Path) -> str:
    """The part of the design that a file belongs to: its top folder, or the file itself."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def package_of(path: Path) -> str:
    return ".".join(["heed", *path.relative_to(ROOT).parent.parts])


# --------------------------------------------------------------------------------- import order


def forbidden_imports(path: Path, names: Iterator[str]) -> list[str]:
    """The imports that violate the order of the design."""
    return [name for name in names if not is_allowed(path, name)]


def is_allowed(path: Path, name: str) -> bool:
    """Whether a module may import this name."""
    part, (top, _, rest) = part_of(path), name.partition(".")
    if top != "heed":
        return True
    target = rest.split(".")[0]
    if target in ("", part, "__version__"):
        return part != "nn" or is_allowed_in_nn(path, name)
    if part in RESTRICTED:
        return target in RESTRICTED[part]
    if target in EVERYWHERE:
        return part != "errors"
    if target in BESIDE_THE_ORDER:
        folder, visible = TOKENIZER_EXCEPTION
        excepted = path.relative_to(ROOT).as_posix().startswith(folder)
        return ORDER.index(part) >= DATA_FROM or (excepted and name.startswith(visible))
    return target in ORDER and ORDER.index(target) < ORDER.index(part)


def is_allowed_in_nn(path: Path, name: str) -> bool:
    """Within `nn`: plain parts import plain parts only, and nn.kernels those and itself."""
    inside, target = path.relative_to(ROOT / "nn").parts, name.split(".")[2:3]
    if not target or (len(inside) == 1 and Path(inside[0]).stem not in PLAIN_PARTS):
        return True
    return target[0] in PLAIN_PARTS or (inside[0] == "kernels" == target[0])


@each_module
def test_imports_follow_the_order_of_the_design(path: Path) -> None:
    if path == ROOT / "__init__.py":
        return
    assert part_of(path) in {*ORDER, *RESTRICTED}, "a part that the design does not have"
    assert forbidden_imports(path, imported_names(parse(path), package_of(path))) == []


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("nn/masks.py", "import torch\nfrom heed.config import ModelConfig", 0),
        ("nn/masks.py", "from heed.models import build", 1),
        ("nn/masks.py", "def f():\n    from heed.train import loop", 1),
        ("nn/masks.py", "from heed import models", 1),
        ("nn/masks.py", "from ..models import build", 1),
        ("nn/stack.py", "from .cache import Cache", 0),
        ("nn/masks.py", "from .cache import Cache", 1),
        ("nn/masks.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 1),
        ("nn/masks.py", "import importlib\nimportlib.import_module('heed.cli')", 1),
        ("nn/positions.py", "from heed.nn.masks import Mask", 0),
        ("nn/positions.py", "from heed.nn import kernels", 1),
        ("nn/positions.py", "from heed.nn.kernels import dispatch", 1),
        ("nn/attention.py", "from heed.nn.kernels import dispatch", 0),
        ("nn/kernels/dispatch.py", "from heed.nn.kernels.rotary import rotate", 0),
        ("nn/kernels/dispatch.py", "from heed.nn.positions import Position", 0),
        ("nn/kernels/dispatch.py", "from heed.nn.attention import attend", 1),
        ("nn/kernels/triton/tile.py", "from heed.nn.stack import Stack", 1),
        ("models/huggingface/bert.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 0),
        ("models/huggingface/bert.py", "from heed.data.corpus import Corpus", 1),
        ("models/translator.py", "from heed.data.tokenizers.tokenizer import Tokenizer", 1),
        (
            "data/store.py",
            "from heed.data.tokenizers.tokenizer import Tokenizer\nimport heed.errors",
            0,
        ),
        ("data/store.py", "from heed.nn.masks import Mask", 1),
        ("stats/bootstrap.py", "import heed.errors", 0),
        ("stats/bootstrap.py", "from heed.data.corpus import Corpus\nimport heed.files", 2),
        (
            "train/loop.py",
            "from heed.data.batching.bucketed import Batch\nimport heed.models, heed.plot",
            0,
        ),
        ("train/loop.py", "from heed.api import load\nimport heed.probe.attention_maps", 2),
        ("plot.py", "from heed.errors import HeedError", 0),
        ("plot.py", "from heed.config import ModelConfig", 1),
        ("errors.py", "import heed.plot", 1),
        ("nn/masks.py", "from heed.assets import fill_page", 0),
        ("assets/__init__.py", "from heed.probe import attention_maps", 1),
        ("recipes/__init__.py", "from heed.config import Recipe", 0),
        ("recipes/__init__.py", "from heed.runs.run import Run", 1),
        ("nn/masks.py", "from heed.recipes import find", 1),
        ("cli/predict.py", "def f():\n    from heed import api, lab, data, __version__", 0),
    ],
)
def test_the_import_rule_finds_every_violation(path: str, source: str, wrong: int) -> None:
    names = imported_names(ast.parse(source), package_of(ROOT / path))
    assert len(forbidden_imports(ROOT / path, names)) == wrong


@each_module
def test_no_command_calls_another_command(path: Path) -> None:
    """Modules of `cli` share only `cli.common`; `cli.main` registers the commands."""
    if part_of(path) == "cli" and path.name != "main.py":
        names = imported_names(parse(path), package_of(path))
        assert not [n for n in names if n.startswith("heed.cli") and "cli.common." not in n]


# -------------------------------------------------------------------------- the core asks no device

DEVICE_QUESTIONS = {
    "CUDAGraph",
    "get_device_capability",
    "get_device_properties",
    "has_triton",
    "is_available",
    "is_compiling",
    "is_cuda",
    "is_current_stream_capturing",
    "is_dynamo_compiling",
    "is_exporting",
    "is_in_onnx_export",
    "on_gpu",
    "synchronize",
}
"""Names that ask for a device, a compiler or a capture."""
DEVICE_MODULES = ("torch.cuda", "torch.compiler", "torch._dynamo", "torch.xpu")


def device_questions(tree: ast.Module) -> list[str]:
    """The questions about device, compiler or capture that a module asks."""
    questions = []
    for name in used_names(tree):
        asks = DEVICE_QUESTIONS & {*name.split(".")} or name.endswith("device.type")
        if asks or name.startswith(DEVICE_MODULES):
            questions.append(name)
    return questions


@each_module
def test_only_kernels_ask_about_device_compiler_or_capture(path: Path) -> None:
    inside = path.relative_to(ROOT).parts
    if inside[0] == "nn" and inside[1] != "kernels":
        assert device_questions(parse(path)) == []


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("x.is_cuda", True),
        ("x.device.type == 'cuda'", True),
        ("torch.compiler.is_compiling()", True),
        ("torch.cuda.is_current_stream_capturing()", True),
        ("y = torch.zeros(2, device=x.device)", False),
    ],
)
def test_the_device_rule_finds_every_question(source: str, asks: bool) -> None:
    assert bool(device_questions(ast.parse(source))) == asks


# -------------------------------------------------------------------------- names and docstrings

PARALLEL_FAMILIES = {
    "__init__": "every package has one",
    "translate": "one module per task",
    "classify": "one module per task",
    "generate": "one module per task",
    "run": "the folder makes the meaning plain",
    "state": "the folder makes the meaning plain",
    "search": "the folder makes the meaning plain",
    "build": "the folder makes the meaning plain",
    "plain": "the folder makes the meaning plain",
    "train": "a command, and the recipe section of the same name",
}
"""File names that may occur twice, and why."""


def is_kernel_and_its_source(paths: list[Path]) -> bool:
    """Whether two files are a kernel of nn.kernels and its Triton source."""
    return {path.parent.relative_to(ROOT).as_posix() for path in paths} == {
        "nn/kernels",
        "nn/kernels/triton",
    }


def test_no_file_name_occurs_twice() -> None:
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in MODULES:
        places[path.stem].append(path)
    repeated = {
        name: [path.relative_to(ROOT).as_posix() for path in paths]
        for name, paths in places.items()
        if len(paths) > 1 and name not in PARALLEL_FAMILIES and not is_kernel_and_its_source(paths)
    }
    assert repeated == {}


@each_module
def test_every_module_begins_with_what_it_holds(path: Path) -> None:
    """The first line of a docstring is a sentence of its own: READMEs are made of it."""
    docstring = ast.get_docstring(parse(path))
    assert docstring, "there is no docstring"
    first = docstring.splitlines()[0]
    assert len(first.split()) >= 3, first
    assert re.search(r"[.:!]$", first), f"the first line does not end a sentence: {first}"


def test_long_modules_are_listed() -> None:
    """Length is a hint, not a wall: one concept may need more lines."""
    for path in MODULES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONG:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                name = path.relative_to(ROOT).as_posix()
                warnings.warn(f"{name} has {lines} lines: is it one concept?", stacklevel=1)


# ------------------------------------------------------------------------- borrowed or unsafe code

BORROWED = {"MultiheadAttention"}
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "torch.load"}


def used_names(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that a module reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            yield dotted_name(node)


@each_module
def test_no_layer_is_borrowed_from_torch(path: Path) -> None:
    """No `torch.nn.Transformer*` and no `nn.MultiheadAttention`, but to compare speed with."""
    if path.relative_to(ROOT).as_posix() == "bench/peers.py":
        return
    tree = parse(path)
    names = [*used_names(tree), *imported_names(tree, package_of(path))]
    torch_names = [n for n in names if n.startswith(("torch.", "nn.", "F."))]
    words = {word for name in torch_names for word in name.split(".")}
    assert not {word for word in words if word in BORROWED or word.startswith("Transformer")}


@each_module
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    tree = parse(path)
    modules = {name.split(".")[0] for name in imported_names(tree, package_of(path))}
    assert not modules & UNSAFE_MODULES
    calls = {dotted_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & UNSAFE_CALLS
    assert "torch.load" not in imported_names(tree, package_of(path))


@each_module
def test_recipes_need_no_torch(path: Path) -> None:
    """`--help` and errors in a recipe must not wait for torch."""
    if part_of(path) in ("errors", "config", "recipes"):
        names = imported_names(parse(path), package_of(path))
        assert not {name.split(".")[0] for name in names} & {"torch", "numpy"}
