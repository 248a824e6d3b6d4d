"""Tokenizers: round trips, special tokens, determinism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from heed.data.tokenizers.special_tokens import BOS, EOS, MASK, PAD, SPECIAL_TOKEN_NAMES, UNK
from heed.data.tokenizers.tokenizer import KINDS, Tokenizer
from heed.data.tokenizers.vocabulary import break_long_words
from heed.errors import DataError

SIZE = 340  # less than the corpus could fill
LOSSLESS = ("bpe", "unigram", "byte")
LINES = [
    f"{subject} {verb} {thing} {end}"
    for subject in ("The old captain", "A clever fox", "Notre élève", "Everyone at sea")
    for verb in ("watches", "remembers", "follows", "n'oublie pas")
    for thing in ("the lighthouse,", "a distant island", "l'été dernier", "<eos> and <pad>")
    for end in ("quietly.", "again and again!", "☂ 雨 😀", "(1234)")
]
TRICKY = [
    "",
    " ",
    "  two  spaces  ",
    "\n\n\ttabs and\r\nlines \n",
    "👩‍👩‍👧‍👦 émoji e\u0301",
    "▁Ġ<0x41>Ċ",
    "<pad><unk> <bos>a<eos>",
    "\x00\x1c\x85\ufeff\u2028",
    "don't we'll I'M",
]


@cache
def trained(kind: str, lowercase: bool = False) -> Tokenizer:
    size = SIZE if kind in ("bpe", "unigram") else None
    return Tokenizer.train(LINES, kind=kind, vocab_size=size, lowercase=lowercase)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", TRICKY)
def test_tricky_text_comes_back(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=st.text())
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(len(SPECIAL_TOKEN_NAMES) <= i < tokenizer.vocab_size for i in ids)


@given(text=st.text(st.sampled_from(sorted(set("".join(LINES))))))
@settings(deadline=None, max_examples=60)
def test_char_gives_back_text_of_characters_it_saw(text: str) -> None:
    tokenizer = trained("char")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)


@given(text=st.lists(st.sampled_from(" ".join(LINES).split())).map("  \n".join))
@settings(deadline=None, max_examples=60)
def test_word_gives_back_known_words_with_single_spaces(text: str) -> None:
    tokenizer = trained("word")
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


@given(text=st.text(st.characters(categories=["L"]), min_size=1))
@settings(deadline=None, max_examples=60)
def test_lowercase_keeps_no_difference_of_case(text: str) -> None:
    tokenizer = trained("bpe", lowercase=True)
    once = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(once)) == once
    if text.isascii():
        assert once == text.lower()


def test_lowercase_makes_one_word_of_two_spellings() -> None:
    tokenizer = trained("word", lowercase=True)
    assert tokenizer.encode("THE Fox") == tokenizer.encode("the fox")
    assert UNK not in tokenizer.encode("THE Fox")


def test_words_and_characters_never_seen_are_unknown() -> None:
    assert trained("word").encode("fox zebra") == [trained("word").encode("fox")[0], UNK]
    assert trained("word").tokenize("fox zebra") == ["fox", "<unk>"]
    assert trained("char").encode("ж") == [UNK]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_same_ids_and_are_never_read_from_text(kind: str) -> None:
    tokenizer = trained(kind)
    assert (PAD, UNK, BOS, EOS, MASK) == (0, 1, 2, 3, 4)
    assert tokenizer.ids_to_tokens(range(5)) == list(SPECIAL_TOKEN_NAMES)
    text = "<eos> and <pad>"
    ids = tokenizer.encode(text)
    assert min(ids) >= len(SPECIAL_TOKEN_NAMES)
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_a_corpus_of_special_names_teaches_none_of_them(kind: str) -> None:
    lines = [" ".join(SPECIAL_TOKEN_NAMES), "".join(SPECIAL_TOKEN_NAMES), " <pad>"] * 50
    tokenizer = Tokenizer.train(lines, kind=kind, vocab_size=300)
    for line in lines[:2]:
        assert min(tokenizer.encode(line)) >= len(SPECIAL_TOKEN_NAMES)
        assert tokenizer.decode(tokenizer.encode(line)) == line


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_texts_one_by_one(kind: str) -> None:
    tokenizer = trained(kind)
    batch = tokenizer.encode_batch(LINES[:9])
    assert batch == [tokenizer.encode(line) for line in LINES[:9]]
    assert tokenizer.decode_batch(batch) == [tokenizer.decode(ids) for ids in batch]


def test_byte_ids_are_the_bytes() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    assert tokenizer.vocab_size == 256 + len(SPECIAL_TOKEN_NAMES)
    assert tokenizer.encode("é☂") == [5 + byte for byte in "é☂".encode()]


def test_the_byte_alphabet_is_the_library_s(tmp_path: Path) -> None:
    trained("byte").save(tmp_path / "tokenizer.json")
    saved = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert set(saved["model"]["vocab"]) - set(SPECIAL_TOKEN_NAMES) == set(
        pre_tokenizers.ByteLevel.alphabet()
    )


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.one_of(st.text(), st.sampled_from(LINES), st.sampled_from(TRICKY)))
@settings(deadline=None, max_examples=60)
def test_each_id_has_a_token_and_a_word(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    ids, words = tokenizer.encode(text), tokenizer.word_indices(text)
    assert len(tokenizer.tokenize(text)) == len(words) == len(ids)
    assert words == sorted(words)
    assert all(0 <= word < max(1, len(text.split())) for word in words)


@pytest.mark.parametrize("kind", LOSSLESS)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1)))
@settings(deadline=None, max_examples=60)
def test_the_tokens_of_a_word_spell_that_word(kind: str, words: list[str]) -> None:
    tokenizer, text = trained(kind), " ".join(words)
    ids_of: list[list[int]] = [[] for _ in words]
    for token, number in zip(tokenizer.encode(text), tokenizer.word_indices(text), strict=True):
        ids_of[number].append(token)
    assert [tokenizer.decode(ids).lstrip(" ") for ids in ids_of] == words


def test_tokens_are_readable() -> None:
    assert trained("byte").tokenize("a b\n") == ["a", "▁", "b", "↵"]
    assert trained("byte").tokenize("é") == ["\\xc3", "\\xa9"]
    assert trained("char").tokenize("é a") == ["é", "▁", "a"]
    assert "".join(trained("bpe").tokenize("The old  fox")) == "▁The▁old▁▁fox"


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(kind: str, lowercase: bool, tmp_path: Path) -> None:
    tokenizer = trained(kind, lowercase)
    path = tmp_path / "run" / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert (loaded.kind, loaded.lowercase) == (kind, lowercase)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode_batch(LINES) == tokenizer.encode_batch(LINES)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_alone_reads_the_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained(kind).save(path)
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert all(plain.encode(text).ids == trained(kind).encode(text) for text in TRICKY + LINES)


def test_fingerprints_of_tokenizers_differ() -> None:
    several = [trained(kind, lowercase) for kind in KINDS for lowercase in (False, True)]
    several.append(Tokenizer.train(LINES, kind="bpe", vocab_size=SIZE + 1))
    several.append(Tokenizer.train(LINES[:50], kind="unigram", vocab_size=SIZE))
    assert len({tokenizer.fingerprint() for tokenizer in several}) == len(several)


TRAIN_IN_A_PROCESS = """
import sys
from pathlib import Path
from heed.data.tokenizers.tokenizer import Tokenizer
lines = Path(sys.argv[1]).read_text(encoding="utf-8").split("\\n")
for kind in ("bpe", "unigram", "word", "char"):
    size = 340 if kind in ("bpe", "unigram") else None
    Tokenizer.train(lines, kind=kind, vocab_size=size).save(Path(sys.argv[2]) / f"{kind}.json")
"""


def test_training_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(LINES), encoding="utf-8")
    results = []
    for seed, threads, parallel in (("1", "1", "true"), ("2", "4", "true"), ("3", "2", "false")):
        folder = tmp_path / seed
        variables = {
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": parallel,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        done = subprocess.run(
            [sys.executable, "-c", TRAIN_IN_A_PROCESS, str(corpus), str(folder)],
            env={**os.environ, **variables},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert done.stdout == b""
        assert done.stderr.strip() == b""
        results.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert results[0] == results[1] == results[2]
    trained("unigram").save(tmp_path / "here.json")
    assert results[0]["unigram.json"] == (tmp_path / "here.json").read_bytes()


FORK = """
import os
from heed.data.tokenizers.tokenizer import Tokenizer
tokenizer = Tokenizer.train(["a fork in the road"] * 9, kind="bpe", vocab_size=270)
before = tokenizer.encode_batch(["a fork"] * 3000)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode_batch(["a fork"] * 3000) == before else 1)
assert os.waitpid(child, 0)[1] == 0
assert "TOKENIZERS_PARALLELISM" not in os.environ
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_encodes_without_a_warning() -> None:
    variables = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=variables, capture_output=True, check=True, timeout=60
    )
    assert done.stderr.strip() == b""


def test_unigram_keeps_whole_words_of_text_with_punctuation_set_apart() -> None:
    lines = ["the lamp , the lamp and the ship .", "a ship , the lamp , a lamp ."] * 20
    tokenizer = Tokenizer.train(lines, kind="unigram", vocab_size=300)
    assert tokenizer.tokenize("the lamp , a ship .") == ["▁the", "▁lamp", "▁,", "▁a", "▁ship", "▁."]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [261, 300, SIZE])
def test_vocab_size_is_reached(kind: str, size: int) -> None:
    assert Tokenizer.train(LINES, kind=kind, vocab_size=size).vocab_size == size


def test_word_and_char_keep_the_most_frequent() -> None:
    lines = ["b b b a a c"]
    words = Tokenizer.train(lines, kind="word", vocab_size=7)
    assert words.vocab_size == 7
    assert words.encode("b a c") == [5, 6, UNK]
    assert Tokenizer.train(lines, kind="word", min_count=3).encode("b a c") == [5, UNK, UNK]
    assert Tokenizer.train(lines, kind="char", min_count=2).encode("c") == [UNK]


def test_min_count_stops_bpe_from_joining_what_is_rare() -> None:
    common = Tokenizer.train(LINES, kind="bpe", vocab_size=2000, min_count=100)
    every = Tokenizer.train(LINES, kind="bpe", vocab_size=2000)
    assert common.vocab_size < every.vocab_size


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'unigram'"):
        Tokenizer.train(LINES, kind="unigrams")


@pytest.mark.parametrize(
    ("kind", "size", "least"),
    [("bpe", 260, 261), ("unigram", 100, 261), ("word", 5, 6), ("char", 3, 6)],
)
def test_a_vocabulary_smaller_than_the_alphabet_is_refused(
    kind: str, size: int, least: int
) -> None:
    with pytest.raises(DataError, match=rf"vocab_size is {size}\b.*Give {least} or more"):
        Tokenizer.train(LINES, kind=kind, vocab_size=size)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
@pytest.mark.parametrize("lines", [[], [""], ["", ""]])
def test_no_text_is_refused(kind: str, lines: list[str]) -> None:
    with pytest.raises(DataError, match="no text"):
        Tokenizer.train(lines, kind=kind)


def test_settings_that_keep_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="No word occurs 9 times"):
        Tokenizer.train(["a b c"], kind="word", min_count=9)
    with pytest.raises(DataError, match="min_count is 0"):
        Tokenizer.train(["a b c"], kind="word", min_count=0)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
@pytest.mark.parametrize("lines", [["a"], [" "], ["ab"], ["\n", "\t"]])
def test_a_corpus_of_next_to_nothing(kind: str, lines: list[str]) -> None:
    if kind == "word" and not "".join(lines).strip():
        with pytest.raises(DataError, match="No word"):
            Tokenizer.train(lines, kind=kind)
        return
    tokenizer = Tokenizer.train(lines, kind=kind)
    assert tokenizer.decode_batch(tokenizer.encode_batch(lines)) == lines


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match="text 2: character 3 is half of a surrogate pair"):
        trained(kind).encode_batch(["fine", "no\ud800"])
    with pytest.raises(DataError, match="surrogate"):
        trained(kind).word_indices("\ud800")
    if kind != "byte":
        with pytest.raises(DataError, match="text 2: character 1"):
            Tokenizer.train(["fine", "\udfff"], kind=kind)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_ids_of_another_tokenizer_are_refused(wrong: int) -> None:
    with pytest.raises(DataError, match=f"no token {wrong}"):
        trained("char").decode([5, wrong])
    with pytest.raises(DataError, match=f"no token {wrong}"):
        trained("char").ids_to_tokens([5, wrong])


def test_files_that_are_no_tokenizer_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match=r"tokenizer\.json: there is no tokenizer file"):
        Tokenizer.load(path)
    for content in (b"not json", b"\xff\xfe", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"tokenizer\.json: this is not JSON"):
            Tokenizer.load(path)
    for content in (b"[1, 2]", b"{}", b'{"model": {"type": "BPE"}}'):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"tokenizer\.json: .* not a tokenizer"):
            Tokenizer.load(path)
    others = [models.BPE(vocab={"a": 0}, merges=[]), models.WordLevel(vocab={"<pad>": 0})]
    for model in others:
        tokenizers.Tokenizer(model).save(str(path))
        with pytest.raises(DataError, match=r"tokenizer\.json: .* not trained by heed"):
            Tokenizer.load(path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_long_line_without_spaces_is_broken_for_learning(kind: str) -> None:
    line = "the gene " + "acgtta" * 50_000
    assert max(map(len, break_long_words(line).split())) < len(line) / 10
    assert break_long_words(line).replace(" ", "") == line.replace(" ", "")
    assert break_long_words(line[:1000]) == line[:1000]
    tokenizer = Tokenizer.train([line], kind=kind, vocab_size=300)
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert len(tokenizer.encode(line)) < len(line) / 3
