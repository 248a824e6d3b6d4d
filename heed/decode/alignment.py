"""Soft alignments: which source token a target token was translated from, by cross-attention.

The weights come from a second pass over the finished translation: the mean over layers and heads.
On the synthetic corpus that mean agrees better with the true alignment than any single layer does.

Shapes: b pairs, h heads, n target tokens, m source tokens; N target words, M source words.
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

from heed.data.batching.padding import pad_sequences
from heed.data.tokenizers.byte_symbols import BYTE_SYMBOLS
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.model_step import mean_attention
from heed.models import Translator
from heed.models.inference import evaluating

Floats = NDArray[np.float64]
Links = list[tuple[int, int]]
IdPair = tuple[Sequence[int], Sequence[int]]
"""The ids of a source and of its target, without special tokens."""
MAX_CELLS, MAX_PAIRS = 1 << 20, 64
"""Attention weights per head and pairs that a batch may have."""


def soft_alignments(
    models: Sequence[Translator],
    pairs: Sequence[IdPair],
    *,
    begin: int | None = None,
    specials: SpecialTokens = DEFAULT_SPECIALS,
) -> list[Floats]:
    """For each pair the attention weights [n, m], one row per target token.

    The row of a token is the attention that predicted it. The column of the source's end token is
    left out. `begin` is the first token that the decoder reads, unset the begin token.
    """
    begin = specials.bos if begin is None else begin
    lengths = [max(len(source), len(target)) + 1 for source, target in pairs]
    order = sorted(range(len(pairs)), key=lambda i: -lengths[i])
    alignments: list[Floats] = [np.zeros((0, 0))] * len(pairs)
    with evaluating(*models):
        while order:
            count = max(1, min(MAX_PAIRS, MAX_CELLS // lengths[order[0]] ** 2))
            batch, order = order[:count], order[count:]
            results = _align_batch(models, [pairs[i] for i in batch], begin, specials)
            for i, weights in zip(batch, results, strict=True):
                alignments[i] = weights
    return alignments


def _align_batch(
    models: Sequence[Translator],
    pairs: Sequence[IdPair],
    begin: int,
    specials: SpecialTokens,
) -> list[Floats]:
    means = [mean_attention(cross_weights(model, pairs, begin, specials)) for model in models]
    weights_bnm = torch.stack(means).mean(dim=0).double().cpu().numpy()
    return [
        weights[: len(target), : len(source)]
        for weights, (source, target) in zip(weights_bnm, pairs, strict=True)
    ]


def cross_weights(
    model: Translator, pairs: Sequence[IdPair], begin: int, specials: SpecialTokens
) -> list[Tensor]:
    """The cross-attention of a model with these targets forced: [b, h, n, m] per layer.

    The row of a target token is the attention that predicted it. Rows and columns beyond a pair's
    tokens belong to special tokens and padding.
    """
    device = model.embedding.table.weight.device
    sources = [[*source, specials.eos] for source, _ in pairs]
    source_bm, real_bm = (x.to(device) for x in _pad(sources, specials.pad))
    # The last target token predicts nothing here, and there may be no position left for it.
    target_bn, _ = _pad([[begin, *target[:-1]] for _, target in pairs], specials.pad)
    return model.trace(source_bm, target_bn.to(device), mask=real_bm).cross


def _pad(sequences: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    return pad_sequences([np.array(ids) for ids in sequences], max(map(len, sequences)), pad)


Words = tuple[Sequence[int], int]
"""The index of the word that each token belongs to, and the number of words."""


def by_word(weights_nm: Floats, target: Words, source: Words) -> Floats:
    """Weights [N, M]: summed over the tokens of a source word, averaged over a target word's.

    Further axes, of layers and heads, may stand before these two.
    """
    rows, columns = _membership(*target), _membership(*source)
    rows = rows / np.maximum(1, rows.sum(axis=1, keepdims=True))
    return np.asarray(rows @ weights_nm @ columns.T)


def _membership(word_of_token: Sequence[int], words: int) -> Floats:
    """[words, tokens]: 1 where a token belongs to a word."""
    tokens = np.asarray(word_of_token, np.int64)
    return np.equal.outer(np.arange(words), tokens).astype(np.float64)


def hard_links(weights: Floats) -> Links:
    """(source word, target word): for each target word the source word with the most attention."""
    if not weights.shape[1]:
        return []
    return [(int(row.argmax()), i) for i, row in enumerate(weights)]


def pharaoh_format(links: Links) -> str:
    """`0-0 1-2`: source-target pairs, as alignment tools write them (the Pharaoh format)."""
    return " ".join(f"{source}-{target}" for source, target in links)


def unknown_copies(
    tokenizer: Tokenizer, ids: Sequence[int], weights_nm: Floats, source: str
) -> dict[int, str]:
    """For each index of `<unk>` in a target, the source text it attended to most."""
    unknown = tokenizer.specials.unk
    if unknown not in ids or not weights_nm.shape[1]:
        return {}
    units = list(_source_units(tokenizer, source))
    indices = (i for i, token in enumerate(ids) if token == unknown)
    return {i: units[int(weights_nm[i].argmax())] for i in indices}


def _source_units(tokenizer: Tokenizer, source: str) -> Iterator[str]:
    """The text to copy for each token of a source, with a space before it where a word begins.

    That is the token's text if it is a word or a letter. For a subword of a known word, it is the
    whole word, without the punctuation beside it.
    """
    kind, unknown = tokenizer.kind, tokenizer.specials.unk
    encoding = tokenizer.core.encode(source, add_special_tokens=False)
    words = [word.span() for word in re.finditer(r"x+|[.]", "".join(map(_shape, source)))]
    ends = [end for _, end in words]
    for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        word = bisect_right(ends, start)
        if kind not in ("word", "char") and token != unknown and word < len(words):
            start, stop = words[word]
        after_space = (source[start - 1 : start] or " ").isspace()
        begins = kind == "word" or (kind != "char" and after_space)
        yield " " * begins + source[start:stop]


def _shape(character: str) -> str:
    """A space, a dot for punctuation and symbols, an x for other characters, marks included."""
    is_sign = unicodedata.category(character)[0] in "PS"
    return " " if character.isspace() else "." if is_sign else "x"


def decode_words(
    tokenizer: Tokenizer, ids: Sequence[int], copies: Mapping[int, str] | None = None
) -> tuple[str, list[int]]:
    """The text of `ids` with single spaces, and the index of the word that each id belongs to.

    A model may segment words differently from the tokenizer, so words are counted in the decoded
    prefixes. `copies` replace the tokens at their indices.
    """
    if copies:
        prefixes = list(_prefixes_with_copies(tokenizer, ids, copies))
    else:
        prefixes = tokenizer.decode_batch([ids[: i + 1] for i in range(len(ids))])
    words = [max(0, len(text.split()) - 1) for text in prefixes]
    return " ".join(prefixes[-1].split()) if prefixes else "", words


def _prefixes_with_copies(
    tokenizer: Tokenizer, ids: Sequence[int], copies: Mapping[int, str]
) -> Iterator[str]:
    """The text after each id; the decoder puts spaces around copies as around known tokens."""
    core, tokens = tokenizer.core, list[str]()
    decode = core.decoder.decode if core.decoder else " ".join
    bytewise = decode([f"x{BYTE_SYMBOLS[ord(' ')]}x"]) == "x x"
    for i, token in enumerate(ids):
        if i in copies:
            text = copies[i]
            tokens.append(
                "".join(BYTE_SYMBOLS[byte] for byte in text.encode()) if bytewise else text
            )
        else:
            tokens += [
                core.id_to_token(known) or "" for known in tokenizer.strip_special_tokens([token])
            ]
        yield decode(tokens)
