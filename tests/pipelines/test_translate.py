"""The translation pipeline: blank and long texts, unknown words, alignments."""

from __future__ import annotations

import re
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import new_translator

from heed.config import DecodeConfig
from heed.data.tokenizers.special_tokens import UNK
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode import alignment
from heed.decode.settings import build_strategy, merge_decode_config
from heed.errors import ConfigError, DataError, RunError
from heed.models import Translator, build
from heed.pipelines.line_io import require_iterable, require_texts
from heed.pipelines.split_long import SENTENCE_END, split_long
from heed.pipelines.translate import Translation, TranslationPipeline

LINES = ["the old cat sees a dog", "a dog sees the cat .", "un chat voit le chien !"]
WILD = [
    "",
    " ",
    "\t \x0c",
    "😀👩‍👩‍👧 ok",
    "\x00\x07\x1b[31m",
    "שלום עולם",
    "a\u2028b\x85c\rd",
    "cat " * 300,
]
anything = st.text(max_size=60)


def pipeline(kind: str = "bpe", longest: int = 20, **settings: Any) -> TranslationPipeline:
    """A translator with random weights over a tokenizer of this kind."""
    tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=280 if kind == "bpe" else None)
    base = new_translator()
    model = build("translate", base.config, vocab=tokenizer.vocab_size)
    assert isinstance(model, Translator)
    nbest, aligned = settings.pop("nbest", 1), settings.pop("alignments", False)
    decode = DecodeConfig(**({"max_ratio": 0.5, "max_extra": 4} | settings))
    assert isinstance(nbest, int)
    return TranslationPipeline(
        [model.eval()], tokenizer, decode, max_source=longest, nbest=nbest, alignments=bool(aligned)
    )


# ----------------------------------------------------------------------------- what is asked for

decode_settings = st.fixed_dictionaries(
    {}, optional={"sample": st.booleans(), "beam": st.integers(1, 5), "seed": st.integers(0, 9)}
)


@given(recipe=decode_settings, flags=decode_settings)
def test_settings_override_the_recipe(recipe: dict[str, Any], flags: dict[str, Any]) -> None:
    """Always, except that sampling and a beam together are an error."""
    if recipe.get("sample"):
        recipe["beam"] = 1
    before = DecodeConfig(**recipe)
    if flags.get("sample") and flags.get("beam", 1) > 1:
        with pytest.raises(ConfigError, match="two ways"):
            merge_decode_config(before, flags)
        return
    after = merge_decode_config(before, flags).model_dump()
    assert after | flags == after
    ways = {"sample", "beam"}
    if not ways & flags.keys():
        assert after == before.model_dump() | flags


# ---------------------------------------------------------------------------------- one for each


@settings(max_examples=15)
@given(lines=st.lists(anything | st.sampled_from(WILD), max_size=6))
def test_every_text_has_its_translation(lines: list[str]) -> None:
    """In order, blank for a blank text, and never more than a line."""
    translations = BPE.translate(lines)
    assert [one.source for one in translations] == lines
    for line, one in zip(lines, translations, strict=True):
        assert one.line(scores=True).splitlines() in ([], [one.line(scores=True)])
        assert bool(one.choices) == bool(line.strip())


BPE = pipeline()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_every_tokenizer_takes_any_text(kind: str) -> None:
    translations = pipeline(kind, nbest=2, beam=2, alignments=True, copy_unknown=True).translate(
        WILD
    )
    assert [bool(one.choices) for one in translations] == [bool(line.strip()) for line in WILD]
    for one in translations:
        for choice in one.choices:
            read, written = len(one.source.split()), len(choice.text.split())
            assert all(0 <= s < read and 0 <= t < written for s, t in choice.links)


def test_a_translation_does_not_depend_on_the_batch() -> None:
    together = BPE.translate(LINES)
    for line, one in zip(LINES, together, strict=True):
        (alone,) = BPE.translate([line])
        assert alone.choices[0].score == pytest.approx(one.choices[0].score, abs=1e-4)


# -------------------------------------------------------------------------------------- too long


@given(text=st.text(alphabet="ab ,.!?。\n", max_size=80), longest=st.integers(1, 12))
def test_parts_join_to_the_whole(text: str, longest: int) -> None:
    """In order, and none is too long."""
    spans = split_long(text, lambda some: [len(one) <= longest for one in some])
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(stop - start <= longest for start, stop in spans)


def test_sentences_stay_whole() -> None:
    text = "One is short. Is two? Three, which is long, has a clause! 四。五。"
    spans = split_long(text, lambda some: [len(one) <= 25 for one in some])
    said = [text[start:stop].strip() for start, stop in spans]
    assert said == [
        "One is short.",
        "Is two?",
        "Three, which is long,",
        "has a clause!",
        "四。",
        "五。",
    ]


@pytest.mark.parametrize(
    "run", [".", "…", "!?", '"', ")", ".'", ".)", " ", ". ", ",", "。", "—", "a", "\u2028"]
)
def test_long_runs_of_a_sign_take_linear_time(run: str) -> None:
    """In quadratic time 100,000 of them would take minutes; the alarm fires after one."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        for text in (run * 100_000 + "a", "." + run * 100_000 + "a"):
            spans = split_long(text, lambda some: [len(one) <= 1000 for one in some])
            assert spans[0][0] == 0
            assert spans[-1][1] == len(text)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@given(text=st.text(alphabet="a.!?…\"') \n。", max_size=30))
def test_a_sentence_ends_after_its_signs_and_space(text: str) -> None:
    naive = re.compile(r"[.!?…؟।]+[\"'”’»)\]]*\s+|[。！？]+")
    assert [m.span() for m in SENTENCE_END.finditer(text)] == [
        m.span() for m in naive.finditer(text)
    ]


def test_a_long_text_is_split_and_no_part_is_lost() -> None:
    long = "the cat sees a dog . " * 12
    (whole,) = pipeline(nbest=3, beam=3, alignments=True).translate([long])
    assert whole.parts == 12
    assert len(whole.choices) == 3
    scores = [choice.score for choice in whole.choices]
    assert scores == sorted(scores, reverse=True)
    sources = {source for source, _ in whole.choices[0].links}
    assert max(sources) >= 6 * 11  # the last part's words count from where it begins


# ------------------------------------------------------------------------- what belongs together


def test_alignments_are_of_words() -> None:
    (one,) = pipeline(alignments=True).translate(["the old cat sees"])
    choice = one.choices[0]
    assert choice.weights is not None
    assert choice.weights.shape == (len(choice.text.split()), 4)
    assert (choice.weights >= 0).all()
    assert (choice.weights.sum(axis=1) <= 1 + 1e-6).all()
    assert choice.links == [(int(row.argmax()), i) for i, row in enumerate(choice.weights)]
    pairs = one.line(alignments=True).split("\t")[1].split()
    assert pairs == [f"{source}-{target}" for source, target in choice.links]


@settings(max_examples=20)
@given(text=anything)
def test_decode_words_counts_the_words_of_the_text(text: str) -> None:
    ids = BPE.tokenizer.encode(text)
    decoded, words = alignment.decode_words(BPE.tokenizer, ids)
    assert decoded.split() == BPE.tokenizer.decode(ids).split()
    assert len(words) == len(ids)
    assert words == sorted(words)
    assert max(words, default=0) == max(0, len(decoded.split()) - 1)


def test_unknown_words_are_copied() -> None:
    """From the source word with the most attention."""
    tokenizer = Tokenizer.train(LINES, kind="word")
    ids = [*tokenizer.encode("le"), UNK, *tokenizer.encode("voit"), UNK]
    source = "the Zorglub sees Zara"
    weights = np.eye(4)[[0, 1, 2, 3]]
    copied = alignment.unknown_copies(tokenizer, ids, weights, source)
    assert alignment.decode_words(tokenizer, ids, copied) == ("le Zorglub voit Zara", [0, 1, 2, 3])
    assert alignment.decode_words(tokenizer, ids)[0] == "le voit"
    letters = Tokenizer.train(LINES, kind="char")
    ids = [letters.encode("c")[0], UNK, letters.encode("t")[0]]
    copied = alignment.unknown_copies(letters, ids, np.eye(3), "xöz")
    assert alignment.decode_words(letters, ids, copied)[0] == "cöt"


def test_unknown_words_are_copied_when_asked() -> None:
    """A model that generates only `<unk>` returns words of the source."""
    copying, plain = pipeline("word", copy_unknown=True), pipeline("word")
    for one in (copying, plain):
        table = one.models[0].embedding.table.weight.data
        table[:] = table[UNK] * 0.9
        table[UNK] *= 1 / 0.9
    words = ["the", "Zorglub", "sees"]
    words_out = copying.translate([" ".join(words)])[0].text.split()
    assert words_out
    assert set(words_out) <= set(words)
    assert plain.translate([" ".join(words)])[0].text == ""


# ---------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("decode", [{}, {"beam": 3}, {"sample": True}])
@pytest.mark.parametrize("texts", [1, 100])
def test_weights_that_are_nan_are_an_error(decode: dict[str, Any], texts: int) -> None:
    """An empty line would pass for a translation."""
    broken = pipeline(**decode)
    with torch.no_grad():
        broken.models[0].embedding.table.weight[10] = torch.nan
    with pytest.raises(RunError, match=r"^weight embedding\.table\.weight: .* not a number"):
        broken.translate(["the cat sees a dog"] * texts)


def test_contradicting_settings_are_refused() -> None:
    for beam, nbest in ((2, 3), (1, 0)):
        with pytest.raises(ConfigError, match="nbest"):
            build_strategy(DecodeConfig(beam=beam), nbest)
    with pytest.raises(ConfigError, match="two ways"):
        DecodeConfig(sample=True, beam=2)


def test_a_blank_text_is_an_empty_line() -> None:
    blank = Translation(" ", [], 0)
    assert blank.line(scores=True, alignments=True) == ""


@settings(max_examples=10)
@given(
    lines=st.lists(anything | st.sampled_from(WILD), max_size=4),
    nbest=st.booleans(),
    alignments=st.booleans(),
)
def test_json_has_the_same_keys_for_every_text(
    lines: list[str], nbest: bool, alignments: bool
) -> None:
    """Blank or not: the keys that docs/decoding.md lists, and those asked for."""
    keys = ["source", "translation", "score", "cut", "parts"]
    keys += ["nbest"] * nbest + ["alignment", "weights"] * alignments
    for one in SEVERAL.translate(lines):
        fields = one.to_dict(nbest=nbest, alignments=alignments)
        assert list(fields) == keys
        assert (fields["score"] is None) == (not one.source.strip())
        if nbest:
            assert len(fields["nbest"]) == (3 if one.source.strip() else 0)


SEVERAL = pipeline(nbest=3, beam=3, alignments=True)


@given(text=st.text(), pairs=st.booleans())
def test_a_single_string_is_an_error(text: str, pairs: bool) -> None:
    for take in (require_iterable, partial(require_texts, pairs=pairs)):
        with pytest.raises(DataError, match="Give a list"):
            take(text)
    assert require_texts([text]) == [text]
    assert require_texts(iter([(text, text)]), pairs=True) == [(text, text)]


@given(
    before=st.lists(st.text(), max_size=3),
    wrong=st.none() | st.integers() | st.binary() | st.tuples(st.text(), st.none()),
)
def test_a_wrong_text_is_named_by_its_number(before: list[str], wrong: object) -> None:
    for pairs in (True, False):
        with pytest.raises(DataError, match=f"text {len(before) + 1} is .* not a string"):
            require_texts([*before, wrong], pairs=pairs)
