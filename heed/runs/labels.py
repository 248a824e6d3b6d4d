"""A classifier's class names and the calibration of its probabilities, as its run stores them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from heed.errors import RunError
from heed.files import write_atomic
from heed.runs.run import Run


@dataclass(frozen=True)
class Classes:
    """A classifier's class names, in order, and whether its inputs are pairs of texts."""

    names: tuple[str, ...]
    pairs: bool = False

    def save(self, run: Run) -> None:
        """Write the classes, if any, to the run folder, so that it works without training data."""
        if self.names:
            text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
            write_atomic(run.labels_path, text + "\n")

    @classmethod
    def read(cls, run: Run) -> Classes | None:
        """The classes of a run; None where the run has no such file."""
        if not run.labels_path.exists():
            return None
        content = json.loads(run.labels_path.read_text(encoding="utf-8"))
        return cls(tuple(content["names"]), content["pairs"])

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
        write_atomic(run.calibration_path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, run: Run) -> Calibration | None:
        """The calibration of a run; None where it was never calibrated."""
        if not run.calibration_path.exists():
            return None
        return cls(**json.loads(run.calibration_path.read_text(encoding="utf-8")))
