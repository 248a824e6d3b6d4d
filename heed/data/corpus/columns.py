"""Which column is what: texts and labels by name where there are names, else by their values.

Decided once, from the first rows of a corpus, by rules without chance; `Layout.why` says what
was decided. `open_corpus(columns=…)` overrules it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heed.data.corpus.rows import Row
from heed.errors import DataError

SAMPLE = 1000  # rows looked at
Key = int | str  # a cell's index, or its name

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
# ISO 639-1: what a column of a parallel corpus is called when it is called by its language.
LANGUAGE = re.compile(
    "(af|am|ar|az|be|bg|bn|bs|ca|cs|cy|da|de|el|en|eo|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id"
    "|is|it|ja|ka|kk|km|kn|ko|ky|la|lb|lo|lt|lv|mg|mi|mk|ml|mn|mr|ms|mt|my|nb|ne|nl|nn|no|oc|pa|pl"
    "|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|sw|ta|te|tg|th|tl|tr|uk|ur|uz|vi|wo|xh|yi|yo|zh|zu)([-_].*)?"
)
NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?")


@dataclass(frozen=True)
class Layout:
    """Where the texts and the label of a row stand."""

    texts: tuple[Key, ...]
    label: Key | None
    width: int  # cells in a row; 0 where cells have keys
    header: bool  # whether the first row of each file names the columns
    names: tuple[str, ...]  # of the columns, where they have names
    why: str  # what was decided
    how: str  # by what rule


@dataclass(frozen=True)
class Sample:
    """The first rows of a corpus as columns."""

    names: tuple[str, ...]  # () where nothing names the columns
    keys: tuple[Key, ...]
    values: Mapping[Key, list[str]]
    header: bool
    width: int


def sample(head: Sequence[Row], form: str, where: str) -> Sample:
    """Columns of the readable rows; `where` is for the error when there are none."""
    good = [row for row in head if row.fault is None and row.cells]
    if not good:
        raise DataError("no row of this can be read.", where=where, todo="Run `heed check` on it.")
    if isinstance(good[0].cells, Mapping):
        objects = [row.cells for row in good if isinstance(row.cells, Mapping)]
        # A row may lack what the others have: its label, say, and the first row as well as any.
        times = Counter(name for one in objects for name in one)
        usual = [name for name, count in times.items() if 2 * count >= len(objects)]
        names = tuple(dict.fromkeys([*objects[0], *usual]))
        columns: dict[Key, list[str]]
        columns = {name: [str(one.get(name, "")) for one in objects] for name in names}
        return Sample(names, names, columns, header=False, width=0)
    cells = [row.cells for row in good if isinstance(row.cells, list)]
    header = form == "csv" or _is_header(cells[0])
    names = tuple(name.strip() for name in cells[0]) if header else ()
    width = len(names) or Counter(map(len, cells)).most_common(1)[0][0]
    body = [one for one in cells[header:] if len(one) == width]
    by_index: dict[Key, list[str]]
    by_index = {index: [one[index] for one in body] for index in range(width)}
    return Sample(names, tuple(range(width)), by_index, header, width)


def _is_header(first: Sequence[str]) -> bool:
    """A first row of TSV names the columns if it holds a name that text seldom is."""
    names = [name.strip().lower() for name in first]
    known = any(set(pair) <= set(names) for pair in SIDES + PAIRS)
    languages = len(names) > 1 and all(_is_language(name) for name in names)
    return known or languages or any(name in LABELS for name in names) or names == ["text"]


def _is_language(name: str) -> bool:
    return LANGUAGE.fullmatch(name) is not None


def guess_task(columns: Sample) -> str:
    """What a table is for: by the names of its columns, else by whether one repeats itself."""
    lowered = [name.lower() for name in columns.names]
    if any(name in LABELS for name in lowered):
        return "classify"
    if any(set(pair) <= set(lowered) for pair in SIDES) or sum(map(_is_language, lowered)) > 1:
        return "translate"
    key = _fewest(columns, columns.keys)
    few = columns.values[key]
    others = [value for other in columns.keys if other != key for value in columns.values[other]]
    repeats = 2 * len(set(few)) <= len(few)
    # Without names, one word beside a sentence is a label, however few the rows.
    single = not columns.names and not any(" " in value.strip() for value in few)
    if others and (repeats or (single and any(" " in value for value in others))):
        return "classify"
    texts = [key for key in columns.keys if not _numbers(columns.values[key])]
    return "generate" if len(texts) < 2 or "text" in lowered else "translate"


def decide(columns: Sample, task: str, asked: Sequence[Key] | None, *, where: str) -> Layout:
    """The layout for a task. `asked`: the texts in order, then the label where there is one."""
    if asked is not None:
        keys = tuple(_find(columns, key, where) for key in asked)
        texts, label = (keys[:-1], keys[-1]) if task == "classify" else (keys, None)
        how = "as asked"
    elif task == "classify":
        texts, label, how = _labelled(columns)
    else:
        texts, label, how = _sides(columns) if task == "translate" else _one_text(columns)
    wanted = {"translate": (2,), "classify": (1, 2), "generate": (1,)}[task]
    if len(texts) not in wanted:
        raise DataError(
            f"{task} needs {' or '.join(map(str, wanted))} columns of text"
            f"{' and one of labels' if task == 'classify' else ''}; "
            f"{len(columns.keys)} found, {len(texts)} taken for text.",
            where=where,
            todo="Check the separator, or name the columns.",
        )
    said = ", ".join(_name(columns, key) for key in texts)
    why = f"{'text' if len(texts) == 1 else 'texts'} in {said}"
    if label is not None:
        why += f", label in {_name(columns, label)}"
    if columns.header:
        why += ", first row a header"
    return Layout(texts, label, columns.width, columns.header, columns.names, why, how)


def _labelled(columns: Sample) -> tuple[tuple[Key, ...], Key | None, str]:
    named = _by_name(columns, LABELS) or _by_name(columns, ("target", "y"))
    if len(columns.keys) < 2:
        return (), None, ""
    label = _fewest(columns, columns.keys) if named is None else named
    values = columns.values[label]
    count = len(set(values))
    how = f"{count:,} distinct label{'s' * (count != 1)} in the first {len(values):,} rows"
    if named is not None:
        how = "by name"
    rest = [key for key in columns.keys if key != label]
    for pair in PAIRS:
        if all(_by_name(columns, (name,)) is not None for name in pair):
            return tuple(_find(columns, name, "") for name in pair), label, how
    text = _by_name(columns, TEXTS)
    return (_longest(columns, rest) if text in (None, label) else text,), label, how


def _sides(columns: Sample) -> tuple[tuple[Key, ...], None, str]:
    for pair in SIDES:
        keys = [_by_name(columns, (name,)) for name in pair]
        if None not in keys:
            return tuple(key for key in keys if key is not None), None, "by name"
    named = dict(zip(columns.keys, columns.names, strict=False))
    spoken = [key for key, name in named.items() if _is_language(name.lower())]
    if len(spoken) > 2:  # "id" is a number before it is Indonesian
        spoken = [key for key in spoken if named[key].lower() != "id"]
    if len(spoken) == 2:
        return tuple(spoken), None, "by language"
    texts = [key for key in columns.keys if not _numbers(columns.values[key])]
    return tuple(texts[:2]), None, "the first two columns of text"


def _one_text(columns: Sample) -> tuple[tuple[Key, ...], None, str]:
    named = _by_name(columns, TEXTS)
    if named is not None:
        return (named,), None, "by name"
    return (_longest(columns, columns.keys),), None, "the longest column"


def _fewest(columns: Sample, keys: Sequence[Key]) -> Key:
    """The column with the fewest distinct values; of equals the shorter, then the first."""

    def weight(key: Key) -> tuple[int, int]:
        values = columns.values[key]
        return len(set(values)), sum(map(len, values))

    return min(keys, key=weight)


def _longest(columns: Sample, keys: Sequence[Key]) -> Key:
    return max(keys, key=lambda key: sum(map(len, columns.values[key])))


def _numbers(values: Sequence[str]) -> bool:
    """Mostly numbers: an identifier or a score, not text."""
    return 2 * sum(bool(NUMBER.fullmatch(value.strip())) for value in values) > len(values)


def _by_name(columns: Sample, wanted: Sequence[str]) -> Key | None:
    lowered = [name.lower() for name in columns.names]
    for name in wanted:
        if name in lowered:
            return columns.keys[lowered.index(name)]
    return None


def _find(columns: Sample, key: Key, where: str) -> Key:
    """A column as asked for: its name, or its number from 1."""
    if isinstance(key, str) and key.isdecimal() and key not in columns.names:
        key = int(key)
    if isinstance(key, int) and 1 <= key <= columns.width:
        return key - 1
    if key in columns.names:
        return columns.keys[columns.names.index(str(key))]
    found = _by_name(columns, (str(key).lower(),))
    if found is None:
        known = ", ".join(columns.names) or f"1 to {columns.width}"
        raise DataError(
            f"there is no column {key!r}.", where=where, todo=f"The columns are {known}."
        )
    return found


def _name(columns: Sample, key: Key) -> str:
    if isinstance(key, str):
        return repr(key)
    return repr(columns.names[key]) if columns.names else f"column {key + 1}"
