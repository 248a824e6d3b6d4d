"""What programs read is JSON by its standard, whatever the figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.cli.common import print_json
from heed.files import to_json
from heed.metrics.perplexity import LossCounts, perplexity_metrics
from heed.runs.results_file import save_result

facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def strict(text: str) -> Any:
    """What a reader makes of it that knows JSON and no more."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_read(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_read(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(value=facts)
def test_only_what_is_not_finite_is_lost(value: Any) -> None:
    assert strict(to_json(value)) == as_read(value)
    assert strict(to_json((value,), indent=1)) == [as_read(value)]
    assert "\n" not in to_json(value)


def test_a_model_without_hope_is_told_and_kept_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that costs a thousand nats; and beside it what an earlier version kept."""
    hopeless = perplexity_metrics([LossCounts(1e3, 1, 1, 2, 0, 0, 0)] * 2, resamples=5) | {
        "resamples": 5
    }
    assert math.isinf(hopeless["perplexity"])
    print_json(hopeless)
    assert strict(capsys.readouterr().out)["perplexity"] is None
    (tmp_path / "evaluation.json").write_text('{"dev": {"loss": Infinity}}')
    save_result(tmp_path, "test", hopeless)
    found = strict((tmp_path / "evaluation.json").read_text())
    assert found["dev"]["loss"] is None
    assert found["test"] == as_read(hopeless)
