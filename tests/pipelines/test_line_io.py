"""Lines through a pipe: none lost, none shifted, few in memory, no waiting for more."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.decode.settings import decode_flags
from heed.errors import DataError
from heed.pipelines import line_io
from heed.pipelines.translate import Choice, Translation, TranslationLines

wild = st.binary(max_size=40) | st.sampled_from(
    [
        b"",
        b" ",
        b"\r",
        b"\xff\xfe",
        "a\u2028b\x85\x0c".encode(),
        b"\x00",
        "😀".encode(),
        b"w " * 5000,
    ]
)


def read_through_pipe(data: bytes) -> list[list[str]]:
    """The groups read from a pipe that another thread writes to."""
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as end:
            end.write(data)

    writer = threading.Thread(target=feed)
    writer.start()
    groups = list(line_io.group_lines(line_io.read_pipe(read)))
    writer.join()
    os.close(read)
    return groups


@given(lines=st.lists(wild.filter(lambda line: b"\n" not in line), max_size=30), ends=st.booleans())
def test_only_a_newline_ends_a_line(lines: list[bytes], ends: bool) -> None:
    data = b"".join(line + b"\n" for line in lines)
    if not ends and lines and lines[-1]:
        data = data[:-1]
    result = [line for group in read_through_pipe(data) for line in group]
    assert len(result) == len(lines)
    assert result == [line_io.decode_line(line) for line in lines]
    assert not any("\n" in line for line in result)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("good\nthé\nçà\n".encode("latin-1"), ":2: byte 3 of this line is not UTF-8. 2 lines have"),
        ("one\ntwo\n".encode("utf-16"), ":1: byte 1 of this line is not UTF-8. 1 line has"),
        ("good\nthé\n".encode(), None),
    ],
)
def test_lines_that_are_not_utf_8_are_reported_once(
    tmp_path: Path, data: bytes, said: str | None
) -> None:
    """A file in Latin-1 was translated as replacement characters, and nothing said so."""
    path = tmp_path / "in.txt"
    path.write_bytes(data)
    messages: list[str] = []
    assert sum(map(len, line_io.open_lines(None, path, notify=messages.append))) >= 2
    assert len(messages) == (said is not None)
    if said is not None:
        assert messages[0].startswith(f"{path}{said}")
        assert messages[0].endswith("Save the text as UTF-8.")


def test_a_line_may_be_longer_than_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_io, "READ_BYTES", 3)
    lines = ["a" * length for length in (0, 1, 2, 3, 4, 6, 50, 0, 7)]
    result = [line for group in read_through_pipe("\n".join(lines).encode()) for line in group]
    assert result == lines


def test_groups_begin_small_and_stay_bounded() -> None:
    sizes = [len(group) for group in read_through_pipe(b"x\n" * 20000)]
    assert sum(sizes) == 20000
    assert sizes[0] <= line_io.FIRST_GROUP
    assert max(sizes) <= line_io.MAX_GROUP


def test_a_line_is_read_as_soon_as_it_is_written() -> None:
    """The writer waits for an answer before the next line, so a reader must not wait."""
    read, write = os.pipe()
    lines = line_io.group_lines(line_io.read_pipe(read))
    for number in range(3):
        os.write(write, f"line {number}\n".encode())
        assert next(lines) == [f"line {number}"]
    os.close(write)
    assert list(lines) == []
    os.close(read)


class Echo:
    """A translation pipeline that answers with the text in capitals."""

    def __init__(self) -> None:
        self.firsts: list[int] = []

    def translate(self, texts: Sequence[str], *, first: int = 0) -> list[Translation]:
        self.firsts.append(first)
        return [
            Translation(text, [Choice(text.upper(), -1.0, cut="cut" in text)], 1 + ("," in text))
            if text.strip()
            else Translation(text, [], 0)
            for text in texts
        ]


def run_echo(groups: list[list[str]], **shown: bool) -> tuple[list[str], list[str], Echo]:
    out, warnings, echo = io.BytesIO(), list[str](), Echo()
    line_io.run_lines(groups, TranslationLines(echo, **shown), out=out, warn=warnings.append)
    return out.getvalue().decode().split("\n")[:-1], warnings, echo


def test_one_line_out_for_each_line_in() -> None:
    groups = [["a", "", " "], ["b, c"], ["cut"]]
    out, warnings, echo = run_echo(groups)
    assert out == ["A", "", "", "B, C", "CUT"]
    assert echo.firsts == [0, 3, 4]
    assert warnings[0].startswith("line 4: longer")
    assert "1 of 3 translations (33.3%) were cut" in warnings[1]
    objects = [json.loads(line) for line in run_echo(groups, json=True)[0]]
    assert [one["source"] for one in objects] == [line for group in groups for line in group]


def flat(lines: line_io.LineGroups) -> list[str]:
    return [line for group in lines for line in group]


def test_texts_a_file_or_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert flat(line_io.open_lines(None, path)) == ["one", "two"]
    assert flat(line_io.open_lines(["a\udcffb"], None)) == [
        "a\ufffdb"
    ]  # an argument that was no UTF-8
    with pytest.raises(DataError, match="give one of them"):
        line_io.open_lines(["a"], path)
    with pytest.raises(DataError, match="no such file"):
        flat(line_io.open_lines(None, tmp_path / "none"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        line_io.open_lines(None, None)


@given(lines=st.lists(wild.filter(lambda line: b"\n" not in line), max_size=30))
def test_a_compressed_file_has_the_lines_that_it_was_made_of(lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_bytes(gzip.compress(data))
        assert flat(line_io.open_lines(None, path)) == flat(line_io.group_lines([data]))


def test_a_large_compressed_file_is_read_in_blocks(tmp_path: Path) -> None:
    """Few of its lines are in memory before they are needed."""
    path, line, count = tmp_path / "lines.gz", b"word " * 200 + b"\n", 20_000
    path.write_bytes(gzip.compress(count * line))
    tracemalloc.start()
    assert sum(map(len, line_io.open_lines(None, path))) == count
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < count * len(line) / 4


def test_a_sampling_flag_turns_sampling_on() -> None:
    assert decode_flags({"beam": 4, "top_k": None, "device": "cpu"}) == {"beam": 4}
    for flag in ({"top_k": 5}, {"temperature": 0.5}, {"seed": 3}):
        assert decode_flags(flag) == {"sample": True} | flag
    assert decode_flags({"beam": 4, "sample": True})["beam"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_is_told_that_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a pipe is not: its lines come by themselves."""
    import pty

    messages: list[str] = []
    leader, follower = pty.openpty()
    reader, writer = os.pipe()
    for descriptor in (follower, reader):
        with os.fdopen(descriptor) as standard_input, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", standard_input)
            line_io.open_lines(None, None, notify=messages.append)
            line_io.open_lines(["a text"], None, notify=messages.append)
    os.close(leader)
    os.close(writer)
    assert messages == ["Type a text and press Enter; Ctrl-D ends."]
