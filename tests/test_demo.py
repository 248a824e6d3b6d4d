"""The demo, in small: the whole story with few updates, through the real command."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killing import asked_at
from rich.console import Console
from test_cli import heed
from torch import Tensor

from heed.config import Recipe
from heed.data import synthetic
from heed.demo import EXAMPLES, RECIPE, WARMUP_SHARE, choose_examples, color_words, run_demo
from heed.errors import RunError, StoppedError
from heed.pipelines.translate import Choice, Translation, TranslationPipeline
from heed.recipes import find, names
from heed.runs.results_file import read_results
from heed.runs.run import Run
from heed.train import checkpoint


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


def test_its_scores_are_an_evaluation_of_the_run(folder: Path, result: dict[str, Any]) -> None:
    """So that a report of it is whole, and `heed runs` shows its BLEU."""
    run = folder / result["run"]
    stored = read_results(run)["test"]
    assert stored["bleu"] == result["bleu"]
    interval = stored["interval"]["bleu"]
    assert [interval["low"], interval["high"]] == result["interval"]
    assert (stored["run"], stored["system"]) == (result["run"], result["run"])
    assert ".unfinished" not in (run / "evaluation.json").read_text(encoding="utf-8")


def test_its_test_sentences_are_translated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def translate(
        self: TranslationPipeline, texts: Sequence[str], **_: object
    ) -> list[Translation]:
        asked.append(len(texts))
        return [Translation(text, [Choice(f"le {text}", 0.0)]) for text in texts]

    monkeypatch.setattr(TranslationPipeline, "translate", translate)
    output = StringIO()
    result = run_demo(tmp_path / "run", console=Console(file=output, width=200), steps=2)
    assert asked == [result.sentences]
    assert re.search(r"\ble [A-Z]\w+ ", output.getvalue())


def test_its_warmup_is_shorter_with_fewer_steps(folder: Path, result: dict[str, Any]) -> None:
    shipped, short = (
        Recipe.read(find(RECIPE)).train,
        Run.open(folder / result["run"]).recipe().train,
    )
    assert shipped.warmup == WARMUP_SHARE * (shipped.steps or 0)
    assert (short.steps, short.warmup) == (12, 2)


def test_it_leaves_a_whole_run(folder: Path, result: dict[str, object]) -> None:
    run = folder / str(result["run"])
    for name in ("recipe.toml", "tokenizer.json", "model.safetensors", "metrics.jsonl"):
        assert (run / name).stat().st_size > 0
    for stem in ("loss", "attention-1", "attention-1-heads"):
        assert (run / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (run / "figures" / f"{stem}.svg").read_bytes()


@pytest.mark.slow  # a whole demo more
def test_by_force_a_second_demo_replaces_the_first_and_gives_the_same_figures(
    folder: Path, result: dict[str, object]
) -> None:
    again = json.loads(heed("demo", "--steps", "12", "--json", "--force", cwd=folder).stdout)
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in result.items() if k != "seconds"
    }
    assert [path.name for path in (folder / "runs").iterdir()] == ["demo"]


def test_a_second_demo_leaves_the_first(
    folder: Path, result: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default folder has the next number; one that is named is refused."""
    before = contents(folder)
    with pytest.raises(RunError, match=r"a demo here already.*--force"):
        run_demo(folder / str(result["run"]), console=Console(quiet=True), steps=2)
    monkeypatch.setenv("HEED_CACHE", "/dev/null/cache")  # it ends before the first step
    answer = heed("demo", "--steps", "2", cwd=folder)
    assert answer.returncode == 2
    assert "runs/demo stays as it is; this demo goes to runs/demo-2" in answer.stdout
    assert contents(folder) == before


def test_its_run_translates_line_for_line(folder: Path, result: dict[str, object]) -> None:
    lines = ["The cat sees the old woman.", "", "   ", "😀 ok", "The dog."]
    answer = heed("translate", str(result["run"]), cwd=folder, stdin="\n".join(lines))
    assert answer.returncode == 0, answer.stderr
    out = answer.stdout.split("\n")[:-1]
    assert len(out) == len(lines)
    assert out[1] == out[2] == ""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_it_leaves_nothing_of_its_workshop(folder: Path, result: dict[str, object]) -> None:
    assert not [name for name in contents(folder / "runs") if "unfinished" in name]


@pytest.mark.parametrize("steps", ["0", "-1"])
def test_no_steps_are_refused_and_the_old_demo_stays(
    folder: Path, result: dict[str, object], steps: str
) -> None:
    before = contents(folder)
    answer = heed("demo", "--steps", steps, cwd=folder)
    assert answer.returncode == 2
    assert "steps" in answer.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["NOTES.txt", "figures/mine.png", "recipe.toml", "demo.json"])
def test_what_is_not_a_demos_is_never_removed(
    folder: Path, result: dict[str, object], name: str, tmp_path: Path
) -> None:
    """A file added to a whole demo, or one of its own that was changed, is the user's work."""
    run = tmp_path / "run"
    shutil.copytree(folder / str(result["run"]), run)
    (run / name).write_text("mine")
    before = contents(run)
    with pytest.raises(RunError, match="no demo wrote"):
        run_demo(run, console=Console(quiet=True), steps=2, force=True)
    assert contents(run) == before


def test_it_replaces_only_a_demo(folder: Path, result: dict[str, object], tmp_path: Path) -> None:
    """A run of the demo's very recipe, made by `heed train`, is not a demo."""
    run = tmp_path / "run"
    shutil.copytree(folder / str(result["run"]), run)
    (run / "demo.json").unlink()
    before = contents(run)
    answer = heed("demo", "--steps", "2", "--run", str(run), "--force")
    assert answer.returncode == 2
    assert "no demo wrote" in answer.stderr
    assert "--run" in answer.stderr
    assert contents(run) == before


def test_a_demo_that_fails_leaves_the_earlier_one(
    folder: Path, result: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, before = folder / str(result["run"]), contents(folder)
    monkeypatch.setenv("HEED_CACHE", "/dev/null/cache")
    for place in (run, folder / "other"):
        with pytest.raises(NotADirectoryError):
            run_demo(place, console=Console(quiet=True), steps=2, force=True)
        assert contents(folder) == before
    assert not (folder / "other").exists()


def test_a_demo_that_finds_no_room_names_no_run_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, tensors: dict[str, Tensor]) -> None:
        raise checkpoint.disk_error(OSError(errno.ENOSPC, "No space left"), path)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(RunError, match="the disk is full") as error:
        run_demo(tmp_path / "run", console=Console(quiet=True), steps=2)
    assert error.value.where == str(tmp_path / "run")
    assert "resume" not in str(error.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_the_earlier_one(
    folder: Path, result: dict[str, object], number: int
) -> None:
    run, before = folder / str(result["run"]), contents(folder)
    with asked_at(3, number), pytest.raises(StoppedError) as stopped:
        run_demo(run, console=Console(quiet=True), steps=9, force=True)
    assert stopped.value.code == 128 + number
    assert "resume" not in str(stopped.value)
    assert contents(folder) == before


@given(right=st.lists(st.booleans(), max_size=20))
def test_as_many_are_shown_as_there_is_room_for(right: list[bool]) -> None:
    """Right ones first; and of the wrong ones two, where there are so many."""
    test = list(synthetic.generate_sentences("test", len(right), seed=0))
    said = [s.french if good else "" for s, good in zip(test, right, strict=True)]
    shown = choose_examples(test, said)
    assert len({*shown}) == len(shown) == min(EXAMPLES, len(test))
    assert [right[i] for i in shown] == sorted((right[i] for i in shown), reverse=True)
    assert sum(not right[i] for i in shown) >= min(2, right.count(False))


def test_colors_tell_right_from_wrong() -> None:
    shown, wanted = color_words("le chat voit la", "le chien voit la maison")
    styles = {shown.plain[span.start : span.end].strip(): str(span.style) for span in shown.spans}
    assert styles == {"le": "green", "chat": "bold red", "voit": "green", "la": "green"}
    assert wanted.plain.split() == ["le", "chien", "voit", "la", "maison"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if name.startswith("demo-")])
@pytest.mark.parametrize("family", ["transformer", "lstm"])
def test_every_demo_recipe_trains(name: str, family: str, tmp_path: Path) -> None:
    changes = [
        "train.steps=3",
        "data.synthetic=400",
        "data.synthetic_test=40",
        f"model.family={family}",
    ]
    flags = [part for change in changes for part in ("--set", change)]
    answer = heed("train", name, *flags, "--run", str(tmp_path / "run"))
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()
