"""Pretrained tokenizers give the ids and the text of their own library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from heed.data.batching.batch import (
    Batch,
    TokenSpan,
    causal_lm_batch,
    classification_batch,
    mask_tokens,
    masked_lm_batch,
    translation_batch,
)
from heed.data.batching.denoising import add_noise
from heed.data.corpus import open_corpus
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.pretrained import PretrainedTokenizer
from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS, SPECIAL_TOKEN_NAMES
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import DataError

LINES = ["The old cat sat on the mat.", "A dog sees the cat!", "Who are you, then?", "Été à Paris"]


def wordpiece() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """As BERT's."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = tokenizers.Tokenizer(models.WordPiece(unk_token=names[1]))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    # Not where ours are.
    more = [f"[unused{i}]" for i in range(7)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=[*more, *names], show_progress=False
    )
    core.train_from_iterator(LINES * 3, trainer)
    specials = [(name, core.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=specials
    )
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return core, dict(zip(keys, names, strict=True))


def byte_level() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """As GPT-2's: one mark for all."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(LINES * 3, trainer)
    core.add_special_tokens(["<|endoftext|>"])
    token = {"content": "<|endoftext|>", "lstrip": False}
    return core, {"bos_token": token, "eos_token": token, "unk_token": token}


def unigram() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """As T5's: a decoder begins with padding."""
    core = tokenizers.Tokenizer(models.Unigram())
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=names, unk_token=names[2], show_progress=False
    )
    core.train_from_iterator(LINES * 3, trainer)
    return core, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


KINDS = {"wordpiece": wordpiece, "bytes": byte_level, "unigram": unigram}
MADE = {name: make() for name, make in KINDS.items()}
each_kind = pytest.mark.parametrize("kind", KINDS)


def saved(folder: Path, kind: str, *, config: bool = True) -> Path:
    """A tokenizer in a folder, with what its own library left in it."""
    core, config_json = MADE[kind]
    core = tokenizers.Tokenizer.from_str(core.to_str())
    core.enable_truncation(4)
    core.enable_padding()
    core.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config_json), encoding="utf-8")
    return folder / "tokenizer.json"


def loaded(folder: Path, kind: str) -> PretrainedTokenizer:
    found = Tokenizer.load(saved(folder, kind))
    assert isinstance(found, PretrainedTokenizer)
    return found


@each_kind
def test_ids_and_texts_are_theirs(kind: str, tmp_path: Path) -> None:
    tokenizer, (core, _) = loaded(tmp_path, kind), MADE[kind]
    for text in [*LINES, "cat cat cat cat cat cat", ""]:
        ids = core.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == core.decode(ids)
        assert len(tokenizer.word_indices(text)) == len(tokenizer.tokenize(text)) == len(ids)
    assert tokenizer.vocab_size == core.get_vocab_size()


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=30))
def test_bytes_give_back_any_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    tokenizer = loaded(folder, "bytes")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@each_kind
def test_special_tokens_have_their_own_ids(kind: str, tmp_path: Path) -> None:
    core, specials = MADE[kind][0], loaded(tmp_path, kind).specials

    def number(name: str) -> int | None:
        return core.token_to_id(name)

    expected = {
        "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        "bytes": ("<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "none"),
        "unigram": ("<pad>", "<unk>", "<pad>", "</s>", "none"),
    }[kind]
    found = (specials.pad, specials.unk, specials.bos, specials.eos, specials.mask)
    assert found == tuple(number(name) for name in expected)


@each_kind
def test_it_comes_back_from_a_run_folder(kind: str, tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, kind)
    tokenizer.save(tmp_path / "run" / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "run" / "tokenizer.json")
    assert isinstance(again, PretrainedTokenizer)
    assert again.specials == tokenizer.specials
    assert again.fingerprint() == tokenizer.fingerprint()
    assert again.encode_batch(LINES) == tokenizer.encode_batch(LINES)


def test_fingerprints_differ(tmp_path: Path) -> None:
    found = set()
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        found.add(loaded(tmp_path / kind, kind).fingerprint())
    assert len(found) == len(KINDS)


@each_kind
def test_special_tokens_are_known_by_name_without_a_config(kind: str, tmp_path: Path) -> None:
    (tmp_path / "with-config").mkdir()
    (tmp_path / "by-name").mkdir()
    with_config = loaded(tmp_path / "with-config", kind).specials
    by_name = Tokenizer.load(saved(tmp_path / "by-name", kind, config=False)).specials
    assert (by_name.bos, by_name.eos, by_name.pad) == (
        with_config.bos,
        with_config.eos,
        with_config.pad,
    )


def test_tokens_are_shown_readably(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    shown = {kind: loaded(tmp_path / kind, kind).tokenize("the Été") for kind in KINDS}
    assert "".join(shown["bytes"]).replace("▁", " ") == "the Été"
    assert "".join(shown["unigram"]).startswith("▁the")
    assert shown["wordpiece"][0] == "the"


def test_what_ours_wrote_for_others_is_read_with_our_ids(tmp_path: Path) -> None:
    ours = Tokenizer.train(LINES, kind="bpe", vocab_size=280)
    ours.save(tmp_path / "tokenizer.json")
    assert not isinstance(Tokenizer.load(tmp_path / "tokenizer.json"), PretrainedTokenizer)
    assert ours.specials == DEFAULT_SPECIALS
    assert [ours.core.token_to_id(name) for name in SPECIAL_TOKEN_NAMES] == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------ batches


def store_of(folder: Path, task: str, kind: str, lines: list[str]) -> Store:
    suffix = {"translate": "tsv", "classify": "tsv", "generate": "txt"}[task]
    (folder / f"text.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = open_corpus([str(folder / f"text.{suffix}")], task=task)
    classes = corpus.labels() if task == "classify" else ()
    return open_store(corpus, loaded(folder, kind), classes=classes, root=folder / "cache")


def stretch(store: Store, side: int, more: int) -> TokenSpan:
    rows = np.arange(len(store))
    sizes = store.sides[side].lengths(rows) + more
    return TokenSpan(store.sides[side], rows, np.zeros_like(sizes), sizes)


@each_kind
def test_batches_begin_and_end_with_special_tokens(kind: str, tmp_path: Path) -> None:
    store = store_of(tmp_path, "generate", kind, LINES[:3])
    tokenizer = loaded(tmp_path, kind)
    specials, ids = tokenizer.specials, tokenizer.encode_batch(LINES[:3])
    batch = causal_lm_batch(stretch(store, 0, 1), 30)
    for i, own in enumerate(ids):
        assert batch.ids[i][batch.mask[i]].tolist() == [specials.bos, *own]
        assert batch.targets[i][batch.mask[i]].tolist() == [*own, specials.eos]
        assert set(batch.ids[i][~batch.mask[i]].tolist()) <= {specials.pad}


def test_a_text_to_classify_stands_between_them(tmp_path: Path) -> None:
    lines = ["good\tThe old cat", "bad\tA dog"]
    store = store_of(tmp_path, "classify", "wordpiece", lines)
    tokenizer = loaded(tmp_path, "wordpiece")
    batch = classification_batch(stretch(store, 0, 2), 12, store.labels)
    specials = tokenizer.specials
    read = [row[real].tolist() for row, real in zip(batch.ids, batch.mask, strict=True)]
    own = tokenizer.encode_batch(["The old cat", "A dog"])
    assert read == [[specials.bos, *ids, specials.eos] for ids in own]


def test_a_source_ends_and_a_target_begins(tmp_path: Path) -> None:
    store = store_of(tmp_path, "translate", "unigram", ["the cat\tA dog", "you\tthe mat"])
    tokenizer = loaded(tmp_path, "unigram")
    batch = translation_batch(stretch(store, 0, 1), stretch(store, 1, 1), 16, 16)
    specials = tokenizer.specials
    assert batch.source is not None
    assert batch.source_mask is not None
    source = batch.source[0][batch.source_mask[0]].tolist()
    assert source == [*tokenizer.encode("the cat"), specials.eos]
    assert batch.ids[0][batch.mask[0]].tolist() == [specials.bos, *tokenizer.encode("A dog")]


def test_masked_tokens_show_their_mask_token(tmp_path: Path) -> None:
    store = store_of(tmp_path, "generate", "wordpiece", LINES)
    random = np.random.Generator(np.random.PCG64(0))
    batch = masked_lm_batch(stretch(store, 0, 0), 40, share=0.9, vocab=store.vocab, random=random)
    mask = loaded(tmp_path, "wordpiece").specials.mask
    assert batch.ids.flatten().tolist().count(mask or 0) > 10


def test_without_a_mask_the_key_that_asks_for_it_is_named(tmp_path: Path) -> None:
    """The error names the key of the recipe to leave out."""
    store = store_of(tmp_path, "translate", "unigram", [f"{line}\t{line}" for line in LINES])
    (sources, texts), random = (stretch(store, i, 0) for i in range(2)), np.random.default_rng(0)
    specials = texts.specials
    assert specials.mask is None
    pairs = translation_batch(sources, texts, 40, 40)
    asking: dict[str, Callable[[], Batch]] = {
        "train.source_token_dropout": lambda: mask_tokens(pairs, 0.5, random, specials),
        "train.token_dropout": lambda: mask_tokens(
            classification_batch(texts, 40, None), 0.5, random, specials
        ),
        "data.denoise": lambda: add_noise(pairs, random, specials),
        "train.objective = 'masked'": lambda: masked_lm_batch(
            texts, 40, share=0.5, vocab=store.vocab, random=random
        ),
    }
    for key, ask in asking.items():
        with pytest.raises(DataError, match=f"no mask token.* Leave {key} out"):
            ask()


def test_dropout_of_a_pretrained_tokenizer_is_off(tmp_path: Path) -> None:
    """It is for training: the same text must have the same ids at every call."""
    core, config = byte_level()
    core.model.dropout = 0.5
    core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len({tuple(tokenizer.encode(LINES[0])) for _ in range(20)}) == 1
    tokenizer.save(tmp_path / "saved.json")
    assert json.loads((tmp_path / "saved.json").read_text())["model"]["dropout"] is None
