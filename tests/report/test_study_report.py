"""The report of a study: every sentence and table agrees with the comparison it is about."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_claims import check_sentence, check_table
from study_folders import write_finished, write_study

from heed.report.claims import Question
from heed.report.document import Code, Document, Interactive, Paragraph, Section, Table
from heed.report.html import render_html
from heed.report.markdown import render_markdown
from heed.report.study_examples import describe_examples
from heed.report.study_figures import seeds_table
from heed.report.study_process import describe_trials
from heed.report.study_report import build_question, build_study_report
from heed.report.write_report import describe_report, figures_folder, write_report
from heed.runs.groups import RunGroup
from heed.runs.results_file import PREDICTIONS, TRANSLATIONS, save_table
from heed.study.compare_named import compare_named
from heed.study.status_table import count_statuses
from heed.study.study_folder import extend_study, read_study_folder
from heed.study.study_results import StudyResults
from heed.study.trials import Trial, TrialState, read_trials, write_state

PLANTED = {"rope": 0.55, "t5": 0.555, "none": 0.35}
SPACE = {
    "train.lr": {"low": 1e-4, "high": 1e-2, "log": True},
    "train.optimizer": {"choices": ["adamw", "sgd"]},
}


def all_tables(document: Document) -> Iterator[Table]:
    for block in document.blocks():
        if isinstance(block, Interactive):
            block = block.alternative
        if isinstance(block, Table):
            yield block


def all_sentences(document: Document) -> Iterator[str]:
    """Every sentence that the report tells: paragraphs, headings, captions, what figures say."""
    for section in document.sections:
        yield section.title
        for block in section.blocks:
            if isinstance(block, Code):  # the study file, which has the author's words
                continue
            shown = block.alternative if isinstance(block, Interactive) else block
            for key in ("text", "caption", "alt"):
                yield from re.split(r"(?<=[.:])\s(?=[A-Z])", getattr(shown, key, ""))
            yield from getattr(shown, "columns", ())
            yield getattr(block, "caption", "")


def check_report(folder: Path) -> Document:
    """Read every sentence and table of a report back, and render it both ways."""
    document = build_study_report(folder)
    question = build_question(StudyResults.read(folder))
    if question is not None:
        for sentence in all_sentences(document):
            check_sentence(sentence, question)
        for table in all_tables(document):
            check_table(table, question)
    for block in document.blocks():
        if isinstance(block, Paragraph) and block.kind == "finding":
            assert block.figure is not None
    answer = [block for block in document.sections[0].blocks if isinstance(block, Paragraph)]
    assert [block.kind for block in answer[-3:]] == ["finding"] * 3
    html = render_html(document)
    assert "nan" not in re.sub(r"<script.*?</script>", "", html, flags=re.S).lower().split()
    return document


def add_search(folder: Path, systems: list[dict[str, Any]], trials: int) -> None:
    """States of search trials, some pruned, one failed; the first has the chosen settings."""
    random = np.random.default_rng(0)
    for place, system in enumerate(systems):
        for index in range(trials):
            rate = 0.001 if index == 0 else float(10 ** random.uniform(-4, -2))
            changes = {**system["set"], "train.lr": rate, "train.optimizer": "adamw"}
            name, number = f"{system['name']}-trial{index:03}", 10_000 + place * trials + index
            seed = 1_000_000 + index
            trial = Trial(name, number, system["name"], changes, "demo-translate", seed, "search")
            state = TrialState(trial, "finished", dev=50 - 5 * abs(np.log10(rate) + 3), minutes=0.2)
            if index % 7 == 3:
                state = TrialState(trial, "pruned", "far below the median at step 40", tokens=900)
            elif index == 5:
                state = TrialState(trial, "failed", "the loss is <NaN> at step 7")
            write_state(folder, state)


def test_trials_that_did_not_finish_are_told_by_their_searched_keys_alone() -> None:
    changes = {"train.steps": 30, "model.dropout": 0.0, "train.lr": 0.0018871}
    trial = Trial("a-trial003", 3, "a", changes, "demo-translate", 5, "search")
    section = describe_trials(
        [TrialState(trial, "pruned", "far below")], ["train.lr", "model.dropout", "train.momentum"]
    )
    table = section.blocks[-1]
    assert isinstance(table, Table)
    assert table.rows == [
        ["a-trial003", "pruned", "train.lr=0.001887, model.dropout=0", "far below"]
    ]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Question:
    """The question of a study whose systems differ."""
    folder = write_study(tmp_path_factory.mktemp("planted") / "study", PLANTED, baseline="rope")
    question = build_question(StudyResults.read(folder))
    assert question is not None
    return question


@settings(deadline=None, max_examples=4)
@given(
    st.lists(st.sampled_from([0.35, 0.5, 0.5, 0.505]), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.sampled_from([0.5, 3.0]),
    st.sampled_from(["translate", "classify", "generate"]),
    st.booleans(),
)
def test_every_sentence_of_a_report_has_its_support(
    qualities: list[float],
    seeds: int,
    has_baseline: bool,
    margin: float | None,
    task: str,
    fails: bool,
) -> None:
    names = ("rope", "none", "t5", "a, b")
    systems = dict(zip(names, qualities, strict=False))
    keys: dict[str, Any] = {"baseline": "rope"} if has_baseline and len(systems) > 1 else {}
    keys |= {} if margin is None else {"margin": margin}
    failed = [f"rope-seed{seed}" for seed in range(seeds)] if fails else []
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        write_study(study, systems, task=task, seeds=seeds, items=60, failed=failed, **keys)
        check_report(study)


def test_the_report_of_a_planted_effect(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path / "study",
        PLANTED,
        baseline="rope",
        margin=2.0,
        question="Which position <b>?",
        overfit={"t5": 0.4},
        fall={"t5": 0.3},
    )
    document = check_report(folder)
    titles = [section.title for section in document.sections]
    assert titles[:3] == ["Answer", "Systems", "Differences"]
    assert titles[-2:] == ["How it was computed", "Reproduction"]
    assert document.title == "Which position <b>?"
    first = document.sections[0].blocks[0]
    assert isinstance(first, Paragraph)
    assert first.text.startswith("Shown on test (BLEU): ")
    assert "“none”" in first.text
    ids = {block.id for block in document.numbered_blocks()}
    assert {"systems", "differences", "pairs", "by-length", "train-dev-gap", "costs"} <= ids
    html = render_html(document)
    assert "Which position &lt;b&gt;?" in html
    text = render_markdown(document, tmp_path / "figures")
    assert (tmp_path / "figures" / "differences.svg").exists()
    assert "Looks at test: it was evaluated 9 times for 9 final trials: once each." in text
    [table] = [one for one in all_tables(document) if one.id == "systems"]
    assert [row[0] for row in table.rows] == ["rope (baseline)", "t5", "none"]
    [table] = [one for one in all_tables(document) if one.id == "pairs"]
    verdicts = {row[0].replace("\u00a0", " "): row[-1] for row in table.rows}
    assert verdicts["none − rope"] == "worse by at least 2"


def test_every_question_about_several_sets_is_in_the_report(tmp_path: Path) -> None:
    systems = {"rope": 0.5, "none": 0.5}
    folder = write_study(
        tmp_path / "study", systems, task="generate", sets=["anna", "bob"], items=60
    )
    document = check_report(folder)
    [table] = [one for one in all_tables(document) if one.id == "questions"]
    texts = [row[0] for row in table.rows]
    texts += [one.text for one in document.blocks() if isinstance(one, Paragraph)]
    # Each part of the gap is told below the table of groups, or stands in that of all others.
    for name in ("words not in train", "rare words", "subwords per word", "all"):
        assert any(f"goes with {name}" in text for text in texts)


def test_the_minutes_of_further_runs_are_those_of_whole_trials(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"rope": 0.5, "none": 0.5})
    for state in StudyResults.read(folder).trials:
        write_state(folder, replace(state, minutes=7.0))
    question = build_question(StudyResults.read(folder))
    assert question is not None
    assert question.minutes_per_run == 7.0
    # `heed compare` counts the same.
    assert compare_named([folder / "records"]).minutes_per_run == 7.0


def test_names_of_the_field_are_explained_where_they_occur(tmp_path: Path) -> None:
    systems = [
        {"name": "mine", "set": {"model.position": "alibi"}},
        {"name": "theirs", "set": {"model.position": "rope"}},
    ]
    search = {"method": "random", "trials": 8, "space": SPACE}
    folder = write_study(tmp_path / "study", {"mine": 0.5, "theirs": 0.5}, systems=systems)
    (table,) = [one for one in all_tables(build_study_report(folder)) if one.id == "names"]
    assert [row[0] for row in table.rows] == ["alibi", "rope"]
    assert "Press et al. 2022" in table.rows[0][1]
    folder = write_study(
        tmp_path / "b", {"mine": 0.5, "theirs": 0.5}, systems=systems, search=search
    )
    add_search(folder, systems, 8)
    (table,) = [one for one in all_tables(build_study_report(folder)) if one.id == "names"]
    assert [row[0] for row in table.rows] == ["alibi", "rope", "adamw"]
    folder = write_study(tmp_path / "c", {"wide": 0.5, "narrow": 0.5})
    assert "names" not in {one.id for one in all_tables(build_study_report(folder))}


def test_a_report_begins_with_what_is_missing_and_has_no_verdict_of_two_seeds(
    tmp_path: Path,
) -> None:
    """The systems differ plainly, and the third seed of one has not been trained."""
    systems = {"rope": 0.5, "none": 0.2}
    folder = write_study(tmp_path / "study", systems, waiting=["none-seed2"], rows=2)
    document = check_report(folder)
    notes = [block.text for block in document.sections[0].blocks if isinstance(block, Paragraph)]
    assert "5 of 6 final trials have finished: none-seed2 has no score." in notes
    (table,) = [one for one in all_tables(document) if one.id == "pairs"]
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (row["verdict"], row["visible"]) == ("two models only", "–")
    assert "no verdict on recipes, also where the interval excludes 0" in table.caption
    # Dev was evaluated once: that its loss does not rise says nothing.
    assert not any("no overfitting" in text for text in all_sentences(document))


def test_an_exploratory_answer_says_so_first(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", PLANTED, metric="bleu", seeds=3)
    declared = list(all_sentences(build_study_report(folder)))
    assert not [one for one in declared if one.startswith("Exploratory")]
    config = read_study_folder(folder).model_copy(update={"seeds": [0, 1, 2, 3]})
    config = extend_study(folder, config)
    first = {state.trial.system: state.trial for state in reversed(read_trials(folder))}
    for number, (system, quality) in enumerate(PLANTED.items()):
        trial = replace(
            first[system], name=f"{system}-seed3", seed=3, number=90 + number, added=True
        )
        write_finished(folder, config, trial, np.random.default_rng(number), quality)
    document = check_report(folder)
    answer = [block.text for block in document.sections[0].blocks if isinstance(block, Paragraph)]
    note = next(i for i, text in enumerate(answer) if text.startswith("Exploratory: "))
    seen = next(i for i, text in enumerate(answer) if text.startswith("Seen, exploratory"))
    assert note < seen
    sentences = list(all_sentences(document))
    assert not [one for one in sentences if re.search(r"Filled: shown|^Shown", one)]
    assert not [one for one in sentences if "are the declared question" in one]
    assert not [one for one in sentences if re.search(r"seeds 3\. Exploratory", one)]
    assert [one for one in sentences if re.search(r"seed 3\.$", one)]


def test_a_killed_trial_is_stopped_in_the_report_as_in_the_status(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", PLANTED, waiting=["rope-seed2", "t5-seed2"])
    states = read_trials(folder)
    for state in states:
        if state.status == "waiting":
            write_state(folder, replace(state, status="running"))
    document = build_study_report(folder)
    [table] = [one for one in all_tables(document) if one.id == "trials"]
    assert "stopped" in table.columns
    assert "still running" not in table.columns
    assert count_statuses(read_trials(folder), ())["stopped"] == 2


def test_a_report_without_figures_names_no_folder_of_them(tmp_path: Path) -> None:
    names = [f"{system}-seed{seed}" for seed in range(3) for system in PLANTED]
    early = build_study_report(write_study(tmp_path / "early", PLANTED, waiting=names))
    late = build_study_report(write_study(tmp_path / "late", PLANTED))
    for document, has_figures in ((early, False), (late, True)):
        path = tmp_path / f"{document.title.split()[-1]}.md"
        write_report(document, path)
        line = describe_report(document, path)
        assert ("figures in " in line) == has_figures == figures_folder(path).exists()


@pytest.mark.parametrize(
    ("systems", "seeds", "columns", "rows"),
    [
        (3, 3, 3, 3),
        (3, 10, 3, 10),
        (40, 5, 5, 40),
        (20, 10, 7, 20),
        (2, 100, 2, 40),
        (99, 2, 2, 40),
    ],
)
def test_every_seed_has_its_own_score_as_far_as_a_page_has_room(
    planted: Question, tmp_path: Path, systems: int, seeds: int, columns: int, rows: int
) -> None:
    scores = {
        f"s{name}": np.random.default_rng(name).normal(40, 1, seeds) for name in range(systems)
    }
    question = replace(planted, comparison=replace(planted.comparison, systems=scores))
    runs = tuple(map(str, range(seeds)))
    table = seeds_table(question, [RunGroup(name, runs, (*range(seeds),), {}) for name in scores])
    assert table is not None
    assert (len(table.columns) - 1, len(table.rows)) == (columns, rows)
    for row in table.rows:
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            name, seed = (column, row[0]) if table.columns[0] == "seed" else (row[0], column)
            assert cell == f"{scores[name][int(seed.removeprefix('seed '))]:.2f}"
    assert ("Left out: " in table.caption) == (columns * rows < systems * seeds)
    text = render_markdown(Document("T", sections=[Section("s", "S", [table])]), tmp_path)
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) <= 80


def test_a_seed_without_a_score_is_a_dash_and_single_runs_have_no_table(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "a", {"rope": 0.5, "none": 0.4}, failed=["none-seed1"])
    (table,) = [one for one in all_tables(check_report(folder)) if one.id == "seeds"]
    assert table.rows[1][2] == "–"
    assert [row.count("–") for row in table.rows] == [0, 1]
    assert "A dash: no score" in table.caption
    folder = write_study(tmp_path / "b", {"rope": 0.5, "none": 0.4}, seeds=1)
    assert "seeds" not in {one.id for one in all_tables(check_report(folder))}


def test_title_author_and_notes_can_be_given(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path / "study", {"rope": 0.5}, title="T", author="A", notes="N", question="Q?"
    )
    document = build_study_report(folder)
    assert (document.title, document.author, document.notes) == ("T", "A", "N")
    assert "Question: Q?" in str(document.sections[0].blocks[0])
    given_by_flags = build_study_report(folder, title="T2", author="A2", notes="N2")
    assert (given_by_flags.title, given_by_flags.author) == ("T2", "A2")
    assert given_by_flags.notes == "N2"


def test_failed_systems_are_told_with_their_reasons(tmp_path: Path) -> None:
    failed = [f"t5-seed{seed}" for seed in range(3)]
    folder = write_study(tmp_path / "study", PLANTED, failed=failed, baseline="rope")
    document = check_report(folder)
    text = render_markdown(document, tmp_path / "figures")
    assert "anything about t5, which has no score" in text
    assert "CUDA out of memory" in text


def test_a_study_without_finished_trials_says_so(tmp_path: Path) -> None:
    failed = [f"rope-seed{seed}" for seed in range(3)]
    document = check_report(write_study(tmp_path / "study", {"rope": 0.5}, failed=failed))
    first = document.sections[0].blocks[0]
    assert isinstance(first, Paragraph)
    assert first.text == "Nothing was shown: no trial has finished."


def test_the_report_of_a_search(tmp_path: Path) -> None:
    systems = [{"name": name, "set": {"model.position": name}} for name in ("rope", "none")]
    folder = write_study(
        tmp_path / "study",
        {"rope": 0.55, "none": 0.35},
        systems=systems,
        search={"trials": 10, "space": SPACE},
        baseline="rope",
    )
    add_search(folder, systems, 10)
    document = check_report(folder)
    [search] = [section for section in document.sections if section.id == "search"]
    [coordinates] = [block for block in search.blocks if isinstance(block, Interactive)]
    data = coordinates.data
    assert [axis["scale"] for axis in data["axes"]] == ["log", "category", "linear"]
    assert len(data["lines"]) == 2 * 8
    assert len(coordinates.alternative.rows) == 10  # type: ignore[union-attr]
    [pruning] = [b for b in search.blocks if isinstance(b, Table) and b.id == "pruning"]
    assert [row[:3] for row in pruning.rows] == [["rope", "10", "1"], ["none", "10", "1"]]
    text = render_markdown(document, tmp_path / "figures")
    assert "far below the median" in text
    assert r"the loss is \<NaN\> at step 7" in text


def test_a_study_by_its_dev_loss_has_that_curve_once(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"a": 0.5, "b": 0.4}, task="generate", metric="loss")
    ids = [block.id for block in check_report(folder).numbered_blocks()]
    assert ids.count("curve-dev-loss") == 1


def test_a_grid_of_several_keys_has_parallel_coordinates_and_importance(tmp_path: Path) -> None:
    folder = write_study(
        tmp_path / "study",
        lambda changes: 0.4 + 0.05 * changes["model.layers"],
        grid={"model.layers": [1, 2, 3], "model.width": [32, 64]},
    )
    document = check_report(folder)
    ids = [block.id for block in document.numbered_blocks()]
    assert {"settings", "matrix", "importance", "grid-coordinates"} <= set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [None, "s0"])
def test_two_hundred_trials_are_reported_quickly(tmp_path: Path, baseline: str | None) -> None:
    qualities = {f"s{number}": 0.4 + 0.01 * (number % 5) for number in range(40)}
    keys: dict[str, Any] = {} if baseline is None else {"baseline": baseline}
    folder = write_study(tmp_path / "study", qualities, seeds=5, items=200, **keys)
    start = time.process_time()
    document = build_study_report(folder)
    html = render_html(document)
    assert time.process_time() - start < 10
    assert len(html.encode()) < 5_000_000
    assert max(len(table.rows) for table in all_tables(document)) <= 60


# -------------------------------------------------------------------------------------- examples


def results_with_texts(folder: Path, names: list[str]) -> StudyResults:
    """As much of a study as its examples read: the run of each system, by the system's name."""
    return cast(
        StudyResults,
        SimpleNamespace(
            folder=folder,
            set_name="test",
            systems=[SimpleNamespace(name=name) for name in names],
            config=SimpleNamespace(baseline="b"),
            best_trial=lambda name: SimpleNamespace(run=name),
        ),
    )


def test_examples_are_of_the_systems_whose_texts_can_be_read(tmp_path: Path) -> None:
    """Of damaged or missing tables no text is shown: the note names their systems."""
    names = ["a", "b", "damaged", "missing"]
    for name, score in zip(names[:3], (10.0, 60.0, 0.0), strict=True):
        line = f"A \\t tab\tref\tby {name}\t{score}"
        table = f"source\treference\thypothesis\tscore\n{line}\n"
        save_table(tmp_path / name, TRANSLATIONS, "test", table)
    path = tmp_path / "damaged" / TRANSLATIONS / "test.tsv"
    path.write_text(path.read_text().replace("ref", "other"))

    section = describe_examples(results_with_texts(tmp_path, names))
    assert section is not None
    note, shown = section.blocks
    assert isinstance(note, Paragraph)
    assert isinstance(shown, Table)
    assert note.text.endswith("Left out: damaged and missing.")
    assert shown.rows == [
        ["1", "source", "A tab", ""],
        ["", "reference", "ref", ""],
        ["", "b", "by b", "60.0"],
        ["", "a", "by a", "10.0"],
    ]


def test_examples_of_classifiers_are_texts_that_not_all_get_right(tmp_path: Path) -> None:
    for name, second in (("a", "bad"), ("b", "good")):
        table = f"text\tlabel\tpredicted\none\tgood\tgood\ntwo\tbad\t{second}\n"
        save_table(tmp_path / name, PREDICTIONS, "test", table)
    section = describe_examples(results_with_texts(tmp_path, ["a", "b"]))
    assert section is not None
    shown = section.blocks[1]
    assert isinstance(shown, Table)
    assert shown.columns == ["text", "true class", "b", "a"]
    assert shown.rows == [["two", "bad", "good", "bad"]]
