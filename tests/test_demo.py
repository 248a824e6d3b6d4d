"""The demo, in small: the whole story with few updates, through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import heed

from heed.config import Recipe
from heed.demo import coloured
from heed.recipes import find, names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, object]:
    """A demo of a few updates, run from a folder that is not the project's."""
    answer = heed("demo", "--steps", "12", "--json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def test_it_prints_one_object(result: dict[str, object]) -> None:
    for key in ("bleu", "exact_match", "alignment_error", "seconds"):
        assert isinstance(result[key], float)
    assert 0.0 <= float(str(result["exact_match"])) <= 1.0
    assert 0.0 <= float(str(result["alignment_error"])) <= 1.0
    assert "version:" in str(result["signature"])


def test_it_leaves_a_whole_run(folder: Path, result: dict[str, object]) -> None:
    run = folder / str(result["run"])
    for name in ("recipe.toml", "tokenizer.json", "model.safetensors", "metrics.jsonl"):
        assert (run / name).stat().st_size > 0
    for stem in ("loss", "attention-1", "attention-1-heads"):
        assert (run / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (run / "figures" / f"{stem}.svg").read_bytes()


def test_a_second_demo_gives_the_same_figures(folder: Path, result: dict[str, object]) -> None:
    again = json.loads(heed("demo", "--steps", "12", "--json", cwd=folder).stdout)
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in result.items() if k != "seconds"
    }


def test_its_run_translates_line_for_line(folder: Path, result: dict[str, object]) -> None:
    lines = ["The cat sees the old woman.", "", "   ", "😀 ok", "The dog."]
    answer = heed("translate", str(result["run"]), cwd=folder, stdin="\n".join(lines))
    assert answer.returncode == 0, answer.stderr
    out = answer.stdout.split("\n")[:-1]
    assert len(out) == len(lines)
    assert out[1] == out[2] == ""


def test_it_replaces_only_a_demo(tmp_path: Path) -> None:
    told = Recipe.read(find("demo-translate"), ["train.lr=0.5"])
    (tmp_path / "recipe.toml").write_text(told.toml())
    answer = heed("demo", "--steps", "2", "--run", str(tmp_path))
    assert answer.returncode == 2
    assert "not a demo" in answer.stderr
    assert (tmp_path / "recipe.toml").exists()


def test_colours_tell_right_from_wrong() -> None:
    shown, wanted = coloured("le chat voit la", "le chien voit la maison")
    styles = {shown.plain[span.start : span.end].strip(): str(span.style) for span in shown.spans}
    assert styles == {"le": "green", "chat": "bold red", "voit": "green", "la": "green"}
    assert wanted.plain.split() == ["le", "chien", "voit", "la", "maison"]


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("demo-")])
@pytest.mark.parametrize("family", ["transformer", "lstm"])
def test_every_demo_recipe_trains(name: str, family: str, tmp_path: Path) -> None:
    changes = ["train.steps=3", "data.world=400", "data.world_test=40", f"model.family={family}"]
    flags = [part for change in changes for part in ("--set", change)]
    answer = heed("train", name, *flags, "--run", str(tmp_path / "run"))
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()
