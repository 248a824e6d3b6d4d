"""One scan of one split: what the doctor collects, record by record.

Memory: for train one digest of 8 bytes per record (see `duplicates.py`); for dev and test two, and
their distinct words; and one count per label. Nothing else grows with the corpus.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

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

# The script of a text is that of the first letters of its first records.
SCRIPT_RECORDS, SCRIPT_CHARS, SCRIPT_SHARE = 300, 200, 0.9


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
    foreign: float = 0.8  # share of unknown words above which a text is in another language,
    foreign_words: int = 20_000  # where train has at least this many words
    blank: float = 0.02  # share of blank lines above which lines may not be texts of their own
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
    scripts: list[Counter[str]] = field(default_factory=list)  # letters of the first texts
    following: int = 0  # usable lines directly after another one
    last_place: Place | None = None  # of the latest usable record
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
        self.swapped: list[set[str]] = [set(), set()]
        """The same words, that the other side of train has not shown yet."""
        keys, others = array("Q"), array("Q")
        for scan in scans:
            keys.extend(scan.keys)
            others.extend(scan.others)
            for words, counts in zip(self.words, scan.vocabulary, strict=False):
                words.update(counts)
            if scan.corpus.task == "translate":
                for words, counts in zip(self.swapped, scan.vocabulary, strict=False):
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
            side = next((i for i, text in enumerate(record.texts) if not text.strip()), 0)
            place = scan.corpus.side_place(record, side) if reason == "empty" else record.place
            scan.count_problem(reason, place, limits.places)
            continue
        scan.kept += 1
        _follow_lines(scan, record)
        lengths = _count_words(scan, record, held_out)
        for code, side in _find_problems(record, lengths, scan.corpus, limits):
            scan.count_problem(code, scan.corpus.side_place(record, side), limits.places)
        _store_digests(scan, record, held_out)


def _follow_lines(scan: SplitScan, record: Record) -> None:
    """Count a line directly after another one: both may belong to one text."""
    path, line = record.place
    scan.following += scan.last_place == (path, line - 1)
    scan.last_place = record.place


def _count_scripts(scan: SplitScan, side: int, text: str) -> None:
    """Count the letters of one text by script."""
    if side == len(scan.scripts):
        scan.scripts.append(Counter())
    if scan.kept <= SCRIPT_RECORDS:
        scan.scripts[side].update(map(script, filter(str.isalpha, text[:SCRIPT_CHARS])))


@cache
def script(letter: str) -> str:
    """The script of a letter, by the first word of its Unicode name; kana and Han are one."""
    name = unicodedata.name(letter, "unnamed").split()[0]
    return "HAN OR KANA" if name in ("CJK", "HIRAGANA", "KATAKANA") else name


def main_script(letters: Counter[str]) -> str | None:
    """The script of nearly all letters, else None."""
    name, count = letters.most_common(1)[0] if letters else ("", 0)
    return name if count > SCRIPT_SHARE * letters.total() else None


def _count_words(scan: SplitScan, record: Record, held_out: HeldOutIndex | None) -> list[int]:
    lengths = []
    for side, text in enumerate(record.texts):
        words = WORD.findall(text.lower())
        _count_scripts(scan, side, text)
        lengths.append(len(words))
        if side == len(scan.words):
            scan.words.append(0)
            scan.vocabulary.append(Counter())
        scan.words[side] += len(words)
        if held_out is None:
            scan.vocabulary[side].update(words)
        else:
            held_out.words[side].difference_update(words)
            held_out.swapped[1 - side].difference_update(words)
    return lengths


def _find_problems(
    record: Record, lengths: Sequence[int], corpus: Corpus, limits: Limits
) -> Iterator[tuple[str, int]]:
    """Codes of the problems of one record that training keeps, each with the text that has it."""
    texts = record.texts
    # A document may have any length: it is split into windows.
    bounded = corpus.task != "generate" or corpus.unit == "line"
    codes: dict[str, int] = {}  # the first text with each problem
    for side, (text, words) in enumerate(zip(texts, lengths, strict=True)):
        if not text.isprintable() and CONTROL.search(text):
            codes.setdefault("control", side)
        if REPLACEMENT in text:
            codes.setdefault("replacement", side)
        if "<" in text and TAG.search(text):
            codes.setdefault("markup", side)
        too_many = limits.words is not None and words > limits.words
        if bounded and (too_many or len(text) > limits.chars):
            codes.setdefault("over-long", side)
    yield from codes.items()
    if corpus.task == "translate":
        short, long = sorted(lengths)
        if long > limits.ratio * short and long - short >= limits.difference:
            yield "ratio", 0
        if texts[0].strip() == texts[1].strip():
            yield "identical", 0


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
