"""Whether a text has the sentences that a model is to be tested on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUN = 8
"""Words in a row that hardly stand in two texts by chance."""


def described(text: Path, test: Path) -> dict[str, Any]:
    """How large a text is, and how many sentences of a test set it shares words with."""
    sentences = [line.split("\t")[0].lower() for line in _lines(test)]
    told = [set(_runs(sentence.split())) for sentence in sentences]
    sought, whole = set[str]().union(*told), set(sentences)
    lines = words = 0
    found, same = set[str](), set[str]()
    for line in _lines(text):
        own = line.lower().split()
        lines, words = lines + 1, words + len(own)
        found.update(sought.intersection(_runs(own)))
        same.update(whole.intersection([" ".join(own)]))
    return {
        "lines": lines,
        "words": words,
        "test_sentences": len(sentences),
        "in_the_text": sum(sentence in same for sentence in sentences),
        "longest_in_the_text": max((len(sentence.split()) for sentence in same), default=0),
        "share_a_run": sum(not runs.isdisjoint(found) for runs in told),
        "run": RUN,
    }


def _runs(words: list[str]) -> Iterator[str]:
    return (" ".join(words[i : i + RUN]) for i in range(len(words) - RUN + 1))


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from filter(None, (line.strip("\r\n") for line in file))
