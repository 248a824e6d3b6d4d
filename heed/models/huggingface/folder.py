"""A folder of `transformers`: what its config.json says, and its weights.

Weights are read from safetensors alone. A pickle (pytorch_model.bin) can run any code when it is
opened, so none is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from heed.errors import HeedError, nearest

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
WANTED = (CONFIG, GENERATION, "model*.safetensors", INDEX, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_MAP)
"""All that is ever fetched from the hub."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
"""owner/name, or the one name of an old model: roberta-base."""
RESAVE = "Save it anew with `save_pretrained(folder)` of transformers, which writes safetensors."

T = TypeVar("T")


class Facts:
    """What a config.json says, read with the type that it must have."""

    def __init__(self, told: Mapping[str, Any], where: str = CONFIG) -> None:
        self.told, self.where = told, where

    def count(self, key: str, default: int) -> int:
        """A whole number."""
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: float) -> float:
        """Any number."""
        return float(self._typed(key, default, (int, float), "a number"))

    def yes(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._typed(key, default, bool, "true or false")

    def word(self, key: str, default: str, known: Mapping[str, T]) -> T:
        """One of some words, as what it stands for here."""
        found = self._typed(key, default, str, "a word")
        if found not in known:
            options = ", ".join(known)
            raise self.wrong(f"{key} {found!r} is not known here: {options} are.")
        return known[found]

    def require(self, key: str, value: object, default: object = None) -> None:
        """Refuse a model in which this key has any other value."""
        found = self.told.get(key, value if default is None else default)
        if found != value and found is not None:
            raise self.wrong(f"{key} = {found!r} is not supported: only {value!r} is.")

    def wrong(self, what: str) -> HeedError:
        """What to raise about this file."""
        return HeedError(what, where=self.where)

    def _typed(self, key: str, default: Any, kind: Any, meant: str) -> Any:
        found = self.told.get(key)
        if found is None:
            return default
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise self.wrong(f"{key} is {found!r}, which is not {meant}.")
        return found


def find(folder: str | Path) -> Path:
    """A folder on this machine; what is none but named like the hub's models is fetched there."""
    path, name = Path(folder), str(folder)
    if path.is_dir():
        return path
    if path.suffix in PICKLES:
        raise _pickled(path)
    if path.exists():
        raise HeedError("this is a file.", where=name, todo="Name the folder that it is in.")
    # A path whose first folder is there, is a path with a mistake in it.
    if HUB_NAME.fullmatch(name) and ("/" not in name or not path.parent.exists()):
        return _fetch(name)
    raise HeedError(
        "there is no such folder.", where=name, todo="Name a folder, or a model on the hub."
    )


def _fetch(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise HeedError(
            "there is no such folder, and to look on the hub needs huggingface_hub.",
            where=name,
            todo="Install it with: pip install 'heed[hf]'",
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED)))
    except Exception as problem:  # no narrower class covers no network, no such model, no leave
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        raise HeedError(
            f"there is no such folder, and the hub did not give it: {reason}", where=name
        ) from problem


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise HeedError(f"this cannot be read: {problem.strerror}.", where=str(path)) from problem
    except ValueError as problem:
        raise HeedError(f"this is not JSON: {problem}.", where=str(path)) from problem
    if not isinstance(found, dict):
        raise HeedError("this is JSON, but not an object.", where=str(path))
    return found


def read_facts(folder: Path) -> Facts:
    """What config.json says."""
    path = folder / CONFIG
    if not path.exists():
        raise HeedError(
            "there is no config.json here.",
            where=str(folder),
            todo="Name a folder that `save_pretrained` of transformers wrote.",
        )
    return Facts(read_json(path), str(path))


def class_name(facts: Facts, known: Iterable[str]) -> str:
    """The class that config.json names, where it is known here."""
    found = facts.told.get("architectures")
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise facts.wrong("architectures does not name the class of the model.")
    if found[0] not in known:
        options = ", ".join(known)
        hint = nearest(found[0], list(known))
        raise facts.wrong(f"{found[0]} is not a class that heed knows: {options} are.{hint}")
    return found[0]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights, from one file or several."""
    if (folder / WEIGHTS).exists():
        return _tensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        files = read_json(folder / INDEX).get("weight_map")
        names = sorted(set(files.values())) if isinstance(files, dict) else []
        if not names or any(Path(str(name)).name != name for name in names):
            raise HeedError("weight_map does not name files.", where=str(folder / INDEX))
        return {key: x for name in names for key, x in _tensors(folder / name).items()}
    pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise _pickled(pickles[0])
    raise HeedError(
        f"there are no weights here: {WEIGHTS} is missing.", where=str(folder), todo=RESAVE
    )


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as problem:
        raise HeedError(
            f"this is not a whole safetensors file: {problem}.", where=str(path), todo=RESAVE
        ) from problem


def _pickled(path: Path) -> HeedError:
    what = "this is a pickle, which can run any code when it is opened: heed opens none."
    return HeedError(what, where=str(path), todo=RESAVE)
