"""Tables given to classify, translate or generate are recognized: labels are not read as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.errors import DataError
from heed.pipelines.line_io import open_lines


@pytest.mark.parametrize(
    ("name", "content", "columns", "what"),
    [
        ("x.tsv", "good film\tpositive\n", 1, "x.tsv:1: this line has 2 columns"),
        ("x.tsv", "plain\ngood film\tpositive\n", 1, "x.tsv:2: this line has 2 columns"),
        ("x.tsv", "a\tb\tyes\n", 2, "this line has 3 columns, and every line is read as 2 texts"),
        ("x.csv", "text,label\n", 1, "x.csv:1: this line is CSV"),
        ("x.jsonl", '{"text": "a"}\n', 1, "x.jsonl:1: this line is JSONL"),
    ],
)
def test_a_table_is_refused(
    tmp_path: Path, name: str, content: str, columns: int, what: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=what) as error:
        list(open_lines(None, path, columns=columns))
    assert "heed evaluate --test" in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [("x.tsv", "one\ntwo\n", 1), ("x.tsv", "a\tb\n", 2), ("x.txt", "a\tb\n", 1)],
)
def test_lines_of_text_are_read(tmp_path: Path, name: str, content: str, columns: int) -> None:
    path = tmp_path / name
    path.write_text(content)
    groups = open_lines(None, path, columns=columns)
    assert [line for group in groups for line in group] == content.splitlines()
