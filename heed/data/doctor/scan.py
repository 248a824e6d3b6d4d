"""One scan of one split: what the doctor collects, record by record.

Memory: for train one digest of 8 bytes per record (see `duplicates.py`); for dev and test two, and
their distinct words; and one count per label. Nothing else grows with the corpus.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heed.data.corpus import Corpus, Record
from heed.data.corpus.lines import Place
from heed.data.doctor.duplicates import Flags, StreamingSet, as_digests, hash_texts

# Tab, line feed and carriage return are white space; the rest of C0 and C1 is noise. So are the two
# Unicode line separators, at which other tools split a line.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
TAG = re.compile(r"</?[A-Za-z][\w:-]*(\s[^<>]*)?/?>")
REPLACEMENT = "\ufffd"
# A word is a sequence of letters and digits; Chinese characters and kana count one by one.
WORD = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class Limits:
    """Thresholds above which the doctor reports a problem."""

    chars: int = 1000  # a text longer than this is over-long
    words: int | None = None  # so is one with more words than this
    ratio: float = 3.0  # one side this many times as long as the other, in words,
    difference: int = 5  # and longer by at least this many
    duplicates: float = 0.05  # share of repeats above which there is a warning
    balance: float = 10.0  # the largest class this many times the smallest
    unknown: float = 0.2  # share of unknown words above which there is a warning
    places: int = 5  # most places that a finding names


@dataclass
class SplitScan:
    """Results of scanning one split."""

    name: str
    corpus: Corpus
    records: int = 0  # records that could be read
    kept: int = 0  # of those, records that training uses
    dropped: Counter[str] = field(default_factory=Counter)
    words: list[int] = field(default_factory=list)
    vocabulary: list[Counter[str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # problems, by code
    places: dict[str, list[Place]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # the first message, by code
    labels: Counter[str] = field(default_factory=Counter)
    label_places: dict[str, Place] = field(default_factory=dict)  # first place of each label
    # Digests of each usable record: of its texts; and, except in train, of its source, or of its
    # texts and label.
    keys: array[int] = field(default_factory=lambda: array("Q"))
    others: array[int] = field(default_factory=lambda: array("Q"))

    def count_problem(self, code: str, place: Place, max_places: int) -> None:
        self.counts[code] += 1
        places = self.places.setdefault(code, [])
        if len(places) < max_places:
            places.append(place)


class HeldOutIndex:
    """Index of dev and test, matched while train is read, so that train need not be stored."""

    def __init__(self, scans: Sequence[SplitScan]) -> None:
        self.words: list[set[str]] = [set(), set()]
        """Words of dev and test, by text of a record, that train has not shown yet."""
        keys, others = array("Q"), array("Q")
        for scan in scans:
            keys.extend(scan.keys)
            others.extend(scan.others)
            for words, counts in zip(self.words, scan.vocabulary, strict=False):
                words.update(counts)
        self.keys, self.others = StreamingSet(as_digests(keys)), StreamingSet(as_digests(others))

    def find_shared(self, scan: SplitScan) -> tuple[Flags, int]:
        """Which records are also in train; how many by source alone, or with the same label."""
        second = self.others.contains(as_digests(scan.others))
        return self.keys.contains(as_digests(scan.keys)), int(second.sum())


def scan_split(scan: SplitScan, limits: Limits, held_out: HeldOutIndex | None = None) -> None:
    """Scan one split; while train is scanned, `held_out` is matched with it."""
    for record in scan.corpus.scan():
        if record.fault is not None:
            scan.count_problem(record.fault.code, record.place, limits.places)
            scan.faults.setdefault(record.fault.code, f"{record.fault.message} {record.fault.todo}")
            continue
        scan.records += 1
        reason = scan.corpus.drop_reason(record)
        if reason is not None:
            scan.dropped[reason] += 1
            scan.count_problem(reason, record.place, limits.places)
            continue
        scan.kept += 1
        lengths = _count_words(scan, record, held_out)
        for code in _find_problems(record, lengths, scan.corpus, limits):
            scan.count_problem(code, record.place, limits.places)
        _store_digests(scan, record, held_out)


def _count_words(scan: SplitScan, record: Record, held_out: HeldOutIndex | None) -> list[int]:
    lengths = []
    for side, text in enumerate(record.texts):
        words = WORD.findall(text.lower())
        lengths.append(len(words))
        if side == len(scan.words):
            scan.words.append(0)
            scan.vocabulary.append(Counter())
        scan.words[side] += len(words)
        if held_out is None:
            scan.vocabulary[side].update(words)
        elif held_out.words[side]:
            held_out.words[side].difference_update(words)
    return lengths


def _find_problems(
    record: Record, lengths: Sequence[int], corpus: Corpus, limits: Limits
) -> Iterator[str]:
    """Codes of the problems of one record that training keeps."""
    texts = record.texts
    all_text = " ".join(texts)
    if not all_text.isprintable() and CONTROL.search(all_text):
        yield "control"
    if REPLACEMENT in all_text:
        yield "replacement"
    if "<" in all_text and any(map(TAG.search, texts)):
        yield "markup"
    # A document may have any length: it is split into windows.
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


def _store_digests(scan: SplitScan, record: Record, held_out: HeldOutIndex | None) -> None:
    key = hash_texts(record.texts)
    scan.keys.append(key)
    if scan.corpus.task == "generate":
        other = None
    elif record.label is None:
        other = hash_texts(record.texts[:1])
    else:
        other = hash_texts((*record.texts, record.label))
        scan.labels[record.label] += 1
        scan.label_places.setdefault(record.label, record.place)
    if held_out is not None:
        held_out.keys.add(key)
    if other is not None:
        (scan.others.append if held_out is None else held_out.others.add)(other)
