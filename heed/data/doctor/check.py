"""The data doctor: find everything in a corpus that would harm training or inflate a score.

`check(paths)` is the command `heed check`; `examine(corpora)` runs before every training. Each
split is read once, by the same reader and the same rule for what to drop (`Corpus.drop_reason`) as
in training. So a report without errors means that training can read every record it keeps. Where
records repeat, their split is read again, as far as their places. The cost is described in
`scan.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np

from heed.config import DataConfig
from heed.data.corpus import (
    NUMBER,
    Corpus,
    Record,
    check_task,
    class_order,
    infer_splits,
    infer_task,
    open_corpus,
)
from heed.data.corpus.columns import Key
from heed.data.corpus.lines import Place
from heed.data.doctor.duplicates import Digests, Flags, as_digests, find_repeats, matching_records
from heed.data.doctor.findings import Finding, Report, Severity, SplitSummary, sort_findings
from heed.data.doctor.language import find_language_errors
from heed.data.doctor.scan import HeldOutIndex, Limits, SplitScan, scan_split
from heed.data.held_out import hold_out_dev
from heed.errors import DataError, nearest

PROBLEMS: dict[str, tuple[Severity, str]] = {
    "empty": ("warning", "empty; training drops them"),
    "unlabeled": ("warning", "without a label; training drops them"),
    "drop-pattern": ("warning", "matching data.drop_pattern; training drops them"),
    "control": ("warning", "with control characters"),
    "replacement": ("warning", "with U+FFFD, which marks text that was decoded wrongly"),
    "markup": ("warning", "with XML or HTML tags"),
    "over-long": ("warning", "over-long, above {chars:,} characters{words}"),
    "ratio": ("warning", "with one side over {ratio:g} times as long as the other"),
    "identical": ("warning", "the same on both sides"),
}
RARE_FACTOR = 50  # a label this many times rarer than a similar one may be misspelled
# Comparing labels by edit distance is slow: skipped for more, or longer, labels than these.
MAX_LABELS, MAX_LABEL_CHARS = 200, 40


def check(
    paths: Sequence[str | Path],
    *,
    task: str | None = None,
    file_format: str | None = None,
    columns: Sequence[Key] | None = None,
    unit: str = "line",
    header: bool | None = None,
    limits: Limits | None = None,
) -> Report:
    """Examine files, assigned to splits by `infer_splits`; an unreadable file is a finding."""
    if task is not None:
        check_task(task)
    corpora: dict[str, Corpus] = {}
    split, like = "", None
    try:
        splits = infer_splits(paths, task=task, file_format=file_format)
        split = next(iter(splits))
        task = task or infer_task(splits[split], file_format, header=header)
        for split, files in splits.items():
            like = open_corpus(
                files,
                task=task,
                file_format=file_format,
                columns=columns,
                unit=unit,
                header=header,
                like=like,
            )
            corpora[split] = like
    except DataError as error:
        return Report(task, (Finding("error", "unreadable", split, str(error)),), {})
    report = examine(corpora, limits=limits)
    if "train" in corpora and "dev" not in corpora and report.ok:
        errors = tuple(_held_out_errors(corpora["train"], report.summary["train"]))
        report = replace(report, findings=sort_findings([*errors, *report.findings]))
    return report


def _held_out_errors(train: Corpus, summary: SplitSummary) -> Iterator[Finding]:
    """What training refuses where no dev file is named and it sets a share of train aside."""
    if train.unit == "file" and train.layout is None:  # lines of each file are set aside
        return
    try:
        dev, _ = hold_out_dev(summary.kept, DataConfig())
    except DataError as error:
        yield Finding("error", "too-few", "train", str(error))
        return
    if not summary.labels or min(summary.labels.values()) > len(dev):
        return
    rows, left = frozenset(dev.tolist()), Counter(summary.labels)
    for number, record in enumerate(train.usable_records()):
        if number in rows and record.label is not None:
            left[record.label] -= 1
    for label, count in left.items():
        if not count:
            message = (
                f"class {_quote(label)} has no example left for training where no dev file is "
                "named: all are set aside. Add examples of it, or name a dev file"
            )
            yield Finding("error", "too-few", "train", message, summary.labels[label])


def examine(corpora: Mapping[str, Corpus], *, limits: Limits | None = None) -> Report:
    """Examine open splits. Those other than "train" are compared with it."""
    limits = limits or Limits()
    scans = {name: SplitScan(name, corpus) for name, corpus in corpora.items()}
    train = scans.get("train")
    others = [scan for scan in scans.values() if scan is not train]
    for scan in others:
        scan_split(scan, limits)
    held_out = HeldOutIndex(others)
    if train is not None:  # last, so that it is matched with the held-out splits
        scan_split(train, limits, held_out)
    findings: list[Finding] = []
    summary: dict[str, SplitSummary] = {}
    seen: dict[str, Flags] = {}
    for name, scan in scans.items():
        shared = None if train is None or scan is train else held_out.find_shared(scan)
        if shared is not None:
            seen[name] = shared[0]
        summary[name] = _summary(scan, shared, held_out.words)
        findings += _line_findings(scan, limits)
        if not scan.kept:
            findings.append(Finding("error", "nothing-left", name, "no usable record is left"))
            continue
        findings += _label_findings(scan, train, limits)
        findings += _duplicate_findings(scan, limits)
        if shared is not None:
            findings += _overlap_findings(scan, shared, summary[name], limits)
            findings += _unknown_word_findings(scan, summary[name], limits)
        if train is not None and scan is not train and train.kept:
            findings += find_language_errors(scan, train, held_out.swapped, summary[name], limits)
        if (train is None or scan is train) and scan.corpus.unit == "line":
            findings += _unit_findings(scan, limits)
    task = next((corpus.task for corpus in corpora.values()), None)
    return Report(task, sort_findings(findings), summary, seen)


def _summary(
    scan: SplitScan, shared: tuple[Flags, int] | None, unseen: Sequence[set[str]]
) -> SplitSummary:
    labels = {label: scan.labels[label] for label in class_order(scan.labels)}
    summary = SplitSummary(
        files=scan.corpus.paths,
        description=scan.corpus.description,
        records=scan.records,
        kept=scan.kept,
        dropped=dict(scan.dropped),
        words=tuple(scan.words),
        labels=labels,
    )
    if shared is None:
        return summary
    flags, second = shared
    unknown = (
        sum(counts[word] for word in words & counts.keys()) / max(total, 1)
        for words, counts, total in zip(unseen, scan.vocabulary, scan.words, strict=False)
    )
    return replace(
        summary,
        in_train=int(flags.sum()),
        in_train_same_label=second if scan.corpus.task == "classify" else None,
        source_in_train=second if scan.corpus.task == "translate" else None,
        unknown_words=tuple(unknown),
    )


def _line_findings(scan: SplitScan, limits: Limits) -> Iterator[Finding]:
    """Findings about single records: faults, which are errors, then other problems."""
    for code, message in scan.faults.items():
        count = scan.counts[code]
        more = f" And {count - 1:,} more." if count > 1 else ""
        places = tuple(scan.places[code])
        yield Finding("error", code, scan.name, message + more, count, places)
    words = f" or {limits.words:,} words" if limits.words is not None else ""
    for code, (severity, template) in PROBLEMS.items():
        if count := scan.counts[code]:
            problem = template.format(chars=limits.chars, words=words, ratio=limits.ratio)
            # Between paragraphs of plain text an empty line is normal.
            harmless = code == "empty" and scan.corpus.task == "generate"
            message = f"{_format_share(count, scan.records, scan)}: {problem}"
            places = tuple(scan.places[code])
            yield Finding("note" if harmless else severity, code, scan.name, message, count, places)


def _duplicate_findings(scan: SplitScan, limits: Limits) -> Iterator[Finding]:
    """Repeated records, and texts with more than one label. Sorts the digests of the scan."""
    keys = as_digests(scan.keys)
    keys.sort()
    repeating, count = find_repeats(keys)
    if not count:
        return
    severity: Severity = "warning" if count > limits.duplicates * scan.kept else "note"
    message = f"{_format_share(count, scan.kept, scan)}: repeats of an earlier record"
    places = _first_places(_repeated_records(scan, repeating), limits)
    yield Finding(severity, "duplicate", scan.name, message, count, places)
    if scan.corpus.task == "classify":
        contradicted, count = _contradictions(scan, repeating)
        if count:
            share = _format_share(count, scan.kept, scan)
            message = f"{share}: the same text under more than one label"
            places = _first_places(
                (one for one, _ in matching_records(_usable_records(scan), contradicted)), limits
            )
            yield Finding("warning", "contradiction", scan.name, message, count, places)


def _repeated_records(scan: SplitScan, repeating: Digests) -> Iterator[Record]:
    """The records that repeat an earlier one, in order."""
    seen = np.zeros(len(repeating), np.bool_)
    for record, number in matching_records(_usable_records(scan), repeating):
        if seen[number]:
            yield record
        seen[number] = True


def _contradictions(scan: SplitScan, repeating: Digests) -> tuple[Digests, int]:
    """Texts with more than one label, and how many records have such a text."""
    numbers: dict[str, int] = {}
    last, times = np.full(len(repeating), -1), np.zeros(len(repeating), np.int64)
    mixed = np.zeros(len(repeating), np.bool_)
    for record, which in matching_records(_usable_records(scan), repeating):
        label = numbers.setdefault(record.label or "", len(numbers))
        mixed[which] |= last[which] not in (-1, label)
        last[which] = label
        times[which] += 1
    return repeating[mixed], int(times[mixed].sum())


def _overlap_findings(
    scan: SplitScan, shared: tuple[Flags, int], summary: SplitSummary, limits: Limits
) -> Iterator[Finding]:
    """Records that are also in train: a model may have memorized them."""
    flags, partial = shared
    count = int(flags.sum())
    if not count and not partial:
        return
    message = f"{_format_share(count, scan.kept, scan)}: also in train"
    if summary.in_train_same_label is not None:
        message += f", {partial:,} with the same label"
    if summary.source_in_train is not None:
        message += f"; by source alone {partial:,}"
    # The file may have grown since it was scanned.
    records = zip(_usable_records(scan), flags, strict=False)
    places = _first_places((one for one, in_train in records if in_train), limits)
    message += ". Report scores on the clean part as well"
    yield Finding("warning", "overlap", scan.name, message, count, places)


def _unknown_word_findings(
    scan: SplitScan, summary: SplitSummary, limits: Limits
) -> Iterator[Finding]:
    shares = summary.unknown_words or ()
    if not any(shares):
        return
    sides = ("source", "target") if scan.corpus.task == "translate" else ("first", "second")
    percentages = [f"{100 * share:.1f} %" for share in shares]
    if len(percentages) > 1:
        percentages = [f"{side} {share}" for side, share in zip(sides, percentages, strict=True)]
    severity: Severity = "warning" if max(shares) > limits.unknown else "note"
    count = round(sum(share * total for share, total in zip(shares, scan.words, strict=True)))
    message = f"words not in train: {', '.join(percentages)} of all words"
    yield Finding(severity, "unknown-words", scan.name, message, count)


def _unit_findings(scan: SplitScan, limits: Limits) -> Iterator[Finding]:
    """Lines between blank lines, as in a play or in wrapped prose: texts may have several lines."""
    corpus, blank = scan.corpus, scan.dropped["empty"]
    if corpus.task != "generate" or corpus.layout is not None or len(corpus.paths) > scan.kept:
        return
    if blank > limits.blank * scan.records and 2 * scan.following > scan.kept:
        message = (
            f"every line is read as one text, of {sum(scan.words) / scan.kept:.0f} words on "
            f"average, and {100 * blank / scan.records:.0f} % of the lines are blank. Where a text "
            "has several lines, as in a play, set data.unit=document (texts between blank lines) "
            "or data.unit=file"
        )
        yield Finding("warning", "unit", scan.name, message, scan.kept)


def _label_findings(scan: SplitScan, train: SplitScan | None, limits: Limits) -> Iterator[Finding]:
    if scan.corpus.task != "classify":
        return
    labels = class_order(scan.labels)
    if train is not None and scan is not train:
        yield from _unseen_labels(scan, train, limits)
    else:
        yield from _misspelled_labels(scan)
        yield from _find_header_among_labels(scan)
    if len(labels) == 1:
        severity: Severity = "error" if train is None or scan is train else "warning"
        message = f"every label is {_quote(labels[0])}: there is nothing to classify"
        yield Finding(severity, "one-class", scan.name, message, scan.kept)
        return
    counts = scan.labels.values()
    uneven = max(counts) > limits.balance * min(counts)
    shares = [f"{_quote(label)} {100 * scan.labels[label] / scan.kept:.1f} %" for label in labels]
    more = f" and {len(shares) - 10} more" if len(shares) > 10 else ""
    message = f"{len(labels)} classes{', very uneven' if uneven else ''}: "
    message += ", ".join(shares[:10]) + more
    yield Finding("warning" if uneven else "note", "balance", scan.name, message, len(labels))


def _unseen_labels(scan: SplitScan, train: SplitScan, limits: Limits) -> Iterator[Finding]:
    unseen = [label for label in class_order(scan.labels) if label not in train.labels]
    if not unseen:
        return
    comparable = _comparable_labels(train.labels)
    descriptions = (
        f"{_quote(label)} ({scan.labels[label]:,}).{nearest(label[:MAX_LABEL_CHARS], comparable)}"
        for label in unseen[: limits.places]
    )
    verb = "is" if len(unseen) == 1 else "are"
    message = f"{len(unseen):,} of the labels {verb} not in train: {' '.join(descriptions)}"
    count = sum(scan.labels[label] for label in unseen)
    places = tuple(scan.label_places[label] for label in unseen[: limits.places])
    yield Finding("error", "unseen-label", scan.name, message, count, places)


def _find_header_among_labels(scan: SplitScan) -> Iterator[Finding]:
    """A label that only the first row has: the row may name the columns."""
    layout, counts = scan.corpus.layout, scan.labels
    if layout is None or layout.width == 0 or layout.header or len(counts) < 3:
        return
    single = [label for label, count in counts.items() if count == 1]
    if len(single) == 1 and scan.label_places[single[0]].line == 1:
        message = (
            f"label {_quote(single[0])} is only in the first row. If that row names the columns, "
            "set data.header=true"
        )
        yield Finding("warning", "header", scan.name, message, 1, (scan.label_places[single[0]],))


def _misspelled_labels(scan: SplitScan) -> Iterator[Finding]:
    """Labels that look like misspellings of another."""
    words = [label for label in _comparable_labels(scan.labels) if not NUMBER.fullmatch(label)]
    for label in words:
        meant = _intended_label(label, words, scan.labels)
        if meant is not None:
            count, more = scan.labels[label], scan.labels[meant]
            message = f"label {label!r} ({count:,}) may be a misspelling of {meant!r} ({more:,})"
            places = (scan.label_places[label],)
            yield Finding("warning", "misspelled-label", scan.name, message, count, places)


def _intended_label(label: str, words: Sequence[str], counts: Mapping[str, int]) -> str | None:
    """A more frequent label that differs in case, or a far more frequent similar one."""
    for other in words:
        more = (counts[other], other) > (counts[label], label)
        if more and other.lower() == label.lower():
            return other
    common = [other for other in words if counts[other] >= RARE_FACTOR * counts[label]]
    close = get_close_matches(label, common, n=1, cutoff=0.8)
    return close[0] if close else None


def _comparable_labels(labels: Mapping[str, int]) -> list[str]:
    short = [label for label in class_order(labels) if len(label) <= MAX_LABEL_CHARS]
    return short if len(short) <= MAX_LABELS else []


def _quote(label: str) -> str:
    return repr(label if len(label) <= MAX_LABEL_CHARS else label[:MAX_LABEL_CHARS] + "…")


def _format_share(count: int, total: int, scan: SplitScan) -> str:
    """`18 of 1,305 pairs (1.4 %)`."""
    noun = "pair" if scan.corpus.task == "translate" else scan.corpus.unit
    noun += "s" * (total != 1)
    percent = 100 * count / max(total, 1)
    formatted = f"{percent:.1f} %" if percent >= 0.05 or not count else "under 0.1 %"
    return f"{count:,} of {total:,} {noun} ({formatted})"


def _usable_records(scan: SplitScan) -> Iterator[Record]:
    """The records that training keeps, read once more."""
    readable = (record for record in scan.corpus.scan() if record.fault is None)
    return (record for record in readable if scan.corpus.drop_reason(record) is None)


def _first_places(records: Iterable[Record], limits: Limits) -> tuple[Place, ...]:
    """Places of the first of these records; reads no further."""
    return tuple(record.place for record in islice(records, limits.places))
