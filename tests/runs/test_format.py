"""The format of a run folder: other versions are refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heed.config import Recipe
from heed.errors import RunError
from heed.runs.run import FORMAT, Run


@pytest.mark.parametrize("version", [1, FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(tmp_path: Path, version: int) -> None:
    run = Run.create(tmp_path / "run", Recipe.of({"data": {"synthetic": 9}}))
    assert run.recipe().data.synthetic == 9  # before training nothing says its format
    run.write_environment({})
    assert run.environment()["format"] == FORMAT
    assert run.recipe().data.synthetic == 9
    environment = run.environment() | {"format": version}
    run.environment_path.write_text(json.dumps(environment), encoding="utf-8")
    run.recipe_path.write_text("[data]\nworld = 9\n", encoding="utf-8")  # as it was spelt then
    with pytest.raises(RunError, match=f"has format {version}, .* reads format {FORMAT}"):
        run.recipe()
