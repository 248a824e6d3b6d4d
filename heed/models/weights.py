"""Weights on disk, in safetensors alone: reading, writing, and checking them against a model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heed import checksums
from heed.checksums import DamagedError
from heed.errors import RunError

COPY_AGAIN = "Copy it again from where it is whole, or train again."
"""The advice for damaged weights."""


def read_weights(path: Path, *, todo: str = COPY_AGAIN) -> dict[str, Tensor]:
    """All tensors of a safetensors file, after its checksum is verified.

    `todo` is the advice for a missing or damaged file.
    """
    verify_weights(path, todo=todo)
    try:
        return load_file(path)
    except SafetensorError as problem:
        what = f"this is not a complete safetensors file: {problem}."
        raise DamagedError(what, where=str(path), todo=todo) from problem


def verify_weights(path: Path, *, todo: str = COPY_AGAIN) -> None:
    """Raise unless the file is there and matches its checksum."""
    if not path.exists():
        raise DamagedError("these weights are missing.", where=str(path), todo=todo)
    if not checksums.is_intact_safetensors(path):
        raise checksums.damage(str(path), todo)


def write_weights_with_checksum(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with a checksum, which `read_weights` verifies."""
    write_weights(path, tensors, {checksums.KEY: checksums.BLANK})
    checksums.seal_safetensors(path)


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a file with the usual permissions (safetensors' own: the owner alone)."""
    path.touch()
    mode = S_IMODE(path.stat().st_mode)
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as problem:
        os_error = re.search(r"os error (\d+)", str(problem))
        if os_error is None:
            raise
        number = int(os_error[1])
        raise OSError(number, os.strerror(number), str(path)) from problem
    path.chmod(mode)


def require_matching_weights(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, where: str | None = None
) -> None:
    """Raise unless the weights have every expected name and shape, and no other."""
    for name in sorted(expected.keys() | weights.keys()):
        needed, actual = (list(w[name].shape) if name in w else None for w in (expected, weights))
        if needed != actual:
            raise RunError(
                "model.safetensors does not match recipe.toml: the recipe needs "
                f"{_described(name, needed)}, the file has {_described(name, actual)}.",
                where=where,
                todo="Put recipe.toml back as training wrote it, or train a new run.",
            )


def _described(name: str, shape: list[int] | None) -> str:
    return f"no {name}" if shape is None else f"{name} with shape {shape}"
