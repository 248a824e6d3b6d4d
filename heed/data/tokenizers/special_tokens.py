"""Which ids stand for what no text says: padding, the unknown, begin, end, the mask."""

from __future__ import annotations

from dataclasses import dataclass

from heed.errors import DataError


@dataclass(frozen=True)
class Specials:
    """Ids of special tokens. Those of every tokenizer trained here, unless told otherwise."""

    pad: int = 0
    unk: int | None = 1
    bos: int = 2
    """What a text begins with: in BERT [CLS], in Marian what the decoder begins with."""
    eos: int = 3
    """What a text ends with: in BERT [SEP]."""
    mask: int | None = 4

    def masking(self, key: str) -> int:
        """The mask, which not every tokenizer has; `key` of a recipe asks for it."""
        if self.mask is None:
            raise DataError(
                "this tokenizer has no mask token, so no token can be hidden.",
                todo=f"Leave {key} out.",
            )
        return self.mask

    @property
    def ordinary(self) -> int:
        """From which id on a token drawn by chance may be."""
        return 5 if self == OWN else 0

    @property
    def unwritten(self) -> tuple[int, ...]:
        """What no model is to write. Ours learn that by themselves; others may never have."""
        return () if self == OWN or self.pad == self.eos else (self.pad,)


OWN = Specials()
