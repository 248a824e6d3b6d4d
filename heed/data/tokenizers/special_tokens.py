"""Special tokens: their ids and names (padding, unknown, begin, end, mask)."""

from __future__ import annotations

from dataclasses import dataclass

from heed.errors import DataError


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; the defaults are those of every tokenizer trained here."""

    pad: int = 0
    unk: int | None = 1
    bos: int = 2
    """First token of a sequence: BERT's [CLS]; Marian's decoder start token."""
    eos: int = 3
    """Last token of a sequence: BERT's [SEP]."""
    mask: int | None = 4

    def require_mask(self, key: str) -> int:
        """The mask id; an error that names the recipe key if the tokenizer has none."""
        if self.mask is None:
            raise DataError(
                "this tokenizer has no mask token, so no token can be masked.",
                todo=f"Leave {key} out.",
            )
        return self.mask

    @property
    def first_ordinary_id(self) -> int:
        """Lowest id that a random replacement token may have."""
        return 5 if self == DEFAULT_SPECIALS else 0

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        """Ids that decoding never generates.

        Models trained here learn this; imported ones may not have.
        """
        return () if self == DEFAULT_SPECIALS or self.pad == self.eos else (self.pad,)


DEFAULT_SPECIALS = SpecialTokens()
PAD, UNK, BOS, EOS, MASK = 0, 1, 2, 3, 4
SPECIAL_TOKEN_NAMES = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
