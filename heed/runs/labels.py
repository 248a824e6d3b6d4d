"""A classifier's class names and the calibration of its probabilities, as its run stores them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from heed import checksums
from heed.checksums import DamagedError
from heed.errors import RunError
from heed.runs.run import Run

RESTORE_LABELS = "Restore it from a copy of the run, or train again."
CALIBRATE_AGAIN = "Calibrate again: heed evaluate RUN --calibrate"
"""The advice for a damaged file."""


@dataclass(frozen=True)
class Classes:
    """A classifier's class names, in order, and whether its inputs are pairs of texts."""

    names: tuple[str, ...]
    pairs: bool = False
    calibrated: bool = False
    """Whether the run's probabilities were calibrated: calibration.json must be there then."""

    def save(self, run: Run) -> None:
        """Write the classes, if any, to the run folder, so that it works without training data."""
        if self.names:
            checksums.write_json(run.labels_path, asdict(self))

    @classmethod
    def read(cls, run: Run) -> Classes | None:
        """The classes of a run; None where the run has no such file."""
        if not run.labels_path.exists():
            return None
        content = checksums.read_json(run.labels_path, todo=RESTORE_LABELS)
        names: Any = content.get("names")
        pairs: Any = content.get("pairs")
        calibrated: Any = content.get("calibrated", False)
        if not _is_list_of_names(names) or {type(pairs), type(calibrated)} != {bool}:
            what = "this file is damaged: it has no list of different class names."
            raise DamagedError(what, where=str(run.labels_path), todo=RESTORE_LABELS)
        return cls(tuple(names), pairs, calibrated)

    @classmethod
    def require(cls, run: Run) -> Classes:
        """The classes of a classifier's run; an error if its file is missing."""
        classes = cls.read(run)
        if classes is None:
            raise RunError(
                f"this run has no {run.labels_path.name}, so its class names are unknown.",
                where=str(run.folder),
                todo="Restore the file, or train again.",
            )
        return classes


@dataclass(frozen=True)
class Calibration:
    """The temperature that calibrates a run's probabilities, and the text it was fitted on."""

    temperature: float
    split: str
    texts: int
    hash: str
    """Hash of the text it was fitted on."""

    def save(self, run: Run) -> None:
        """Write the calibration; from now on the run's probabilities use it."""
        checksums.write_json(run.calibration_path, asdict(self))
        replace(Classes.require(run), calibrated=True).save(run)

    @staticmethod
    def delete(run: Run) -> None:
        """Delete the calibration of a run, if it has one, also one that is damaged or missing."""
        replace(Classes.require(run), calibrated=False).save(run)
        run.calibration_path.unlink(missing_ok=True)

    @classmethod
    def read(cls, run: Run) -> Calibration | None:
        """The calibration of a run; None where it was never calibrated."""
        path, todo = run.calibration_path, CALIBRATE_AGAIN.replace("RUN", str(run.folder))
        classes = Classes.read(run)
        if not path.exists() and classes is not None and classes.calibrated:
            raise DamagedError("this file is missing.", where=str(path), todo=todo)
        if not path.exists():
            return None
        content = checksums.read_json(path, todo=todo)
        try:
            calibration = cls(
                *(content[name] for name in ("temperature", "split", "texts", "hash"))
            )
            usable = math.isfinite(calibration.temperature) and calibration.temperature > 0
        except (KeyError, TypeError):
            usable = False
        if not usable:
            raise DamagedError("this file is damaged.", where=str(path), todo=todo)
        return calibration


def _is_list_of_names(names: Any) -> bool:
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_list and bool(names) and len({*names}) == len(names)
