"""Where a text was looked at while it was written, and what is copied from there."""

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

from heed.data.tokenizers.pretrained import Borrowed
from heed.data.tokenizers.special_tokens import Specials
from heed.data.tokenizers.tokenizer import UNK, Tokenizer
from heed.decode import alignment

KNOWN = ["the", "cat's", "don't", "see,", "(see)", "cat.", "cannot", '"see"', "$3.50"]
NAMES = ["Zorglub", "Zorglub.", "Zorglub's,", "(Zorglub)", "“Zorglub”", "cat/Zorglub"]
texts = st.lists(st.sampled_from(KNOWN + NAMES), min_size=1, max_size=8).map(" ".join)


def test_a_model_in_training_looks_as_it_writes() -> None:
    """Dropout is off, its generator is left alone, and training goes on as it was."""
    model = new_translator(dropout=0.5)
    pairs = [([7, 8, 9], [10, 11]), ([6], [9, 8, 7])]
    wanted = alignment.soft_alignments([model.eval()], pairs)
    model.train()
    before = torch.get_rng_state()
    found = alignment.soft_alignments([model], pairs)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())


def test_a_text_may_have_as_many_pieces_as_there_are_positions() -> None:
    """The last of them is written by what stands before it. And a row is that of its own past."""
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
def test_words_of_many_maps_are_those_of_each(rows: list[int], columns: list[int]) -> None:
    """Layers and heads may stand before the two axes of a map."""
    weights_lhnm = np.random.default_rng(0).random((2, 3, len(rows), len(columns)))
    found = alignment.by_word(weights_lhnm, (rows, 4), (columns, 3))
    for place in np.ndindex(2, 3):
        assert np.allclose(
            found[place], alignment.by_word(weights_lhnm[place], (rows, 4), (columns, 3))
        )


# ----------------------------------------------------------------------------------------- copies


def copied(tokenizer: Tokenizer, text: str) -> tuple[str, list[int]]:
    """A text that is written as it is read, each piece while looking at itself."""
    ids = tokenizer.encode(text)
    return alignment.decode_words(
        tokenizer, ids, alignment.unknown_copies(tokenizer, ids, np.eye(len(ids)), text)
    )


def wordpiece(words: list[str]) -> Borrowed:
    """As BERT's: punctuation apart, and a whole word unknown where a piece of it is."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    signs = [*"()\"'’“”.,$/", "3", "50", "t", "s"]
    vocab = {name: number for number, name in enumerate([*names, *signs, "##not", *words])}
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=names[UNK]))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return Borrowed(core, Specials(0, 1, 2, 3, None), {})


def sentencepiece(letters: str, *, legacy: bool = False) -> Borrowed:
    """Letters, and a mark where a word begins; as Llama's with `legacy`."""
    vocab = [(piece, 0.0) for piece in ("<pad>", "<unk>", "<s>", "</s>")]
    vocab += [(piece, -1.0) for piece in ["▁", *letters, "▁c", "at"]]
    core = tokenizers.Tokenizer(models.Unigram(vocab, 1, False))
    if legacy:
        marks: list[normalizers.Normalizer] = [normalizers.Prepend("▁")]
        core.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", "▁")])
        spaces: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.Fuse()]
        core.decoder = decoders.Sequence([*spaces, decoders.Strip(" ", 1, 0)])
    else:
        core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return Borrowed(core, Specials(0, 1, 2, 3, None), {})


def pair(kind: str) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer that lacks the names, and one that has them."""
    if kind == "wordpiece":
        words = ["the", "cat", "don", "see", "can"]
        return wordpiece(words), wordpiece([*words, "Zorglub"])
    told: dict[str, Any] = {"kind": kind}
    if kind == "treebank":
        told = {"kind": "word", "split": kind}
    lines = [" ".join(KNOWN), *(name.replace("Zorglub", "cat") for name in NAMES)]
    return Tokenizer.train(lines, **told), Tokenizer.train(lines + NAMES, **told)


PAIRS = {kind: pair(kind) for kind in ("word", "treebank", "char", "wordpiece")}


@pytest.mark.parametrize("kind", PAIRS)
@given(text=texts)
def test_what_is_copied_stands_as_if_it_were_known(kind: str, text: str) -> None:
    """The text, and the words its pieces belong to, are those of a tokenizer that lacks nothing."""
    lacking, complete = PAIRS[kind]
    assert (UNK in lacking.encode(text)) == ("Zorglub" in text)
    assert copied(lacking, text) == alignment.decode_words(complete, complete.encode(text))


@pytest.mark.parametrize("legacy", [False, True])
@given(text=st.lists(st.text("catΖλ.", min_size=1), max_size=6).map(" ".join))
def test_letters_are_copied_into_words(legacy: bool, text: str) -> None:
    """Where only a letter is unknown, its neighbours stay with it."""
    assert copied(sentencepiece("cat.", legacy=legacy), text)[0] == text


@given(text=st.lists(st.text("catकी.", min_size=1), min_size=1, max_size=4).map(" ".join))
def test_a_piece_of_a_word_stands_for_the_word(text: str) -> None:
    """For its letters, that is: the full stop after them is a piece that is written anyway."""
    tokenizer = sentencepiece("catकी.")
    pieces = tokenizer.pieces(text)
    copied = alignment.unknown_copies(tokenizer, [UNK] * len(pieces), np.eye(len(pieces)), text)
    found = [copied[place].strip() for place in range(len(pieces))]
    assert {*found} == {*re.findall(r"[^. ]+|[.]", text)}
    assert all(piece.strip("▁") in unit for piece, unit in zip(pieces, found, strict=True))


@given(text=st.text("aé 😀.", max_size=8), kind=st.sampled_from(["bpe", "byte"]))
def test_bytes_that_are_copied_are_text(text: str, kind: str) -> None:
    """Byte-level tokenizers lack nothing, but a model may write `<unk>` all the same."""
    tokenizer = BYTEWISE[kind]
    pieces = tokenizer.encode(text)
    for place in range(len(pieces)):
        weights = np.eye(len(pieces))[[place]]
        found = alignment.decode_words(
            tokenizer, [UNK], alignment.unknown_copies(tokenizer, [UNK], weights, text)
        )
        assert found[0] in text


BYTEWISE = {"bpe": Tokenizer.train(["a é"], kind="bpe"), "byte": Tokenizer.train([], kind="byte")}
