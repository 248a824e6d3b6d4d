"""Heads that align: planted ones are chosen, links both ways, errors as the metric defines them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from heed.cli.main import app
from heed.metrics.alignment_error import alignment_error_rate
from heed.probe import alignment_heads
from heed.probe.alignment_heads import BOTH, TARGET, PairMaps
from heed.probe.examples import open_probe_set
from heed.probe.word_aligner import WordAligner


def planted(seed: int, noise: tuple[float, ...], pairs: int = 30) -> PairMaps:
    """Maps of heads that are the gold links with so much noise each."""
    random = np.random.default_rng(seed)
    n, m = 5, 6
    words = np.zeros((pairs, n, m), bool)
    for b, (i, j) in enumerate(random.integers(2, (n + 1, m + 1), (pairs, 2))):
        words[b, :i, :j] = True
    links = np.zeros_like(words)
    for b in range(pairs):
        for t in range(n):
            links[b, t, random.integers(m)] = True
    links &= words
    weights = np.stack(
        [links + share * random.random(links.shape) for share in noise], axis=1
    ).astype(np.float32)
    return PairMaps(weights * words[:, None], words, links)


def as_links(matrix: np.ndarray) -> list[set[tuple[int, int]]]:
    return [{(int(s), int(t)) for t, s in np.argwhere(one)} for one in matrix]


@given(st.integers(0, 50), st.sampled_from([TARGET, BOTH]))
def test_the_error_is_that_of_the_links(seed: int, rule: str) -> None:
    maps = planted(seed, (0.5, 2.0))
    predicted = maps.predict([0, 1], rule)
    assert not (predicted & ~maps.words_bnm).any()
    assert (predicted.sum(axis=2) >= maps.words_bnm.any(axis=2)).all()
    if rule == BOTH:
        assert (predicted.sum(axis=1) >= maps.words_bnm.any(axis=1)).all()
        assert (maps.predict([0, 1], TARGET) <= predicted).all()
    expected = alignment_error_rate(as_links(predicted), as_links(maps.links_bnm))
    assert alignment_heads._error([maps], [0, 1], rule).value == pytest.approx(expected)


def test_the_head_that_aligns_is_chosen() -> None:
    batches = [planted(seed, (20.0, 0.1, 20.0)) for seed in range(3)]
    assert alignment_heads._choose_greedily(batches, [0, 1, 2], TARGET) == [1]
    noisy = [planted(seed, (1.5, 1.5, 50.0)) for seed in range(5)]
    assert alignment_heads._choose_greedily(noisy, [0, 1, 2], TARGET) == [0, 1]


def test_the_command_chooses_on_dev_and_scores_on_test(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = ["heads", str(runs["translate"]), "--align", "--device", "cpu"]
    result = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert result["chosen_on"] == {"set": "dev", "pairs": 30}
    assert result["scored_on"] == {"set": "test", "pairs": 30}
    assert result["reference"] == ["gold", "gold"]
    assert all(head.startswith("cross.") for head in result["heads"])
    errors = {name: [one["value"] for one in pair] for name, pair in result["errors"].items()}
    best = min(values[0] for name, values in errors.items() if name.startswith("chosen"))
    assert best <= errors[f"mean of all heads, {TARGET}"][0]
    assert errors[f"lowest possible, {TARGET}"][1] <= errors[f"chosen heads, {TARGET}"][1]
    shown = CliRunner().invoke(app, command).stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "word aligner" in shown
    assert shown.count("compared with gold links") == 1  # one sentence for both sets


def test_without_gold_the_word_aligner_is_the_reference(runs: dict[str, Path]) -> None:
    from evaluating import sides

    dev = open_probe_set(runs["translate"], device="cpu")
    test = open_probe_set(runs["translate"], test=sides(runs["text"], "test"), device="cpu")
    result = alignment_heads.choose_alignment_heads(dev, test)
    assert result.reference == ("gold", "word aligner")
    assert "word aligner" not in result.errors
    assert result.pairs == (30, 40)
    pairs = [(one.texts[0], one.texts[1]) for one in test.examples()]
    assert len(WordAligner.fit(pairs).align(pairs)) == 40
