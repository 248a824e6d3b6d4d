"""A line longer than the stated limit is refused while it is read, in bounded memory."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heed.data.corpus import lines
from heed.data.raw_files import CHUNK, MAX_LINE, split_lines
from heed.errors import DataError
from heed.metrics import read_lines as scored_lines
from heed.pipelines.line_io import open_lines

LONG = 8 * MAX_LINE
"""Characters of a line that compresses to a thousandth of its size."""


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "train.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"one\ntwo\n")
        for _ in range(LONG // CHUNK):
            file.write(b"a" * CHUNK)
    return path


def corpus_lines(path: Path) -> Iterator[str]:
    return lines.read_lines(str(path))


def command_lines(path: Path) -> Iterator[list[str]]:
    return iter(open_lines(None, path))


def lines_to_score(path: Path) -> Iterator[str]:
    return iter(scored_lines.read_lines(path))


@pytest.mark.parametrize("read", [corpus_lines, command_lines, lines_to_score])
def test_a_line_of_a_decompression_bomb_is_refused(
    bomb: Path, read: Callable[[Path], Iterator[object]]
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"train.txt.gz:3: this line has more than 16,777,216"):
            for _ in read(bomb):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_LINE < LONG


@pytest.mark.parametrize("ending", [b"", b"\n", b"\nlast"])
def test_a_line_of_the_longest_length_is_read(ending: bytes) -> None:
    blocks = [b"first\n", b"a" * (MAX_LINE - 1), b"a" + ending]
    sizes = [len(line) for line in split_lines(blocks, "x")]
    assert sizes == [5, MAX_LINE] + [4] * ending.endswith(b"last")
    with pytest.raises(DataError, match="x:2"):
        list(split_lines([b"first\n", b"a" * MAX_LINE, b"a" + ending], "x"))
