"""Attention by word sums attention by token, and does not depend on the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heed.config import ModelConfig
from heed.data import synthetic
from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import hard_links
from heed.models import Translator, build
from heed.probe.attention_maps import best_layer, cross_map, cross_maps

PAIRS = [(s.english, s.french) for s in synthetic.generate_sentences("dev", 70)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = (
        text for s in synthetic.generate_sentences("train", 300) for text in (s.english, s.french)
    )
    return Tokenizer.train(texts, kind="bpe", vocab_size=400)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Translator:
    torch.manual_seed(0)
    config = ModelConfig(layers=2, width=32, heads=4, position="alibi")
    made = build("translate", config, vocab=tokenizer.vocab_size)
    assert isinstance(made, Translator)
    return made.double()


def test_word_attention_sums_token_attention(model: Translator, tokenizer: Tokenizer) -> None:
    source, target = PAIRS[0]
    found = cross_map(model, tokenizer, source, target)
    s, t = tokenizer.encode(source), tokenizer.encode(target)
    with torch.no_grad():
        trace = model.eval().trace(torch.tensor([[*s, EOS]]), torch.tensor([[BOS, *t]]))
    of_source, of_target = (
        np.array(tokenizer.word_indices(source)),
        np.array(tokenizer.word_indices(target)),
    )
    for layer, weights in enumerate(trace.cross):
        for head, by_token in enumerate(weights[0].numpy()):
            for row in range(len(target.split())):
                mean = by_token[: len(t)][of_target == row].mean(axis=0)[: len(s)]
                wanted = [mean[of_source == c].sum() for c in range(len(source.split()))]
                assert np.allclose(found.weights_lhnm[layer, head, row], wanted)


def test_maps_do_not_depend_on_the_batch(model: Translator, tokenizer: Tokenizer) -> None:
    together = cross_maps(model, tokenizer, PAIRS)
    for pair, found in zip(PAIRS[::9], together[::9], strict=True):
        alone = cross_map(model, tokenizer, *pair)
        assert np.allclose(found.weights_lhnm, alone.weights_lhnm)
        assert found.source_words == pair[0].split()


def test_rows_sum_to_one_minus_the_weight_on_eos(model: Translator, tokenizer: Tokenizer) -> None:
    for found in cross_maps(model, tokenizer, PAIRS[:5]):
        sums = found.weights_lhnm.sum(axis=-1)
        assert (sums <= 1 + 1e-9).all()
        assert (sums > 0).all()


@pytest.mark.parametrize("pair", [("", "le chat"), ("  ", ""), ("the cat", "")])
def test_blank_texts_have_no_links(
    model: Translator, tokenizer: Tokenizer, pair: tuple[str, str]
) -> None:
    """Like the alignments of `heed translate`."""
    for found in cross_maps(model, tokenizer, [pair, PAIRS[0]])[:1]:
        assert found.links(0) == {*hard_links(found.mean_over_heads(0))} == set()


def test_the_best_layer_has_the_lowest_alignment_error(
    model: Translator, tokenizer: Tokenizer
) -> None:
    maps = cross_maps(model, tokenizer, PAIRS[:10])
    for layer in range(2):
        assert best_layer(maps, [found.links(layer) for found in maps]) == layer
