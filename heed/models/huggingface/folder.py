"""A folder written by `transformers`: its config.json and its weights.

Weights are read from safetensors only. A pickle (pytorch_model.bin) can run any code when it is
opened, so heed opens none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from heed.device import total_memory
from heed.errors import HeedError, describe_hub_error, install_hint, nearest
from heed.files import require_shallow

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
DOWNLOADED = (
    CONFIG,
    GENERATION,
    "model*.safetensors",
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_MAP,
)
"""The files that heed downloads from the hub."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
"""owner/name, or a name alone as old models have: roberta-base."""
RESAVE = "Save it again with `save_pretrained(folder)` of transformers, which writes safetensors."

MAX_JSON = 1 << 26
"""Largest JSON file beside the weights, in bytes: an index of a million weights is smaller."""
BYTES_PER_PARAMETER = 8
"""Memory of an import: the stored weights and the model's, both in float32."""

T = TypeVar("T")


class ConfigJson:
    """The values of a config.json, read with the types that they must have."""

    def __init__(self, values: Mapping[str, Any], where: str = CONFIG) -> None:
        self.values, self.where = values, where

    def get_int(self, key: str, default: int) -> int:
        """The integer under a key."""
        return self._get(key, default, int, "a whole number")

    def get_float(self, key: str, default: float) -> float:
        """The number under a key."""
        return float(self._get(key, default, (int, float), "a number"))

    def get_bool(self, key: str, default: bool) -> bool:
        """The boolean under a key."""
        return self._get(key, default, bool, "true or false")

    def get_choice(self, key: str, default: str, known: Mapping[str, T]) -> T:
        """The string under a key, translated by the table of the strings that heed supports."""
        value = self._get(key, default, str, "a string")
        if value not in known:
            options = ", ".join(known)
            raise self.error(f"{key} = {value!r} is not supported: use one of {options}.")
        return known[value]

    def require(self, key: str, value: object, default: object = None) -> None:
        """Raise an error if this key has any other value."""
        stored = self.values.get(key, value if default is None else default)
        if stored != value and stored is not None:
            raise self.error(f"{key} = {stored!r} is not supported: only {value!r} is.")

    def error(self, what: str) -> HeedError:
        """An error that names this file, to be raised."""
        return HeedError(what, where=self.where)

    def _get(self, key: str, default: Any, kind: Any, description: str) -> Any:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{key} is {value!r}, which is not {description}.")
        return value


def find_folder(folder: str | Path) -> Path:
    """A local folder, or the download of a model that is named as on the hub."""
    path, name = Path(folder), str(folder)
    if path.is_dir():
        return path
    if path.suffix in PICKLE_SUFFIXES:
        raise _pickle_error(path)
    if path.exists():
        raise HeedError(
            "this is a file, not a folder.", where=name, todo="Give the folder that contains it."
        )
    # If the parent folder exists, the name is a mistyped path, not a name on the hub.
    if HUB_NAME.fullmatch(name) and ("/" not in name or not path.parent.exists()):
        return _download(name)
    raise HeedError(
        "there is no such folder.",
        where=name,
        todo="Give a folder, or the name of a model on the hub.",
    )


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HeedError(
            "there is no such folder, and downloading from the hub needs huggingface_hub.",
            where=name,
            todo=install_hint("hf"),
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED)))
    except (
        Exception
    ) as problem:  # no network, unknown model and no permission share no narrower class
        reason, todo = describe_hub_error(problem)
        what = f"there is no such folder, and the download failed: {reason}"
        raise HeedError(what, where=name, todo=todo) from problem


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        require_regular_file(path, MAX_JSON)
        content = json.loads(path.read_text(encoding="utf-8"))
        require_shallow(content)
    except RecursionError as problem:
        raise HeedError("this JSON is nested too deeply.", where=str(path)) from problem
    except OSError as problem:
        raise HeedError(
            f"this file cannot be read: {problem.strerror}.", where=str(path)
        ) from problem
    except ValueError as problem:
        raise HeedError(f"this file is not valid JSON: {problem}.", where=str(path)) from problem
    if not isinstance(content, dict):
        raise HeedError("this file is JSON, but not an object.", where=str(path))
    return content


def require_regular_file(path: Path, most_bytes: int) -> None:
    """Raise an error for a device, a pipe, or a file larger than such a file is."""
    if path.exists() and not path.is_file():
        raise HeedError("this is not a regular file.", where=str(path))
    size = path.stat().st_size
    if size > most_bytes:
        raise HeedError(
            f"this file has {size:,} bytes, and heed reads at most {most_bytes:,}.",
            where=str(path),
        )


def read_config(folder: Path) -> ConfigJson:
    """Read the folder's config.json."""
    path = folder / CONFIG
    if not path.exists():
        raise HeedError(
            "there is no config.json here.",
            where=str(folder),
            todo="Give a folder that `save_pretrained` of transformers wrote.",
        )
    return ConfigJson(read_json(path), str(path))


def architecture_name(config_json: ConfigJson, known: Iterable[str]) -> str:
    """The class that config.json names; an error if heed does not support it."""
    names = config_json.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise config_json.error("architectures does not name the class of the model.")
    if names[0] not in known:
        options = ", ".join(known)
        hint = nearest(names[0], list(known))
        raise config_json.error(f"{names[0]} is not supported: heed reads {options}.{hint}")
    return names[0]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, from one safetensors file or several; none if memory is too small.

    Sizes and headers tell how large they are before any is read: a file may be mostly holes.
    """
    paths = _weight_files(folder)
    _require_memory(folder, sum(path.stat().st_size for path in paths if path.exists()))
    _require_memory(folder, BYTES_PER_PARAMETER * sum(map(_count_parameters, paths)))
    return {name: x for path in paths for name, x in _load_safetensors(path).items()}


def _require_memory(folder: Path, needed: int) -> None:
    available = total_memory()
    if available is not None and needed > available:
        raise HeedError(
            f"these weights need {needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{available / 2**30:,.1f}.",
            where=str(folder),
            todo="Import it on a larger machine.",
        )


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        files = read_json(folder / INDEX).get("weight_map")
        names = list(files.values()) if isinstance(files, dict) else []
        if not names or any(not isinstance(n, str) or Path(n).name != n for n in names):
            raise HeedError("weight_map does not name files.", where=str(folder / INDEX))
        return [folder / name for name in sorted(set(names))]
    pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise _pickle_error(pickles[0])
    raise HeedError(
        f"there are no weights here: {WEIGHTS} is missing.", where=str(folder), todo=RESAVE
    )


def _count_parameters(path: Path) -> int:
    """The number of weights in a file, from its header."""
    if path.exists() and not path.is_file():
        raise HeedError("this is not a regular file.", where=str(path))
    with _reading(path), safe_open(path, framework="pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (no mapping)


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    with _reading(path):
        return load_file(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of reading a safetensors file into one that names it."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as problem:
        raise HeedError(
            f"this is not a complete safetensors file: {problem}.", where=str(path), todo=RESAVE
        ) from problem


def _pickle_error(path: Path) -> HeedError:
    what = "this is a pickle, which can run any code when opened: heed does not open pickles."
    return HeedError(what, where=str(path), todo=RESAVE)
