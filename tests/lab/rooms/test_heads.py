"""Heads over HTTP: cards, ablations and patches are those of Python, with progress before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import lab_client

import heed
from heed.errors import ConfigError
from heed.probe.ablate import METRICS, Scorer, compare_counts
from heed.probe.examples import open_probe_set
from heed.probe.head_cards import measure_heads
from heed.probe.patch import Head
from heed.probe.patched_output import parse_weights, patch_output

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

TEXT = "The old woman sees the cat."
CROSS = {"kind": "cross", "layer": 1, "head": 0}
DECODER = {"kind": "decoder", "layer": 0, "head": 1}


@pytest.fixture(scope="module")
def client(tiny_runs: Path) -> Iterator[TestClient]:
    with lab_client(tiny_runs, is_read_only=True) as client:
        yield client


def read_stream(client: TestClient, what: str, **body: Any) -> tuple[list[Any], Any]:
    """The lines of progress, and the result."""
    answer = client.post(f"/api/heads/{what}", json={"run": "tiny-translate", **body})
    assert answer.status_code == 200, answer.text
    *progress, last = [json.loads(line) for line in answer.text.splitlines()]
    return progress, last["result"]


def test_cards_are_those_of_heed_heads(client: TestClient, tiny_runs: Path) -> None:
    progress, cards = read_stream(client, "cards", limit=15)
    assert any("Measuring" in line["note"] for line in progress)
    probe = open_probe_set(tiny_runs / "tiny-translate", limit=15, device="cpu")
    expected = measure_heads(probe, align=False)
    assert cards["texts"] == 15
    for sent, card in zip(cards["heads"], expected.cards, strict=True):
        assert Head(sent["kind"], sent["layer"], sent["head"]) == card.head
        assert sent["name"] == card.name
        values = {name: one.value for name, one in card.metrics.items()}
        assert {name: one["value"] for name, one in sent["metrics"].items()} == values
    again, _ = read_stream(client, "cards", limit=15)
    assert again == [], "cards that are known come at once"


def test_changes_of_all_sets_are_one_family(client: TestClient, tiny_runs: Path) -> None:
    sets = [[CROSS], [DECODER], [CROSS, DECODER]]
    progress, ablation = read_stream(client, "ablate", heads=sets, limit=15)
    assert progress[0] == {"note": "Scoring the whole model…", "done": 0, "total": 3}
    assert progress[-1] == {"note": "Silencing heads…", "done": 3, "total": 3}
    scorer = Scorer(open_probe_set(tiny_runs / "tiny-translate", limit=15, device="cpu"))
    first, second = Head("cross", 1, 0), Head("decoder", 0, 1)
    counts = [scorer.counts("loss", heads) for heads in ([first], [second], [first, second])]
    changes = compare_counts(METRICS["loss"], scorer.counts("loss"), counts, scorer.text_of)
    for sent, change in zip(ablation["changes"], changes, strict=True):
        assert sent["difference"] == change.difference
        assert (sent["low"], sent["high"]) == (change.interval.low, change.interval.high)
        assert sent["p"] == change.p
    assert ablation["examples"] == 15


def test_a_pattern_changes_the_output_as_in_python(client: TestClient, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-translate", device="cpu")
    weights = "1 0 0\n0 1 0\n1 1 2"
    edits = [CROSS | {"pattern": "uniform"}, DECODER | {"weights": weights}]
    body = {"run": "tiny-translate", "text": TEXT, "edits": edits}
    answer = client.post("/api/heads/patch", json=body).json()
    given_weights = np.array([[1, 0, 0], [0, 1, 0], [0.25, 0.25, 0.5]])
    named = {Head("cross", 1, 0): "uniform", Head("decoder", 0, 1): given_weights}
    expected = patch_output(model, named, TEXT).to_dict()  # type: ignore[arg-type]
    assert answer == json.loads(json.dumps(expected))
    assert answer["edits"] == ["cross.2.1=uniform", "decoder.1.2=given weights"]


@pytest.mark.parametrize(
    ("what", "body", "status", "sentence"),
    [
        ("cards", {"run": "nothing"}, 404, "no such run"),
        ("cards", {"limit": 0}, 422, "limit"),
        ("ablate", {"heads": []}, 422, "heads"),
        ("ablate", {"heads": [[CROSS]], "limit": 4}, None, "4 examples give no intervals"),
        ("ablate", {"heads": [[CROSS | {"layer": 7}]], "limit": 15}, None, "layers 1 to 2"),
        ("ablate", {"heads": [[CROSS]], "metric": "accuracy", "limit": 15}, None, "--metric"),
        ("patch", {"text": TEXT, "edits": [CROSS | {"pattern": "x"}]}, 400, "no edit 'x'"),
        ("patch", {"text": TEXT, "edits": [CROSS]}, 400, "one of the two"),
        ("patch", {"text": TEXT, "edits": [CROSS | {"weights": "1 a"}]}, 400, "Line 1"),
        ("patch", {"text": " ", "edits": [CROSS | {"pattern": "zero"}]}, 400, "no text"),
    ],
)
def test_bad_requests_say_what_is_wrong(
    client: TestClient, what: str, body: dict[str, Any], status: int | None, sentence: str
) -> None:
    """An error after the first line of progress is the last line of the stream."""
    answer = client.post(f"/api/heads/{what}", json={"run": "tiny-translate", **body})
    assert answer.status_code == (status or 200)
    error = json.loads(answer.text.splitlines()[-1])["error"]
    assert sentence in error["message"]


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(st.floats(0, 9).map(lambda x: round(x, 3)), min_size=3, max_size=3), max_size=4
    )
)
def test_pasted_weights_are_scaled_or_refused(rows: list[list[float]]) -> None:
    text = "\n".join("; ".join(map(str, row)) for row in rows)
    if not rows or not all(sum(row) for row in rows):
        with pytest.raises(ConfigError, match="pattern"):
            parse_weights(text)
        return
    weights_nm = parse_weights(text)
    assert np.allclose(weights_nm.sum(axis=1), 1)
    assert np.allclose(weights_nm * np.sum(rows, axis=1, keepdims=True), rows)


@pytest.mark.parametrize("text", ["1 2\n3", "nan 1", "-1 2", "inf 1", "1 2\n\n3 4"])
def test_a_pattern_that_is_no_matrix_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Line"):
        parse_weights(text)
