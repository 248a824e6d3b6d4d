"""How long an output may be, which texts are written side by side, and in what sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heed.models import LanguageModel, Translator

TEXTS, TEXTS_ON_GPU = 128, 2048
"""Written side by side, unless someone says how many."""
CELLS = 1 << 14
"""Tokens read side by side, padding included; fewer texts where they are longer."""
BOARD = 0.125
"""On a GPU, the share of free memory that one board may take, should all its texts get as long as
they may."""
AHEAD = 16
"""Tokens to make room for at a time, where shapes are free."""
FEWEST, SHORTEST = 8, 32
"""The smallest board where shapes are few."""
GROUP = 64
"""Texts that are worth reading apart from longer ones."""
WIDE = 64
"""The size from which on boards come in two sizes an octave: there unused seats take time."""
LEFT = 0.95
"""The share of texts still being written below which a free board is made smaller."""


def limits(
    lengths: Sequence[int], *, max_ratio: float, max_extra: int, most: int | None
) -> list[int]:
    """Tokens that may be written for sources of these lengths; `most` where positions end."""
    allowed = [max(1, int(max_ratio * length) + max_extra) for length in lengths]
    return allowed if most is None else [min(limit, most) for limit in allowed]


def batches(
    lengths: Sequence[int], size: int, *, costs: Sequence[int] | None = None, most: int = CELLS
) -> Iterator[list[int]]:
    """Texts of like length side by side, the longest first: what memory must hold, comes first.

    Those of a batch cost no more than `most` together, each as much as the dearest of them: its
    tokens, unless costs are given.
    """
    order, costs = sorted(range(len(lengths)), key=lambda i: -lengths[i]), costs or lengths
    batch, dearest = list[int](), 0
    for i in order:
        dearest = max(dearest, costs[i])
        if batch and (len(batch) == size or dearest * (len(batch) + 1) > most):
            yield batch
            batch, dearest = [], costs[i]
        batch.append(i)
    if batch:
        yield batch


def groups(lengths: Sequence[int], longest: int) -> list[tuple[int, int]]:
    """Texts, the longest first, in groups of like length: how many, and on how long a rung.

    The first is as long as the whole batch.
    """
    found = [(0, longest)]
    for length in lengths:
        count, room = found[-1]
        shorter = min(room, rung(length))
        if shorter < room and count >= GROUP:
            found.append((1, shorter))
        else:
            found[-1] = count + 1, room
    return found


def token_bytes(models: Sequence[Translator | LanguageModel]) -> int:
    """What is kept of a token: a key and a value a layer. An LSTM keeps no more."""
    total = 0
    for model in models:
        config, size = model.config, model.embedding.table.weight.element_size()
        heads, width = config.heads, config.head_width or config.width // config.heads
        layers = config.decoder_layers or config.layers
        total += 2 * layers * (config.kv_heads or heads) * width * size
    return total


class Sizes:
    """The sizes that boards may have: any on a CPU; few where each is captured as a graph."""

    def __init__(self, *, few: bool) -> None:
        self.few = few

    def length(self, tokens: int) -> int:
        """How long a batch of texts of so many tokens is."""
        return rung(tokens) if self.few else tokens

    def room(self, written: int) -> int:
        """Room for more than was written."""
        return max(SHORTEST, rung(written + 1)) if self.few else written + AHEAD

    def seats(self, texts: int) -> int:
        """How large a board for so many texts is."""
        if not self.few:
            return texts
        return rung(texts) if texts > WIDE else max(FEWEST, 1 << (texts - 1).bit_length())

    def worth(self, texts: int, size: int) -> bool:
        """Whether to leave a board of this size when so many texts are left."""
        return self.seats(texts) < size if self.few else texts <= LEFT * size


def seated(rows: Sequence[int]) -> list[int]:
    """The same rows, each where it stood if it can: those behind take the seats left in front."""
    staying = {row for row in rows if row < len(rows)}
    behind = iter([row for row in rows if row not in staying])
    return [seat if seat in staying else next(behind) for seat in range(len(rows))]


def rung(length: int) -> int:
    """The smallest of 8, 16, 24, 32, 48, 64, 96, … that is no less: two sizes an octave."""
    step = 8
    while True:
        for size in (2 * step, 3 * step):
            if length <= size:
                return 8 if length <= 8 else size
        step *= 2
