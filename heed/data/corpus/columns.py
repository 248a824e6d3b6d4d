"""Choose the text and label columns of a table, by name where there are names, else by value.

The choice is made once, from the first rows of a corpus, by deterministic rules;
`ColumnLayout.description` reports it. `open_corpus(columns=…)` overrides it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heed.data.corpus.rows import Row
from heed.errors import DataError

SAMPLE_ROWS = 1000  # rows examined
Key = int | str  # index or name of a column

LABELS = ("label", "labels", "gold_label", "class", "category", "sentiment", "intent", "topic")
TEXTS = ("text", "sentence", "content", "review", "document", "body", "utterance", "comment")
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("question", "sentence"),
)
SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"))
# ISO 639-1 codes, as columns of a parallel corpus named by language have them.
LANGUAGE = re.compile(
    "(af|am|ar|az|be|bg|bn|bs|ca|cs|cy|da|de|el|en|eo|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id"
    "|is|it|ja|ka|kk|km|kn|ko|ky|la|lb|lo|lt|lv|mg|mi|mk|ml|mn|mr|ms|mt|my|nb|ne|nl|nn|no|oc|pa|pl"
    "|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|sw|ta|te|tg|th|tl|tr|uk|ur|uz|vi|wo|xh|yi|yo|zh|zu)([-_].*)?"
)
NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")
SENTENCE = re.compile(r"\S+\s+\S.*[.!?…]")  # two words or more with a final stop
MAX_NAME_WORDS = 5  # a column name rarely has more
MAX_SHOWN = 40  # characters of a cell that an error quotes


@dataclass(frozen=True)
class ColumnLayout:
    """Which columns hold the texts and the label of a row."""

    texts: tuple[Key, ...]
    label: Key | None
    width: int  # cells in a row; 0 where cells have keys
    header: bool  # whether the first row of each file names the columns
    names: tuple[str, ...]  # column names, if there are any
    description: str  # which columns are used
    rule: str  # the rule that chose them


@dataclass(frozen=True)
class ColumnSample:
    """The first rows of a corpus as columns."""

    names: tuple[str, ...]  # () without column names
    keys: tuple[Key, ...]
    values: Mapping[Key, list[str]]
    header: bool
    width: int


def sample_columns(
    head: Sequence[Row], file_format: str, where: str, *, header: bool | None = None
) -> ColumnSample:
    """Columns of the readable rows; `where` goes into the error when there are none.

    `header` says whether the first row names the columns; None decides by that row.
    """
    readable = [row for row in head if row.fault is None and row.cells]
    if not readable:
        raise _unreadable(head, where)
    if isinstance(readable[0].cells, Mapping):
        objects = [row.cells for row in readable if isinstance(row.cells, Mapping)]
        # Any row, the first included, may lack a key that the others have, such as its label.
        counts = Counter(name for cells in objects for name in cells)
        common = [name for name, count in counts.items() if 2 * count >= len(objects)]
        names = tuple(dict.fromkeys([*objects[0], *common]))
        columns: dict[Key, list[str]]
        columns = {name: [str(cells.get(name, "")) for cells in objects] for name in names}
        return ColumnSample(names, names, columns, header=False, width=0)
    table = [row.cells for row in readable if isinstance(row.cells, list)]
    inferred = header is None
    header = (file_format == "csv" or _is_header(table[0])) if header is None else header
    names = tuple(name.strip() for name in table[0]) if header else ()
    width = len(names) or Counter(map(len, table)).most_common(1)[0][0]
    body = [row for row in table[header:] if len(row) == width]
    by_index: dict[Key, list[str]]
    by_index = {index: [row[index] for row in body] for index in range(width)}
    sample = ColumnSample(names, tuple(range(width)), by_index, header, width)
    if inferred and header and (example := _find_example_in_header(sample)):
        raise DataError(
            f"the first row seems to be an example, not column names: {example}.",
            where=where,
            todo="Set data.header=false (heed check --no-header) to read it as one, or true if it "
            "names the columns.",
        )
    return sample


def _unreadable(head: Sequence[Row], where: str) -> DataError:
    """The error of a table without a readable row: its first fault, or that it is empty."""
    faulty = next((row for row in head if row.fault is not None), None)
    if faulty is None or faulty.fault is None:
        return DataError("this file has no text.", where=where, todo="Name a file that has text.")
    fault, place = faulty.fault, f"{where}:{faulty.line}"
    if fault.byte is not None:
        place += f":{fault.byte}"
    return DataError(fault.message, where=place, todo=fault.todo)


def _find_example_in_header(columns: ColumnSample) -> str | None:
    """What in a row of column names looks like an example, in words; None where nothing does."""
    if _is_header(columns.names) or any(name.lower() in TEXTS for name in columns.names):
        return None
    for key, name in zip(columns.keys, columns.names, strict=True):
        if name and name in (value.strip() for value in columns.values[key]):
            return f"{_shorten(name)} is also a value of its column"
        if NUMBER.fullmatch(name):
            return f"{name} is a number"
        if len(name.split()) > MAX_NAME_WORDS or SENTENCE.fullmatch(name):
            return f"{_shorten(name)} is a sentence"
    return None


def _shorten(name: str) -> str:
    return repr(name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…")


def _is_header(first: Sequence[str]) -> bool:
    """Whether a row has a column name, such as label, that is rarely text."""
    names = [name.strip().lower() for name in first]
    known = any(set(pair) <= set(names) for pair in SIDES + PAIRS)
    languages = len(names) > 1 and all(_is_language(name) for name in names)
    return known or languages or any(name in LABELS for name in names) or names == ["text"]


def _is_language(name: str) -> bool:
    return LANGUAGE.fullmatch(name) is not None


def guess_task(columns: ColumnSample) -> str:
    """The task of a table, by its column names, else by whether a column has few values."""
    lowered = [name.lower() for name in columns.names]
    if any(name in LABELS for name in lowered):
        return "classify"
    if any(set(pair) <= set(lowered) for pair in SIDES) or sum(map(_is_language, lowered)) > 1:
        return "translate"
    key = _fewest_values(columns, columns.keys)
    few = columns.values[key]
    others = [value for other in columns.keys if other != key for value in columns.values[other]]
    repeats = 2 * len(set(few)) <= len(few)
    # Without column names, single words beside sentences are labels, however few the rows.
    single = not columns.names and not any(" " in value.strip() for value in few)
    if others and (repeats or (single and any(" " in value for value in others))):
        return "classify"
    texts = [key for key in columns.keys if not _is_numeric(columns.values[key])]
    return "generate" if len(texts) < 2 or "text" in lowered else "translate"


def choose_columns(
    columns: ColumnSample, task: str, requested: Sequence[Key] | None, *, where: str
) -> ColumnLayout:
    """Choose the column layout for a task.

    `requested` are the text columns in order, then the label column.
    """
    if requested is not None:
        keys = tuple(_find_requested(columns, key, where) for key in requested)
        texts, label = (keys[:-1], keys[-1]) if task == "classify" else (keys, None)
        rule = "as requested"
    elif task == "classify":
        texts, label, rule = _label_columns(columns)
    else:
        texts, label, rule = (
            _side_columns(columns) if task == "translate" else _text_column(columns)
        )
    expected = {"translate": (2,), "classify": (1, 2), "generate": (1,)}[task]
    if len(texts) not in expected:
        raise DataError(
            f"{task} needs {' or '.join(map(str, expected))} columns of text"
            f"{' and one of labels' if task == 'classify' else ''}; "
            f"of {len(columns.keys)} columns, {len(texts)} were taken for text.",
            where=where,
            todo="Check the separator, or name the columns in the first row (data.header).",
        )
    text_names = ", ".join(_column_name(columns, key) for key in texts)
    description = f"{'text' if len(texts) == 1 else 'texts'} in {text_names}"
    if label is not None:
        description += f", label in {_column_name(columns, label)}"
    if columns.header:
        description += ", first row a header"
    return ColumnLayout(
        texts, label, columns.width, columns.header, columns.names, description, rule
    )


def _label_columns(columns: ColumnSample) -> tuple[tuple[Key, ...], Key | None, str]:
    by_name = _find_by_name(columns, LABELS) or _find_by_name(columns, ("target", "y"))
    if len(columns.keys) < 2:
        return (), None, ""
    label = _fewest_values(columns, columns.keys) if by_name is None else by_name
    values = columns.values[label]
    count = len(set(values))
    rule = f"{count:,} distinct label{'s' * (count != 1)} in the first {len(values):,} rows"
    if by_name is not None:
        rule = "by name"
    rest = [key for key in columns.keys if key != label]
    for pair in PAIRS:
        if all(_find_by_name(columns, (name,)) is not None for name in pair):
            return tuple(_find_requested(columns, name, "") for name in pair), label, rule
    text = _find_by_name(columns, TEXTS)
    return (_longest_column(columns, rest) if text in (None, label) else text,), label, rule


def _side_columns(columns: ColumnSample) -> tuple[tuple[Key, ...], None, str]:
    for pair in SIDES:
        keys = [_find_by_name(columns, (name,)) for name in pair]
        if None not in keys:
            return tuple(key for key in keys if key is not None), None, "by name"
    names = dict(zip(columns.keys, columns.names, strict=False))
    languages = [key for key, name in names.items() if _is_language(name.lower())]
    if len(languages) > 2:  # "id" more often means an identifier than Indonesian
        languages = [key for key in languages if names[key].lower() != "id"]
    if len(languages) == 2:
        return tuple(languages), None, "by language"
    texts = [key for key in columns.keys if not _is_numeric(columns.values[key])]
    return tuple(texts[:2]), None, "the first two columns of text"


def _text_column(columns: ColumnSample) -> tuple[tuple[Key, ...], None, str]:
    column = _find_by_name(columns, TEXTS)
    if column is not None:
        return (column,), None, "by name"
    return (_longest_column(columns, columns.keys),), None, "the longest column"


def _fewest_values(columns: ColumnSample, keys: Sequence[Key]) -> Key:
    """The column with the fewest distinct values; of equals the shorter, then the first."""

    def weight(key: Key) -> tuple[int, int]:
        values = columns.values[key]
        return len(set(values)), sum(map(len, values))

    return min(keys, key=weight)


def _longest_column(columns: ColumnSample, keys: Sequence[Key]) -> Key:
    return max(keys, key=lambda key: sum(map(len, columns.values[key])))


def _is_numeric(values: Sequence[str]) -> bool:
    """Whether most values are numbers: an identifier or a score, not text."""
    return 2 * sum(bool(NUMBER.fullmatch(value.strip())) for value in values) > len(values)


def _find_by_name(columns: ColumnSample, wanted: Sequence[str]) -> Key | None:
    lowered = [name.lower() for name in columns.names]
    for name in wanted:
        if name in lowered:
            return columns.keys[lowered.index(name)]
    return None


def _find_requested(columns: ColumnSample, key: Key, where: str) -> Key:
    """A column by its name, or by its number from 1."""
    if isinstance(key, str) and key.isdecimal() and key not in columns.names:
        key = int(key)
    if isinstance(key, int) and 1 <= key <= columns.width:
        return key - 1
    if key in columns.names:
        return columns.keys[columns.names.index(str(key))]
    column = _find_by_name(columns, (str(key).lower(),))
    if column is None:
        known = ", ".join(columns.names) or f"1 to {columns.width}"
        raise DataError(
            f"there is no column {key!r}.", where=where, todo=f"The columns are {known}."
        )
    return column


def _column_name(columns: ColumnSample, key: Key) -> str:
    if isinstance(key, str):
        return repr(key)
    return repr(columns.names[key]) if columns.names else f"column {key + 1}"
