"""Studies from Python: the trials, scores and verdicts of the command, in a table for pandas."""

from __future__ import annotations

import html
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluating import invoke_command
from studying import ForkExecutor, outcome_of, write_recipe

import heed
from heed.api.python_study import Study
from heed.data.synthetic import generate_sentences
from heed.errors import ConfigError, DataError, RunError
from heed.study.trials import read_trials

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
LONGEST_REPR = 1000


@pytest.fixture(scope="module", autouse=True)
def _forked_trials(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("heed.train.run.draw_curves", lambda run: None)
        patch.setattr("heed.study.run_study.LocalExecutor", lambda *_: ForkExecutor())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return heed.run_study(
        write_recipe(folder),
        vary={"norm": ["layer", "rms"]},
        seeds=[0, 1],
        set={"train.steps": 4, "checkpoint_every": 4},
        out=folder / "python",
        jobs=2,
        device="cpu",
    )


def outcome(folder: Path) -> dict[str, Any]:
    """What a study came to, without the place of its recipe."""
    return {
        name: (replace(trial, recipe=""), *rest)
        for name, (trial, *rest) in outcome_of(folder, read_trials(folder)).items()
    }


def test_a_study_from_python_is_that_of_the_command(study: Study, folder: Path) -> None:
    flags = ["--vary", "model.norm=layer,rms", "--seeds", "0,1", "--jobs", "2"]
    fixed = ["--set", "train.steps=4", "--set", "train.checkpoint_every=4"]
    out = folder / "command"
    code, output = invoke_command(
        "study", str(folder / "tiny.toml"), *flags, *fixed, "--out", str(out)
    )
    assert code == 0, output
    assert outcome(study.folder) == outcome(out)
    assert len(study.trials) == 4
    command = heed.open_study(out)
    assert command.sentences == study.sentences != []
    clock = {"minutes", "peak_memory"}
    for ours, theirs in zip(study.table, command.table, strict=True):
        assert {k: v for k, v in ours.items() if k not in clock} == {
            k: v for k, v in theirs.items() if k not in clock
        }


def test_the_results_are_a_table_and_short_in_words(study: Study) -> None:
    assert [row["system"] for row in study.rows()] == ["layer", "rms"] * 2
    assert {row["model.norm"] for row in study.rows()} == {"layer", "rms"}
    assert all(row["status"] == "finished" for row in study.rows())
    assert study.comparison is not None
    for text in (repr(study), repr(study.comparison)):
        assert study.sentences[0] in text
        assert len(text) < LONGEST_REPR
    assert "2 systems, 4 of 4 trials finished, bits_per_byte on test" in repr(study)
    assert str(study).splitlines()[1:] == study.sentences
    for shown in (study, study.comparison):
        page = shown._repr_html_()
        assert page.count("<tr>") == 1 + 2
        assert html.escape(study.sentences[0]) in page
    run = heed.Run.open(study.folder / str(study.trials[0].run))
    assert "dev/loss" in run._repr_html_()
    assert "weights not kept" in run._repr_html_()
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(study.rows())
    assert frame.groupby("system")["test/bits_per_byte"].mean().round(6).to_dict() == {
        row["system"]: round(row["mean"], 6) for row in study.table
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": "x"}, "seeds"),
        ({"seeds": ["x"]}, "seeds"),
        ({"seeds": 1.5}, "seeds"),
        ({"vary": {"norm": "layer"}}, "has one value, 'layer'"),
        ({"vary": {"layers": 2}}, "has one value, 2"),
    ],
)
def test_arguments_that_make_no_study_are_refused_in_a_sentence(
    arguments: dict[str, Any], message: str, folder: Path
) -> None:
    given: dict[str, Any] = {"vary": {"norm": ["layer", "rms"]}} | arguments
    with pytest.raises(ConfigError, match=message):
        heed.run_study(write_recipe(folder), **given, out=folder / "refused")
    assert not (folder / "refused").exists()


def test_the_same_call_trains_nothing_again(study: Study) -> None:
    again = heed.run_study(study.folder, jobs=1, device="cpu")
    assert outcome(again.folder) == outcome(study.folder)
    assert [state.ended for state in again.trials] == [state.ended for state in study.trials]


def read_texts(split: str, count: int) -> list[str]:
    return [one.english for one in generate_sentences(split, count, seed=0)]


def test_lists_of_texts_are_studied_as_files_of_the_same_text_are(tmp_path: Path) -> None:
    """The study has its text in its folder: it goes on where that was moved."""
    train, dev, test = read_texts("train", 40), read_texts("dev", 8), read_texts("test", 8)
    recipe = write_recipe(tmp_path)
    options: dict[str, Any] = {"seeds": 1, "set": {"steps": 2}, "device": "cpu"}
    study = heed.run_study(
        recipe, train=train, dev=dev, test=test, out=tmp_path / "lists", minutes=1e-9, **options
    )
    assert [state.status for state in study.trials] == ["waiting"]
    moved = (tmp_path / "lists").rename(tmp_path / "moved")
    with pytest.raises(RunError, match="this study began with other texts for dev"):
        heed.run_study(recipe, train=train, dev=train, test=test, out=moved, **options)
    study = heed.run_study(recipe, train=train, dev=dev, test=test, out=moved, **options)
    files: dict[str, Any] = {}
    for split, texts in (("train", train), ("dev", dev), ("test", test)):
        files[split] = tmp_path / f"{split}.txt"
        files[split].write_text("\n".join(texts) + "\n", encoding="utf-8")
    other = heed.run_study(recipe, **files, out=tmp_path / "files", **options)
    assert outcome(study.folder) == outcome(other.folder)
    assert {*study.trials[0].scores} == {"dev", "test"}
    (run,) = (study.folder / "runs").iterdir()
    moved.rename(tmp_path / "again")
    place = tmp_path / "again/data"
    assert heed.Run.open(tmp_path / "again/runs" / run.name).recipe().data.dev == [
        str(place / "dev.jsonl")
    ]
    (place / "dev.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(RunError, match=r"dev\.jsonl: this file was damaged"):
        heed.run_study(tmp_path / "again", device="cpu")


def test_lists_that_cannot_be_studied_are_a_sentence(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    with pytest.raises(ConfigError, match="give train as well"):
        heed.run_study(recipe, seeds=1, test=["A text."], out=out)
    with pytest.raises(DataError, match=r"train: texts\[1\] is 3, which is not a string"):
        heed.run_study(recipe, seeds=1, train=["A text.", 3], out=out)
    with pytest.raises(DataError, match="there are 2 sources and 1 targets"):
        heed.run_study("demo-translate", seeds=1, train=(["a", "b"], ["c"]), out=out)
    assert not out.exists()
    (tmp_path / "full/data").mkdir(parents=True)
    with pytest.raises(RunError, match="this folder is not empty"):
        heed.run_study(recipe, seeds=1, train=["A text."], out=tmp_path / "full")


def test_a_report_is_written(study: Study, tmp_path: Path) -> None:
    path = study.report(tmp_path / "report.html", author="A. Student")
    text = path.read_text(encoding="utf-8")
    assert "A. Student" in text
    run = heed.Run.open(study.folder / str(study.trials[0].run))
    written = heed.write_report(run.folder, tmp_path / "run.md", title="One run")
    assert written.read_text(encoding="utf-8").startswith("# One run")
    with pytest.raises(ConfigError, match=r"ends in \.html or \.md"):
        study.report(tmp_path / "report.docx")


def test_what_cannot_be_studied_is_a_sentence(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with pytest.raises(ConfigError, match=r"Did you mean 'model\.norm'"):
        heed.run_study(recipe, vary={"model.nrm": ["layer"]}, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="says what varies"):
        heed.run_study(recipe, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="has no values"):
        heed.run_study(recipe, vary={"norm": []}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(RunError, match=r"study\.toml is missing"):
        heed.open_study(tmp_path)


def test_the_study_of_the_page_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its block is not run with the others of the docs, where each trial would start a process."""
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(folder)
    (folder / "block.py").write_text(f"import heed\n{block}", encoding="utf-8")
    study = runpy.run_path("block.py")["study"]
    assert [row["status"] for row in study.rows()] == ["finished"] * 4
    assert (folder / "norms.html").exists()
