"""How attention forms: every head beside its final self, over the snapshots of a run."""

from __future__ import annotations

import json
import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evaluating import invoke_command, sides, train_small, write_text
from hypothesis import given
from hypothesis import strategies as st

import heed
from heed.probe.head_matching import mean_overlaps
from heed.probe.map_history import SETTLED, HeadHistory
from heed.probe.patch import Head

SETTINGS = {"steps": 6, "evaluate_every": 6, "snapshot_every": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path_factory.getbasetemp() / "history-cache"))


@pytest.fixture(scope="module")
def translator(folder: Path) -> Path:
    data = {"dev": sides(folder, "test")}
    return train_small(folder, "translate", "translator", data=data, train=SETTINGS)


attend = partial(invoke_command, "attend")


def test_every_head_is_compared_with_its_final_self(folder: Path, translator: Path) -> None:
    """Over the dev set and its references: as the maps of each step that are read one by one."""
    code, printed = attend(str(translator), "--over-training", "--json")
    assert code == 0, printed
    histories = {one["kind"]: one for one in json.loads(printed)}
    assert {*histories} == {"cross", "decoder", "encoder"}
    english, french = (Path(path).read_text().splitlines()[:16] for path in sides(folder, "test"))
    for history in histories.values():
        assert history["steps"] == [0, 2, 4, 6]
        assert history["texts"] == english
        assert all(one["similarity"][-1] == pytest.approx(1) for one in history["heads"])
        assert all(one["settles_at_step"] in history["steps"] for one in history["heads"])
    pairs = list(zip(english, french, strict=True))
    first, final = (heed.Translator.load(translator, weights=step) for step in ("0", "6"))
    for kind, history in histories.items():
        ours, theirs = (
            [model.attention(*pair).get(kind) for pair in pairs] for model in (first, final)
        )
        expected = mean_overlaps(ours, theirs).diagonal()
        similarity = [one["similarity"][0] for one in history["heads"]]
        np.testing.assert_allclose(similarity, expected, atol=1e-6)
        assert min(similarity) < 1 - 1e-4
        most = math.log2(max(len(one.key_tokens) for one in ours))
        assert all(0 <= bits <= most for one in history["heads"] for bits in one["entropy"])


def test_given_texts_are_read_with_one_translation(translator: Path, tmp_path: Path) -> None:
    """The last snapshot's, at every step; the figure has a file for each kind."""
    run, text = str(translator), "The old woman sees the cat."
    out = ["--out", str(tmp_path / "history.svg")]
    code, printed = attend(run, text, "--over-training", "--words", *out)
    assert code == 0, printed
    assert {path.name for path in tmp_path.iterdir()} == {
        f"history-{kind}.svg" for kind in ("cross", "decoder", "encoder")
    }
    choice = ["--kind", "encoder", "--layer", "1", "--head", "2"]
    code, printed = attend(run, text, "--over-training", *choice)
    assert code == 0, printed
    assert "Similarity to the map at step 6" in " ".join(printed.split())
    assert "1.2" in printed
    assert "1.1 " not in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_other_tasks(folder: Path, task: str) -> None:
    suffix = {"classify": "tsv", "generate": "en"}[task]
    data = {"dev": [str(folder / f"test.{suffix}")]}
    run = train_small(folder, task, task, data=data, train=SETTINGS)
    code, printed = attend(str(run), "--over-training", "--json")
    assert code == 0, printed
    (history,) = json.loads(printed)
    assert len(history["texts"]) == 16
    assert all(one["similarity"][-1] == pytest.approx(1) for one in history["heads"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--check"], "give one of them"),
        (["--against-weights", "2"], "give one of them"),
        (["--weights", "2"], "--weights one step"),
        (["--target", "x"], "give the text too"),
        (["--head", "mean"], "a number, not mean"),
        (["--head", "3"], "no such head"),
        (["--out", "a.html"], "End the name in"),
    ],
)
def test_wrong_options_are_one_sentence(translator: Path, arguments: list[str], says: str) -> None:
    code, printed = attend(str(translator), "--over-training", *arguments)
    assert code == 2
    assert says in " ".join(printed.split())


def test_a_run_without_snapshots_says_how_to_get_them(translator: Path, tmp_path: Path) -> None:
    run = shutil.copytree(translator, tmp_path / "run")
    shutil.rmtree(run / "snapshots")
    code, printed = attend(str(run), "--over-training")
    assert code == 2
    assert "no snapshots" in " ".join(printed.split())
    assert "train.snapshot_every=N" in printed


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_a_settled_head_stays_settled(similarity: list[float]) -> None:
    index = HeadHistory(Head("cross", 0, 0), similarity, similarity).settled_index()
    if index is None:
        assert similarity[-1] < SETTLED
        return
    assert all(value >= SETTLED for value in similarity[index:])
    assert index == 0 or similarity[index - 1] < SETTLED
