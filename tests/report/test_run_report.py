"""Reports of real tiny runs: their numbers are the run's, and what is missing is a sentence."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from evaluating import SHARED, evaluate_small, sides, train_small, write_text
from markdown_it import MarkdownIt
from rich.console import Console
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import Recipe
from heed.errors import HeedError
from heed.evaluate.tables import ROWS, TOKEN_ACCURACY
from heed.report.build_report import build_report, read_notes
from heed.report.document import Document, Paragraph, Table
from heed.report.html import render_html
from heed.report.run_report import ReportOptions, build_run_report
from heed.runs.results_file import read_results
from heed.runs.run import Run
from heed.train import run as train_run

TASKS = ["translate", "classify", "generate"]
NUMBER = re.compile(r"\d[\d.,]*\d|\d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An evaluated run of each task, of whose test texts some are also in train."""
    folder = write_text(tmp_path_factory.mktemp("runs"))
    tests = {
        "translate": sides(folder, "test"),
        "classify": [str(folder / "test.tsv")],
        "generate": [str(folder / "test.en")],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        for task in TASKS:
            changes: dict[str, Any] = {"data": {"test": tests[task]}}
            if task == "translate":
                changes["train"] = {"label_smoothing": 0.1, "evaluate_bleu": True}
            if task == "classify":
                changes["train"] = {"evaluate_train": True}
            evaluate_small(train_small(folder, task, task, **changes))
        yield folder


@pytest.fixture(scope="module")
def documents(folder: Path) -> dict[str, Document]:
    """The report of the run of each task."""
    return {task: build_run_report(folder / task) for task in TASKS}


def invoke(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of `heed report`, with a 2 for an error as the command line has it."""
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if isinstance(result.exception, HeedError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def texts_of(document: Document) -> list[str]:
    """The text of all paragraphs."""
    return [block.text for block in document.blocks() if isinstance(block, Paragraph)]


def table_of(document: Document, name: str) -> Table:
    (table,) = [b for b in document.blocks() if isinstance(b, Table) and b.id == name]
    return table


def test_a_damaged_history_is_told_once_and_on_standard_error(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "classify", tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(b"")
    result = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 0
    assert "metrics.jsonl: this file is incomplete" in " ".join(result.stderr.split())
    document = build_run_report(run)
    texts = " ".join(texts_of(document))
    assert texts.count("this file is incomplete") == 1
    assert "What its training recorded cannot be read" in texts
    assert "recorded nothing" not in texts
    assert "No metrics are recorded" not in texts


def test_classes_are_also_those_of_the_texts_that_are_not_in_train(
    documents: dict[str, Document], folder: Path
) -> None:
    clean = read_results(folder / "classify")["test"]["clean"]
    table = table_of(documents["classify"], "classes-test-clean")
    assert "on test, not in train" in table.caption
    counts = {row[0]: row[1] for row in table.rows}
    assert counts == {name: f"{one['texts']}" for name, one in clean["classes"].items()}


# --------------------------------------------------------------------------------- true numbers


@pytest.mark.parametrize("task", TASKS)
def test_every_score_is_that_of_the_evaluation(
    documents: dict[str, Document], folder: Path, task: str
) -> None:
    result = read_results(folder / task)["test"]
    table = table_of(documents[task], "scores-test")
    assert list(table.columns) == ["metric", "test", "not in train"]
    rows = {row[0]: row[1:] for row in table.rows}
    labels = ROWS if task == "classify" else ROWS | TOKEN_ACCURACY
    checked = 0
    for key, (label, form) in labels.items():
        if label in rows and form:
            for cell, part in zip(rows[label], (result, result["clean"]), strict=True):
                assert cell.startswith(form.format(part[key])), key
                checked += 1
                if interval := part.get("interval", {}).get(key):
                    low = max(0.0, interval["low"]) if key in ("bleu", "chrf") else interval["low"]
                    assert f"[{form.format(low)}, " in cell
    assert checked >= 8


def test_intervals_that_there_are_not_are_not_spoken_of(
    documents: dict[str, Document], folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "translate", run)
    (run / "evaluation.json").unlink()
    result = evaluate_small(run, resamples=0)
    assert "bleu" not in result["interval"]
    document = build_run_report(run)
    table = table_of(document, "scores-test")
    assert "sacreBLEU" not in table.caption
    assert "95% interval" not in table_of(document, "lengths-test-table").columns
    captions = [block.caption for block in document.blocks() if hasattr(block, "caption")]
    assert not [one for one in captions if "with 95% intervals" in one]
    [note] = [text for text in texts_of(document) if "did not resample" in text]
    assert f"heed evaluate {run} adds them" in note
    assert not [text for text in texts_of(document) if text.startswith("The intervals are over")]
    with_intervals = documents["translate"]
    assert "sacreBLEU's bootstrap" in table_of(with_intervals, "scores-test").caption
    assert "95% interval" in table_of(with_intervals, "lengths-test-table").columns
    assert not [text for text in texts_of(with_intervals) if "did not resample" in text]


@pytest.mark.parametrize("task", TASKS)
def test_the_headline_tells_the_overlap_with_train(
    documents: dict[str, Document], folder: Path, task: str
) -> None:
    summary = documents[task].sections[0]
    (headline,) = [b for b in summary.blocks if isinstance(b, Paragraph) and b.kind == "finding"]
    result = read_results(folder / task)["test"]
    seen = result["in_train"]
    assert seen >= SHARED
    assert f"({result['texts']} texts)" in headline.text
    assert f"{seen} of them are also in train" in headline.text
    assert f"On the {result['texts'] - seen} that are not:" in headline.text
    assert headline.figure == "scores-test"


@pytest.mark.parametrize("task", TASKS)
def test_evaluations_while_training_are_those_of_the_history(
    documents: dict[str, Document], folder: Path, task: str
) -> None:
    history = [row for row in Run(folder / task).history if row["event"] == "evaluate"]
    table = table_of(documents[task], "evaluations")
    assert [row[0] for row in table.rows] == [f"{row['step']:,}" for row in history]
    for cells, row in zip(table.rows, history, strict=True):
        for name, cell in zip(table.columns, cells, strict=True):
            if "/" in name:
                assert cell == f"{row[name]:.4f}"


@pytest.mark.parametrize("task", TASKS)
def test_html_and_markdown_have_the_same_numbers(folder: Path, tmp_path: Path, task: str) -> None:
    counts = []
    for name in ("report.html", "report.md"):
        code, output = invoke(folder / task, "--out", tmp_path / name, "--notes", "Seed 98765.")
        assert code == 0, output
        text = (tmp_path / name).read_text(encoding="utf-8")
        shown = Shown(text).text if name.endswith("html") else markdown_text(text)
        counts.append(Counter(NUMBER.findall(re.sub(r"Made by heed \S+", "", shown))))
    assert counts[0] == counts[1]
    assert counts[0].total() > 200
    assert counts[0]["98765"] == 1


class Shown(HTMLParser):
    """The text of a page outside scripts, styles, figures and the list of contents."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.hidden, self.parts = 0, list[str]()
        self.feed(page)
        self.text = " ".join(self.parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("script", "style", "svg", "nav", "title")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "svg", "nav", "title")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def markdown_text(text: str) -> str:
    """The text of Markdown, without the words that stand for its figures."""
    lines = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "fence":
            lines.append(token.content)
        elif token.children:
            inline = [child for child in token.children if child.type != "image"]
            lines.append("".join(child.content for child in inline))
    return " ".join(lines)


def test_values_while_training_say_what_is_in_them(documents: dict[str, Document]) -> None:
    captions = {block.id: block.caption for block in documents["translate"].numbered_blocks()}
    assert "label smoothing 0.1" in captions["curve-loss"]
    assert "label smoothing" not in captions["curve-accuracy"]
    assert "curve-bleu" in captions
    # The training text was evaluated on the terms of dev here, and not there.
    note = "train.evaluate_train = true records one"
    assert not [text for text in texts_of(documents["classify"]) if note in text]
    assert [text for text in texts_of(documents["translate"]) if note in text]


def test_the_recipe_shows_what_differs_from_the_default(documents: dict[str, Document]) -> None:
    rows = {row[0]: row[1:3] for row in table_of(documents["translate"], "recipe-keys").rows}
    assert rows["model.width"] == ["32", "256"]
    assert rows["train.label_smoothing"] == ["0.1", "0.0"]
    assert "model.position" not in rows


def test_most_confidently_wrong_texts_come_in_order(documents: dict[str, Document]) -> None:
    table = table_of(documents["classify"], "wrong-test")
    confidences = [float(row[3]) for row in table.rows]
    assert confidences == sorted(confidences, reverse=True)
    assert all(row[1] != row[2] for row in table.rows)


# ----------------------------------------------------------------------------- texts stay at home


@pytest.mark.parametrize("task", TASKS)
def test_no_examples_leaves_out_every_text(folder: Path, tmp_path: Path, task: str) -> None:
    lines = {
        line.rpartition("\t")[2]
        for path in folder.glob("*.*")
        if path.suffix in (".en", ".fr", ".tsv")
        for line in path.read_text(encoding="utf-8").splitlines()
    }
    with_texts, without = (tmp_path / name for name in ("with.html", "without.html"))
    invoke(folder / task, "--out", with_texts)
    assert any(line in with_texts.read_text(encoding="utf-8") for line in lines)
    code, output = invoke(folder / task, "--out", without, "--no-examples")
    assert code == 0, output
    page = without.read_text(encoding="utf-8")
    assert not [line for line in lines if line in page]
    assert "query_tokens" not in page.rpartition('id="heed-data"')[2].partition("</script>")[0]
    assert ("Ansel" in page) == (task == "classify")


# --------------------------------------------------------------------------- what is not there


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the classifier's folder."""
    shutil.copytree(folder / "classify", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["model.safetensors", "checkpoints"], "Its weights are not in the run folder"),
        (["evaluation.json", "predictions", "evaluations"], "has not been evaluated on held-out"),
        (["predictions"], "the texts of test is missing: evaluate the run again"),
        (["metrics.jsonl", "checkpoints", "model.safetensors"], "No metrics are recorded"),
        (["tokenizer.json"], "The tokenizer cannot be read"),
    ],
)
def test_what_was_deleted_is_said_in_a_sentence(
    copy: Path, files: list[str], sentence: str
) -> None:
    for name in files:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    document = build_run_report(copy)
    assert [text for text in texts_of(document) if sentence in text]
    render_html(document)


def test_text_that_is_gone_or_changed_is_said_in_a_sentence(
    folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "train.tsv"
    content = path.read_bytes()
    try:
        path.write_bytes(content + b"Ansel\tAnother line.\n")
        changed = texts_of(build_run_report(copy, ReportOptions(with_examples=False)))
        path.unlink()
        gone = texts_of(build_run_report(copy, ReportOptions(with_examples=False)))
    finally:
        path.write_bytes(content)
    assert [text for text in changed if "has changed since training" in text]
    assert [text for text in gone if "cannot be read" in text and "train.tsv" in text]


def test_a_damaged_history_is_named_and_the_rest_is_reported(copy: Path) -> None:
    (copy / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    document = build_run_report(copy, ReportOptions(with_examples=False))
    assert [text for text in texts_of(document) if "metrics.jsonl" in text]
    assert table_of(document, "scores-test").rows


def test_an_unfinished_lstm_without_attention(folder: Path, tmp_path: Path) -> None:
    tables = {
        "task": "classify",
        "data": {"train": [str(folder / "train.tsv")]},
        "tokenizer": {"kind": "word"},
        "model": {"family": "lstm", "layers": 1, "width": 16},
        "train": {"steps": 2, "batch_size": 16, "precision": "float32"},
    }
    recipe = Recipe.of(tables)
    train_run.start(recipe, tmp_path / "lstm", device="cpu", console=Console(quiet=True))
    evaluate_small(tmp_path / "lstm", split="dev")
    document = build_run_report(tmp_path / "lstm")
    assert "an LSTM with 1 layer, width 16" in texts_of(document)[0]
    assert [text for text in texts_of(document) if "There are no attention maps" in text]
    assert not [row for row in table_of(document, "recipe-keys").rows if "position" in row[0]]


# ------------------------------------------------------------------------- several runs, and words


def test_several_runs_are_compared(folder: Path, copy: Path) -> None:
    recipe = Run(copy).recipe()
    Run(copy).write_recipe(
        replace(recipe, train=recipe.train.model_copy(update={"lr": 0.003})),
    )
    document = build_report([folder / "classify", copy])
    summary = document.sections[0]
    assert isinstance(summary.blocks[0], Paragraph)
    assert summary.blocks[0].kind == "finding"
    assert "lr=" in summary.blocks[0].text
    rows = {row[0]: row[1:] for row in table_of(document, "keys").rows}
    assert {"classify", "copy"} == {*rows}
    scores = {row[0]: row for row in table_of(document, "run-scores").rows}
    accuracy = read_results(copy)["test"]["accuracy"]
    assert f"{accuracy:.2%}" in scores["copy"][5]


def test_runs_that_do_not_compare_are_reported_all_the_same(folder: Path) -> None:
    document = build_report([folder / "classify", folder / "translate"])
    assert [text for text in texts_of(document) if "These runs are not compared" in text]


def test_words_of_the_author(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("From a file.\n\nTwice <b>.", encoding="utf-8")
    arguments = ["--title", "A & B", "--author", "<Me>", "--notes", str(tmp_path / "notes.txt")]
    code, output = invoke(folder / "classify", "--no-examples", *arguments)
    path = folder / "classify" / "report.html"
    assert code == 0
    assert str(path) in output.replace("\n", "")
    page = path.read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in page
    assert "<bdi>A &amp; B</bdi></h1>" in page
    assert "&lt;Me&gt;" in page
    assert "<p><bdi>Twice &lt;b&gt;.</bdi></p>" in page
    assert read_notes("x" * 5000) == "x" * 5000
    assert read_notes("Chosen on dev: see plan.md") == "Chosen on dev: see plan.md"
    assert read_notes(None) == ""


@pytest.mark.parametrize("name", ["nosuch.txt", "nosuch/plan.md", "."])
def test_notes_that_are_no_file_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "report.html"
    code, output = invoke(folder / "classify", "--notes", name, "--out", out)
    assert code == 2
    assert f"--notes: {name} " in output
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify", "--out", "report.pdf"], "ends in .html or .md"),
        (["nowhere"], "there is no such folder"),
        (["classify", "--out", "no/folder/report.html"], "there is no such folder"),
    ],
)
def test_bad_input_is_a_sentence_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    code, output = invoke(*arguments)
    assert code == 2
    assert message in output
    assert sorted(folder.rglob("*")) == before
