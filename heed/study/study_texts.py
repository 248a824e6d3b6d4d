"""The text of a study in place of its recipes' own: files, or lists that are kept in its folder.

`[texts]` of a study names files as `heed train --train --dev --test` does: they replace all that a
recipe names or generates. A list of texts is written to `data/` in the study's folder, for which
`{study}` stands in file names: so a study with its text can be moved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heed import checksums
from heed.data.corpus import file_names
from heed.data.in_memory import Data, encode_texts, names_files
from heed.errors import DataError, RunError
from heed.files import make_folder, write_atomic
from heed.study.study_config import TextsConfig

DATA = "data"
"""The subfolder of texts that were given as lists."""
HERE = "{study}/"
"""The start of the name of a file in the study's folder."""
RESTORE = "Restore it from a copy of the study."


def collect_texts(
    texts: Mapping[str, Data | None], task: str
) -> tuple[dict[str, list[str]], dict[str, bytes]]:
    """The file names of each split, and the content of those that a study writes from lists."""
    names: dict[str, list[str]] = {}
    contents: dict[str, bytes] = {}
    for split, data in texts.items():
        if data is None:
            continue
        if names_files(data, task):
            names[split] = file_names(data)
        else:
            contents[f"{split}.jsonl"] = encode_texts(data, task, split)
            names[split] = [f"{HERE}{DATA}/{split}.jsonl"]
        if not names[split]:
            what = "this list has no text."
            raise DataError(what, where=split, todo="Name files, or give lists of texts.")
    return names, contents


def replace_texts(tables: Mapping[str, Any], texts: TextsConfig | None) -> dict[str, Any]:
    """The tables of a recipe with the study's files in place of all text of its own."""
    if texts is None:
        return dict(tables)
    dropped = ("synthetic", "train", "dev", "test", "sets")
    data = {key: one for key, one in tables.get("data", {}).items() if key not in dropped}
    tokenizer = {key: one for key, one in tables.get("tokenizer", {}).items() if key != "text"}
    return {**tables, "data": data | texts.tables(), "tokenizer": tokenizer}


def place_files(folder: Path, names: Sequence[str]) -> list[str]:
    """File names with the study's folder in place of `{study}`."""
    return [
        str(folder.resolve() / name.removeprefix(HERE)) if name.startswith(HERE) else name
        for name in names
    ]


def write_texts(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the texts of a study into its folder, with their checksums."""
    if contents:
        make_folder(folder / DATA)
        (folder / DATA / checksums.MANIFEST).unlink(missing_ok=True)
        for name, content in contents.items():
            write_atomic(folder / DATA / name, content)
        checksums.write_manifest(folder / DATA)


@contextmanager
def try_texts(folder: Path, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder in which the study's texts are, before it begins: its own where it has none."""
    if not contents:
        yield folder
        return
    with tempfile.TemporaryDirectory() as draft:
        write_texts(Path(draft), contents)
        yield Path(draft)


def verify_texts(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Refuse texts of a study that are damaged, or that are not those that it began with."""
    if (folder / DATA / checksums.MANIFEST).exists():
        checksums.verify_manifest(folder / DATA, todo=RESTORE)
    for name, content in contents.items():
        path = folder / DATA / name
        if path.exists() and path.read_bytes() != content:
            raise RunError(
                f"this study began with other texts for {path.stem}.",
                where=str(path),
                todo="Give the same lists, or name another folder: out=…",
            )
