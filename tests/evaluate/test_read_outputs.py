"""Systems that `heed score` reads: a file of lines, a table of `heed evaluate`, a run folder."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_cli import heed

from heed.config import Recipe
from heed.errors import HeedError
from heed.evaluate.read_outputs import read_systems, read_table
from heed.evaluate.score_files import score_files
from heed.evaluate.tables import render_scores
from heed.metrics import sentence_bleu
from heed.metrics.read_lines import read_lines
from heed.runs.run import Run
from heed.stats.verdicts import format_p

texts_ = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)


def tables(folder: Path, **columns: tuple[list[str], list[str], list[str]]) -> Path:
    """A run folder with a table for each name: sources, references, hypotheses."""
    (folder / "translations").mkdir(parents=True)
    for name, (source, reference, said) in columns.items():
        content = sentence_bleu.sentence_tsv(source, [reference], [(said, [0.0] * len(said))])
        (folder / "translations" / f"{name}.tsv").write_text(content, encoding="utf-8")
    return folder


@pytest.fixture
def runs(texts: Any, tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that were evaluated on test, and on a dev set."""
    dev = (["a b"], ["un deux trois"], ["un deux trois quatre"])
    better, worse = (
        tables(tmp_path / name, test=(texts.sources, texts.references, said), dev=dev)
        for name, said in (("a", texts.better), ("b", texts.worse))
    )
    return better, worse


def scored(hypotheses: list[Path], references: list[Path], **changes: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"metrics": "bleu,chrf", "resamples": 100, "seed": None} | changes
    source = kwargs.pop("source", None)
    return score_files(hypotheses, references, source, **kwargs).to_dict()


def figures(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if k != "system"} for one in result["systems"]]


def test_runs_tables_and_lines_have_equal_scores(runs: tuple[Path, Path], files: Path) -> None:
    lines = scored([files / "better", files / "worse"], [files / "ref"], source=files / "src")
    kept = [run / "translations" / "test.tsv" for run in runs]
    for hypotheses in (list(runs), kept):
        found = scored(hypotheses, [files / "ref"])
        assert figures(found) == figures(lines)
        assert [one["system"] for one in found["systems"]] == [*map(str, hypotheses)]
    assert figures(scored(kept, [])) == figures(lines)  # tables bring their references


def test_the_command_compares_runs(runs: tuple[Path, Path], files: Path) -> None:
    few = ("--ref", str(files / "ref"), "--bootstrap", "100", "--json")
    answer = heed("score", *map(str, runs), *few)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["baseline"] == str(runs[0])
    assert result["systems"][1]["paired"]["bleu"]["p_corrected"] <= 1


def test_runs_are_compared_on_the_one_set_that_both_translated(texts: Any, tmp_path: Path) -> None:
    """Each run has tables of its own besides; the common set may have other names."""
    test = (texts.sources, texts.references)
    dev, news = (["a"], ["un"], ["un"]), (["b"], ["deux"], ["deux"])
    one = tables(tmp_path / "one", dev=dev, test=(*test, texts.better))
    other = tables(tmp_path / "other", mine=(*test, texts.worse), news=news)
    result = scored([one, other], [])
    assert [system["texts"] for system in result["systems"]] == [len(texts.references)] * 2
    table = one / "translations" / "test.tsv"
    assert figures(scored([table, other], [])) == figures(result)
    apart = tables(tmp_path / "apart", news=news)
    with pytest.raises(HeedError, match="no test set was translated by all of these"):
        scored([one, apart], [])


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_score_says_what_serves_other_tasks(task: str, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe.of({"task": task, "data": {"train": ["a"]}})).folder
    answer = heed("score", str(run))
    assert (answer.returncode, answer.stdout) == (2, "")
    said = " ".join(answer.stderr.split())
    assert "`heed score` compares translations, and this run is a " in said
    assert f"`heed evaluate {run}` gives its " in said


@given(rows=st.lists(st.tuples(texts_, texts_, texts_), min_size=1, max_size=6))
def test_a_table_is_read_as_it_was_written(
    rows: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("table") / "test.tsv"
    source, reference, said = ([*column] for column in zip(*rows, strict=True))
    content = sentence_bleu.sentence_tsv(source, [reference], [(said, [1.0] * len(rows))])
    path.write_bytes(content.encode())
    found = read_table(path)
    assert found is not None
    assert found.texts == [text.rstrip() for text in said]
    assert found.references == [text.rstrip() for text in reference]
    assert (found.sources or [""] * len(rows)) == [text.rstrip() for text in source]


def test_paths_without_translations_are_errors(
    runs: tuple[Path, Path], files: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.tsv"
    plain.write_text("un\tdeux\n")
    assert read_systems([plain], [])[0].texts == ["un\tdeux"]
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.tsv"
    broken.write_text("source\treference\thypothesis\tscore\na\tb\n")
    header = tmp_path / "header.tsv"
    header.write_text("source\treference\thypothesis\tscore\n")
    for path, references, said in (
        (tmp_path / "empty", [], "heed evaluate"),
        (runs[0], [], "several test sets were translated by all of these: dev, test"),
        (runs[0], [["other"]], "none of its tables has these references"),
        (broken, [], "this row has 2 columns"),
        (header, [], "this table has no rows"),
    ):
        with pytest.raises(HeedError, match=said):
            read_systems([path], references)
    with pytest.raises(HeedError, match="name them with --ref"):
        scored([files / "better"], [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_column_at_the_end_may_be_empty(end: str, tmp_path: Path) -> None:
    path = tmp_path / "none.tsv"
    path.write_bytes(f"source\treference\thypothesis{end}a\tb\t{end}".encode())
    found = read_table(path)
    assert found is not None
    assert (found.texts, found.references, found.sources) == ([""], ["b"], ["a"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_like_a_file(packed: bool, tmp_path: Path) -> None:
    lines = b"un\ndeux\n"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as writer:
        written = gzip.compress(lines) if packed else lines
        writer.submit((tmp_path / "pipe").write_bytes, written)
        assert read_lines(tmp_path / "pipe") == ["un", "deux"]


# ------------------------------------------------------------------------------- printed tables


def shown(result: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(render_scores(result))
    return console.export_text()


def test_without_samples_the_difference_is_shown(files: Path) -> None:
    result = scored([files / "better", files / "worse"], [files / "ref"], resamples=0)
    better, worse = result["systems"]
    for key in ("bleu", "chrf"):
        assert f"{worse[key] - better[key]:+.2f}" in shown(result)


def test_a_p_value_says_no_more_than_the_texts(texts: Any, tmp_path: Path) -> None:
    """One text of forty differs, so all exchanges tie; sacreBLEU's p is 0.0001."""
    changed = ["oui", *texts.references[1:40]]
    for name, lines in (("right", texts.references[:40]), ("changed", changed)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    right, other = tmp_path / "right", tmp_path / "changed"
    result = scored([right, other], [right], resamples=1000)
    paired = result["systems"][1]["paired"]["bleu"]
    assert paired["p"] == 1
    assert "1.000" in shown(result)
    assert "<" not in shown(result)


def test_a_p_value_at_the_resolution_of_its_draws_is_a_bound(files: Path, tmp_path: Path) -> None:
    """No exchange of 10,000 is as extreme: p is below 1/10,001."""
    (tmp_path / "none").write_text("oui\n" * 120)
    (tmp_path / "no").write_text("non\n" * 120)
    two = scored([files / "better", tmp_path / "none"], [files / "ref"])
    assert "< 0.0001" in shown(two)
    three = scored([files / "better", tmp_path / "none", tmp_path / "no"], [files / "ref"])
    assert "< 0.0001" in shown(three)
    assert "corrected for the 2 comparisons of a metric (max-t)" in " ".join(shown(three).split())


@given(p=st.floats(1e-12, 1.0), is_bound=st.booleans())
def test_a_printed_p_value_is_no_smaller_than_it_is(p: float, is_bound: bool) -> None:
    relation, number = format_p(p, below_resolution=is_bound).split()
    assert (relation == "<") == (is_bound or p < 0.0001)
    value = float(number)
    if relation == "<":
        assert value >= p
    else:
        assert value == pytest.approx(p, abs=5.1e-4 if p >= 0.001 else 5.1e-5)


def test_printed_bounds_stay_in_the_range_of_the_metric(texts: Any, tmp_path: Path) -> None:
    """The JSON has sacreBLEU's bounds."""
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in texts.references[:40]))
    nearly = [*texts.references[:39], texts.worse[39]]
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in nearly))
    result = scored([tmp_path / "hyp"], [tmp_path / "ref"], resamples=100)
    assert result["interval"]["bleu"]["high"] > 100
    assert "100.00]" in shown(result)
    assert f"{result['interval']['bleu']['high']:.2f}]" not in shown(result)
