"""Export a run to other libraries: Hugging Face transformers, CTranslate2 or ONNX.

Each format is a module with one function, `export(run, folder, **options)`, that writes a run into
an empty folder, and one line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from heed.errors import ConfigError, HeedError, RunError, nearest
from heed.files import publish, temporary_folder
from heed.runs.run import Run

FORMATS = {
    "hf": "heed.export.huggingface",
    "ctranslate2": "heed.export.ctranslate2",
    "onnx": "heed.export.onnx",
}
"""The values of `--to`, and the module that writes each."""


def export(run: Path, folder: Path, *, to: str, **options: Any) -> None:
    """Write a finished run to a new folder; on an error the folder is not created."""
    if to not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError([f"There is no format {to!r}: use {known}.{nearest(to, [*FORMATS])}"])
    write = import_module(FORMATS[to]).export
    unknown = sorted(options.keys() - signature(write).parameters.keys())
    if unknown:
        raise ConfigError([f"--{unknown[0]} is not an option of --to {to}."])
    source = Run.open(run)
    source.require_weights()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            "this is not an empty folder.", where=str(folder), todo="Give another folder."
        )
    with without_new_parents(folder), temporary_folder(folder) as draft:
        try:
            write(run, draft, **options)
        except ConfigError:  # an option, not the format
            raise
        except HeedError as error:
            from heed.export.support import other_ways

            where, ways = error.where or str(run), other_ways(source.recipe(), run, folder, to)
            todo = " ".join(filter(None, (error.todo, ways)))
            raise RunError(error.what, where=where, todo=todo) from error
        publish(draft, folder)


@contextmanager
def without_new_parents(folder: Path) -> Iterator[None]:
    """On an error, delete the parents of `folder` that did not exist before and are empty."""
    new = [parent for parent in folder.parents if not parent.exists()]
    try:
        yield
    except BaseException:
        for parent in new:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise
