"""`heed attend` on small runs of every task: the terminal, files, checks and errors."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support import perturb

from heed.api import load
from heed.cli.main import main
from heed.config import Recipe
from heed.data import synthetic
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError
from heed.models import build
from heed.probe import map_output
from heed.runs.labels import Classes
from heed.runs.run import Run
from heed.train import checkpoint

TEXT = "The cat sees the dog."
SENTENCES = [*synthetic.generate_sentences("train", 40)]
MODEL = {"layers": 2, "width": 16, "heads": 2}
LEAK = {"merge": "reweight", "reweight_over": "sequence", "leaky": True}
TABLES: dict[str, dict[str, Any]] = {
    "translate": {"decode": {"max_ratio": 1.0, "max_extra": 2}},
    "classify": {},
    "generate": {"model": {"position": "learned", "max_positions": 48}},
    "leaky": {"task": "generate", "model": LEAK},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of each task, and a language model that leaks, with random weights."""
    folder = tmp_path_factory.mktemp("attend")
    lines = [text for s in SENTENCES for text in (s.english, s.french)]
    tokenizer = Tokenizer.train(lines, kind="word")
    for name, tables in TABLES.items():
        recipe = Recipe.of(
            {"task": name, "data": {"max_length": 48}}
            | tables
            | {"model": MODEL | tables.get("model", {})}
        )
        run, classes = Run(folder / name), 2 if recipe.task == "classify" else None
        torch.manual_seed(0)
        model = build(recipe.task, recipe.model, vocab=tokenizer.vocab_size, classes=classes)
        perturb(model)
        run.folder.mkdir()
        run.write_recipe(recipe)
        tokenizer.save(run.tokenizer_path)
        if classes:
            Classes(("calm", "loud")).save(run)
        run.write_environment({"data": {}})
        checkpoint.write_tensors(run.weights_path, model.state_dict())
    return folder


def heed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path
) -> tuple[int, str, str]:
    """`heed attend …` in this process: its exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["heed", "attend", *map(str, words), "--device", "cpu"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main()
    captured = capsys.readouterr()
    code = end.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_every_task_shows_files_and_passes_checks(
    task: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def attend(*words: str | Path) -> tuple[int, str, str]:
        return heed(monkeypatch, capsys, runs / task, *words)

    code, out, err = attend(TEXT, "--layer", "1", "--head", "2")
    assert (code, err) == (0, "")
    assert "layer 1, head 2 of 2" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    for suffix in ("png", "html", "json"):
        code, out, err = attend(TEXT, "A dog sleeps.", "--out", tmp_path / f"map.{suffix}")
        assert (code, err) == (0, "")
        assert f"map-1.{suffix}" in out
    maps = load(runs / task, device="cpu").attention(TEXT)
    content = json.loads((tmp_path / "map-1.json").read_text("utf-8"))
    assert content == json.loads(json.dumps(maps.to_dict()))
    assert (content["run"], content["task"], content["weights"]) == (task, task, "best")
    page = (tmp_path / "map-1.html").read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="heed-data">(.*?)</script>', page)
    assert json.loads(data) == maps.to_dict(binary=True)
    printed = attend(TEXT, "--json", "--words")[1]
    assert json.loads(printed) == json.loads(json.dumps(maps.by_word().to_dict()))
    for head, of_head in {"2": slice(1, 2), "mean": None}.items():
        chosen = json.loads(attend(TEXT, "--json", "--head", head, "--layer", "1")[1])
        for one, whole in zip(chosen["maps"], maps.maps, strict=True):
            layer = whole.weights[0]
            expected = layer.mean(axis=0, keepdims=True) if of_head is None else layer[of_head]
            assert np.array_equal(np.array(one["weights"][0], dtype=np.float32), expected)
            assert (one["layers"], one["heads"]) == ([1], [1])
            assert one["head"] == (head if head == "mean" else int(head))
        attend(TEXT, "--out", tmp_path / "head.json", "--head", head, "--layer", "1")
        assert json.loads((tmp_path / "head.json").read_text("utf-8")) == chosen
    code, out, _ = attend(TEXT, "--check")
    assert (code, "FAIL" in out) == (0, False)
    if task == "translate":
        assert "own output" in attend(TEXT, "--lens")[1]
        assert "own output" not in attend(TEXT, "--lens", "--target", TEXT)[1]
    code, out, _ = attend(TEXT, "--lens", "--json")
    shown = json.loads(out)["tokens"]
    assert (code, {len(row["layers"]) for row in shown}) == (0, {3})


def test_a_leak_is_a_failed_check(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = heed(monkeypatch, capsys, runs / "leaky", TEXT, "--check", "--json")
    failed = [one["check"] for one in json.loads(out) if not one["passed"]]
    assert code == 1
    assert "output unchanged by later tokens" in failed


def test_texts_that_are_too_long_are_cut_with_a_word(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for task in ("translate", "classify", "generate"):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            code, _, err = heed(monkeypatch, capsys, runs / task, "the cat " * 200)
        assert code == 0
        assert "tokens of the" in err
        assert "are read" in err


@pytest.mark.parametrize(
    ("task", "words", "said"),
    [
        ("translate", [TEXT, "--kind", "crass"], "Did you mean 'cross'?"),
        (
            "translate",
            [TEXT, "--layer", "3"],
            "no layer 3: cross attention has 2 layers. Choose 1 to 2.",
        ),
        ("translate", [TEXT, "--head", "3"], "no head 3: this layer has 2."),
        ("translate", [TEXT, "--head", "first"], "a number from 1 on, or mean"),
        ("translate", [TEXT, TEXT, "--target", "Le chat."], "the translation of one text"),
        ("translate", [TEXT, "--out", "map.gif"], "End the name in .png"),
        ("translate", [TEXT, "--out", "map.html", "--head", "1"], "has every head"),
        ("translate", [TEXT, "--json", "--head", "9"], "there is no head 9"),
        ("translate", [TEXT, "--check", "--kind", "cross"], "--kind chooses among them"),
        ("classify", [TEXT, "--check", "--layer", "1"], "--layer chooses among them"),
        ("generate", [TEXT, "--lens", "--head", "1"], "--lens shows no maps"),
        ("classify", [TEXT, "--lens", "--layer", "1", "--words"], "--layer and --words choose"),
        ("translate", [TEXT, "--patch", "cross.1.1=zero", "--head", "1"], "without --out"),
        ("translate", [" "], "no text to look at"),
        ("translate", [TEXT, "--check", "--lens"], "give one of them"),
        ("translate", [TEXT, "--lens", "--out", "map.png"], "--out writes maps"),
        ("classify", [TEXT, "--target", "x"], "--target is for translators"),
        ("classify", [TEXT, "--kind", "cross"], "no cross attention. It has encoder."),
    ],
)
def test_errors_are_sentences(
    task: str,
    words: list[str],
    said: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = heed(monkeypatch, capsys, runs / task, *words)
    assert code == 2
    assert said in err
    assert not [*tmp_path.iterdir()]


def test_a_page_with_too_many_weights_asks_for_a_layer(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = load(runs / "generate", device="cpu").attention(TEXT)
    monkeypatch.setattr(map_output, "MAX_PAGE_CELLS", maps.get().cells // 2)
    with pytest.raises(DataError, match="Choose one layer with --layer"):
        maps.save(tmp_path / "map.html")
    assert maps.save(tmp_path / "map.html", layer=1).exists()
    assert np.isclose(maps.get().weights[1].sum(), maps.select(layer=1).get().weights[0].sum())


def test_the_hint_names_a_range_only_where_there_is_one() -> None:
    one: Any = SimpleNamespace(kind="encoder", weights=[np.zeros((1, 2, 2))])
    two: Any = SimpleNamespace(kind="cross", weights=[np.zeros((2, 2, 2))] * 2)
    said = map_output._summary(cast("Any", SimpleNamespace(maps=[one])), one)
    assert said == "Choose with --layer 1, --head 1 or mean; --out FILE"
    said = map_output._summary(cast("Any", SimpleNamespace(maps=[two])), two)
    assert said == "Choose with --layer 1–2, --head 1–2 or mean; --out FILE"
