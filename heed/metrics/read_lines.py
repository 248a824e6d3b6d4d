"""Files of lines, read as sacreBLEU reads them."""

from __future__ import annotations

from pathlib import Path

from heed.data.corpus.text_files import chunks, printable
from heed.errors import DataError


def read_lines(path: Path) -> list[str]:
    """The lines of a file, compressed or not, as sacreBLEU reads them, so that scores agree.

    They are cut at line feeds alone, and white space at their ends is dropped.
    """
    return [line.rstrip() for line in whole_lines(path)]


def whole_lines(path: Path) -> list[str]:
    """The same with the white space at their ends, which may be empty columns."""
    lines = b"".join(chunks(str(path))).split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError("this file is empty.", where=str(path), todo="There is nothing to score.")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} of this line is not UTF-8.",
                where=f"{printable(str(path))}:{number}",
                todo="Save the file as UTF-8.",
            ) from None
    return found
