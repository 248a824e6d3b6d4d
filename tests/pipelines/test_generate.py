"""Generation: independent of the batch, streamed as generated, ended at stop strings."""

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
from heed.data.tokenizers.special_tokens import SPECIAL_TOKEN_NAMES
from heed.data.tokenizers.tokenizer import KINDS, Tokenizer
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
def trained_tokenizer(kind: str, split: str = "space") -> Tokenizer:
    return Tokenizer.train(TEXT, kind=kind, split=split, vocab_size=320)


@cache
def pipeline(position: str = "alibi", *, kind: str = "byte", **settings: Any) -> GenerationPipeline:
    torch.manual_seed(0)
    tokenizer = trained_tokenizer(kind)
    config = tiny(position=position, max_positions=24)
    model = build("generate", config, vocab=tokenizer.vocab_size)
    assert isinstance(model, LanguageModel)
    decode = DecodeConfig(**({"sample": True, "seed": 5} | settings))
    return GenerationPipeline(model.eval(), tokenizer, decode, context=20)


drawn = st.tuples(
    st.sampled_from(splits), st.lists(st.integers(0, 1 << 30), max_size=40), st.integers(0, 40)
)


def ids_of(case: tuple[tuple[str, str], list[int], int]) -> tuple[Tokenizer, list[int], int]:
    """A tokenizer, ids of it in any order, and how many of them are the prompt."""
    (kind, split), numbers, prompt = case
    tokenizer = trained_tokenizer(kind, split)
    return (
        tokenizer,
        [number % tokenizer.vocab_size for number in numbers],
        min(prompt, len(numbers)),
    )


@given(case=drawn)
def test_incremental_detokenization_equals_decoding(
    case: tuple[tuple[str, str], list[int], int],
) -> None:
    tokenizer, ids, prompt = ids_of(case)
    detokenizer, before = (
        IncrementalDetokenizer(tokenizer, ids[:prompt]),
        tokenizer.decode(ids[:prompt]),
    )
    parts = [detokenizer.add([i]) for i in ids[prompt:]]
    whole = before + "".join(parts) + detokenizer.end()
    if not before.endswith("\ufffd"):  # a prompt is text, so it ends with a whole character
        assert whole == tokenizer.decode(ids)


@given(text=st.text(max_size=30), kind=st.sampled_from(["byte", "bpe", "unigram"]))
def test_no_part_of_a_character_is_returned(text: str, kind: str) -> None:
    tokenizer = trained_tokenizer(kind)
    detokenizer = IncrementalDetokenizer(tokenizer)
    parts = [detokenizer.add([i]) for i in tokenizer.encode(text)]
    assert "".join(parts) + detokenizer.end() == text


@given(
    case=drawn,
    stop=st.lists(st.sampled_from(["a", " ", "th", "e c", "�", "\n", "é"]), max_size=3),
)
def test_a_text_ends_where_a_stop_string_begins(
    case: tuple[tuple[str, str], list[int], int], stop: list[str]
) -> None:
    tokenizer, ids, _ = ids_of(case)
    ids = [i for i in ids if i >= len(SPECIAL_TOKEN_NAMES)]
    text = StreamedText(tokenizer, [], stop)
    streamed = "".join(text.add([i]) for i in ids) + text.end()
    whole = tokenizer.decode(ids)
    starts = [at for at in map(whole.find, stop) if at >= 0]
    assert streamed == text.text == whole[: min(starts, default=len(whole))]
    assert text.stopped == bool(starts)
    if not starts:
        assert text.tokens == len(ids)


def texts(results: list[list[Continuation]]) -> list[list[str]]:
    return [[one.whole for one in continuations] for continuations in results]


PROMPTS = ["", "The cat", "née 😀"]


@pytest.mark.parametrize("position", ["alibi", "rope", "learned"])
def test_a_sample_is_the_same_alone_and_among_others(position: str) -> None:
    generator = pipeline(position)
    results = generator.generate(PROMPTS, length=9, samples=4)
    assert texts(results) == texts(generator.generate(PROMPTS, length=9, samples=4))
    for i, prompt in enumerate(PROMPTS):
        alone = generator.generate([prompt], length=9, samples=2, first=i)
        assert texts(alone)[0] == texts(results)[i][:2]
        longer = generator.generate([prompt], length=12, samples=2, first=i)
        assert all(b.whole.startswith(a.whole[:-1]) for a, b in zip(*alone, *longer, strict=True))
    assert len({text for continuations in texts(results) for text in continuations}) > len(PROMPTS)


@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"sample": False}, {"top_p": 0.5}])
def test_streamed_text_is_the_returned_text(settings: dict[str, object]) -> None:
    generator, samples = pipeline(**settings), 1 if settings.get("sample") is False else 3
    streamed: dict[tuple[int, int], str] = {}

    def on_text(prompt: int, sample: int, text: str) -> None:
        assert text
        streamed[prompt, sample] = streamed.get((prompt, sample), "") + text

    results = generator.generate(PROMPTS, length=15, samples=samples, first=7, on_text=on_text)
    unstreamed = generator.generate(PROMPTS, length=15, samples=samples, first=7)
    assert results == unstreamed
    for i, continuations in enumerate(results):
        for j, one in enumerate(continuations):
            assert streamed.get((7 + i, j), "") == one.text


def test_stop_strings_end_a_text_early() -> None:
    generator = pipeline()
    free = generator.generate(["The"] * 3, length=40, samples=3)
    letter = next(c for one in free[0] for c in one.text[5:] if c.isascii())
    results = generator.generate(["The"] * 3, length=40, samples=3, stop=[letter, "never there"])
    stopped = 0
    for before, after in zip(chain(*free), chain(*results), strict=True):
        assert after.text == before.text.partition(letter)[0]
        assert (after.ended == "stop") == (letter in before.text)
        assert after.tokens <= before.tokens
        stopped += after.ended == "stop"
    assert stopped


@pytest.mark.parametrize("stop", ["e", "at", "née"])
def test_no_token_is_generated_after_a_stop_string(stop: str) -> None:
    """A stopped text has the tokens and the probability of one cut at that length."""
    generator, samples = pipeline(kind="char"), 60
    by_length = [generator.generate([""], length=n, samples=samples)[0] for n in range(1, 7)]
    alone = by_length[0][0].text  # stops the first sample at its first token
    results = generator.generate([""], length=6, samples=samples, stop=[stop, alone])[0]
    for sample, one in enumerate(results):
        free = [continuations[sample] for continuations in by_length]
        ends = [cut for cut in free if stop in cut.text or alone in cut.text]
        expected = ends[0] if ends else free[-1]
        assert (one.tokens, one.ended == "stop") == (expected.tokens, bool(ends))
        assert one.logprob == pytest.approx(expected.logprob, rel=1e-5)
    assert results[0].tokens == 1


def test_ended_says_what_ended_a_text() -> None:
    endless = pipeline()
    for one in endless.generate([""], length=3, samples=20)[0]:
        assert one.ended == ("length" if one.tokens == 3 else "end")
        assert one.logprob < 0


def test_beams_generate() -> None:
    generator = pipeline(sample=False, beam=3)
    assert len(generator.generate(PROMPTS, length=5, samples=2)[0]) == 2
    with pytest.raises(ConfigError, match="widen the beam"):
        generator.generate(PROMPTS, length=5, samples=4)


def test_a_beam_that_ends_early_returns_as_many_as_asked_for() -> None:
    """With a probable end token, few hypotheses of a short beam end; others are cut."""
    generator = pipeline(sample=False, beam=4)
    model, end = copy.deepcopy(generator.model), generator.tokenizer.specials.eos
    with torch.no_grad():
        model.embedding.table.weight[end] *= 20
    eager = GenerationPipeline(model, generator.tokenizer, generator.settings, context=20)
    for n in (1, 2, 3, 5):
        assert {len(results) for results in eager.generate(PROMPTS, length=n, samples=4)} == {4}


def test_learned_positions_end() -> None:
    generator, long = pipeline("learned"), "abc " * 6
    with pytest.raises(DataError, match="24 tokens, but the model has positions for 19"):
        generator.generate([long], length=4)
    (fitted,) = generator.generate([long], length=4, samples=2, cut_prompt=True)
    (newest,) = generator.generate([long[-15:]], length=4, samples=2)
    assert all(one.whole.startswith(long) for one in fitted)
    assert {one.ended for one in fitted} <= {"length", "end"}
    assert [one.tokens for one in newest] == [4, 4]
    (near,) = generator.generate([long[:15]], length=10, samples=8)
    assert {one.ended for one in near} <= {"positions", "end"}
    assert max(one.tokens for one in near) == 4
    short = "abcde"
    (with_cut,) = generator.generate([short], length=500, cut_prompt=True)
    (alone,) = generator.generate([short], length=500)
    assert with_cut == alone  # a prompt that is short enough is not cut
    pipeline("rope").generate([long * 3], length=4)  # without a table there is no such end


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"length": 0}, "length"), ({"samples": 0}, "samples"), ({"stop": [""]}, "stop")],
)
def test_wrong_arguments_are_an_error(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be"):
        pipeline().generate([""], **({"length": 3} | arguments))
