"""What a report reads of run folders, and what it makes of figures over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

Facts = dict[str, Any]
FACTS = "benchmark.json"
"""What only the trainer knows: seconds of each command, parameters, runs side by side."""
EVALUATION = "evaluation.json"
MACHINE = "machine.json"
"""What the trainer noted of the machine, beside the runs."""
OTHERS = "others"
"""Under this name it has the machines that some of the runs were trained on before."""
KEPT = ("python", "platform", "packages", "cpu_capability", "commit", "gpu")
"""Of what a run notes of its environment."""
DIGITS = 6
"""That a figure is kept with."""


def read(path: Path) -> Facts:
    """What a file of JSON holds; nothing where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def facts(folder: Path) -> Facts:
    """What the trainer noted of a run."""
    return read(folder / FACTS)


def evaluation(folder: Path) -> Facts:
    """What `heed evaluate` kept, by split."""
    return read(folder / EVALUATION)


def spent(noted: Mapping[str, Any]) -> str:
    """The seconds of each command in words."""
    seconds = noted.get("seconds", {})
    return ", ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items())


def environments(paths: Iterable[Path], keys: Sequence[str] = KEPT) -> list[Facts]:
    """The machines and versions that runs were trained with, each once."""
    return distinct(environment(path, keys) for path in paths)


def environment(path: Path, keys: Sequence[str] = KEPT) -> Facts:
    """The machine and versions that one run was trained with."""
    known = read(path)
    return {key: known[key] for key in keys if known.get(key) is not None}


def distinct(values: Iterable[Facts]) -> list[Facts]:
    """Each once, without those that say nothing."""
    found: list[Facts] = []
    for value in values:
        found += [value] if value and value not in found else []
    return found


def place(machine: Mapping[str, Any]) -> str:
    """What a study was trained on."""
    return str(machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores")


def briefly(machine: Mapping[str, Any]) -> str:
    """What tells machines apart."""
    return f"{machine.get('gpu') or machine['cpu']}, torch {machine['torch']}"


def spread(values: Iterable[float]) -> Facts:
    """Mean and standard deviation over seeds, and each seed's."""
    each = [float(value) for value in values]
    return {
        "mean": fmean(each),
        "deviation": stdev(each) if len(each) > 1 else None,
        "each": each,
    }


def rounded(value: Any) -> Any:
    """Plain values with no more digits than they are worth."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value
