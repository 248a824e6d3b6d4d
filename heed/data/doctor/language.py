"""Whether dev and test are in the languages of train, by file names, scripts and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heed.data.corpus import Corpus, file_language
from heed.data.doctor.findings import Finding, Severity, SplitSummary
from heed.data.doctor.scan import Limits, SplitScan, main_script

NO_SPACES = {"THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
"""Scripts written without spaces: what the doctor counts as a word is a phrase, often a new one."""
SAME_LANGUAGE = {"train", "dev", "test"}
"""Splits that share their languages; others, as those of `data.sets`, may be meant to differ."""
CLEARER = 0.2
"""How much lower the share of unknown words must be with the sides swapped."""


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
