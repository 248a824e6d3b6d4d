"""Texts that go on: the same alone as among others, heard as written, ended where they should."""

from __future__ import annotations

import copy
from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import KINDS, SPECIALS, Tokenizer
from heed.decode.detokenize import IncrementalDetokenizer, StreamedText
from heed.errors import ConfigError, DataError
from heed.models import LanguageModel, build
from heed.pipelines.generate import Continuation, GenerationPipeline

TEXT = [
    "The cat sees the old woman.",
    "née 😀 don't (ever)",
    'He said "no", 5:30 -- ok… «so»',
    "日本",
]
splits = [*((kind, "space") for kind in KINDS), ("word", "treebank")]


@cache
def tokenizer(kind: str, split: str = "space") -> Tokenizer:
    return Tokenizer.train(TEXT, kind=kind, split=split, vocab_size=320)


@cache
def author(position: str = "alibi", *, kind: str = "byte", **settings: Any) -> GenerationPipeline:
    torch.manual_seed(0)
    pieces = tokenizer(kind)
    config = tiny(position=position, max_positions=24)
    model = build("generate", config, vocab=pieces.vocab_size)
    assert isinstance(model, LanguageModel)
    told = DecodeConfig(**({"sample": True, "seed": 5} | settings))
    return GenerationPipeline(model.eval(), pieces, told, context=20)


drawn = st.tuples(
    st.sampled_from(splits), st.lists(st.integers(0, 1 << 30), max_size=40), st.integers(0, 40)
)


def pieces_of(case: tuple[tuple[str, str], list[int], int]) -> tuple[Tokenizer, list[int], int]:
    """A tokenizer, any ids of it in any order, and how many of them are the prompt."""
    (kind, split), numbers, prompt = case
    own = tokenizer(kind, split)
    return own, [number % own.vocab_size for number in numbers], min(prompt, len(numbers))


@given(case=drawn)
def test_what_is_spelt_is_what_is_decoded(case: tuple[tuple[str, str], list[int], int]) -> None:
    own, ids, prompt = pieces_of(case)
    detokenizer, before = IncrementalDetokenizer(own, ids[:prompt]), own.decode(ids[:prompt])
    said = [detokenizer.add([i]) for i in ids[prompt:]]
    whole = before + "".join(said) + detokenizer.end()
    if not before.endswith("\ufffd"):  # a prompt is text, so it ends with a whole character
        assert whole == own.decode(ids)


@given(text=st.text(max_size=30), kind=st.sampled_from(["byte", "bpe", "unigram"]))
def test_no_half_character_is_ever_said(text: str, kind: str) -> None:
    own = tokenizer(kind)
    detokenizer = IncrementalDetokenizer(own)
    said = [detokenizer.add([i]) for i in own.encode(text)]
    assert "".join(said) + detokenizer.end() == text


@given(
    case=drawn,
    stop=st.lists(st.sampled_from(["a", " ", "th", "e c", "�", "\n", "é"]), max_size=3),
)
def test_a_text_ends_where_a_stop_string_begins(
    case: tuple[tuple[str, str], list[int], int], stop: list[str]
) -> None:
    own, ids, _ = pieces_of(case)
    ids = [i for i in ids if i >= len(SPECIALS)]
    text = StreamedText(own, [], stop)
    said = "".join(text.add([i]) for i in ids) + text.end()
    whole = own.decode(ids)
    found = [at for at in map(whole.find, stop) if at >= 0]
    assert said == text.text == whole[: min(found, default=len(whole))]
    assert text.stopped == bool(found)
    if not found:
        assert text.tokens == len(ids)


def texts(found: list[list[Continuation]]) -> list[list[str]]:
    return [[one.whole for one in several] for several in found]


PROMPTS = ["", "The cat", "née 😀"]


@pytest.mark.parametrize("position", ["alibi", "rope", "learned"])
def test_a_sample_is_the_same_alone_and_among_others(position: str) -> None:
    own = author(position)
    found = own.generate(PROMPTS, length=9, samples=4)
    assert texts(found) == texts(own.generate(PROMPTS, length=9, samples=4))
    for i, prompt in enumerate(PROMPTS):
        alone = own.generate([prompt], length=9, samples=2, first=i)
        assert texts(alone)[0] == texts(found)[i][:2]
        longer = own.generate([prompt], length=12, samples=2, first=i)
        assert all(b.whole.startswith(a.whole[:-1]) for a, b in zip(*alone, *longer, strict=True))
    assert len({text for several in texts(found) for text in several}) > len(PROMPTS)


@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"sample": False}, {"top_p": 0.5}])
def test_what_is_told_is_what_is_returned(settings: dict[str, object]) -> None:
    own, samples = author(**settings), 1 if settings.get("sample") is False else 3
    told: dict[tuple[int, int], str] = {}

    def on_text(prompt: int, sample: int, text: str) -> None:
        assert text
        told[prompt, sample] = told.get((prompt, sample), "") + text

    found = own.generate(PROMPTS, length=15, samples=samples, first=7, on_text=on_text)
    silent = own.generate(PROMPTS, length=15, samples=samples, first=7)
    assert found == silent
    for i, several in enumerate(found):
        for j, one in enumerate(several):
            assert told.get((7 + i, j), "") == one.text


def test_stop_strings_end_a_text_early() -> None:
    own = author()
    free = own.generate(["The"] * 3, length=40, samples=3)
    letter = next(c for one in free[0] for c in one.text[5:] if c.isascii())
    found = own.generate(["The"] * 3, length=40, samples=3, stop=[letter, "never there"])
    stopped = 0
    for before, after in zip(chain(*free), chain(*found), strict=True):
        assert after.text == before.text.partition(letter)[0]
        assert (after.ended == "stop") == (letter in before.text)
        assert after.tokens <= before.tokens
        stopped += after.ended == "stop"
    assert stopped


@pytest.mark.parametrize("stop", ["e", "at", "née"])
def test_no_token_is_written_after_a_stop_string(stop: str) -> None:
    """A text that stops has the tokens, and the probability, that it has where it is cut there."""
    own, samples = author(kind="char"), 60
    by_length = [own.generate([""], length=n, samples=samples)[0] for n in range(1, 7)]
    alone = by_length[0][0].text  # stops the first sample at its first token
    found = own.generate([""], length=6, samples=samples, stop=[stop, alone])[0]
    for sample, one in enumerate(found):
        free = [several[sample] for several in by_length]
        ends = [cut for cut in free if stop in cut.text or alone in cut.text]
        wanted = ends[0] if ends else free[-1]
        assert (one.tokens, one.ended == "stop") == (wanted.tokens, bool(ends))
        assert one.logprob == pytest.approx(wanted.logprob, rel=1e-5)
    assert found[0].tokens == 1


def test_what_ended_a_text_is_told() -> None:
    endless = author()
    for one in endless.generate([""], length=3, samples=20)[0]:
        assert one.ended == ("length" if one.tokens == 3 else "end")
        assert one.logprob < 0


def test_beams_write_too() -> None:
    own = author(sample=False, beam=3)
    assert len(own.generate(PROMPTS, length=5, samples=2)[0]) == 2
    with pytest.raises(ConfigError, match="widen the beam"):
        own.generate(PROMPTS, length=5, samples=4)


def test_a_beam_that_ends_early_says_as_many_as_were_asked_for() -> None:
    """Of a model that likes to end, few of a short beam have ended: others are cut."""
    own = author(sample=False, beam=4)
    model, end = copy.deepcopy(own.model), own.tokenizer.specials.eos
    with torch.no_grad():
        model.embedding.table.weight[end] *= 20
    eager = GenerationPipeline(model, own.tokenizer, own.settings, context=20)
    for n in (1, 2, 3, 5):
        assert {len(found) for found in eager.generate(PROMPTS, length=n, samples=4)} == {4}


def test_learned_positions_end() -> None:
    own, long = author("learned"), "abc " * 6
    with pytest.raises(DataError, match="24 tokens, but the model has positions for 19"):
        own.generate([long], length=4)
    (fitted,) = own.generate([long], length=4, samples=2, cut_prompt=True)
    (newest,) = own.generate([long[-15:]], length=4, samples=2)
    assert all(one.whole.startswith(long) for one in fitted)
    assert {one.ended for one in fitted} <= {"length", "end"}
    assert [one.tokens for one in newest] == [4, 4]
    (near,) = own.generate([long[:15]], length=10, samples=8)
    assert {one.ended for one in near} <= {"positions", "end"}
    assert max(one.tokens for one in near) == 4
    short = "abcde"
    (asked_much,) = own.generate([short], length=500, cut_prompt=True)
    (alone,) = own.generate([short], length=500)
    assert asked_much == alone  # a prompt that is short enough is not cut
    author("rope").generate([long * 3], length=4)  # without a table there is no such end


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"length": 0}, "length"), ({"samples": 0}, "samples"), ({"stop": [""]}, "stop")],
)
def test_what_makes_no_sense_is_a_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said} cannot be"):
        author().generate([""], **({"length": 3} | asked))
