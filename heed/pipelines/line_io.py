"""Text through a pipe: lines as they come in, one line out for each, in constant memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from heed.config import DecodeConfig
from heed.data.corpus.text_files import chunks
from heed.errors import DataError
from heed.files import to_json
from heed.pipelines.translate import Translation

FEW, MOST = 16, 1024
"""Lines translated side by side: few at first, for the sake of who waits, then more and more."""
READ = 1 << 16
STANDARD_INPUT = 0
SAMPLING = ("sample", "temperature", "top_k", "top_p", "min_p", "seed")

Lines = Iterable[list[str]]
"""Lines in groups: those of a group are there at the same time."""


def incoming(texts: Sequence[str] | None, file: Path | None) -> Lines:
    """The lines of a file, compressed or not, or some texts, or what comes by the pipe (file -)."""
    if texts and file is not None:
        raise DataError("there are texts and --file: give one of them.", where=str(file))
    if file is not None and str(file) != "-":
        return read_lines(chunks(str(file)))
    if texts:
        return [[as_text(os.fsencode(text)) for text in texts]]
    if sys.stdin is None:  # its number may be that of another file by now
        raise DataError(
            "there is no text: standard input is closed.", todo="Give texts, --file or a pipe."
        )
    return read_lines(arriving(STANDARD_INPUT))


def arriving(descriptor: int) -> Iterator[bytes]:
    """What comes in by a pipe, as soon as it is there."""
    while data := os.read(descriptor, READ):
        yield data


def read_lines(pieces: Iterable[bytes]) -> Iterator[list[str]]:
    """The lines of a file that comes in pieces, in groups: what is there now, but never too much.

    Only a newline ends a line. What is not UTF-8 is read with replacement characters.
    """
    begun, most = list[bytes](), FEW
    for data in pieces:
        first, *others = data.split(b"\n")
        begun.append(first)
        if not others:
            continue  # a long line: joined once, when its end has come
        lines, begun = [b"".join(begun), *others[:-1]], others[-1:]
        while lines:
            yield [as_text(line) for line in lines[:most]]
            lines, most = lines[most:], min(2 * most, MOST)
    if rest := b"".join(begun):
        yield [as_text(rest)]


def as_text(line: bytes) -> str:
    """A line, without a carriage return at its end or a byte order mark before it."""
    return line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r")


def write_line(out: BinaryIO, text: str) -> None:
    """One line; what is no character, half an emoji say, is a question mark."""
    out.write(text.encode("utf-8", "replace") + b"\n")


class Translating(Protocol):
    """What translates texts; `first` is the number of the first of them."""

    def translate(self, texts: Sequence[str], *, first: int = 0) -> list[Translation]: ...


@dataclass(frozen=True)
class Shown:
    """What to show of a translation."""

    scores: bool = False
    alignments: bool = False
    json: bool = False
    nbest: bool = False
    """Whether several translations were asked for, which a program gets as a list."""

    def line(self, translation: Translation) -> str:
        """One line, whatever was asked for."""
        if self.json:
            facts = translation.facts(nbest=self.nbest, alignments=self.alignments)
            return to_json(facts)
        return translation.line(scores=self.scores, alignments=self.alignments)


def pump(
    lines: Lines,
    scribe: Translating,
    shown: Shown,
    *,
    out: BinaryIO,
    say: Callable[[str], None],
) -> None:
    """Translate groups of lines as they come, and write each translation in a line.

    What was too long to be read as one, and how many translations had to be cut, is said aside.
    """
    count = cut = full = 0
    for group in lines:
        for translation in scribe.translate(group, first=count):
            count += 1
            cut += translation.cut
            full += bool(translation.choices)
            if translation.parts > 1:
                say(f"line {count}: {too_long(translation)}")
            write_line(out, shown.line(translation))
        out.flush()
    if cut:
        share = f"{cut:,} of {full:,} translations ({cut / full:.1%})"
        say(f"{share} were cut at the limit on their length (max_ratio, max_extra).")


def too_long(translation: Translation) -> str:
    """A word to who gave a text that is longer than the model reads at once."""
    return f"longer than this model reads at once, so translated in {translation.parts} parts."


def chosen(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that flags name. One about sampling asks for sampling."""
    known = DecodeConfig.keys()
    settings = {name: flags[name] for name in known if flags.get(name) is not None}
    if any(name in settings for name in SAMPLING):
        settings = {"sample": True} | settings
    return settings
