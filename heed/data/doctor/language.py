"""Whether dev and test are in the languages of train, by file names, scripts and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from heed.data.corpus import Corpus, file_language
from heed.data.doctor.findings import Finding, Severity, SplitSummary
from heed.data.doctor.scan import WORD, Limits, SplitScan, main_script

NO_SPACES = {"THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
"""Scripts written without spaces: what the doctor counts as a word is a phrase, often a new one."""
SAME_LANGUAGE = {"train", "dev", "test"}
"""Splits that share their languages; others, as those of `data.sets`, may be meant to differ."""
CLEARER = 0.2
"""How much lower the share of unknown words must be with the sides swapped."""
FIRST_RECORDS, MIN_WORDS = 2000, 50
"""Records whose words tell the order of two sides, and the distinct words that it takes."""


def find_language_errors(
    scan: SplitScan,
    train: SplitScan,
    unseen_swapped: Sequence[set[str]],
    summary: SplitSummary,
    limits: Limits,
) -> Iterator[Finding]:
    """Swapped sides, and sides in another language or script than train's.

    `unseen_swapped` holds, by side, the held-out words that the other side of train does not have.
    """
    sides = _side_names(scan.corpus)
    names, train_names = side_languages(scan.corpus), side_languages(train.corpus)
    if scan.corpus.task == "translate":
        by_words = _is_swapped(scan, summary, unseen_swapped)
        if by_words or (len({*names}) == 2 and names == train_names[::-1] and None not in names):
            message = (
                "source and target are swapped: their languages are those of train in the other "
                "order. Name the two files, or columns, in train's order"
            )
            yield Finding("error", "swapped-sides", scan.name, message, scan.kept)
            return
    severity: Severity = "error" if scan.name in SAME_LANGUAGE else "warning"
    for side, name in enumerate(sides):
        reason = _describe_difference(side, scan, train, summary, limits)
        if reason is not None:
            message = f"{name} is in another language than in train: {reason}"
            yield Finding(severity, "language", scan.name, message, scan.kept)


def has_swapped_sides(corpus: Corpus, train: Corpus) -> bool:
    """Whether source and target of a parallel corpus are in the order opposite to train's.

    By the languages of the file names, else by the words of the first records.
    """
    if corpus.task != "translate":
        return False
    names, train_names = side_languages(corpus), side_languages(train)
    if len({*names}) == 2 and None not in names and len({*train_names} - {None}) == 2:
        return names == train_names[::-1]
    (source, target), (train_source, train_target) = (
        [_first_words(one, side) for side in (0, 1)] for one in (corpus, train)
    )
    if min(len(source), len(target)) < MIN_WORDS:
        return False
    return all(
        len(words & other) > (1 + CLEARER) * len(words & own) and 2 * len(words & own) < len(words)
        for words, own, other in (
            (source, train_source, train_target),
            (target, train_target, train_source),
        )
    )


def _first_words(corpus: Corpus, side: int) -> set[str]:
    """Distinct words of one side of the first records."""
    records = islice((record for record in corpus.scan() if record.fault is None), FIRST_RECORDS)
    return {word for record in records for word in WORD.findall(record.texts[side].lower())}


def _describe_difference(
    side: int, scan: SplitScan, train: SplitScan, summary: SplitSummary, limits: Limits
) -> str | None:
    """Why one side is not in train's language, in words; None where it may be."""
    names, train_names = side_languages(scan.corpus), side_languages(train.corpus)
    if side < len(names) and side < len(train_names):
        name, expected = names[side], train_names[side]
        if None not in (name, expected) and name != expected:
            return f"its file name ends in .{name}, train's in .{expected}"
    script, expected = main_script(scan.scripts[side]), main_script(train.scripts[side])
    if None not in (script, expected) and script != expected:
        return f"its letters are {str(script).capitalize()}, train's {str(expected).capitalize()}"
    share = (summary.unknown_words or (0.0, 0.0))[side]
    enough = train.words[side] >= limits.foreign_words and script not in NO_SPACES
    if enough and share > limits.foreign:
        return f"{100 * share:.0f} % of its words are not in train"
    return None


def side_languages(corpus: Corpus) -> tuple[str | None, ...]:
    """The languages that the file names of plain text end in, one a side; () for tables."""
    if corpus.layout is not None:
        return ()
    languages = tuple(map(file_language, corpus.paths))
    if corpus.task == "translate":
        return languages
    return languages[:1] if len({*languages}) == 1 else ()


def _side_names(corpus: Corpus) -> tuple[str, ...]:
    if corpus.task == "translate":
        return ("the source", "the target")
    return ("the text",)


def _is_swapped(scan: SplitScan, summary: SplitSummary, unseen_swapped: Sequence[set[str]]) -> bool:
    """Whether both sides have far more words in common with the other side of train."""
    unknown = summary.unknown_words or ()
    if len(unknown) < 2:
        return False
    swapped = [
        sum(counts[word] for word in words & counts.keys()) / max(total, 1)
        for words, counts, total in zip(unseen_swapped, scan.vocabulary, scan.words, strict=True)
    ]
    return all(
        here > 0.5 and there + CLEARER < here for here, there in zip(unknown, swapped, strict=True)
    )
