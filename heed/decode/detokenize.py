"""Incremental detokenization: the text of a hypothesis while it is being generated.

Some tokens are part of a character, and some decide only with the next one whether a space comes
before it. So text is held back until no further token can change it. With stop strings, text is
also held back while it may be the beginning of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from heed.data.tokenizers.tokenizer import Tokenizer

CONTEXT_TOKENS = 8
"""Tokens before a new one that can affect how it is decoded."""
INCOMPLETE = "\ufffd"
"""What a decoder writes for part of a character."""


class IncrementalDetokenizer:
    """Turns tokens into text as they come: the joined parts equal decoding all tokens at once."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        """`prompt` are the tokens before the new ones; their text is not returned."""
        self.tokenizer = tokenizer
        self.ids = tokenizer.strip_special_tokens(prompt)
        self._returned = len(self.ids)
        """How many of the ids are in the text returned so far."""

    def add(self, ids: Sequence[int]) -> str:
        """The text that these tokens add, as far as it is certain."""
        self.ids += self.tokenizer.strip_special_tokens(ids)
        return self._next(self.ids, final=False)

    def end(self) -> str:
        """The rest, when no more tokens come: part of a character becomes U+FFFD."""
        return self._next(self.ids, final=True)

    def _next(self, ids: list[int], *, final: bool) -> str:
        first = max(0, self._returned - CONTEXT_TOKENS)
        before, now = self.tokenizer.decode_batch([ids[first : self._returned], ids[first:]])
        if now.endswith(INCOMPLETE) and not final:
            return ""
        self._returned = len(ids)
        return now[len(before) :]


class StreamedText:
    """The text of one hypothesis while it is generated, up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.stop, self.tokens, self.stopped = list(stop), 0, False
        self.text = ""
        """The text that is certain."""
        self._detokenizer, self._held = IncrementalDetokenizer(tokenizer, prompt), ""

    def add(self, ids: Sequence[int]) -> str:
        """Take further tokens; returns the text that is new and certain."""
        new = ""
        for token in ids:
            if self.stopped:
                break
            self.tokens += 1
            new += self._release(self._detokenizer.add([token]))
        return new

    def end(self) -> str:
        """All text held back, when no more tokens come."""
        new = "" if self.stopped else self._release(self._detokenizer.end())
        last, self._held = self._held, ""
        self.text += last
        return new + last

    def _release(self, new: str) -> str:
        """Add text to what is held back, and return what is certain of it."""
        self._held += new
        starts = [start for start in map(self._held.find, self.stop) if start >= 0]
        if starts:
            self.stopped, certain, self._held = True, self._held[: min(starts)], ""
        else:
            overlaps = (_overlap(self._held, word) for word in self.stop)
            split = len(self._held) - max(overlaps, default=0)
            certain, self._held = self._held[:split], self._held[split:]
        self.text += certain
        return certain


def _overlap(text: str, word: str) -> int:
    """The length of the longest end of a text that is a proper beginning of a word."""
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
