"""Soft alignments by cross-attention, and unknown words copied from the source."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import new_translator
from tokenizers import decoders, models, normalizers, pre_tokenizers

from heed.data.tokenizers.pretrained import PretrainedTokenizer
from heed.data.tokenizers.special_tokens import UNK, SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import alignment

KNOWN = ["the", "cat's", "don't", "see,", "(see)", "cat.", "cannot", '"see"', "$3.50"]
NAMES = ["Zorglub", "Zorglub.", "Zorglub's,", "(Zorglub)", "“Zorglub”", "cat/Zorglub"]
texts = st.lists(st.sampled_from(KNOWN + NAMES), min_size=1, max_size=8).map(" ".join)


def test_alignments_of_a_model_in_training_mode_are_those_of_evaluation_mode() -> None:
    """Dropout is off, the random state is untouched, and the mode is restored."""
    model = new_translator(dropout=0.5)
    pairs = [([7, 8, 9], [10, 11]), ([6], [9, 8, 7])]
    expected = alignment.soft_alignments([model.eval()], pairs)
    model.train()
    before = torch.get_rng_state()
    result = alignment.soft_alignments([model], pairs)
    assert all(np.array_equal(a, b) for a, b in zip(result, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())


def test_a_target_may_have_as_many_tokens_as_there_are_positions() -> None:
    """The last token is predicted from the one before. A row depends on its past only."""
    model, source = new_translator(position="learned", max_positions=8).eval(), [7, 8]
    target = [9, 10, 11, 12, 13, 14, 15, 16]
    whole, *parts = alignment.soft_alignments(
        [model], [(source, target[:n]) for n in (len(target), 5, 1, 0)]
    )
    assert whole.shape == (len(target), len(source))
    for part in parts:
        assert np.allclose(part, whole[: len(part)], atol=1e-6)


@given(
    rows=st.lists(st.integers(0, 3), max_size=5), columns=st.lists(st.integers(0, 2), max_size=5)
)
def test_by_word_takes_layers_and_heads_at_once(rows: list[int], columns: list[int]) -> None:
    """Further axes may stand before the two of a map."""
    weights_lhnm = np.random.default_rng(0).random((2, 3, len(rows), len(columns)))
    result = alignment.by_word(weights_lhnm, (rows, 4), (columns, 3))
    for index in np.ndindex(2, 3):
        assert np.allclose(
            result[index], alignment.by_word(weights_lhnm[index], (rows, 4), (columns, 3))
        )


# ----------------------------------------------------------------------------------------- copies


def copied(tokenizer: Tokenizer, text: str) -> tuple[str, list[int]]:
    """A target equal to its source, each token attending to itself."""
    ids = tokenizer.encode(text)
    return alignment.decode_words(
        tokenizer, ids, alignment.unknown_copies(tokenizer, ids, np.eye(len(ids)), text)
    )


def wordpiece(words: list[str]) -> PretrainedTokenizer:
    """BERT's kind: punctuation split off, a word is unknown if one of its subwords is."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    signs = [*"()\"'’“”.,$/", "3", "50", "t", "s"]
    vocab = {name: number for number, name in enumerate([*names, *signs, "##not", *words])}
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=names[UNK]))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return PretrainedTokenizer(core, SpecialTokens(0, 1, 2, 3, None), {})


def sentencepiece(letters: str, *, legacy: bool = False) -> PretrainedTokenizer:
    """Letters, and a symbol where a word begins; Llama's kind with `legacy`."""
    vocab = [(token, 0.0) for token in ("<pad>", "<unk>", "<s>", "</s>")]
    vocab += [(token, -1.0) for token in ["▁", *letters, "▁c", "at"]]
    core = tokenizers.Tokenizer(models.Unigram(vocab, 1, False))
    if legacy:
        marks: list[normalizers.Normalizer] = [normalizers.Prepend("▁")]
        core.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
        spaces: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.Fuse()]
        core.decoder = decoders.Sequence([*spaces, decoders.Strip(" ", 1, 0)])
    else:
        core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PretrainedTokenizer(core, SpecialTokens(0, 1, 2, 3, None), {})


def pair(kind: str) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer without the names in its vocabulary, and one with them."""
    if kind == "wordpiece":
        words = ["the", "cat", "don", "see", "can"]
        return wordpiece(words), wordpiece([*words, "Zorglub"])
    options: dict[str, Any] = {"kind": kind}
    if kind == "treebank":
        options = {"kind": "word", "split": kind}
    lines = [" ".join(KNOWN), *(name.replace("Zorglub", "cat") for name in NAMES)]
    return Tokenizer.train(lines, **options), Tokenizer.train(lines + NAMES, **options)


PAIRS = {kind: pair(kind) for kind in ("word", "treebank", "char", "wordpiece")}


@pytest.mark.parametrize("kind", PAIRS)
@given(text=texts)
def test_copies_are_decoded_like_known_words(kind: str, text: str) -> None:
    """Text and word indices equal those of a tokenizer with a full vocabulary."""
    lacking, complete = PAIRS[kind]
    assert (UNK in lacking.encode(text)) == ("Zorglub" in text)
    assert copied(lacking, text) == alignment.decode_words(complete, complete.encode(text))


@pytest.mark.parametrize("legacy", [False, True])
@given(text=st.lists(st.text("catΖλ.", min_size=1), max_size=6).map(" ".join))
def test_letters_are_copied_into_words(legacy: bool, text: str) -> None:
    """A single unknown letter stays joined to its neighbors."""
    assert copied(sentencepiece("cat.", legacy=legacy), text)[0] == text


@given(text=st.lists(st.text("catकी.", min_size=1), min_size=1, max_size=4).map(" ".join))
def test_a_subword_copies_its_whole_word(text: str) -> None:
    """Only its letters: the full stop after them is a token of its own."""
    tokenizer = sentencepiece("catकी.")
    tokens = tokenizer.tokenize(text)
    copied = alignment.unknown_copies(tokenizer, [UNK] * len(tokens), np.eye(len(tokens)), text)
    result = [copied[index].strip() for index in range(len(tokens))]
    assert {*result} == {*re.findall(r"[^. ]+|[.]", text)}
    assert all(token.strip("▁") in unit for token, unit in zip(tokens, result, strict=True))


@given(text=st.text("aé 😀.", max_size=8), kind=st.sampled_from(["bpe", "byte"]))
def test_copied_bytes_are_text(text: str, kind: str) -> None:
    """Byte-level tokenizers have no unknown words, but a model may generate `<unk>`."""
    tokenizer = BYTEWISE[kind]
    tokens = tokenizer.encode(text)
    for index in range(len(tokens)):
        weights = np.eye(len(tokens))[[index]]
        result = alignment.decode_words(
            tokenizer, [UNK], alignment.unknown_copies(tokenizer, [UNK], weights, text)
        )
        assert result[0] in text


BYTEWISE = {"bpe": Tokenizer.train(["a é"], kind="bpe"), "byte": Tokenizer.train([], kind="byte")}
