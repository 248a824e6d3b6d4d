"""Weight files of a run: checkpoints, best and recent weights, and snapshots, each by its step.

checkpoints/step-N/                 a checkpoint to resume from: tensors.safetensors, state.json
checkpoints/best-N.safetensors      the best weights up to that step
checkpoints/recent-N.safetensors    weights that are averaged at the end of training
snapshots/step-N.safetensors        weights every `train.snapshot_every` steps

`heed.train.checkpoint` writes and deletes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heed import checksums
from heed.errors import RunError

BEST, RECENT = "best-", "recent-"
"""Prefixes of files of weights, before the step: the best ones, and those averaged at the end."""
WHOLE, STATE, TENSORS = "step-", "state.json", "tensors.safetensors"
"""Prefix of a checkpoint's folder, the file of its plain numbers, and that of its tensors."""
SNAPSHOT = "step-"
"""Prefix of a file of weights in `snapshots/`, before the step."""
BEST_WEIGHTS, LAST_WEIGHTS = "best", "last"
"""Names of weights beside their steps: those that training chose, and the newest ones."""
MOST_NAMED = 16
"""Steps that an error names; of more, the first and the last ones."""
MAX_DIGITS = 18
"""Digits of a step by which weights are named."""
STEP_DIGITS = "[0-9]" * 9
"""The step in a file name, as a pattern."""


class WeightFiles:
    """The weights that a run has in its `checkpoints/` and `snapshots/`, as they are on disk."""

    def __init__(self, checkpoints: Path, snapshots: Path) -> None:
        self._checkpoints, self._snapshots = checkpoints, snapshots

    @property
    def best_path(self) -> Path | None:
        """The best weights so far; None before the first evaluation."""
        paths = list_weights(self._checkpoints, BEST)
        return paths[-1] if paths else None

    @property
    def has_any(self) -> bool:
        """Whether there is a checkpoint, or the best weights of an evaluation."""
        return self.best_path is not None or any(self._list_checkpoints())

    def by_step(self) -> dict[int, Path]:
        """The files of all weights that the run still has, by step."""
        folders = sorted(self._checkpoints.glob(f"{WHOLE}{STEP_DIGITS}"))
        paths = [
            *(folder / TENSORS for folder in folders),
            *list_weights(self._snapshots, SNAPSHOT),
            *list_weights(self._checkpoints, RECENT),
            *list_weights(self._checkpoints, BEST),
        ]
        return {_step_of(path): path for path in paths}

    def snapshot_steps(self) -> list[int]:
        """The steps of which the run has a snapshot, in order."""
        return [_step_of(path) for path in list_weights(self._snapshots, SNAPSHOT)]

    def find_step(self, weights: str) -> int | None:
        """The step of `last`, or of weights named by their step; None if there are none."""
        steps = sorted(self.by_step())
        if weights == LAST_WEIGHTS and steps:
            return steps[-1]
        if weights.isdecimal() and len(weights) <= MAX_DIGITS and int(weights) in steps:
            return int(weights)
        return None

    def describe_names(self) -> str:
        """The names of all weights for an error: `best, last, 100, 200`."""
        steps = sorted(self.by_step())
        names = [str(step) for step in steps]
        if len(names) > MOST_NAMED:
            names = [*names[: MOST_NAMED // 2], "…", *names[-MOST_NAMED // 2 :]]
        return ", ".join([BEST_WEIGHTS, *([LAST_WEIGHTS] if steps else []), *names])

    def newest_state(self) -> dict[str, Any]:
        """The plain numbers of the newest intact checkpoint; empty if there is none."""
        for path in reversed(self._list_checkpoints()):
            try:
                return checksums.read_json(path / STATE, todo="")
            except (OSError, RunError):  # `heed resume` reports it
                continue
        return {}

    def best_name_of_checkpoint(self) -> str | None:
        """File name of the weights that were the best at the newest checkpoint, if there is one."""
        step = self.newest_state().get("best_step")
        return None if step is None else f"{BEST}{step:09d}.safetensors"

    def _list_checkpoints(self) -> list[Path]:
        """The folders of the checkpoints, sorted by step, the newest last."""
        return sorted(self._checkpoints.glob(f"{WHOLE}*"))


def list_weights(folder: Path, prefix: str) -> list[Path]:
    """Weight files with this prefix in a checkpoint folder, sorted by step, the newest last."""
    return sorted(folder.glob(f"{prefix}{STEP_DIGITS}.safetensors"))


def _step_of(path: Path) -> int:
    """The step of a weight file, in its name or in that of its checkpoint folder."""
    name = path.parent.name if path.parent.name.startswith(WHOLE) else path.stem
    return int(name.partition("-")[2])
