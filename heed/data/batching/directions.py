"""Directions: which side of a sentence pair is input and which is output, per training task.

| direction                               | input              | output | first output token |
|-----------------------------------------|--------------------|--------|--------------------|
| translate                               | source             | target | BOS                |
| translate back (`bidirectional`)        | target             | source | EOS                |
| denoise (`denoise`)                     | target, with noise | target | BOS                |
| denoise (`denoise`, `bidirectional`)    | source, with noise | source | EOS                |

The first output token tells the decoder which language to generate. Every pair is translated in
every epoch. A share of the pairs is denoised: each epoch takes the next ones in an order drawn
once, and starts over at its end.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.data.batching.length_buckets import Rows
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.errors import DataError

SOURCE, TARGET = 0, 1
"""The sides of a sentence pair."""


class Direction(NamedTuple):
    """One direction: input side, output side, and the first token that the decoder reads."""

    input_side: int
    output_side: int
    first_token: int

    @property
    def is_denoising(self) -> bool:
        """Whether this direction is denoising (input and output are the same side)."""
        return self.input_side == self.output_side


class Directions:
    """Sentence pairs in all directions, numbered direction by direction."""

    def __init__(
        self,
        pairs: int,
        specials: SpecialTokens = DEFAULT_SPECIALS,
        *,
        bidirectional: bool = False,
        denoise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`denoise` is the share of pairs to denoise per epoch, for each output language."""
        self.pairs, self.seed = pairs, seed
        self.denoised = min(pairs, max(1, round(denoise * pairs))) if denoise else 0
        """Pairs to denoise per epoch and language."""
        self.entries = [Direction(SOURCE, TARGET, specials.bos)]
        if bidirectional:
            if specials.bos == specials.eos:
                raise DataError(
                    "BOS and EOS are the same token here, so the first token cannot tell the model "
                    "which language to generate.",
                    where="data.bidirectional",
                    todo="Use a tokenizer with two tokens, or train one direction.",
                )
            self.entries.append(Direction(TARGET, SOURCE, specials.eos))
        self._translated = len(self.entries) * pairs
        """Places of the directions that take every pair."""
        if self.denoised:
            self.entries += [
                Direction(one.output_side, one.output_side, one.first_token) for one in self.entries
            ]

    @cached_property
    def _order(self) -> Rows:
        """The order in which pairs are denoised."""
        random = np.random.Generator(np.random.PCG64(self.seed))
        return random.permutation(self.pairs).astype(np.uint32)

    def __len__(self) -> int:
        return self._translated + self.denoised * sum(one.is_denoising for one in self.entries)

    def locate(self, places: slice | Rows, epoch: int) -> tuple[NDArray[np.int64], Rows]:
        """Direction and pair of each of these places in an epoch."""
        if isinstance(places, slice):
            places = np.arange(places.start, places.stop, dtype=np.uint32)
        direction, pair = np.divmod(places.astype(np.int64), max(1, self.pairs))
        if self.denoised:
            denoising = places >= self._translated
            denoising_direction, number = np.divmod(
                places[denoising].astype(np.int64) - self._translated, self.denoised
            )
            direction[denoising] = denoising_direction + self._translated // self.pairs
            pair[denoising] = self._order[(epoch * self.denoised + number) % self.pairs]
        return direction, pair.astype(np.uint32)
