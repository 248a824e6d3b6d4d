"""A short form of `python -m robustness.fuzz`: no input ends in a traceback or a signal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from robustness import forked_command, fuzz
from robustness.fuzz_inputs import Models

SEED, INPUTS = 1, 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    os.environ["HEED_CACHE"] = str(folder / "cache")
    forked_command.import_commands()
    return fuzz.train_models(folder)


@pytest.mark.slow  # dozens of commands
def test_no_input_ends_in_a_traceback(models: Models) -> None:
    numbers = range(INPUTS)
    counts, faults = fuzz.fuzz(numbers, SEED, models, seconds=30)
    assert not faults, "\n".join(faults)
    assert counts.total() == INPUTS
    assert len({outcome for _, outcome in counts}) > 1


def test_outcomes_are_told_apart(tmp_path: Path) -> None:
    def outcome(*arguments: str, **limits: float) -> str:
        return forked_command.run_command(arguments, tmp_path, **limits).outcome  # type: ignore[arg-type] # seconds only

    (tmp_path / "empty.tsv").touch()
    assert outcome("--version") == "answer"
    assert outcome("recipes", "none") == "sentence"
    assert outcome("--debug", "recipes", "none") == "traceback"
    assert outcome("check", "empty.tsv") == "findings"
    assert outcome("--version", seconds=0.0) == "time"
