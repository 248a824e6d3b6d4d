"""Token losses in sliding windows equal those of single passes; perplexity metrics equal their
definitions.
"""

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

from heed.data.tokenizers.special_tokens import BOS, EOS, SPECIAL_TOKEN_NAMES, UNK
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError
from heed.metrics.perplexity import (
    INTERVALS,
    LossCounts,
    TokenLosses,
    count_losses,
    perplexity_metrics,
    sliding_windows,
    token_losses,
)
from heed.models import LanguageModel, build
from heed.models.inference import evaluating
from heed.stats.intervals import MIN_ITEMS

ids = st.integers(len(SPECIAL_TOKEN_NAMES), VOCAB - 1)
several = st.lists(st.lists(ids, max_size=40), min_size=1, max_size=5)


def one_by_one(model: LanguageModel, text: Sequence[int], window: int, stride: int) -> list[float]:
    """The loss of each token from its own forward pass over its context."""
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
    batch_tokens=st.integers(1, 60),
    variant=st.sampled_from(FEW),
)
def test_batched_windows_equal_one_pass_per_token(
    texts: list[list[int]], window: int, share: float, batch_tokens: int, variant: str
) -> None:
    model, stride = language_model(variant), 1 + int(share * (window - 1))
    found = token_losses(model, texts, window=window, stride=stride, batch_tokens=batch_tokens)
    for text, one in zip(texts, found, strict=True):
        assert one.ids.tolist() == [*text, EOS]
        np.testing.assert_allclose(
            one.losses, one_by_one(model, text, window, stride), rtol=1e-5, atol=1e-5
        )


@given(count=st.integers(1, 200), window=st.integers(1, 30), share=st.floats(0, 1))
def test_every_token_is_scored_once_with_enough_context(
    count: int, window: int, share: float
) -> None:
    stride = 1 + int(share * (window - 1))
    found = list(sliding_windows(0, count, window=window, stride=stride))
    scored = [token for one in found for token in range(one.first, one.stop)]
    assert scored == list(range(count))
    for one in found:
        assert one.stop - one.start <= window
        if one.start:
            assert one.first + 1 - one.start >= window - stride + 1
    assert all(b.start - a.start == stride for a, b in pairwise(found))


def test_stride_1_gives_every_token_the_longest_context() -> None:
    """After the first window, every token is predicted from a full window."""
    for one in sliding_windows(0, 50, window=8, stride=1):
        assert one.first + 1 - one.start == 8 or one.start == 0


@pytest.mark.parametrize(("window", "stride"), [(8, 0), (8, 9), (0, None), (65, None)])
def test_invalid_windows_are_refused(window: int, stride: int | None) -> None:
    model = new_language_model(position="learned", max_positions=64)
    with pytest.raises(ConfigError, match=r"stride cannot be|positions"):
        token_losses(model, [[7]], window=window, stride=stride)


def test_a_masked_model_is_refused() -> None:
    masked = build("generate", new_language_model().config, vocab=VOCAB, causal=False)
    assert isinstance(masked, LanguageModel)
    with pytest.raises(ConfigError, match="masked"):
        token_losses(masked, [[7]], window=8)


@given(texts=several, batch_tokens=st.integers(1, 200))
def test_padding_does_not_change_a_merge_over_the_sequence(
    texts: list[list[int]], batch_tokens: int
) -> None:
    """A norm over a sequence uses its real tokens only, whatever the batch."""
    model = new_language_model(merge="reweight", reweight_over="sequence", leaky=True)
    together = token_losses(model, texts, window=64, batch_tokens=batch_tokens)
    for text, one in zip(texts, together, strict=True):
        (alone,) = token_losses(model, [text], window=64)
        np.testing.assert_allclose(one.losses, alone.losses, rtol=1e-5, atol=1e-5)


def test_the_training_mode_is_restored() -> None:
    model = new_language_model(dropout=0.5).train()
    first, again = (token_losses(model, [[7, 8, 9]], window=8)[0] for _ in range(2))
    assert model.training
    assert first.losses.tolist() == again.losses.tolist()


# ----------------------------------------------------------------------------------------- sums

LINES = ["the cat sees the dog", "a dog", "the old woman sees a cat and a dog", "née 😀"]
lines = st.lists(st.sampled_from([*LINES, "  the cat", "an unknown beast"]), min_size=1, max_size=9)


def random_losses(tokenizer: Tokenizer, texts: Sequence[str], seed: int) -> list[TokenLosses]:
    """Texts with random losses."""
    random, found = np.random.default_rng(seed), []
    for own in tokenizer.encode_batch(texts):
        ids = np.array([*own, EOS])
        found.append(
            TokenLosses(ids, random.gamma(2.0, size=len(ids)), random.random(len(ids)) < 0.3)
        )
    return found


@given(texts=lines, kind=st.sampled_from(["word", "byte", "bpe"]), seed=st.integers(0, 9))
def test_metrics_equal_their_definitions(texts: list[str], kind: str, seed: int) -> None:
    tokenizer = Tokenizer.train(LINES, kind=kind, vocab_size=300)
    scored = random_losses(tokenizer, texts, seed)
    result = perplexity_metrics(count_losses(tokenizer, texts, scored))
    total = sum(one.losses.sum() for one in scored)
    assert result["tokens"] == sum(len(one.ids) for one in scored)
    assert result["perplexity"] == pytest.approx(math.exp(total / result["tokens"]))
    words = sum(len(text.split()) for text in texts)
    assert math.log(result["word_perplexity"]) == pytest.approx(total / words)
    file = "".join(f"{text}\n" for text in texts).encode()
    assert result["bits_per_byte"] * len(file) == pytest.approx(total / math.log(2))
    means = [math.exp(one.losses.mean()) for one in scored]
    assert result["mean_text_perplexity"] == pytest.approx(sum(means) / len(means))
    hidden = [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text]
    assert result["altered_texts"] == len(hidden)
    assert result["bits_comparable"] == (not hidden)
    assert result["unknown_tokens"] == sum(tokenizer.encode(text).count(UNK) for text in texts)
    if kind != "word":
        assert result["bits_comparable"]


@given(seed=st.integers(0, 50), size=st.integers(2, 30))
def test_an_interval_contains_the_metric_and_is_a_point_for_equal_texts(
    seed: int, size: int
) -> None:
    random = np.random.default_rng(seed)
    found = [LossCounts(float(random.gamma(9)), 9, 5, 30, 2, 0, 0) for _ in range(size)]
    result = perplexity_metrics(found)
    assert result["interval"].keys() == ({*INTERVALS} if size >= MIN_ITEMS else set())
    for name, span in result["interval"].items():
        assert span["low"] <= result[name] <= span["high"]
    same = perplexity_metrics(found[:1] * size)
    for name, span in same["interval"].items():
        assert span["low"] == pytest.approx(same[name])
        assert span["high"] == pytest.approx(same[name])


def test_an_overflowing_word_perplexity_is_infinite() -> None:
    result = perplexity_metrics([LossCounts(5000.0, 1000, 1, 3000, 0, 0, 0)] * 12)
    assert result["word_perplexity"] == math.inf
    assert result["perplexity"] == pytest.approx(math.exp(5.0))
