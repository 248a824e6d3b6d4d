"""A simulated disk: which files and names a power cut leaves, after any file operation.

A file's content is safe once the file was flushed (fsync). A name (new, renamed or deleted) is safe
once its folder was. The rest may be lost, or written in part, in any order: `Loss` names four ways.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from robustness.file_operations import Watch


class Loss(Enum):
    """What becomes of all that was not flushed."""

    ALL = "all is lost"
    CONTENT = "names are there, content is lost"
    ZEROS = "names are there, unflushed content is zeros"
    RANDOM = "any part of it is lost"


@dataclass
class Node:
    """A file or a folder, whatever its names."""

    is_folder: bool = False
    content: bytes = b""
    flushed: bytes = b""


@dataclass
class NameChange:
    """One change of names: (folder, name, node or None) each; on the disk once flushed."""

    edits: tuple[tuple[int, str, int | None], ...]
    is_flushed: bool = False


@dataclass
class Disk:
    """The folders and files below a root, as the program sees them and as the disk holds them."""

    root: Path
    nodes: dict[int, Node] = field(default_factory=lambda: {0: Node(is_folder=True)})
    names: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    """The names in every folder, as the program sees them."""
    changes: list[NameChange] = field(default_factory=list)

    def apply(self, kind: str, path: Path, new_path: Path | None, content: bytes | None) -> None:
        """Apply one operation."""
        if kind in ("create", "mkdir"):
            self._set_name(path, self._new_node(is_folder=kind == "mkdir"))
        elif kind in ("unlink", "rmdir"):
            self._set_name(path, None)
        elif kind == "rename" and new_path is not None:
            self._rename(path, new_path)
        elif kind == "replace":  # safetensors wrote another file and gave it this name
            node = self._new_node()
            self._set_name(path, node)
            self.nodes[node].content = content or b""
        elif kind in ("write", "open"):
            self.nodes[self._find(path)].content = content or b""
        elif kind == "fsync":
            self._flush(self._find(path))

    def _new_node(self, *, is_folder: bool = False) -> int:
        number = len(self.nodes)
        self.nodes[number] = Node(is_folder)
        if is_folder:
            self.names[number] = {}
        return number

    def _find(self, path: Path) -> int:
        node = 0
        for name in path.relative_to(self.root).parts:
            node = self.names[node][name]
        return node

    def _set_name(self, path: Path, node: int | None) -> None:
        self._change(((self._find(path.parent), path.name, node),))

    def _rename(self, path: Path, new_path: Path) -> None:
        old = (self._find(path.parent), path.name, None)
        self._change((old, (self._find(new_path.parent), new_path.name, self._find(path))))

    def _change(self, edits: tuple[tuple[int, str, int | None], ...]) -> None:
        self.changes.append(NameChange(edits))
        _apply_edits(self.names, edits)

    def _flush(self, number: int) -> None:
        node = self.nodes[number]
        node.flushed = node.content
        if node.is_folder:
            for change in self.changes:
                change.is_flushed |= any(folder == number for folder, _, _ in change.edits)

    # ---------------------------------------------------------------------- after a power cut

    def files_after_cut(self, loss: Loss, seed: int) -> dict[str, bytes | None]:
        """All files by their names after a cut now; None for a folder."""
        draw = random.Random(seed)
        names: dict[int, dict[str, int]] = {number: {} for number in self.names}
        for change in self.changes:
            unflushed_survives = loss in (Loss.CONTENT, Loss.ZEROS) or (
                loss is Loss.RANDOM and draw.random() < 0.5
            )
            if change.is_flushed or unflushed_survives:
                _apply_edits(names, change.edits)
        return dict(self._walk(0, "", names, loss, draw))

    def _walk(
        self,
        folder: int,
        prefix: str,
        names: dict[int, dict[str, int]],
        loss: Loss,
        draw: random.Random,
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, number in names[folder].items():
            node = self.nodes[number]
            if node.is_folder:
                yield f"{prefix}{name}/", None
                yield from self._walk(number, f"{prefix}{name}/", names, loss, draw)
            else:
                yield f"{prefix}{name}", _content_after_cut(node, loss, draw)


def _apply_edits(
    names: dict[int, dict[str, int]], edits: tuple[tuple[int, str, int | None], ...]
) -> None:
    for folder, name, node in edits:
        if node is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = node


def _content_after_cut(node: Node, loss: Loss, draw: random.Random) -> bytes:
    """The content of a file after a cut; what was flushed is there."""
    appended = node.content[: len(node.flushed)] == node.flushed
    zeros = (node.flushed if appended else b"").ljust(len(node.content), b"\0")
    half = node.content[: (len(node.flushed) + len(node.content)) // 2]
    if loss is Loss.ZEROS:
        return zeros
    if loss is Loss.RANDOM:
        return draw.choice([node.flushed, zeros, node.content, *([half] if appended else [])])
    return node.flushed


def write_files(root: Path, files: dict[str, bytes | None]) -> None:
    """Write what a disk holds below a folder that exists."""
    for name, content in files.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def hash_files(files: dict[str, bytes | None]) -> str:
    """The same for disks that hold the same."""
    digest = blake2b(digest_size=16)
    for name, content in sorted(files.items()):
        digest.update(json.dumps([name, None if content is None else len(content)]).encode())
        digest.update(content or b"")
    return digest.hexdigest()


# ------------------------------------------------------------------------------- a recording


class Recording:
    """Operations of a process, written to a folder: one line each, and the contents beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "operations.jsonl"

    def watch(self, root: Path) -> Watch:
        """A watch that records all operations below `root`."""
        self.folder.mkdir(parents=True)
        return Watch(root, after=self._record)

    def _record(self, kind: str, path: Path, new_path: Path | None) -> None:
        line: dict[str, Any] = {"kind": kind, "path": str(path)}
        line["new_path"] = None if new_path is None else str(new_path)
        if kind in ("write", "open", "replace"):
            content = path.read_bytes()
            line["content"] = blake2b(content, digest_size=16).hexdigest()
            (self.folder / line["content"]).write_bytes(content)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def replay(self, disk: Disk) -> Iterator[str]:
        """Apply the operations to a disk one after another; yields each in words."""
        for text in self.log.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            path = Path(line["path"])
            new_path = None if line["new_path"] is None else Path(line["new_path"])
            content = (self.folder / line["content"]).read_bytes() if "content" in line else None
            disk.apply(line["kind"], path, new_path, content)
            yield f"{line['kind']} {path.relative_to(disk.root)}"
