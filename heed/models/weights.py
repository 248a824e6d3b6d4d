"""Weights on disk, safetensors alone: read, written, and refused where they are not a model's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heed.errors import RunError


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    try:
        return load_file(path)
    except SafetensorError as problem:
        raise RunError(
            f"this is not a whole safetensors file: {problem}.",
            where=str(path),
            todo="It was cut off or changed after it was written: copy it again, or train anew.",
        ) from problem


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """A file like any other: the library would make one that its owner alone may read."""
    path.touch()
    mode = S_IMODE(path.stat().st_mode)
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as problem:
        told = re.search(r"os error (\d+)", str(problem))
        if told is None:
            raise
        number = int(told[1])
        raise OSError(number, os.strerror(number), str(path)) from problem
    path.chmod(mode)


def refuse_misfit(
    own: Mapping[str, Tensor], found: Mapping[str, Tensor], *, where: str | None = None
) -> None:
    """Every weight of a model must be found, in its shape, and no other."""
    for name in sorted(own.keys() | found.keys()):
        wanted, there = (list(w[name].shape) if name in w else None for w in (own, found))
        if wanted != there:
            raise RunError(
                "the weights of this run are not those of the model that its recipe.toml "
                f"describes: there, {name} {_is(wanted)}; of the weights it {_is(there)}.",
                where=where,
                todo="Put recipe.toml back as training wrote it, or train a new run.",
            )


def _is(shape: list[int] | None) -> str:
    return "is none" if shape is None else f"has shape {shape}"
