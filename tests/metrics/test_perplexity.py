"""Losses by token are those of one token at a time; sums say the same by token, word and byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import FEW, VOCAB, language_model, new_language_model

from heed.data.tokenizers.tokenizer import BOS, EOS, SPECIALS, UNK, Tokenizer
from heed.errors import ConfigError
from heed.metrics.perplexity import (
    LossCounts,
    TokenLosses,
    count_losses,
    perplexity_metrics,
    sliding_windows,
    token_losses,
)
from heed.models import LanguageModel, build
from heed.models.inference import evaluating

ids = st.integers(len(SPECIALS), VOCAB - 1)
several = st.lists(st.lists(ids, max_size=40), min_size=1, max_size=5)


def one_by_one(model: LanguageModel, text: Sequence[int], window: int, stride: int) -> list[float]:
    """The loss of each token from a pass of its own over just what it may see."""
    whole, losses = torch.tensor([BOS, *text, EOS]), []
    with evaluating(model):
        for said in range(1, len(whole)):
            start = 0
            while said - start > window:  # the first window of the grid that reaches it
                start += stride
            logits = model(whole[None, start:said])[0, -1].double()
            losses.append(float(logits.logsumexp(-1) - logits[whole[said]]))
    return losses


@given(
    texts=several,
    window=st.integers(1, 12),
    share=st.floats(0, 1),
    cells=st.integers(1, 60),
    variant=st.sampled_from(FEW),
)
def test_windows_in_batches_are_one_token_at_a_time(
    texts: list[list[int]], window: int, share: float, cells: int, variant: str
) -> None:
    model, stride = language_model(variant), 1 + int(share * (window - 1))
    found = token_losses(model, texts, window=window, stride=stride, batch_tokens=cells)
    for text, one in zip(texts, found, strict=True):
        assert one.ids.tolist() == [*text, EOS]
        np.testing.assert_allclose(
            one.losses, one_by_one(model, text, window, stride), rtol=1e-5, atol=1e-5
        )


@given(count=st.integers(1, 200), window=st.integers(1, 30), share=st.floats(0, 1))
def test_every_token_is_judged_once_with_enough_before_it(
    count: int, window: int, share: float
) -> None:
    stride = 1 + int(share * (window - 1))
    found = list(sliding_windows(0, count, window=window, stride=stride))
    judged = [token for one in found for token in range(one.first, one.stop)]
    assert judged == list(range(count))
    for one in found:
        assert one.stop - one.start <= window
        if one.start:
            assert one.first + 1 - one.start >= window - stride + 1
    assert all(b.start - a.start == stride for a, b in pairwise(found))


def test_a_smaller_stride_shows_more() -> None:
    """With stride 1 every token sees as much as the window holds."""
    for one in sliding_windows(0, 50, window=8, stride=1):
        assert one.first + 1 - one.start == 8 or one.start == 0


@pytest.mark.parametrize(("window", "stride"), [(8, 0), (8, 9), (0, None), (65, None)])
def test_windows_that_make_no_sense(window: int, stride: int | None) -> None:
    model = new_language_model(position="learned", max_positions=64)
    with pytest.raises(ConfigError, match=r"stride cannot be|positions"):
        token_losses(model, [[7]], window=window, stride=stride)


def test_a_masked_model_has_no_such_loss() -> None:
    masked = build("generate", new_language_model().config, vocab=VOCAB, causal=False)
    assert isinstance(masked, LanguageModel)
    with pytest.raises(ConfigError, match="masked"):
        token_losses(masked, [[7]], window=8)


@given(texts=several, cells=st.integers(1, 200))
def test_padding_counts_for_nothing_where_a_merge_looks_past_one_token(
    texts: list[list[int]], cells: int
) -> None:
    """A norm over a sequence is one over its own tokens, however long its neighbours are."""
    model = new_language_model(merge="reweight", reweight_over="sequence", leaky=True)
    together = token_losses(model, texts, window=64, batch_tokens=cells)
    for text, one in zip(texts, together, strict=True):
        (alone,) = token_losses(model, [text], window=64)
        np.testing.assert_allclose(one.losses, alone.losses, rtol=1e-5, atol=1e-5)


def test_a_model_is_left_in_its_mode() -> None:
    model = new_language_model(dropout=0.5).train()
    first, again = (token_losses(model, [[7, 8, 9]], window=8)[0] for _ in range(2))
    assert model.training
    assert first.losses.tolist() == again.losses.tolist()


# ----------------------------------------------------------------------------------------- sums

LINES = ["the cat sees the dog", "a dog", "the old woman sees a cat and a dog", "née 😀"]
lines = st.lists(st.sampled_from([*LINES, "  the cat", "an unknown beast"]), min_size=1, max_size=9)


def made_up(tokenizer: Tokenizer, texts: Sequence[str], seed: int) -> list[TokenLosses]:
    """Texts with losses out of the air."""
    random, found = np.random.default_rng(seed), []
    for own in tokenizer.encode_batch(texts):
        ids = np.array([*own, EOS])
        found.append(
            TokenLosses(ids, random.gamma(2.0, size=len(ids)), random.random(len(ids)) < 0.3)
        )
    return found


@given(texts=lines, kind=st.sampled_from(["word", "byte", "bpe"]), seed=st.integers(0, 9))
def test_measures_are_the_definitions(texts: list[str], kind: str, seed: int) -> None:
    tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=300)
    judged = made_up(tokenizer, texts, seed)
    facts = perplexity_metrics(count_losses(tokenizer, texts, judged), resamples=0)
    total = sum(one.losses.sum() for one in judged)
    assert facts["tokens"] == sum(len(one.ids) for one in judged)
    assert facts["perplexity"] == pytest.approx(math.exp(total / facts["tokens"]))
    words = sum(len(text.split()) for text in texts)
    assert math.log(facts["word_perplexity"]) == pytest.approx(total / words)
    file = "".join(f"{text}\n" for text in texts).encode()
    assert facts["bits_per_byte"] * len(file) == pytest.approx(total / math.log(2))
    means = [math.exp(one.losses.mean()) for one in judged]
    assert facts["mean_text_perplexity"] == pytest.approx(sum(means) / len(means))
    hidden = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    assert facts["altered_texts"] == len(hidden)
    assert facts["bits_comparable"] == (not hidden)
    assert facts["unknown_tokens"] == sum(tokenizer.encode(text).count(UNK) for text in texts)
    if kind != "word":
        assert facts["bits_comparable"]


@given(seed=st.integers(0, 50), size=st.integers(2, 30))
def test_an_interval_holds_the_figure_and_is_none_for_equals(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    found = [LossCounts(float(random.gamma(9)), 9, 5, 30, 2, 0, 0) for _ in range(size)]
    facts = perplexity_metrics(found, resamples=200)
    for name, span in facts["interval"].items():
        assert span["low"] <= facts[name] <= span["high"]
    same = perplexity_metrics(found[:1] * size, resamples=20)
    for name, span in same["interval"].items():
        assert span["low"] == pytest.approx(same[name])
        assert span["high"] == pytest.approx(same[name])


def test_the_same_interval_twice_and_none_of_one_text() -> None:
    found = [LossCounts(float(i), 3, 2, 9, 1, 0, 0) for i in range(1, 8)]
    assert perplexity_metrics(found, resamples=50) == perplexity_metrics(found, resamples=50)
    assert "interval" not in perplexity_metrics(found[:1], resamples=50)
    assert "interval" not in perplexity_metrics(found, resamples=0)


def test_a_text_that_is_one_word_a_thousand_tokens_long_overflows_quietly() -> None:
    facts = perplexity_metrics([LossCounts(5000.0, 1000, 1, 3000, 0, 0, 0)] * 3, resamples=20)
    assert facts["word_perplexity"] == math.inf
    assert facts["perplexity"] == pytest.approx(math.exp(5.0))
