"""One reading of one split: what the doctor notes down on the way, a record at a time.

What is held: two digests of 8 bytes a record (see `digests.py`), one count a label, and of dev
and test the distinct words. Nothing else grows with the corpus.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heed.data.corpus import Corpus, Record, drop_reason
from heed.data.corpus.files import Place
from heed.data.doctor.digests import digest

# Tab, line feed and carriage return are white space; the rest of C0 and C1 is noise, and so are
# the two Unicode line separators, at which other tools cut a line in two.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
TAG = re.compile(r"</?[A-Za-z][\w:-]*(\s[^<>]*)?/?>")
REPLACED = "\ufffd"
# A word is a run of letters and digits; Chinese characters and kana count one by one.
WORD = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class Limits:
    """Where the doctor starts to worry."""

    chars: int = 1000  # a text longer than this is over-long
    words: int | None = None  # so is one of more words than this
    ratio: float = 3.0  # one side so many times as long as the other, in words,
    difference: int = 5  # and longer by at least so many
    duplicates: float = 0.05  # a share of repeats that is worth a warning
    balance: float = 10.0  # the largest class so many times the smallest
    unknown: float = 0.2  # a share of unknown words that is worth a warning
    places: int = 5  # how many places a finding names


@dataclass
class Chart:
    """What one reading of one split found."""

    name: str
    corpus: Corpus
    records: int = 0  # all that could be read
    kept: int = 0  # of those, what training uses
    dropped: Counter[str] = field(default_factory=Counter)
    words: list[int] = field(default_factory=list)
    vocabulary: list[Counter[str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # trouble, by code
    places: dict[str, list[Place]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # the first message, by code
    labels: Counter[str] = field(default_factory=Counter)
    label_places: dict[str, Place] = field(default_factory=dict)  # where each stands first
    # Of each record kept: its texts; and its source alone, or its texts with its label.
    keys: array[int] = field(default_factory=lambda: array("Q"))
    others: array[int] = field(default_factory=lambda: array("Q"))

    def mark(self, code: str, place: Place, most: int) -> None:
        self.counts[code] += 1
        places = self.places.setdefault(code, [])
        if len(places) < most:
            places.append(place)


def read(chart: Chart, limits: Limits, unseen: Sequence[set[str]] | None = None) -> None:
    """Fill a chart. For train, `unseen` holds the words of the others and loses those met."""
    for record in chart.corpus.scan():
        if record.fault is not None:
            chart.mark(record.fault.code, record.place, limits.places)
            chart.faults.setdefault(
                record.fault.code, f"{record.fault.message} {record.fault.todo}"
            )
            continue
        chart.records += 1
        reason = drop_reason(record)
        if reason is not None:
            chart.dropped[reason] += 1
            chart.mark(reason, record.place, limits.places)
            continue
        chart.kept += 1
        lengths = _count_words(chart, record, unseen)
        for code in _symptoms(record, lengths, chart.corpus, limits):
            chart.mark(code, record.place, limits.places)
        _remember(chart, record)


def _count_words(chart: Chart, record: Record, unseen: Sequence[set[str]] | None) -> list[int]:
    lengths = []
    for side, text in enumerate(record.texts):
        words = WORD.findall(text.lower())
        lengths.append(len(words))
        if side == len(chart.words):
            chart.words.append(0)
            chart.vocabulary.append(Counter())
        chart.words[side] += len(words)
        if unseen is None:
            chart.vocabulary[side].update(words)
        elif unseen[side]:
            unseen[side].difference_update(words)
    return lengths


def _symptoms(
    record: Record, lengths: Sequence[int], corpus: Corpus, limits: Limits
) -> Iterator[str]:
    """The codes of what is wrong with one record that training keeps."""
    texts = record.texts
    if any(CONTROL.search(text) for text in texts):
        yield "control"
    if any(REPLACED in text for text in texts):
        yield "replacement"
    if any("<" in text and TAG.search(text) for text in texts):
        yield "markup"
    # A document may be as long as it likes: it is cut into windows.
    if corpus.task != "generate" or corpus.unit == "line":
        too_many = limits.words is not None and max(lengths) > limits.words
        if too_many or max(map(len, texts)) > limits.chars:
            yield "over-long"
    if corpus.task == "translate":
        short, long = sorted(lengths)
        if long > limits.ratio * short and long - short >= limits.difference:
            yield "ratio"
        if texts[0].strip() == texts[1].strip():
            yield "identical"


def _remember(chart: Chart, record: Record) -> None:
    key = digest(record.texts)
    chart.keys.append(key)
    if chart.corpus.task == "translate":
        chart.others.append(digest(record.texts[:1]))
    elif record.label is not None:
        chart.others.append(digest((*record.texts, record.label)))
        chart.labels[record.label] += 1
        chart.label_places.setdefault(record.label, record.place)
