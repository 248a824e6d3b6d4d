"""Unusual files: columns with the same name, rows without a key, folders, brackets."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heed.data.corpus import infer_task, open_corpus
from heed.data.doctor import check, examine, scan
from heed.data.doctor.show_batch import show_batch
from heed.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_of_columns_with_one_name_the_chosen_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,a,label\nx,a long text,1\ny,another one,0\n")
    wanted = [("a long text",), ("another one",)]
    for columns in (None, [2, 3]):
        corpus = open_corpus([path], task="classify", columns=columns)
        assert [record.texts for record in corpus] == wanted
    moved = write(tmp_path / "b.csv", "label,a\n1,a long text\n0,another one\n")
    assert [r.texts for r in open_corpus([moved], task="classify", like=corpus)] == wanted


def test_a_name_as_it_is_written_comes_before_one_in_another_case(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Text,text,label\nA,a,1\nB,b,0\n")
    for name, wanted in (("Text", "AB"), ("text", "ab")):
        corpus = open_corpus([path], task="classify", columns=[name, "label"])
        assert "".join(record.texts[0] for record in corpus) == wanted


def test_blank_lines_before_a_header_hide_no_separator(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "\n \ntext;label\na b;1\nc d;0\n")
    corpus = open_corpus([path], task="classify")
    assert [record.texts[0] for record in corpus.usable_records()] == ["a b", "c d"]


def test_any_row_may_lack_its_label_the_first_too(tmp_path: Path) -> None:
    rows = ['{"text": "a b"}', '{"text": "c d", "label": "x"}', '{"text": "e", "label": "y"}']
    for shift in range(len(rows)):
        rotated = rows[shift:] + rows[:shift]
        path = write(tmp_path / f"{shift}.jsonl", "\n".join(rotated))
        assert infer_task([path]) == "classify"
        assert open_corpus([path], task="classify").labels() == ["x", "y"]


def test_a_bad_header_is_a_fault_at_its_place(tmp_path: Path) -> None:
    train = open_corpus([write(tmp_path / "a.tsv", "text\tlabel\na\t1\nb\t0\n")], task="classify")
    path = write(tmp_path / "b.tsv", b"te\xffxt\tlabel\na\t1\n")
    dev = open_corpus([path], task="classify", like=train)
    [fault] = [one for one in examine({"train": train, "dev": dev}).errors if one.places]
    assert (fault.code, fault.places) == ("invalid-utf8", ((str(path), 1),))
    with pytest.raises(DataError, match=r"b\.tsv:1:3: "):
        list(dev)


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_any_folder_is_reported_as_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for task in (None, "translate", "classify", "generate"):
        [finding] = check([name], task=task).errors
        assert "folder" in finding.message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_reported_as_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    [finding] = check([tmp_path / "pipe.txt"]).errors
    assert "pipe" in finding.message


def test_text_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    files = {"a.txt": "[/b] a\n[bold] :smile:\n", "a.tsv": "a b\t[/x]\nc d\t[/y]\ne f\t[/x]\n"}
    for name, content in files.items():
        page = io.StringIO()
        Console(file=page, width=200).print(show_batch([write(tmp_path / name, content)]))
        assert "[/" in page.getvalue()


def test_windows_of_a_long_text_are_not_called_examples(tmp_path: Path) -> None:
    page = io.StringIO()
    path = write(tmp_path / "a.txt", " ".join("abcdefgh"[i % 8] * 3 for i in range(2000)) + "\n")
    Console(file=page, width=200).print(show_batch([path]))
    assert re.search(r"one batch: 1 example in \d+ windows, ", page.getvalue())


def test_a_file_may_grow_while_the_doctor_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write(tmp_path / "train.tsv", "a b\t1\nc d\t0\na b\t0\n")
    test = write(tmp_path / "test.tsv", "a b\t1\ne f\t0\n")
    first_reading = scan.scan_split

    def read_then_grow(split_scan: scan.SplitScan, *more: Any) -> None:
        first_reading(split_scan, *more)
        with Path(split_scan.corpus.paths[0]).open("a") as file:
            file.write("a b\tnew\n")

    monkeypatch.setattr(sys.modules[check.__module__], "scan_split", read_then_grow)
    report = check([train, test])
    assert {one.code for one in report.findings} >= {"overlap", "contradiction"}
