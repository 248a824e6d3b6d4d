"""Lines to rows: TSV, CSV, JSON lines and Hugging Face datasets, each with its line number.

A row that cannot be read is yielded all the same, with a `Fault`: strict reading raises on it,
the doctor counts it and goes on. A blank line is a row with nothing in it, not a fault.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from heed.data.corpus import hf_datasets
from heed.data.corpus.text_files import COMPRESSED, Fault, encoding_fault, lines, shown

Cells = list[str] | Mapping[str, object]
FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
FORM_NAMES = ("text", "tsv", "csv", "jsonl", "hf")
JSON_TODO = 'Write one JSON object a line, such as {"text": "…", "label": "…"}.'
CSV_TODO = "Close every quote, and double a quote inside a quoted cell."


class Row(NamedTuple):
    """Cells in order (TSV, CSV) or by key (JSON lines, datasets); empty for a blank line."""

    line: int
    cells: Cells
    fault: Fault | None = None


def form_of(path: str) -> str:
    """The format that a name stands for: a dataset, a kind of table, or plain text."""
    if hf_datasets.is_dataset(path):
        return "hf"
    name = Path(path)
    suffix = Path(name.stem).suffix if name.suffix.lower() in COMPRESSED else name.suffix
    return FORMS.get(suffix.lower(), "text")


def rows(path: str, form: str) -> Iterator[Row]:
    """Every row of one file, a header included."""
    readers = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "hf": _hf}
    return readers[form](path)


def _tsv(path: str) -> Iterator[Row]:
    """Cells between tabs, as they stand: a quote is a character like any other."""
    for number, line in enumerate(lines(path), 1):
        fault = encoding_fault(line)
        cells = shown(line).split("\t") if fault else line.split("\t")
        yield Row(number, cells if len(cells) > 1 or cells[0].strip() else [], fault)


class _Feed:
    """Lines for the csv module, remembering where it is and the first bad byte of the row."""

    def __init__(self, source: Iterator[str]) -> None:
        self.source, self.line = source, 0
        self.fault: Fault | None = None

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            self.line += 1
            fault = encoding_fault(line)
            self.fault = self.fault or fault
            yield (shown(line) if fault else line) + "\n"


def _csv(path: str) -> Iterator[Row]:
    """By the csv module, strictly; `,` `;` or a tab: what its first line, blank ones aside, holds
    most of."""
    delimiter = max(",;\t", key=next(filter(str.strip, lines(path)), "").count)
    feed = _Feed(lines(path))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        number = feed.line + 1
        feed.fault = None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The csv module's limit on a cell also keeps one lost quote from eating the file.
            yield Row(number, [], Fault("bad-csv", f"this is not CSV: {error}.", CSV_TODO))
            continue
        yield Row(number, cells if any(cell.strip() for cell in cells) else [], feed.fault)


def _jsonl(path: str) -> Iterator[Row]:
    for number, line in enumerate(lines(path), 1):
        yield _object(number, line)


def _object(number: int, line: str) -> Row:
    if not line.strip():
        return Row(number, {})
    if fault := encoding_fault(line):
        return Row(number, {}, fault)
    try:
        found = json.loads(line)
    except RecursionError:
        return Row(number, {}, Fault("bad-json", "this JSON is nested too deeply.", JSON_TODO))
    except ValueError as error:
        return Row(number, {}, Fault("bad-json", f"this is not JSON: {error}.", JSON_TODO))
    if not isinstance(found, dict):
        return Row(number, {}, Fault("bad-json", "this is JSON, but not an object.", JSON_TODO))
    return Row(number, unfolded(found))


def unfolded(row: Mapping[str, object]) -> Mapping[str, object]:
    """`{"translation": {"en": …, "fr": …}}`, as many published corpora have it, made flat."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _hf(path: str) -> Iterator[Row]:
    for number, row in enumerate(hf_datasets.rows(path), 1):
        yield Row(number, unfolded(row))
