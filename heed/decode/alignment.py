"""Which source token a target token was written from: soft alignments by cross-attention.

The weights are those of a second pass over the finished text, the mean over layers and heads. On
the generated world that mean agrees better with the true alignment than any one layer does.

Shapes: b pairs, h heads, n target pieces, m source pieces; N target words, M source words.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.batching.bucketed import padded
from heed.data.tokenizers.byte_symbols import BYTES
from heed.data.tokenizers.special_tokens import OWN, Specials
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.model_step import mean_look
from heed.models import Translator
from heed.models.inference import evaluating

Floats = NDArray[np.float64]
Links = list[tuple[int, int]]
Pair = tuple[Sequence[int], Sequence[int]]
"""The ids of a source and of its target, without marks."""
CELLS, TOGETHER = 1 << 20, 64
"""Weights of a head held at a time, and texts."""


def soft_alignments(
    models: Sequence[Translator],
    pairs: Sequence[Pair],
    *,
    begin: int | None = None,
    specials: Specials = OWN,
) -> list[Floats]:
    """For each pair, weights [n, m]: a row a target piece.

    The row of a piece is the one that predicted it. What went to the end mark is left out. `begin`
    is what was read before the first piece, unset the begin mark.
    """
    begin = specials.bos if begin is None else begin
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -lengths[i])
    out: list[Floats] = [np.zeros((0, 0))] * len(pairs)
    with evaluating(*models):
        while order:
            count = max(1, min(TOGETHER, CELLS // lengths[order[0]] ** 2))
            chosen, order = order[:count], order[count:]
            found = _together(models, [pairs[i] for i in chosen], begin, specials)
            for i, weights in zip(chosen, found, strict=True):
                out[i] = weights
    return out


def _together(
    models: Sequence[Translator],
    pairs: Sequence[Pair],
    begin: int,
    specials: Specials,
) -> list[Floats]:
    looks = [mean_look(cross_weights(model, pairs, begin, specials)) for model in models]
    weights_bnm = torch.stack(looks).mean(dim=0).double().cpu().numpy()
    return [
        weights[: len(target), : len(source)]
        for weights, (source, target) in zip(weights_bnm, pairs, strict=True)
    ]


def cross_weights(
    model: Translator, pairs: Sequence[Pair], begin: int, specials: Specials
) -> list[Tensor]:
    """What a model looks at while it writes each target from its source: [b, h, n, m] a layer.

    The row of a target piece is the one that predicted it. Beyond a text's own pieces stand marks.
    """
    device = model.embedding.table.weight.device
    sources = [[*source, specials.eos] for source, _ in pairs]
    read, real = (x.to(device) for x in _side(sources, specials.pad))
    # Its last piece predicts nothing here, and there may be no position left for it.
    written, _ = _side([[begin, *target[:-1]] for _, target in pairs], specials.pad)
    return model.trace(read, written.to(device), mask=real).cross


def _side(texts: list[list[int]], fill: int) -> tuple[Tensor, Tensor]:
    return padded([np.array(ids) for ids in texts], max(map(len, texts)), fill)


Words = tuple[Sequence[int], int]
"""Which word each piece belongs to, and how many words there are."""


def by_word(weights_nm: Floats, target: Words, source: Words) -> Floats:
    """Weights [N, M]: pieces of a source word add up, those of a target word are averaged.

    Other axes, of layers and heads, may stand before these two.
    """
    rows, columns = _members(*target), _members(*source)
    rows = rows / np.maximum(1, rows.sum(axis=1, keepdims=True))
    return np.asarray(rows @ weights_nm @ columns.T)


def _members(word_of_piece: Sequence[int], words: int) -> Floats:
    """[words, pieces]: 1 where a piece belongs to a word."""
    pieces = np.asarray(word_of_piece, np.int64)
    return np.equal.outer(np.arange(words), pieces).astype(np.float64)


def links(weights: Floats) -> Links:
    """(source word, target word): where each target word looked most."""
    if not weights.shape[1]:
        return []
    return [(int(row.argmax()), i) for i, row in enumerate(weights)]


def pharaoh(found: Links) -> str:
    """`0-0 1-2`: source-target pairs, as alignment tools write them."""
    return " ".join(f"{source}-{target}" for source, target in found)


def copies(
    tokenizer: Tokenizer, ids: Sequence[int], weights_nm: Floats, source: str
) -> dict[int, str]:
    """For each place of `<unk>` in a target, what the source piece looked at most stands for."""
    unknown = tokenizer.specials.unk
    if unknown not in ids or not weights_nm.shape[1]:
        return {}
    units = list(_units(tokenizer, source))
    places = (place for place, token in enumerate(ids) if token == unknown)
    return {place: units[int(weights_nm[place].argmax())] for place in places}


def _units(tokenizer: Tokenizer, source: str) -> Iterator[str]:
    """What each piece of a source stands for, a space before it where a word begins.

    That is its own text, a word or a letter; for part of a known word, all of that word, without
    the signs beside it.
    """
    kind, unknown = tokenizer.kind, tokenizer.specials.unk
    found = tokenizer.core.encode(source, add_special_tokens=False)
    words = [word.span() for word in re.finditer(r"x+|[.]", "".join(map(_shape, source)))]
    ends = [end for _, end in words]
    for token, (start, stop) in zip(found.ids, found.offsets, strict=True):
        word = bisect_right(ends, start)
        if kind not in ("word", "char") and token != unknown and word < len(words):
            start, stop = words[word]
        after_space = (source[start - 1 : start] or " ").isspace()
        begins = kind == "word" or (kind != "char" and after_space)
        yield " " * begins + source[start:stop]


def _shape(character: str) -> str:
    """A space, a dot for punctuation and symbols, an x for what words are made of: marks, too."""
    sign = unicodedata.category(character)[0] in "PS"
    return " " if character.isspace() else "." if sign else "x"


def spelled(
    tokenizer: Tokenizer, ids: Sequence[int], copied: Mapping[int, str] | None = None
) -> tuple[str, list[int]]:
    """The text of `ids`, single spaces between words, and which word each id belongs to.

    A model need not cut words as the tokenizer would: they are counted in the text so far.
    """
    if copied:
        so_far = list(_with_copies(tokenizer, ids, copied))
    else:
        so_far = tokenizer.decode_batch([ids[: i + 1] for i in range(len(ids))])
    words = [max(0, len(text.split()) - 1) for text in so_far]
    return " ".join(so_far[-1].split()) if so_far else "", words


def _with_copies(
    tokenizer: Tokenizer, ids: Sequence[int], copied: Mapping[int, str]
) -> Iterator[str]:
    """The text after each id: its decoder sets spaces around copies as around pieces it knows."""
    core, pieces = tokenizer.core, list[str]()
    decode = core.decoder.decode if core.decoder else " ".join
    bytewise = decode([f"x{BYTES[ord(' ')]}x"]) == "x x"
    for i, token in enumerate(ids):
        if i in copied:
            read = copied[i]
            pieces.append("".join(BYTES[byte] for byte in read.encode()) if bytewise else read)
        else:
            pieces += [
                core.id_to_token(known) or "" for known in tokenizer.without_specials([token])
            ]
        yield decode(pieces)
