"""The data doctor: everything about a corpus that would hurt training or flatter a score.

`check(paths)` is the command `heed check`; `examine(corpora)` runs before every training. Each
split is read once, from start to end, by the reader and by the rule for what to drop
(`corpus.drop_reason`) that training uses: a report without errors means that training can read
every record it keeps. Where records repeat, their split is read again, as far as their places are.
What that costs is in `charts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import numpy as np

from heed.data.corpus import (
    NUMBER,
    Corpus,
    Record,
    check_task,
    class_order,
    infer_task,
    open_corpus,
    splits,
)
from heed.data.corpus.columns import Key
from heed.data.corpus.text_files import Place
from heed.data.doctor.duplicates import Digests, Flags, among, as_digests, repeated
from heed.data.doctor.findings import Finding, Report, Severity, SplitSummary, in_order
from heed.data.doctor.scan import HeldOutIndex, Limits, SplitScan, read
from heed.errors import DataError, nearest

SYMPTOMS: dict[str, tuple[Severity, str]] = {
    "empty": ("warning", "empty; training drops them"),
    "unlabelled": ("warning", "without a label; training drops them"),
    "told": ("warning", "left out, as data.drop_pattern says"),
    "control": ("warning", "with control characters"),
    "replacement": ("warning", "with U+FFFD, the mark of text once decoded wrongly"),
    "markup": ("warning", "with tags of XML or HTML"),
    "over-long": ("warning", "over-long, above {chars:,} characters{words}"),
    "ratio": ("warning", "with one side over {ratio:g} times as long as the other"),
    "identical": ("warning", "the same on both sides"),
}
RARE = 50  # a label so many times rarer than one close to it may be a slip
# Comparing labels letter by letter is slow: not done for more, or longer, ones than these.
MANY_LABELS, LONG_LABEL = 200, 40


def check(
    paths: Sequence[str | Path],
    *,
    task: str | None = None,
    form: str | None = None,
    columns: Sequence[Key] | None = None,
    unit: str = "line",
    limits: Limits | None = None,
) -> Report:
    """Examine files, sorted by `splits`. What cannot be opened is an error in the report."""
    if task is not None:
        check_task(task)
    corpora: dict[str, Corpus] = {}
    split, like = "", None
    try:
        found = splits(paths, task=task, form=form)
        split = next(iter(found))
        task = task or infer_task(found[split], form)
        for split, files in found.items():
            like = open_corpus(files, task=task, form=form, columns=columns, unit=unit, like=like)
            corpora[split] = like
    except DataError as error:
        return Report(task, (Finding("error", "unreadable", split, str(error)),), {})
    return examine(corpora, limits=limits)


def examine(corpora: Mapping[str, Corpus], *, limits: Limits | None = None) -> Report:
    """Examine open splits. The one named "train" is what the others are held against."""
    limits = limits or Limits()
    charts = {name: SplitScan(name, corpus) for name, corpus in corpora.items()}
    train = charts.get("train")
    others = [chart for chart in charts.values() if chart is not train]
    for chart in others:
        read(chart, limits)
    elsewhere = HeldOutIndex(others)
    if train is not None:  # last, when it is known what to look for
        read(train, limits, elsewhere)
    findings: list[Finding] = []
    summary: dict[str, SplitSummary] = {}
    seen: dict[str, Flags] = {}
    for name, chart in charts.items():
        shared = None if train is None or chart is train else elsewhere.shared(chart)
        if shared is not None:
            seen[name] = shared[0]
        summary[name] = _summary(chart, shared, elsewhere.words)
        findings += _line_findings(chart, limits)
        if not chart.kept:
            findings.append(Finding("error", "nothing-left", name, "nothing is left to use"))
            continue
        findings += _label_findings(chart, train, limits)
        findings += _sameness(chart, limits)
        if shared is not None:
            findings += _leaks(chart, shared, summary[name], limits)
            findings += _unknown_words(chart, summary[name], limits)
    task = next((corpus.task for corpus in corpora.values()), None)
    return Report(task, in_order(findings), summary, seen)


def _summary(
    chart: SplitScan, shared: tuple[Flags, int] | None, unseen: Sequence[set[str]]
) -> SplitSummary:
    labels = {label: chart.labels[label] for label in class_order(chart.labels)}
    summary = SplitSummary(
        files=chart.corpus.paths,
        decided=chart.corpus.decided,
        records=chart.records,
        kept=chart.kept,
        dropped=dict(chart.dropped),
        words=tuple(chart.words),
        labels=labels,
    )
    if shared is None:
        return summary
    flags, second = shared
    unknown = (
        sum(counts[word] for word in words & counts.keys()) / max(total, 1)
        for words, counts, total in zip(unseen, chart.vocabulary, chart.words, strict=False)
    )
    return replace(
        summary,
        in_train=int(flags.sum()),
        in_train_same_label=second if chart.corpus.task == "classify" else None,
        source_in_train=second if chart.corpus.task == "translate" else None,
        unknown_words=tuple(unknown),
    )


def _line_findings(chart: SplitScan, limits: Limits) -> Iterator[Finding]:
    """What single records showed: faults, which are errors, then symptoms."""
    for code, message in chart.faults.items():
        count = chart.counts[code]
        more = f" And {count - 1:,} more." if count > 1 else ""
        places = tuple(chart.places[code])
        yield Finding("error", code, chart.name, message + more, count, places)
    words = f" or {limits.words:,} words" if limits.words is not None else ""
    for code, (severity, template) in SYMPTOMS.items():
        if count := chart.counts[code]:
            said = template.format(chars=limits.chars, words=words, ratio=limits.ratio)
            # Between paragraphs of plain text an empty line is no trouble.
            harmless = code == "empty" and chart.corpus.task == "generate"
            message = f"{_share(count, chart.records, chart)}: {said}"
            places = tuple(chart.places[code])
            yield Finding(
                "note" if harmless else severity, code, chart.name, message, count, places
            )


def _sameness(chart: SplitScan, limits: Limits) -> Iterator[Finding]:
    """Repeats, and texts under more than one label. The chart's digests lose their order."""
    keys = as_digests(chart.keys)
    keys.sort()
    repeating, count = repeated(keys)
    if not count:
        return
    severity: Severity = "warning" if count > limits.duplicates * chart.kept else "note"
    message = f"{_share(count, chart.kept, chart)}: repeats of an earlier one"
    places = _first(_repeats(chart, repeating), limits)
    yield Finding(severity, "duplicate", chart.name, message, count, places)
    if chart.corpus.task == "classify":
        against, count = _contradicted(chart, repeating)
        if count:
            share = _share(count, chart.kept, chart)
            message = f"{share}: the same text under more than one label"
            places = _first((one for one, _ in among(_sound(chart), against)), limits)
            yield Finding("warning", "contradiction", chart.name, message, count, places)


def _repeats(chart: SplitScan, repeating: Digests) -> Iterator[Record]:
    """The records that have stood before, in order."""
    met = np.zeros(len(repeating), np.bool_)
    for record, number in among(_sound(chart), repeating):
        if met[number]:
            yield record
        met[number] = True


def _contradicted(chart: SplitScan, repeating: Digests) -> tuple[Digests, int]:
    """Texts that have more than one label, and how many records have such a text."""
    numbers: dict[str, int] = {}
    last, times = np.full(len(repeating), -1), np.zeros(len(repeating), np.int64)
    mixed = np.zeros(len(repeating), np.bool_)
    for record, which in among(_sound(chart), repeating):
        label = numbers.setdefault(record.label or "", len(numbers))
        mixed[which] |= last[which] not in (-1, label)
        last[which] = label
        times[which] += 1
    return repeating[mixed], int(times[mixed].sum())


def _leaks(
    chart: SplitScan, shared: tuple[Flags, int], summary: SplitSummary, limits: Limits
) -> Iterator[Finding]:
    """What stands in train as well: a model may know it by heart."""
    flags, second = shared
    count = int(flags.sum())
    if not count and not second:
        return
    message = f"{_share(count, chart.kept, chart)}: also in train"
    if summary.in_train_same_label is not None:
        message += f", {second:,} with the same label"
    if summary.source_in_train is not None:
        message += f"; by source alone {second:,}"
    # The file may have grown since it was read.
    again = zip(_sound(chart), flags, strict=False)
    places = _first((one for one, here in again if here), limits)
    message += ". Report the clean part beside the whole"
    yield Finding("warning", "overlap", chart.name, message, count, places)


def _unknown_words(chart: SplitScan, summary: SplitSummary, limits: Limits) -> Iterator[Finding]:
    shares = summary.unknown_words or ()
    if not any(shares):
        return
    sides = ("source", "target") if chart.corpus.task == "translate" else ("first", "second")
    told = [f"{100 * share:.1f} %" for share in shares]
    if len(told) > 1:
        told = [f"{side} {share}" for side, share in zip(sides, told, strict=True)]
    severity: Severity = "warning" if max(shares) > limits.unknown else "note"
    count = round(sum(share * total for share, total in zip(shares, chart.words, strict=True)))
    message = f"words that train does not have: {', '.join(told)} of the running words"
    yield Finding(severity, "unknown-words", chart.name, message, count)


def _label_findings(chart: SplitScan, train: SplitScan | None, limits: Limits) -> Iterator[Finding]:
    if chart.corpus.task != "classify":
        return
    labels = class_order(chart.labels)
    if train is not None and chart is not train:
        yield from _unseen_labels(chart, train, limits)
    else:
        yield from _slips(chart)
    if len(labels) == 1:
        severity: Severity = "error" if train is None or chart is train else "warning"
        message = f"every label is {_quoted(labels[0])}: there is nothing to tell apart"
        yield Finding(severity, "one-class", chart.name, message, chart.kept)
        return
    counts = chart.labels.values()
    uneven = max(counts) > limits.balance * min(counts)
    shares = [
        f"{_quoted(label)} {100 * chart.labels[label] / chart.kept:.1f} %" for label in labels
    ]
    more = f" and {len(shares) - 10} more" if len(shares) > 10 else ""
    message = f"{len(labels)} classes{', very uneven' if uneven else ''}: "
    message += ", ".join(shares[:10]) + more
    yield Finding("warning" if uneven else "note", "balance", chart.name, message, len(labels))


def _unseen_labels(chart: SplitScan, train: SplitScan, limits: Limits) -> Iterator[Finding]:
    unseen = [label for label in class_order(chart.labels) if label not in train.labels]
    if not unseen:
        return
    comparable = _comparable(train.labels)
    told = (
        f"{_quoted(label)} ({chart.labels[label]:,}).{nearest(label[:LONG_LABEL], comparable)}"
        for label in unseen[: limits.places]
    )
    are = "is" if len(unseen) == 1 else "are"
    message = f"{len(unseen):,} of the labels {are} not in train: {' '.join(told)}"
    count = sum(chart.labels[label] for label in unseen)
    places = tuple(chart.label_places[label] for label in unseen[: limits.places])
    yield Finding("error", "unseen-label", chart.name, message, count, places)


def _slips(chart: SplitScan) -> Iterator[Finding]:
    """Labels that look like slips of the pen for another."""
    words = [label for label in _comparable(chart.labels) if not NUMBER.fullmatch(label)]
    for label in words:
        meant = _meant(label, words, chart.labels)
        if meant is not None:
            count, more = chart.labels[label], chart.labels[meant]
            message = f"label {label!r} ({count:,}) may be a slip for {meant!r} ({more:,})"
            places = (chart.label_places[label],)
            yield Finding("warning", "misspelt-label", chart.name, message, count, places)


def _meant(label: str, words: Sequence[str], counts: Mapping[str, int]) -> str | None:
    """A more frequent label that differs in case alone, or a close one far more frequent."""
    for other in words:
        more = (counts[other], other) > (counts[label], label)
        if more and other.lower() == label.lower():
            return other
    common = [other for other in words if counts[other] >= RARE * counts[label]]
    close = get_close_matches(label, common, n=1, cutoff=0.8)
    return close[0] if close else None


def _comparable(labels: Mapping[str, int]) -> list[str]:
    short = [label for label in class_order(labels) if len(label) <= LONG_LABEL]
    return short if len(short) <= MANY_LABELS else []


def _quoted(label: str) -> str:
    return repr(label if len(label) <= LONG_LABEL else label[:LONG_LABEL] + "…")


def _share(count: int, total: int, chart: SplitScan) -> str:
    """`18 of 1,305 pairs (1.4 %)`."""
    noun = "pairs" if chart.corpus.task == "translate" else f"{chart.corpus.unit}s"
    percent = 100 * count / max(total, 1)
    told = f"{percent:.1f} %" if percent >= 0.05 or not count else "under 0.1 %"
    return f"{count:,} of {total:,} {noun} ({told})"


def _sound(chart: SplitScan) -> Iterator[Record]:
    """The records that training keeps, read once more."""
    sound = (record for record in chart.corpus.scan() if record.fault is None)
    return (record for record in sound if chart.corpus.drop_reason(record) is None)


def _first(records: Iterable[Record], limits: Limits) -> tuple[Place, ...]:
    """Where the first of these stand; reads no further."""
    return tuple(record.place for record in islice(records, limits.places))
