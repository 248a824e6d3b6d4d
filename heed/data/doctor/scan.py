"""One reading of one split: what the doctor notes down on the way, a record at a time.

What is held: of train one digest of 8 bytes a record (see `digests.py`), of dev and test two and
the distinct words; and one count a label. Nothing else grows with the corpus.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heed.data.corpus import Corpus, Record
from heed.data.corpus.text_files import Place
from heed.data.doctor.duplicates import Flags, StreamingSet, as_digests, digest

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
class SplitScan:
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
    # Of each record kept: its texts; and, but for train, its source or its texts with its label.
    keys: array[int] = field(default_factory=lambda: array("Q"))
    others: array[int] = field(default_factory=lambda: array("Q"))

    def mark(self, code: str, place: Place, most: int) -> None:
        self.counts[code] += 1
        places = self.places.setdefault(code, [])
        if len(places) < most:
            places.append(place)


class HeldOutIndex:
    """What dev and test hold, to be looked for while train is read: so train need not be held."""

    def __init__(self, charts: Sequence[SplitScan]) -> None:
        self.words: list[set[str]] = [set(), set()]
        """Of each text of a record, the words that train has not shown yet."""
        keys, others = array("Q"), array("Q")
        for chart in charts:
            keys.extend(chart.keys)
            others.extend(chart.others)
            for words, counts in zip(self.words, chart.vocabulary, strict=False):
                words.update(counts)
        self.keys, self.others = StreamingSet(as_digests(keys)), StreamingSet(as_digests(others))

    def shared(self, chart: SplitScan) -> tuple[Flags, int]:
        """Which records train has too; how many by source alone, or under the same label."""
        second = self.others.seen(as_digests(chart.others))
        return self.keys.seen(as_digests(chart.keys)), int(second.sum())


def read(chart: SplitScan, limits: Limits, elsewhere: HeldOutIndex | None = None) -> None:
    """Fill a chart; that of train with what to look for."""
    for record in chart.corpus.scan():
        if record.fault is not None:
            chart.mark(record.fault.code, record.place, limits.places)
            chart.faults.setdefault(
                record.fault.code, f"{record.fault.message} {record.fault.todo}"
            )
            continue
        chart.records += 1
        reason = chart.corpus.drop_reason(record)
        if reason is not None:
            chart.dropped[reason] += 1
            chart.mark(reason, record.place, limits.places)
            continue
        chart.kept += 1
        lengths = _count_words(chart, record, elsewhere)
        for code in _symptoms(record, lengths, chart.corpus, limits):
            chart.mark(code, record.place, limits.places)
        _remember(chart, record, elsewhere)


def _count_words(chart: SplitScan, record: Record, elsewhere: HeldOutIndex | None) -> list[int]:
    lengths = []
    for side, text in enumerate(record.texts):
        words = WORD.findall(text.lower())
        lengths.append(len(words))
        if side == len(chart.words):
            chart.words.append(0)
            chart.vocabulary.append(Counter())
        chart.words[side] += len(words)
        if elsewhere is None:
            chart.vocabulary[side].update(words)
        elif elsewhere.words[side]:
            elsewhere.words[side].difference_update(words)
    return lengths


def _symptoms(
    record: Record, lengths: Sequence[int], corpus: Corpus, limits: Limits
) -> Iterator[str]:
    """The codes of what is wrong with one record that training keeps."""
    texts = record.texts
    joined = " ".join(texts)
    if not joined.isprintable() and CONTROL.search(joined):
        yield "control"
    if REPLACED in joined:
        yield "replacement"
    if "<" in joined and any(map(TAG.search, texts)):
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


def _remember(chart: SplitScan, record: Record, elsewhere: HeldOutIndex | None) -> None:
    key = digest(record.texts)
    chart.keys.append(key)
    if chart.corpus.task == "generate":
        other = None
    elif record.label is None:
        other = digest(record.texts[:1])
    else:
        other = digest((*record.texts, record.label))
        chart.labels[record.label] += 1
        chart.label_places.setdefault(record.label, record.place)
    if elsewhere is not None:
        elsewhere.keys.pass_by(key)
    if other is not None:
        (chart.others.append if elsewhere is None else elsewhere.others.pass_by)(other)
