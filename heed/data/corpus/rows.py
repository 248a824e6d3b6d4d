"""Parse lines into rows: TSV, CSV, JSON lines and Hugging Face datasets, with line numbers.

A row that cannot be parsed is yielded with a `Fault`: strict reading raises on it, the doctor
counts it and continues. A blank line is an empty row, not a fault.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from heed.data.corpus import hf_datasets
from heed.data.corpus.lines import Fault, encoding_fault, read_lines, replace_invalid_bytes
from heed.data.raw_files import is_dataset, table_format

Cells = list[str] | Mapping[str, object]
FORMAT_NAMES = ("text", "tsv", "csv", "jsonl", "hf")
JSON_TODO = 'Write one JSON object a line, such as {"text": "…", "label": "…"}.'
CSV_TODO = "Close every quote, and double a quote inside a quoted cell."


class Row(NamedTuple):
    """Cells in order (TSV, CSV) or by key (JSON lines, datasets); empty for a blank line."""

    line: int
    cells: Cells
    fault: Fault | None = None


def detect_format(path: str) -> str:
    """File format by name: a dataset, a kind of table, or plain text."""
    if is_dataset(path):
        return "hf"
    return table_format(path) or "text"


def read_rows(path: str, file_format: str) -> Iterator[Row]:
    """All rows of one file, a header included."""
    readers = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "hf": _hf}
    return readers[file_format](path)


def _tsv(path: str) -> Iterator[Row]:
    """Cells between tabs, taken literally: a quote is an ordinary character."""
    for number, line in enumerate(read_lines(path), 1):
        fault = encoding_fault(line)
        cells = replace_invalid_bytes(line).split("\t") if fault else line.split("\t")
        yield Row(number, cells if len(cells) > 1 or cells[0].strip() else [], fault)


class _LineFeed:
    """Lines for the csv module, with the line number and the first bad byte of a row."""

    def __init__(self, source: Iterator[str]) -> None:
        self.source, self.line = source, 0
        self.fault: Fault | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            self.line += 1
            fault = encoding_fault(line)
            self.fault = self.fault or fault
            yield (replace_invalid_bytes(line) if fault else line) + "\n"


def _csv(path: str) -> Iterator[Row]:
    """Rows of a CSV file, parsed strictly by the csv module.

    The delimiter is the most frequent of `,` `;` and tab in the first line that is not blank.
    """
    delimiter = max(",;\t", key=next(filter(str.strip, read_lines(path)), "").count)
    feed = _LineFeed(read_lines(path))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        number = feed.line + 1
        feed.fault = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The csv module's limit on a cell also contains the damage of a missing quote.
            yield Row(number, [], Fault("bad-csv", f"this is not CSV: {error}.", CSV_TODO))
            continue
        yield Row(number, cells if any(cell.strip() for cell in cells) else [], feed.fault)


def _jsonl(path: str) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        yield _parse_object(number, line)


def _parse_object(number: int, line: str) -> Row:
    if not line.strip():
        return Row(number, {})
    if fault := encoding_fault(line):
        return Row(number, {}, fault)
    try:
        value = json.loads(line)
    except RecursionError:
        return Row(number, {}, Fault("bad-json", "this JSON is nested too deeply.", JSON_TODO))
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}, at character {error.pos + 1} of the line."
        return Row(number, {}, Fault("bad-json", what, JSON_TODO))
    except ValueError as error:
        return Row(number, {}, Fault("bad-json", f"this is not JSON: {error}.", JSON_TODO))
    if not isinstance(value, dict):
        return Row(number, {}, Fault("bad-json", "this is JSON, but not an object.", JSON_TODO))
    return Row(number, flatten_translation(value))


def flatten_translation(row: Mapping[str, object]) -> Mapping[str, object]:
    """Flatten `{"translation": {"en": …, "fr": …}}`, a common form of published corpora."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _hf(path: str) -> Iterator[Row]:
    for number, row in enumerate(hf_datasets.read_dataset(path), 1):
        yield Row(number, flatten_translation(row))
