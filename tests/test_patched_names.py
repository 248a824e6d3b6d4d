"""Names that GPU tests patch exist: checked here, because those tests run only on a GPU.

The tests are parsed, not imported, so Triton is not needed. Checked are calls of
`monkeypatch.setattr(owner, "name", …)`, `patch.object(owner, "name")` and `patch("module.name")`,
and assignments `owner.name = …`, where `owner` is a module or something a module of heed defines;
also in the programs that tests run, which are strings.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OTHERS = ("test_fused_adamw.py", "test_precompile.py")
GPU_TESTS = sorted([*TESTS.rglob("*_gpu.py"), *(TESTS / "train" / name for name in OTHERS)])
NEEDS_TRITON = find_spec("triton") is None


def imported_names(tree: ast.Module) -> dict[str, tuple[str, str | None]]:
    """Each name that a module imports, with its module and the attribute of that module."""
    names: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = alias.name, None
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = node.module, alias.name
    return names


def patched_names(tree: ast.Module) -> list[tuple[str, str | None, str]]:
    """Module, attribute and name of everything that the tests patch."""
    names = imported_names(tree)
    patched: list[tuple[str, str | None, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            first, _, rest = ast.unparse(node.targets[0].value).partition(".")
            module, attribute = names.get(first, ("", None))
            if module.startswith("heed"):
                path = ".".join(filter(None, (attribute, rest)))
                patched.append((module, path or None, node.targets[0].attr))
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        called = ast.unparse(node.func)
        constants = [x.value for x in node.args if isinstance(x, ast.Constant)]
        strings = [x for x in constants if isinstance(x, str)]
        if called.endswith((".setattr", "patch.object")) and len(node.args) >= 2 and strings:
            owner = ast.unparse(node.args[0])
            first, _, rest = owner.partition(".")
            if first in names:
                module, attribute = names[first]
                path = ".".join(filter(None, (attribute, rest)))
                patched.append((module, path or None, strings[0]))
            elif isinstance(node.args[0], ast.Constant):
                module, _, name = strings[0].rpartition(".")
                patched.append((module, None, name))
        elif called in ("patch", "mock.patch") and strings:
            module, _, name = strings[0].rpartition(".")
            patched.append((module, None, name))
    return patched


def resolve(module: str, attribute: str | None) -> object:
    """The object that `module` or one of its attributes, perhaps a submodule, is."""
    owner: object = import_module(module)
    for part in attribute.split(".") if attribute else ():
        if not hasattr(owner, part):
            owner = import_module(f"{module}.{part}")
            module = f"{module}.{part}"
        else:
            owner = getattr(owner, part)
    return owner


def programs(tree: ast.Module) -> list[ast.Module]:
    """The programs among a module's strings that use heed."""
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    strings = [x for x in constants if isinstance(x, str) and "from heed" in x and "\n" in x]
    found = []
    for text in strings:
        with suppress(SyntaxError):
            found.append(ast.parse(text))
    return found


@pytest.mark.parametrize("path", GPU_TESTS, ids=lambda path: path.name)
def test_patched_names_exist(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for module, attribute, name in [n for t in (tree, *programs(tree)) for n in patched_names(t)]:
        full = ".".join(filter(None, (module, attribute)))
        if NEEDS_TRITON and ("triton" in full or "dry_launch" in full):
            continue
        owner = resolve(module, attribute)
        assert hasattr(owner, name), f"{path.name} patches {full}.{name}, which does not exist"


def test_a_missing_name_in_a_program_is_found() -> None:
    source = """PROGRAM = '''
from heed.cli import train
train._gone = print
'''"""
    (program,) = programs(ast.parse(source))
    assert patched_names(program) == [("heed.cli", "train", "_gone")]


def test_a_missing_name_is_found() -> None:
    source = "from heed.nn.kernels import linear as module\nmonkeypatch.setattr(module, 'gone', 1)"
    ((module, attribute, name),) = patched_names(ast.parse(source))
    assert (module, attribute, name) == ("heed.nn.kernels", "linear", "gone")
    assert not hasattr(resolve(module, attribute), name)
