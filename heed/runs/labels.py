"""What the run of a classifier keeps beside its weights: its classes, and how sure it may be."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from heed.files import write_whole
from heed.runs.run import Run


@dataclass(frozen=True)
class Classes:
    """What a run tells apart: the names of its classes in order, and of what kind its texts are."""

    names: tuple[str, ...]
    pairs: bool = False

    def save(self, run: Run) -> None:
        """Keep them, if there are any, in the run folder, which needs its training text no more."""
        if self.names:
            told = json.dumps(asdict(self), indent=1, ensure_ascii=False)
            write_whole(run.classes_path, told + "\n")

    @classmethod
    def read(cls, run: Run) -> Classes | None:
        """Those of a run; None where it was made before they were kept."""
        if not run.classes_path.exists():
            return None
        facts = json.loads(run.classes_path.read_text(encoding="utf-8"))
        return cls(tuple(facts["names"]), facts["pairs"])


@dataclass(frozen=True)
class Calibration:
    """A temperature that makes a run's probabilities mean what they say, and where it is from."""

    temperature: float
    split: str
    texts: int
    hash: str
    """Of the text it was fitted on."""

    def save(self, run: Run) -> None:
        """Keep it: from now on the run's probabilities are by it."""
        write_whole(run.calibration_path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, run: Run) -> Calibration | None:
        """That of a run; None where it was never calibrated."""
        if not run.calibration_path.exists():
            return None
        return cls(**json.loads(run.calibration_path.read_text(encoding="utf-8")))
