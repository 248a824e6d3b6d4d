"""Tokens to text as they come: what is said of a text while it is still being written.

Some pieces are half a character, and some only say with the next one whether a space stands before
it. So text is held back until no further token can change it; a text that is to end where a word of
the caller's begins, is held back while it might be the beginning of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from heed.data.tokenizers.tokenizer import Tokenizer

SEEN = 8
"""Pieces before a new one that have a say in how it is written."""
HALF = "\ufffd"


class IncrementalDetokenizer:
    """Spells tokens: all that it ever said, joined, is what decoding them at once gives."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        """What the prompt says is not said again."""
        self.tokenizer = tokenizer
        self.ids = tokenizer.without_specials(prompt)
        self._said = len(self.ids)
        """How many of them are in what was said."""

    def add(self, ids: Sequence[int]) -> str:
        """The text that these add, as far as it is certain."""
        self.ids += self.tokenizer.without_specials(ids)
        return self._next(self.ids, certain=False)

    def end(self) -> str:
        """What is left when no more tokens come: half a character shows as U+FFFD."""
        return self._next(self.ids, certain=True)

    def _next(self, ids: list[int], *, certain: bool) -> str:
        first = max(0, self._said - SEEN)
        before, now = self.tokenizer.decode_batch([ids[first : self._said], ids[first:]])
        if now.endswith(HALF) and not certain:
            return ""
        self._said = len(ids)
        return now[len(before) :]


class StreamedText:
    """One text while it is written, up to the first of some strings."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.stop, self.heard, self.stopped = list(stop), 0, False
        self.text = ""
        """What is certain to stay."""
        self._speller, self._held = IncrementalDetokenizer(tokenizer, prompt), ""

    def hear(self, ids: Sequence[int]) -> str:
        """Take further tokens; returns the text that is new and certain."""
        said = ""
        for token in ids:
            if self.stopped:
                break
            self.heard += 1
            said += self._tell(self._speller.add([token]))
        return said

    def end(self) -> str:
        """No more tokens come: all that was held back."""
        said = "" if self.stopped else self._tell(self._speller.end())
        held, self._held = self._held, ""
        self.text += held
        return said + held

    def _tell(self, new: str) -> str:
        self._held += new
        found = [at for at in map(self._held.find, self.stop) if at >= 0]
        if found:
            self.stopped, said, self._held = True, self._held[: min(found)], ""
        else:
            split = len(self._held) - max(
                (_begun(self._held, word) for word in self.stop), default=0
            )
            said, self._held = self._held[:split], self._held[split:]
        self.text += said
        return said


def _begun(text: str, word: str) -> int:
    """How many characters at the end of a text may be the beginning of a word."""
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
