"""Loaded models: runs in memory, the least recently used evicted, one computation each at a time.

A model is loaded again when its run has written newer weights since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING

from heed.errors import RunError
from heed.lab.run_folder import reading
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.api import Classifier, LanguageModel, Translator

CAPACITY = 4
"""Models that stay in memory."""

Key = tuple[Path, str]
Version = tuple[Path, int, int]


class LoadedModels:
    """Models of runs by folder and weights. Loading one does not block the others."""

    def __init__(self, *, capacity: int = CAPACITY, device: str = "auto") -> None:
        self.capacity, self.device = capacity, device
        self._slots: OrderedDict[Key, _Slot] = OrderedDict()
        """Least recently used first."""
        self._lock = Lock()

    @contextmanager
    def use(
        self, folder: Path, weights: str = BEST_WEIGHTS
    ) -> Iterator[Translator | LanguageModel | Classifier]:
        """The model of a run, loaded if need be, for this thread alone until the block ends."""
        slot = self._slot((folder.resolve(), weights))
        with slot.lock:
            yield slot.load(self.device)

    def __len__(self) -> int:
        return len(self._slots)

    def _slot(self, key: Key) -> _Slot:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot(*key))
            self._slots.move_to_end(key)
            while len(self._slots) > self.capacity:
                self._slots.popitem(
                    last=False
                )  # a computation that uses it now keeps it to the end
            return slot


class _Slot:
    """The place of one model, its lock, and the version of the weights that are loaded."""

    def __init__(self, folder: Path, weights: str) -> None:
        self.folder, self.weights, self.lock = folder, weights, RLock()
        self._model: Translator | LanguageModel | Classifier | None = None
        self._version: Version | None = None

    def load(self, device: str) -> Translator | LanguageModel | Classifier:
        """The model of the run's weights as they are on disk now."""
        from heed.api import load

        version = weights_version(Run.open(self.folder), self.weights)
        if self._model is None or version != self._version:
            self._model = None  # two of one run need not be in memory at once
            with reading(self.folder.name):
                self._model = load(self.folder, device=device, weights=self.weights)
            self._version = version
        return self._model


def weights_version(run: Run, weights: str = BEST_WEIGHTS) -> Version:
    """The file of a run's weights, its time and its size: another version has others."""
    if weights != BEST_WEIGHTS:
        path: Path | None = run.weight_files.by_step()[run.weights_step(weights)]
    else:
        path = run.weights_path if run.finished else run.weight_files.best_path
    if path is None:
        run.refuse_deleted_weights()
        raise RunError(
            "this run has no weights yet.",
            where=str(run.folder),
            todo="Wait for its first evaluation.",
        )
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size
