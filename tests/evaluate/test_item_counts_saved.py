"""Every evaluation keeps its item counts: their sums give the scores that it reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import HELD_OUT, SHARED, evaluate_small, sides, train_small

from heed.evaluate.text_columns import PER_NAT, WORD
from heed.metrics.item_columns import BLOCKS, MIN_TEXTS
from heed.metrics.item_metrics import item_metrics
from heed.runs.item_counts import BLOCK, TEXT, ItemCounts, read_items, set_names

pytestmark = pytest.mark.usefixtures("own_cache")


def saved_items(folder: Path, name: str) -> ItemCounts:
    items = read_items(folder, name)
    assert items is not None
    return items


def check_scores(items: ItemCounts, result: dict[str, Any], scale: dict[str, float]) -> None:
    """The metrics of all items and of the clean ones are those of the evaluation."""
    rows = items.clean_rows
    assert rows is not None
    clean = {name: values[rows] for name, values in items.columns.items()}
    for part, expected in ((items.columns, result), (clean, result["clean"])):
        metrics = item_metrics(replace(items, columns=part))
        for name, factor in scale.items():
            assert metrics[name].value == pytest.approx(factor * expected[name], rel=1e-6)


def test_of_a_translator(run: Path, text: Path) -> None:
    result = evaluate_small(run, test=sides(text, "test"))
    items = saved_items(run, "test")
    assert len(items) == HELD_OUT
    assert int((items.columns["in_train"] == 1).sum()) == SHARED
    check_scores(items, result, {"bleu": 1, "chrf": 1})
    assert items.settings["decode"] == result["decode"]
    assert items.checkpoint == result["checkpoint"]
    check_texts(items, text / "test.en", text / "train.en")
    assert set(items.columns) >= {"text.tokens", "text.unknown"}


def check_texts(items: ItemCounts, test: Path, train: Path) -> None:
    """The numbers about words are those of the files, and texts of train have no unseen word."""
    texts, known = (path.read_text(encoding="utf-8").lower() for path in (test, train))
    words, seen = WORD.findall(texts), Counter(WORD.findall(known))
    columns = items.columns
    assert columns["text.words"].sum() == len(words)
    assert columns["text.unseen"].sum() == sum(word not in seen for word in words)
    assert not columns["text.unseen"][columns["in_train"] == 1].any()
    chances = [(seen[word] + 1) / (seen.total() + len(seen) + 1) for word in words]
    surprisal = -PER_NAT * np.log(chances).sum()
    assert columns["text.surprisal"].sum() == pytest.approx(surprisal, rel=1e-3)


def test_of_a_classifier(text: Path) -> None:
    run = train_small(text, "classify", "sorter-items")
    result = evaluate_small(run, test=[str(text / "test.tsv")])
    items = saved_items(run, "test")
    check_scores(items, result, {"accuracy": 100, "macro_f1": 100, "log_loss": 1})


def test_of_a_language_model_and_its_named_sets(text: Path) -> None:
    """Texts are items; a set of fewer than ten texts has blocks of tokens as items."""
    few = text / "few.en"
    lines = (text / "test.en").read_text(encoding="utf-8").splitlines()[: MIN_TEXTS - 1]
    few.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = train_small(
        text,
        "generate",
        "writer-items",
        data={"test": [str(text / "test.en")], "sets": {"few": [str(few)]}},
    )
    result = evaluate_small(run)
    scale = {"perplexity": 1.0, "word_perplexity": 1.0, "bits_per_byte": 1.0, "accuracy": 100.0}
    items = saved_items(run, "test")
    assert (len(items), items.unit) == (HELD_OUT, TEXT)
    check_scores(items, result, scale)
    blocks = saved_items(run, "few")
    for one, path in ((items, text / "test.en"), (blocks, few)):
        words = WORD.findall(path.read_text(encoding="utf-8"))
        assert one.columns["text.words"].sum() == len(words)
        assert one.columns["text.surprisal"].sum() > 0
    assert blocks.unit == BLOCK
    assert MIN_TEXTS - 1 <= len(blocks) <= BLOCKS + MIN_TEXTS
    metrics = item_metrics(blocks)
    for name, factor in scale.items():
        expected = factor * result["sets"]["few"][name]
        assert metrics[name].value == pytest.approx(expected, rel=1e-6)
    assert set_names(run) == ["few", "test"]
    table = (run / "documents" / "few.tsv").read_text(encoding="utf-8").splitlines()
    assert len(table) == MIN_TEXTS
