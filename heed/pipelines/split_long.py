"""Splitting texts that are too long for a model: into sentences first, then at clauses or words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

SENTENCE_END = re.compile(r"(?<![.!?…؟।])[.!?…؟।]++[\"'”’»)\]]*+\s+|[。！？]+")
"""Possessive quantifiers match a run of signs once, from its beginning, in linear time."""
BREAKS = (re.compile(r"[,;:،、，；：—–]+\s*"), re.compile(r"\s+"))
"""Where to split a sentence that is too long: at the first kind that occurs near its middle."""


def split_long(text: str, fits: Callable[[Sequence[str]], Sequence[bool]]) -> list[tuple[int, int]]:
    """The spans (start, stop) of a text's sentences, split further where they do not fit.

    The spans join to the whole text. A single character counts as fitting.
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    starts = [0, *(end for end in ends if end < len(text))]
    pending = list(zip(starts, [*starts[1:], len(text)], strict=True))
    spans: list[tuple[int, int]] = []
    while pending:
        fitting = fits([text[start:stop] for start, stop in pending])
        halves = []
        for (start, stop), fit in zip(pending, fitting, strict=True):
            if fit or stop - start < 2:
                spans.append((start, stop))
            else:
                middle = start + _split_point(text[start:stop])
                halves += [(start, middle), (middle, stop)]
        pending = halves
    return sorted(spans)


def _split_point(text: str) -> int:
    """The break nearest to the middle: after a clause, else between words, else anywhere."""
    half = len(text) // 2
    for pattern in BREAKS:
        ends = [match.end() for match in pattern.finditer(text)]
        central = [end for end in ends if len(text) // 4 <= end <= 3 * len(text) // 4 and end]
        if central:
            return min(central, key=lambda end: abs(end - half))
    return half
