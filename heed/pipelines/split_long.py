"""Texts that are too long for a model, in parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

SENTENCE = re.compile(r"(?<![.!?…؟।])[.!?…؟।]++[\"'”’»)\]]*+\s+|[。！？]+")
"""A run of signs is read once, from its beginning, so that long ones cost no more than others."""
BREAKS = (re.compile(r"[,;:،、，；：—–]+\s*"), re.compile(r"\s+"))
"""Where to cut a sentence that is too long: at the best of these, nearest to its middle."""


def parts(text: str, fits: Callable[[Sequence[str]], Sequence[bool]]) -> list[tuple[int, int]]:
    """Where to cut a text that is too long: its sentences, and those again that don't fit.

    A part is text[start:stop]; together they are the whole. One character counts as fitting.
    """
    ends = [match.end() for match in SENTENCE.finditer(text)]
    starts = [0, *(end for end in ends if end < len(text))]
    todo = list(zip(starts, [*starts[1:], len(text)], strict=True))
    done: list[tuple[int, int]] = []
    while todo:
        short = fits([text[start:stop] for start, stop in todo])
        halves = []
        for (start, stop), fit in zip(todo, short, strict=True):
            if fit or stop - start < 2:
                done.append((start, stop))
            else:
                middle = start + _middle(text[start:stop])
                halves += [(start, middle), (middle, stop)]
        todo = halves
    return sorted(done)


def _middle(text: str) -> int:
    """The break nearest to the middle: after a clause, else between words, else anywhere."""
    half = len(text) // 2
    for kind in BREAKS:
        ends = [match.end() for match in kind.finditer(text)]
        inside = [end for end in ends if len(text) // 4 <= end <= 3 * len(text) // 4 and end]
        if inside:
            return min(inside, key=lambda end: abs(end - half))
    return half
