"""Plug-ins: a user's own Python file that registers position encodings and head merges.

A plug-in is executed only where it is named explicitly: `--plugin FILE` on the command line,
`plugin=FILE` in Python. A recipe names a position, never a file, so a recipe of a stranger runs
no code. A run that uses a plug-in records its file name and hash (`environment.json`), and is
loaded only with the same file.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from heed.config import ModelConfig
from heed.config.registry import MERGES, POSITIONS, REGISTRIES
from heed.errors import HeedError, RunError, make_printable

PluginFiles = str | Path | Sequence[str | Path] | None
"""One file, several, or none."""


@dataclass(frozen=True)
class Plugin:
    """A plug-in that is loaded in this process."""

    path: Path
    sha256: str
    parts: tuple[str, ...]
    """What it registered, as `position decay`."""

    def record(self) -> dict[str, Any]:
        """What a run stores about it."""
        return {"name": self.path.name, "sha256": self.sha256, "parts": list(self.parts)}


class PluginError(RunError):
    """A run that is whole, and needs a plug-in that is not loaded."""

    def __init__(self, what: str, need: str, *, where: str, todo: str) -> None:
        super().__init__(what, where=where, todo=todo)
        self.need = make_printable(need)
        """What a list says of the run, as `needs --plugin my_parts.py`."""


_loaded: dict[str, Plugin] = {}
"""Plug-ins of this process, by hash."""


class _SourceLoader(importlib.abc.SourceLoader):
    """Executes the very bytes that were hashed, and writes no bytecode beside the user's file."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str) -> bytes:
        return self.source


def load_plugins(files: PluginFiles) -> list[Plugin]:
    """Load plug-ins, each once a process."""
    if files is None:
        return []
    return [load_plugin(file) for file in ([files] if isinstance(files, str | Path) else files)]


def load_plugin(file: str | Path) -> Plugin:
    """Execute a plug-in, which registers its classes; once a process for the same content."""
    path = Path(file).absolute()
    if not path.is_file():
        todo = "Name a Python file that registers a position or a merge."
        raise HeedError("there is no such plug-in file.", where=str(file), todo=todo)
    source = path.read_bytes()
    digest = sha256(source).hexdigest()
    if digest not in _loaded:
        _loaded[digest] = Plugin(path, digest, _execute(path, source, digest))
    return _loaded[digest]


def _execute(path: Path, source: bytes, digest: str) -> tuple[str, ...]:
    """Run a plug-in's code; returns what it registered. After an error nothing stays registered."""
    before = {registry.kind: dict(registry.classes) for registry in REGISTRIES}
    for registry in REGISTRIES:  # built-in classes register first: they are not the plug-in's
        before[registry.kind] |= {each: registry[each] for each in registry.declared}
    try:
        load_module(path, source, f"heed_plugin_{digest[:16]}")
        parts = tuple(
            f"{registry.kind} {each}"
            for registry in REGISTRIES
            for each in registry.classes
            if each not in before[registry.kind]
        )
        if not parts:
            raise HeedError("it registers nothing.", todo="Decorate a class with @heed.register.")
    except Exception as error:
        sys.modules.pop(f"heed_plugin_{digest[:16]}", None)
        for registry in REGISTRIES:
            registry.classes = before[registry.kind]
        if os.environ.get("HEED_DEBUG"):
            raise
        what = str(error) if isinstance(error, HeedError) else f"{type(error).__name__}: {error}."
        todo = "Correct the file; --debug before the command shows where the error is."
        raise HeedError(
            f"the plug-in cannot be loaded: {what}", where=str(path), todo=todo
        ) from error
    return parts


def load_module(path: Path, source: bytes, name: str) -> ModuleType:
    """Execute a user's Python file as a module of this name; after an error no module stays."""
    spec = spec_from_loader(name, _SourceLoader(path, source))
    if spec is None or spec.loader is None:
        raise TypeError("a source loader makes a spec")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def used_plugins(model: ModelConfig) -> list[Plugin]:
    """The loaded plug-ins whose position or merge a model uses."""
    used = {f"{POSITIONS.kind} {model.position}", f"{MERGES.kind} {model.merge}"}
    return [plugin for plugin in _loaded.values() if used & {*plugin.parts}]


def check_plugins(recorded: Iterable[Mapping[str, Any]], *, where: str) -> None:
    """Refuse a run whose plug-ins, as it recorded them, are not loaded, or are other ones."""
    for record in recorded:
        if record["sha256"] in _loaded:
            continue
        name, parts = record["name"], {*record["parts"]}
        others = [p for p in _loaded.values() if p.path.name == name or parts & {*p.parts}]
        if others:
            raise PluginError(
                f"this run was trained with another {name}: its sha256 was "
                f"{record['sha256'][:16]}…, that of {others[0].path} is {others[0].sha256[:16]}….",
                f"needs another --plugin {name}",
                where=where,
                todo=f"Give the file that it was trained with: --plugin {name}",
            )
        raise PluginError(
            f"this run was trained with the plug-in {name} ({', '.join(sorted(parts))}).",
            f"needs --plugin {name}",
            where=where,
            todo=f"Give that file: --plugin {name}, or plugin={name!r} in Python.",
        )
