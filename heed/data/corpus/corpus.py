"""Corpus: parallel, labeled or plain text, read one record at a time.

A `Corpus` is one split. Opening it decides its format and columns from its first rows; then it can
be read any number of times. Memory is one chunk and one record, whatever the size of the files.
Iteration is strict: a record that cannot be read raises a `DataError` with file and line. `scan`,
for the doctor, yields such records too, with their fault.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from heed.data.corpus import hf_datasets
from heed.data.corpus.columns import (
    SAMPLE_ROWS,
    ColumnLayout,
    ColumnSample,
    Key,
    choose_columns,
    guess_task,
    sample_columns,
)
from heed.data.corpus.lines import Fault, Place
from heed.data.corpus.records import LineRange, Record, read_parallel, read_plain, read_table
from heed.data.corpus.rows import FORMAT_NAMES, detect_format, read_rows
from heed.data.raw_files import hash_files, is_dataset
from heed.errors import DataError, make_printable, nearest

Files = str | Path | Sequence[str | Path]
"""One file, or several."""
TASKS = ("translate", "classify", "generate")
UNITS = ("line", "document", "file")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def class_order(labels: Iterable[str]) -> list[str]:
    """Distinct labels in class order: numeric if all are numbers, else alphabetical."""
    distinct = set(labels)
    if all(NUMBER.fullmatch(label) for label in distinct):
        return sorted(distinct, key=lambda label: (float(label), label))
    return sorted(distinct)


@dataclass(frozen=True)
class Corpus:
    """One split of a corpus; create it with `open_corpus`."""

    task: str
    paths: tuple[str, ...]
    file_format: str  # one of FORMAT_NAMES
    unit: str = "line"
    layout: ColumnLayout | None = None  # of a table
    drop: str | None = None  # regular expression; records with a matching text are dropped
    line_range: LineRange | None = (
        None  # of plain files: the share of their lines to read; None is all
    )

    def split_by_share(self, share: float) -> tuple[Corpus, Corpus]:
        """Split every plain file in two: this share of its lines first, then the rest."""
        return replace(self, line_range=(0.0, share)), replace(self, line_range=(share, 1.0))

    def remainder(self) -> Corpus:
        """The lines of the files after the end of this part."""
        if self.line_range is None:
            raise ValueError("this corpus is not part of a split file")
        return replace(self, line_range=(self.line_range[1], 1.0))

    @property
    def description(self) -> str:
        """How the files are read, in words."""
        if self.layout is not None:
            name = "Hugging Face dataset" if self.file_format == "hf" else self.file_format.upper()
            return f"{name}, {self.layout.description} ({self.layout.rule})"
        if self.task == "translate":
            return "two parallel files, source and target"
        return {
            "line": "plain text, one record per line",
            "document": "plain text, documents separated by blank lines",
            "file": "plain text, one record per file",
        }[self.unit]

    def __iter__(self) -> Iterator[Record]:
        for record in self._records():
            if record.fault is not None:
                fault, where = record.fault, str(record.place)
                if fault.byte is not None:
                    where += f":{fault.byte}"
                raise DataError(fault.message, where=where, todo=fault.todo)
            yield record

    def scan(self) -> Iterator[Record]:
        """All records, faulty ones included. A file that breaks off ends with a fault."""
        last = Place(self.paths[0], 0)
        try:
            for record in self._records():
                last = record.place
                yield record
        except DataError as error:
            path = error.where or last.path
            line = last.line + 1 if path in (last.path, make_printable(last.path)) else 1
            fault = Fault("unreadable", error.what, error.todo or "")
            yield Record((), None, Place(path, line), fault)

    def _records(self) -> Iterator[Record]:
        if self.layout is None and self.task == "translate":
            yield from read_parallel(*self.paths)
            return
        for path in self.paths:
            if self.layout is None:
                yield from read_plain(path, self.unit, self.line_range)
            else:
                yield from read_table(path, self.file_format, self.layout)

    def drop_reason(self, record: Record) -> str | None:
        """Why training drops a record, or None to keep it. All readers use this rule."""
        if not all(map(str.strip, record.texts)):
            return "empty"
        if record.label is not None and not record.label:
            return "unlabeled"
        if self.drop is not None and any(re.search(self.drop, text) for text in record.texts):
            return "drop-pattern"
        return None

    def usable_records(self, dropped: Counter[str] | None = None) -> Iterator[Record]:
        """Records that training uses, read strictly; `dropped` counts the others by reason."""
        for record in self:
            reason = self.drop_reason(record)
            if reason is None:
                yield record
            elif dropped is not None:
                dropped[reason] += 1

    def side_place(self, record: Record, side: int) -> Place:
        """Where one text of a record is: the sides of a parallel corpus are two files."""
        if self.layout is None and self.task == "translate":
            return Place(self.paths[side], record.place.line)
        return record.place

    def labels(self) -> list[str]:
        """The labels in class order; reads the whole corpus."""
        return class_order(
            record.label for record in self.usable_records() if record.label is not None
        )

    def fingerprint(self) -> str:
        """Hash of the raw bytes of all files, independent of their paths; computed once."""
        return self._hash

    def identity(self) -> list[str | None]:
        """Everything that the records depend on, for the names of caches derived from them."""
        return [
            self.fingerprint(),
            self.task,
            self.unit,
            self.file_format,
            repr(self.layout),
            self.drop,
        ]

    def check_unchanged(self) -> None:
        """Raise an error if the files have changed since their hash was taken."""
        if self.file_format != "hf" and self._compute_hash() != self._hash:
            raise DataError(
                "this text changed while it was being read.",
                where=", ".join(map(make_printable, self.paths)),
                todo="Wait until it is fully written, then start again.",
            )

    @cached_property
    def _hash(self) -> str:
        return self._compute_hash()

    def _compute_hash(self) -> str:
        if self.file_format == "hf":
            return ":".join(hf_datasets.hash_dataset(path) for path in self.paths)
        part = "" if self.line_range is None else "[{}:{}]".format(*self.line_range)
        return hash_files(self.paths) + part


def open_corpus(
    paths: Files,
    *,
    task: str,
    file_format: str | None = None,
    columns: Sequence[Key] | None = None,
    unit: str = "line",
    header: bool | None = None,
    like: Corpus | None = None,
    drop: str | None = None,
) -> Corpus:
    """Open one split.

    `paths`: two plain files are the two sides of a parallel corpus; otherwise files are read one
    after another. `file_format`: "text", "tsv", "csv", "jsonl" or "hf"; by default inferred from
    the names. `columns`: the text columns in order, then the label column, by name or number from
    1. `unit`: a record of plain text: a "line", a "document" or a "file". `header`: whether the
    first row of a table names its columns; None decides by that row. `like`: an open split whose
    column layout this one shares. `drop`: a regular expression of texts to drop.
    """
    names = tuple(file_names(paths))
    check_task(task)
    _check_choice("unit", unit, UNITS)
    if not names:
        raise DataError("no file is named.", todo="Name at least one file.")
    for name in names:
        _check_path(name)
    file_format = file_format or _common_format(names, task)
    _check_choice("file format", file_format, FORMAT_NAMES)
    if file_format == "text":
        _check_plain(names, task)
        return Corpus(task, names, file_format, unit, drop=drop)
    layout = like.layout if like and (like.task, like.file_format) == (task, file_format) else None
    if layout is not None and columns is None:
        layout = replace(layout, rule="as in the previous split")
        return Corpus(task, names, file_format, unit, layout, drop)
    where = make_printable(names[0])
    sample = _sample(names[0], file_format, header)
    if task == "translate" and sample.width == 1 and detect_format(names[0]) == "text":
        raise DataError(
            "this is one side of a parallel corpus; the other is missing.",
            where=where,
            todo="Name the file of the other side too, with the option repeated for each file.",
        )
    return Corpus(
        task, names, file_format, unit, choose_columns(sample, task, columns, where=where), drop
    )


def file_names(paths: Files) -> list[str]:
    """File names as strings; a single path counts as one file."""
    return [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def check_task(task: str) -> None:
    """Raise an error for an unknown task."""
    _check_choice("task", task, TASKS)


def infer_task(
    paths: Sequence[str | Path], file_format: str | None = None, *, header: bool | None = None
) -> str:
    """Infer the task of the files of one split from their names and first rows."""
    names = [str(path) for path in paths]
    file_format = file_format or detect_format(names[0])
    _check_choice("file format", file_format, FORMAT_NAMES)
    if file_format == "text":
        return "translate" if len(names) == 2 else "generate"
    _check_path(names[0])
    return guess_task(_sample(names[0], file_format, header))


def _sample(path: str, file_format: str, header: bool | None) -> ColumnSample:
    """The first rows of a table as columns."""
    head = list(islice(read_rows(path, file_format), SAMPLE_ROWS))
    return sample_columns(head, file_format, make_printable(path), header=header)


def _common_format(names: Sequence[str], task: str) -> str:
    formats = {detect_format(name) for name in names}
    if len(formats) > 1:
        raise DataError(
            f"these files have different formats: {', '.join(sorted(formats))}.",
            where=", ".join(map(make_printable, names)),
            todo="Give files of one format.",
        )
    file_format = formats.pop()
    # Labels beside text, or two texts in one file: the separator must be a tab.
    needs_columns = task == "classify" or (task == "translate" and len(names) == 1)
    return "tsv" if file_format == "text" and needs_columns else file_format


def _check_plain(names: Sequence[str], task: str) -> None:
    if task == "classify" or (task == "translate" and len(names) != 2):
        needs = "labels beside the text" if task == "classify" else "two files, one a side"
        raise DataError(
            f"{task} from plain text needs {needs}; {len(names)} given.",
            where=", ".join(map(make_printable, names)),
            todo="Give two plain files, or a TSV, CSV or JSONL file.",
        )


def _check_path(name: str) -> None:
    path = Path(name)
    if is_dataset(name) or path.is_file():
        return
    if path.is_dir():
        raise DataError(
            "this is a folder of files, not a file or a saved dataset.",
            where=make_printable(name),
            todo="Name the files in it, or call them train, dev and test.",
        )
    if path.exists():
        raise DataError(
            "this is a pipe or a device, but training reads its files more than once.",
            where=make_printable(name),
            todo="Write it to a file first.",
        )
    raise DataError("there is no such file.", where=make_printable(name), todo="Check the path.")


def _check_choice(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise DataError(
            f"{word!r} is not a {what}.{nearest(word, known)}",
            todo=f"Choose from {', '.join(known)}.",
        )
