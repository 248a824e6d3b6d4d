"""Text files read line by line, as sacreBLEU reads them."""

from __future__ import annotations

from pathlib import Path

from heed.data.raw_files import make_printable, read_chunks
from heed.errors import DataError


def read_lines(path: Path) -> list[str]:
    """The lines of a file, compressed or not, as sacreBLEU reads them, so that scores agree.

    Lines end at line feeds only, and white space at their ends is removed.
    """
    return [line.rstrip() for line in read_raw_lines(path)]


def read_raw_lines(path: Path) -> list[str]:
    """The lines of a file with the white space at their ends, which can be empty TSV columns."""
    raw = b"".join(read_chunks(str(path))).split(b"\n")
    if not raw[-1]:
        raw.pop()
    if not raw:
        raise DataError("this file is empty.", where=str(path), todo="There is nothing to score.")
    lines = []
    for number, line in enumerate(raw, 1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} of this line is not UTF-8.",
                where=f"{make_printable(str(path))}:{number}",
                todo="Save the file as UTF-8.",
            ) from None
    return lines
