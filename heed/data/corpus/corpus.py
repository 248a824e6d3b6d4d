"""Readers: parallel, labelled and plain text, one record at a time.

A `Corpus` is one split. It is opened once, which decides its format and columns from its first
rows, and can be read any number of times. Reading holds one chunk and one record, whatever the
size of the files. Iterating is strict: what cannot be read raises a `DataError` with file and
line. `scan` is for the doctor: it yields such records too, with their fault.
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
from heed.data.corpus.columns import SAMPLE, Key, Layout, decide, guess_task, sample
from heed.data.corpus.records import Record, Span, plain, table, two_sides
from heed.data.corpus.rows import FORM_NAMES, form_of, rows
from heed.data.corpus.text_files import Fault, Place, fingerprint, printable
from heed.errors import DataError, nearest

Files = str | Path | Sequence[str | Path]
"""One file, or several."""
TASKS = ("translate", "classify", "generate")
UNITS = ("line", "document", "file")
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def class_order(labels: Iterable[str]) -> list[str]:
    """Distinct labels in the order of the classes: by number if all are numbers, else by letter."""
    distinct = set(labels)
    if all(NUMBER.fullmatch(label) for label in distinct):
        return sorted(distinct, key=lambda label: (float(label), label))
    return sorted(distinct)


@dataclass(frozen=True)
class Corpus:
    """One split of a corpus; make it with `open_corpus`."""

    task: str
    paths: tuple[str, ...]
    form: str  # one of FORM_NAMES
    unit: str = "line"
    layout: Layout | None = None  # of tables
    drop: str | None = None  # a pattern: records with a text in which it is found are left out
    span: Span | None = None  # of plain files: which share of their lines; None is all

    def parted(self, share: float) -> tuple[Corpus, Corpus]:
        """The first lines of every plain file, this share of them, and the rest."""
        return replace(self, span=(0.0, share)), replace(self, span=(share, 1.0))

    def rest(self) -> Corpus:
        """What a part leaves of its files after its end."""
        if self.span is None:
            raise ValueError("This is no part of anything.")
        return replace(self, span=(self.span[1], 1.0))

    @property
    def decided(self) -> str:
        """How the files are read, in words."""
        if self.layout is not None:
            name = "Hugging Face dataset" if self.form == "hf" else self.form.upper()
            return f"{name}, {self.layout.why} ({self.layout.how})"
        if self.task == "translate":
            return "two files of lines, source and target"
        return {
            "line": "plain text, one record a line",
            "document": "plain text, documents between blank lines",
            "file": "plain text, one record a file",
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
        """Every record, those with a fault included. A file that breaks off ends with a fault."""
        last = Place(self.paths[0], 0)
        try:
            for record in self._records():
                last = record.place
                yield record
        except DataError as error:
            path = error.where or last.path
            line = last.line + 1 if path in (last.path, printable(last.path)) else 1
            fault = Fault("unreadable", error.what, error.todo or "")
            yield Record((), None, Place(path, line), fault)

    def _records(self) -> Iterator[Record]:
        if self.layout is None and self.task == "translate":
            yield from two_sides(*self.paths)
            return
        for path in self.paths:
            if self.layout is None:
                yield from plain(path, self.unit, self.span)
            else:
                yield from table(path, self.form, self.layout)

    def drop_reason(self, record: Record) -> str | None:
        """Why training drops a record, or None to keep it: the one rule for all who read."""
        if not all(map(str.strip, record.texts)):
            return "empty"
        if record.label is not None and not record.label:
            return "unlabelled"
        if self.drop is not None and any(re.search(self.drop, text) for text in record.texts):
            return "told"
        return None

    def kept(self, dropped: Counter[str] | None = None) -> Iterator[Record]:
        """The records that training uses, read strictly; `dropped` counts the others by reason."""
        for record in self:
            reason = self.drop_reason(record)
            if reason is None:
                yield record
            elif dropped is not None:
                dropped[reason] += 1

    def labels(self) -> list[str]:
        """The labels in the order of the classes; reads the whole corpus."""
        return class_order(record.label for record in self.kept() if record.label is not None)

    def fingerprint(self) -> str:
        """A hash of the raw bytes of all its files, the same wherever they lie; read once."""
        return self._hash

    def identity(self) -> list[str | None]:
        """All that its records hang on; what is made of them is kept under a name with this."""
        return [self.fingerprint(), self.task, self.unit, self.form, repr(self.layout), self.drop]

    def refuse_changes(self) -> None:
        """An error if files are no longer as they were when their hash was taken."""
        if self.form != "hf" and self._hashed() != self._hash:
            raise DataError(
                "this text has changed while it was read.",
                where=", ".join(map(printable, self.paths)),
                todo="Wait until it is written, then start again.",
            )

    @cached_property
    def _hash(self) -> str:
        return self._hashed()

    def _hashed(self) -> str:
        if self.form == "hf":
            return ":".join(hf_datasets.hashed(path) for path in self.paths)
        part = "" if self.span is None else "[{}:{}]".format(*self.span)
        return fingerprint(self.paths) + part


def open_corpus(
    paths: Files,
    *,
    task: str,
    form: str | None = None,
    columns: Sequence[Key] | None = None,
    unit: str = "line",
    like: Corpus | None = None,
    drop: str | None = None,
) -> Corpus:
    """Open one split.

    `paths`: two plain files are the two sides of a parallel corpus; otherwise files are read one
    after another. `form`: "text", "tsv", "csv", "jsonl" or "hf"; by default what the names say.
    `columns`: the columns of the texts in order, then of the label, by name or number from 1.
    `unit`: what a record of plain text is: a "line", a "document" or a "file". `like`: a split
    already open, whose layout this one shares. `drop`: a pattern of texts to leave out.
    """
    names = tuple(names_of(paths))
    check_task(task)
    _check_word("unit", unit, UNITS)
    if not names:
        raise DataError("no file is named.", todo="Name at least one.")
    for name in names:
        _check_path(name)
    form = form or _common_form(names, task)
    _check_word("form", form, FORM_NAMES)
    if form == "text":
        _check_plain(names, task)
        return Corpus(task, names, form, unit, drop=drop)
    shared = like.layout if like and (like.task, like.form) == (task, form) else None
    if shared is not None and columns is None:
        as_before = replace(shared, how="as in the split before")
        return Corpus(task, names, form, unit, as_before, drop)
    where = printable(names[0])
    head = sample(list(islice(rows(names[0], form), SAMPLE)), form, where)
    if task == "translate" and head.width == 1 and form_of(names[0]) == "text":
        raise DataError(
            "this is one side of a translation, and there is no other.",
            where=where,
            todo="Name the file of the other side too (an option once for each file).",
        )
    return Corpus(task, names, form, unit, decide(head, task, columns, where=where), drop)


def names_of(paths: Files) -> list[str]:
    """The names of files: a path alone is one file, not as many as it has letters."""
    return [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def check_task(task: str) -> None:
    """Refuse a task that there is not."""
    _check_word("task", task, TASKS)


def infer_task(paths: Sequence[str | Path], form: str | None = None) -> str:
    """The task these files of one split are for, from their names and first rows."""
    names = [str(path) for path in paths]
    form = form or form_of(names[0])
    _check_word("form", form, FORM_NAMES)
    if form == "text":
        return "translate" if len(names) == 2 else "generate"
    where = printable(names[0])
    return guess_task(sample(list(islice(rows(names[0], form), SAMPLE)), form, where))


def _common_form(names: Sequence[str], task: str) -> str:
    forms = {form_of(name) for name in names}
    if len(forms) > 1:
        raise DataError(
            f"these files are of different kinds: {', '.join(sorted(forms))}.",
            where=", ".join(map(printable, names)),
            todo="Give files of one kind.",
        )
    form = forms.pop()
    # Labels beside text, or two texts in one file: only tabs can part them.
    needs_columns = task == "classify" or (task == "translate" and len(names) == 1)
    return "tsv" if form == "text" and needs_columns else form


def _check_plain(names: Sequence[str], task: str) -> None:
    if task == "classify" or (task == "translate" and len(names) != 2):
        needs = "labels beside the text" if task == "classify" else "two files, one a side"
        raise DataError(
            f"{task} from plain text needs {needs}; {len(names)} given.",
            where=", ".join(map(printable, names)),
            todo="Give two plain files, or a TSV, CSV or JSONL file.",
        )


def _check_path(name: str) -> None:
    path = Path(name)
    if hf_datasets.is_dataset(name) or path.is_file():
        return
    if path.is_dir():
        raise DataError(
            "this is a folder, but not one that `save_to_disk` of `datasets` wrote.",
            where=printable(name),
            todo="Name the files in it.",
        )
    if path.exists():
        raise DataError(
            "this is a pipe or a device, and text is read more than once.",
            where=printable(name),
            todo="Write it to a file first.",
        )
    raise DataError("there is no such file.", where=printable(name), todo="Check its name.")


def _check_word(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise DataError(
            f"{word!r} is no {what}.{nearest(word, known)}", todo=f"Choose from {', '.join(known)}."
        )
