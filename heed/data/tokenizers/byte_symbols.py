"""How pieces of text are written: bytes as characters, and white space so that it can be seen.

Byte-level pieces write a byte as one character: itself if printable, else one from U+0100 on.
"""

from __future__ import annotations

import re

_VISIBLE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})
_PLAIN = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = iter(range(0x100, 0x200))
BYTES = [chr(byte if byte in _PLAIN else next(_OTHERS)) for byte in range(256)]
"""The character of each byte."""
_BYTE_OF = {character: byte for byte, character in enumerate(BYTES)}


_LONG = re.compile(r"\S{5000}")


def broken(line: str) -> str:
    """The line with a space wherever none has stood for long, to learn pieces from.

    The time to learn BPE grows with the square of a word's length; what is so long is no word.
    """
    return _LONG.sub(r"\g<0> ", line)


def spelled(piece: str) -> str:
    """The text of a byte-level piece; part of a character shows as bytes, \\xf0\\x9f."""
    return bytes(_BYTE_OF[c] for c in piece).decode("utf-8", errors="backslashreplace")


def visible(piece: str) -> str:
    """The same with its white space to be seen."""
    return piece.translate(_VISIBLE)
