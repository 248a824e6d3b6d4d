"""Byte symbols: bytes written as printable characters, and white space made visible.

Byte-level tokens write a byte as one character: itself if printable, else one from U+0100 on.
"""

from __future__ import annotations

_WHITESPACE = str.maketrans({" ": "▁", "\n": "↵", "\t": "⇥"})
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_UNUSED = iter(range(0x100, 0x200))
BYTE_SYMBOLS = [chr(byte if byte in _PRINTABLE else next(_UNUSED)) for byte in range(256)]
"""The symbol of each byte."""
_BYTE_OF_SYMBOL = {character: byte for byte, character in enumerate(BYTE_SYMBOLS)}


def decode_symbols(token: str) -> str:
    """Text of a byte-level token; part of a character is shown as bytes, \\xf0\\x9f."""
    return bytes(_BYTE_OF_SYMBOL[c] for c in token).decode("utf-8", errors="backslashreplace")


def show_whitespace(token: str) -> str:
    """Replace white space by visible characters."""
    return token.translate(_WHITESPACE)
