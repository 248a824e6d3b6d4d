"""Learn a vocabulary from text: frequent words or characters, BPE merges, or a unigram model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from math import inf, log

import tokenizers
from tokenizers import models, trainers

from heed.data.tokenizers.byte_symbols import BYTE_SYMBOLS
from heed.data.tokenizers.special_tokens import SPECIAL_TOKEN_NAMES, UNK
from heed.errors import DataError

_MAX_BYTES = 48  # most bytes in a subword that bpe or unigram learns
_SEED_FACTOR = 4  # unigram starts from this many times the subwords it ends with
_KEEP_SHARE = 0.8  # of the subwords survive each round, as in Kudo (2018)
_UNUSED_COUNT = 0.1  # count of a subword that was never used, so that every byte stays possible
_LONG = re.compile(r"\S{5000}")


def refuse_surrogates(texts: Iterable[str], first: int = 1) -> None:
    for number, text in enumerate(texts, start=first):
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise DataError(
                f"character {problem.start + 1} is half of a surrogate pair, not Unicode text.",
                where=f"text {number}",
                todo="Read the file as UTF-8, or remove that character.",
            ) from None


def check_lines(lines: Iterable[str]) -> Iterator[str]:
    """Pass the lines on; an error if one is not Unicode or none has any text."""
    has_text = False
    for number, line in enumerate(lines, start=1):
        refuse_surrogates([line], number)
        has_text = has_text or bool(line)
        yield line
    if not has_text:
        raise DataError("There is no text to train a tokenizer on.", todo="Give lines with text.")


def break_long_words(line: str) -> str:
    """Insert a space wherever a line has none for long, before learning subwords.

    The time to learn BPE grows with the square of a word's length, and runs so long are not words.
    """
    return _LONG.sub(r"\g<0> ", line)


def number_tokens(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*SPECIAL_TOKEN_NAMES, *tokens))}


def sort_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    return sorted(vocabulary, key=vocabulary.__getitem__)


def count_parts(core: tokenizers.Tokenizer, lines: Iterable[str]) -> Counter[str]:
    """Count the parts that the pre-tokenizer makes, or the characters where there is none."""
    counts: Counter[str] = Counter()
    normalize, pre_tokenizer = core.normalizer.normalize_str, core.pre_tokenizer
    for line in lines:
        text = normalize(line)
        counts.update(
            text
            if pre_tokenizer is None
            else (part for part, _ in pre_tokenizer.pre_tokenize_str(text))
        )
    return counts


def keep_most_frequent(
    kind: str, core: tokenizers.Tokenizer, lines: Iterable[str], size: int | None, min_count: int
) -> models.Model:
    counts = count_parts(core, check_lines(lines))
    ranked = sorted((-count, part) for part, count in counts.items() if count >= min_count)
    if not ranked:
        what = f"No {kind} occurs {min_count} times or more."
        raise DataError(what, todo="Lower min_count, or give more text.")
    room = None if size is None else size - len(SPECIAL_TOKEN_NAMES)
    vocabulary = number_tokens(part for _, part in ranked[:room])
    if kind == "word":
        return models.WordLevel(vocab=vocabulary, unk_token=SPECIAL_TOKEN_NAMES[UNK])
    # BPE without merges makes every character a token.
    return models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL_TOKEN_NAMES[UNK])


def learn_bpe(
    core: tokenizers.Tokenizer, lines: Iterable[str], room: int, min_count: int
) -> models.BPE:
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=min_count,
        initial_alphabet=BYTE_SYMBOLS,
        max_token_length=_MAX_BYTES,
        show_progress=False,
    )
    core.train_from_iterator(lines, trainer)
    learned = json.loads(core.to_str())["model"]
    merges = [(left, right) for left, right in learned["merges"]]
    return models.BPE(vocab=number_tokens(sort_by_id(learned["vocab"])), merges=merges)


def learn_unigram(
    core: tokenizers.Tokenizer, lines: Iterable[str], room: int, min_count: int
) -> models.Unigram:
    """Learn Kudo's (2018) unigram language model, starting from the subwords of a larger BPE.

    The library can train one too, but its result varies from run to run. It also never finds a
    subword that is always followed by a space, so text with spaces around its punctuation is split
    into single characters.
    """
    counts = count_parts(core, lines)
    bpe = tokenizers.Tokenizer(models.BPE())
    words = chain.from_iterable(repeat(word, count) for word, count in counts.items())
    learn_bpe(bpe, words, _SEED_FACTOR * room, max(2, min_count))
    scores = _prune_unigram(counts, sort_by_id(bpe.get_vocab()), room)
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    specials = [(name, 0.0) for name in SPECIAL_TOKEN_NAMES]
    return models.Unigram([*specials, *ranked], UNK, False)


def _prune_unigram(counts: Counter[str], seeds: list[str], room: int) -> dict[str, float]:
    """The `room` subwords that explain the words best, with their log-probabilities.

    The expectation step uses only the most likely segmentation of each word, so counts stay whole
    numbers and the result does not depend on rounding.
    """
    words = sorted(counts)
    unigram = tokenizers.Tokenizer(models.BPE())
    scores = dict.fromkeys(seeds, -log(len(seeds)))
    while True:
        unigram.model = models.Unigram(list(scores.items()), None, False)
        uses_by_id: Counter[int] = Counter()
        for word, segmentation in zip(words, unigram.encode_batch_fast(words), strict=True):
            for token in segmentation.ids:
                uses_by_id[token] += counts[word]
        uses = {token: uses_by_id[number] or _UNUSED_COUNT for number, token in enumerate(scores)}
        total = sum(uses.values())
        scores = {token: log(use / total) for token, use in uses.items()}
        if len(scores) <= room:
            # The library reads back exactly only numbers of few digits.
            return {token: round(score, 4) for token, score in scores.items()}
        loss = {
            token: uses[token] * (scores[token] - _best_split(token, scores)) for token in scores
        }
        ranked = sorted(scores, key=lambda token: (-loss[token], token))
        scores = {
            token: scores[token] for token in ranked[: max(room, int(_KEEP_SHARE * len(ranked)))]
        }


def _best_split(token: str, scores: Mapping[str, float]) -> float:
    """Score of the best split of a subword into smaller ones (Viterbi); -inf for a byte."""
    best = [0.0]
    for stop in range(1, len(token) + 1):
        starts = range(stop == len(token), stop)
        best.append(max((best[i] + scores.get(token[i:stop], -inf) for i in starts), default=-inf))
    return best[-1]
