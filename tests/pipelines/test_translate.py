"""Text in, one translation out: blank, too long, unknown words, words that belong together."""

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
from heed.data.tokenizers.tokenizer import UNK, Tokenizer
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


def scribe(kind: str = "bpe", longest: int = 20, **settings: Any) -> TranslationPipeline:
    """A translator with random weights over a tokenizer of this kind."""
    tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=280 if kind == "bpe" else None)
    base = new_translator()
    model = build("translate", base.config, vocab=tokenizer.vocab_size)
    assert isinstance(model, Translator)
    nbest, aligned = settings.pop("nbest", 1), settings.pop("alignments", False)
    told = DecodeConfig(**({"max_ratio": 0.5, "max_extra": 4} | settings))
    assert isinstance(nbest, int)
    return TranslationPipeline(
        [model.eval()], tokenizer, told, max_source=longest, nbest=nbest, alignments=bool(aligned)
    )


# ----------------------------------------------------------------------------- what is asked for

a_way = st.fixed_dictionaries(
    {}, optional={"sample": st.booleans(), "beam": st.integers(1, 5), "seed": st.integers(0, 9)}
)


@given(recipe=a_way, told=a_way)
def test_what_is_told_goes_over_the_recipe(recipe: dict[str, Any], told: dict[str, Any]) -> None:
    """All of it, whatever the recipe's way is; only who tells of both ways is refused."""
    if recipe.get("sample"):
        recipe["beam"] = 1
    before = DecodeConfig(**recipe)
    if told.get("sample") and told.get("beam", 1) > 1:
        with pytest.raises(ConfigError, match="two ways"):
            merge_decode_config(before, told)
        return
    after = merge_decode_config(before, told).model_dump()
    assert after | told == after
    ways = {"sample", "beam"}
    if not ways & told.keys():
        assert after == before.model_dump() | told


# ---------------------------------------------------------------------------------- one for each


@settings(max_examples=15)
@given(lines=st.lists(anything | st.sampled_from(WILD), max_size=6))
def test_every_text_has_its_translation(lines: list[str]) -> None:
    """In order, blank for what is blank, and never more than a line."""
    found = BPE.translate(lines)
    assert [one.source for one in found] == lines
    for line, one in zip(lines, found, strict=True):
        assert one.line(scores=True).splitlines() in ([], [one.line(scores=True)])
        assert bool(one.choices) == bool(line.strip())


BPE = scribe()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_every_tokenizer_takes_everything(kind: str) -> None:
    found = scribe(kind, nbest=2, beam=2, alignments=True, copy_unknown=True).translate(WILD)
    assert [bool(one.choices) for one in found] == [bool(line.strip()) for line in WILD]
    for one in found:
        for choice in one.choices:
            read, written = len(one.source.split()), len(choice.text.split())
            assert all(0 <= s < read and 0 <= t < written for s, t in choice.links)


def test_a_translation_does_not_know_its_neighbours() -> None:
    together = BPE.translate(LINES)
    for line, one in zip(LINES, together, strict=True):
        (alone,) = BPE.translate([line])
        assert alone.choices[0].score == pytest.approx(one.choices[0].score, abs=1e-4)


# -------------------------------------------------------------------------------------- too long


@given(text=st.text(alphabet="ab ,.!?。\n", max_size=80), longest=st.integers(1, 12))
def test_parts_are_the_whole(text: str, longest: int) -> None:
    """End to end, none too long, and cut where words end wherever that is possible."""
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
def test_a_run_of_any_sign_is_read_once(run: str) -> None:
    """Else the hundred thousand of them would take minutes: the alarm ends them after one."""

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


def test_a_long_text_is_read_in_parts_and_none_is_lost() -> None:
    long = "the cat sees a dog . " * 12
    (whole,) = scribe(nbest=3, beam=3, alignments=True).translate([long])
    assert whole.parts == 12
    assert len(whole.choices) == 3
    scores = [choice.score for choice in whole.choices]
    assert scores == sorted(scores, reverse=True)
    sources = {source for source, _ in whole.choices[0].links}
    assert max(sources) >= 6 * 11  # the last part's words count from where it begins


# ------------------------------------------------------------------------- what belongs together


def test_alignments_are_of_words() -> None:
    (one,) = scribe(alignments=True).translate(["the old cat sees"])
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
def test_ids_spell_the_words_they_belong_to(text: str) -> None:
    ids = BPE.tokenizer.encode(text)
    spelt, words = alignment.decode_words(BPE.tokenizer, ids)
    assert spelt.split() == BPE.tokenizer.decode(ids).split()
    assert len(words) == len(ids)
    assert words == sorted(words)
    assert max(words, default=0) == max(0, len(spelt.split()) - 1)


def test_unknown_words_are_copied() -> None:
    """From where the model looked: the weights say which word that was."""
    tokenizer = Tokenizer.train(LINES, kind="word")
    ids = [*tokenizer.encode("le"), UNK, *tokenizer.encode("voit"), UNK]
    source = "the Zorglub sees Zara"
    weights = np.eye(4)[[0, 1, 2, 3]]
    copied = alignment.unknown_copies(tokenizer, ids, weights, source)
    assert alignment.decode_words(tokenizer, ids, copied) == ("le Zorglub voit Zara", [0, 1, 2, 3])
    assert alignment.decode_words(tokenizer, ids)[0] == "le voit"
    letters = Tokenizer.train(LINES, kind="char")
    spelt = [letters.encode("c")[0], UNK, letters.encode("t")[0]]
    copied = alignment.unknown_copies(letters, spelt, np.eye(3), "xöz")
    assert alignment.decode_words(letters, spelt, copied)[0] == "cöt"


def test_unknown_words_are_copied_when_asked() -> None:
    """A model that writes nothing but `<unk>` says the source's words."""
    asked, plainly = scribe("word", copy_unknown=True), scribe("word")
    for one in (asked, plainly):
        table = one.models[0].embedding.table.weight.data
        table[:] = table[UNK] * 0.9
        table[UNK] *= 1 / 0.9
    words = ["the", "Zorglub", "sees"]
    said = asked.translate([" ".join(words)])[0].text.split()
    assert said
    assert set(said) <= set(words)
    assert plainly.translate([" ".join(words)])[0].text == ""


# ---------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("how", [{}, {"beam": 3}, {"sample": True}])
@pytest.mark.parametrize("texts", [1, 100])
def test_weights_that_are_no_numbers_are_a_sentence(how: dict[str, Any], texts: int) -> None:
    """Not an empty line, which would pass for a translation."""
    broken = scribe(**how)
    with torch.no_grad():
        broken.models[0].embedding.table.weight[10] = torch.nan
    with pytest.raises(RunError, match=r"^weight embedding\.table\.weight: .* not a number"):
        broken.translate(["the cat sees a dog"] * texts)


def test_settings_that_make_no_sense_are_refused() -> None:
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
def test_a_program_gets_the_same_keys_for_every_text(
    lines: list[str], nbest: bool, alignments: bool
) -> None:
    """Blank or not: what docs/decoding.md lists, and what was asked for."""
    keys = ["source", "translation", "score", "cut", "parts"]
    keys += ["nbest"] * nbest + ["alignment", "weights"] * alignments
    for one in SEVERAL.translate(lines):
        fields = one.to_dict(nbest=nbest, alignments=alignments)
        assert list(fields) == keys
        assert (fields["score"] is None) == (not one.source.strip())
        if nbest:
            assert len(fields["nbest"]) == (3 if one.source.strip() else 0)


SEVERAL = scribe(nbest=3, beam=3, alignments=True)


@given(text=st.text(), pairs=st.booleans())
def test_one_string_is_no_list_of_texts(text: str, pairs: bool) -> None:
    for take in (require_iterable, partial(require_texts, pairs=pairs)):
        with pytest.raises(DataError, match="Give a list"):
            take(text)
    assert require_texts([text]) == [text]
    assert require_texts(iter([(text, text)]), pairs=True) == [(text, text)]


@given(
    before=st.lists(st.text(), max_size=3),
    wrong=st.none() | st.integers() | st.binary() | st.tuples(st.text(), st.none()),
)
def test_what_is_no_text_is_named_by_its_place(before: list[str], wrong: object) -> None:
    for pairs in (True, False):
        with pytest.raises(DataError, match=f"text {len(before) + 1} is .* no string"):
            require_texts([*before, wrong], pairs=pairs)
