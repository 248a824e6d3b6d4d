"""Text files read line by line, as sacreBLEU reads them."""

from __future__ import annotations

from pathlib import Path

from heed.data.raw_files import read_chunks, split_lines
from heed.errors import DataError, make_printable


def read_lines(path: Path) -> list[str]:
    """The lines of a file, compressed or not, as sacreBLEU reads them, so that scores agree.

    Lines end at line feeds only, and white space at their ends is removed.
    """
    return [line.rstrip() for line in read_raw_lines(path)]


def read_raw_lines(path: Path) -> list[str]:
    """The lines of a file with the white space at their ends, which can be empty TSV columns."""
    lines: list[str] = []
    for number, line in enumerate(split_lines(read_chunks(str(path)), str(path)), 1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} of this line is not UTF-8.",
                where=f"{make_printable(str(path))}:{number}",
                todo="Save the file as UTF-8.",
            ) from None
    if not lines:
        raise DataError("this file is empty.", where=str(path), todo="There is nothing to score.")
    return lines
