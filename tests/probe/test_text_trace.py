"""The trace of a text is that of the tokens which a pipeline reads, special tokens included."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support import apart, tiny

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import cross_weights
from heed.errors import HeedWarning
from heed.metrics.perplexity import token_losses
from heed.models import Classifier, LanguageModel, Translator, build
from heed.pipelines.classify import ClassificationPipeline
from heed.pipelines.translate import TranslationPipeline
from heed.probe.text_trace import (
    classifier_input,
    language_model_input,
    trace_inputs,
    translation_inputs,
)
from heed.runs.labels import Classes

TEXT = "the old cat sleeps"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT, "a dog"], kind="word")


@pytest.mark.parametrize("max_length", [64, 4])
def test_a_classifier_reads_what_it_classifies(tokenizer: Tokenizer, max_length: int) -> None:
    """Between begin and end token, and cut where it is too long."""
    torch.manual_seed(0)
    model = build("classify", tiny(layers=2), vocab=tokenizer.vocab_size, classes=2)
    assert isinstance(model, Classifier)
    pipeline = ClassificationPipeline(
        model.eval(), tokenizer, Classes(("a", "b")), max_length=max_length
    )
    is_cut = max_length == 4
    with pytest.warns(HeedWarning, match="first 2 of 4") if is_cut else nullcontext():
        trace = trace_inputs(model, classifier_input(pipeline, TEXT))
    assert np.allclose(trace.logits.numpy(), pipeline.logits([TEXT]), atol=1e-6)
    words = TEXT.split()[: max_length - 2]
    assert trace.tokens == ["<bos>", *words, "<eos>"]
    assert trace.encoder[0].shape[-2:] == (len(words) + 2, len(words) + 2)
    assert len(trace.hidden["encoder"]) == 1 + len(trace.encoder) == 3
    bare = model.trace(torch.tensor([tokenizer.encode(TEXT)])).logits.detach()
    assert apart(bare, trace.logits) > 1e-3


def test_a_classifier_classifies_without_dropout(tokenizer: Tokenizer) -> None:
    model = build("classify", tiny(dropout=0.5), vocab=tokenizer.vocab_size, classes=2)
    assert isinstance(model, Classifier)
    pipeline = ClassificationPipeline(model.train(), tokenizer, Classes(("a", "b")), max_length=64)
    assert np.array_equal(pipeline.logits([TEXT]), pipeline.logits([TEXT]))
    assert model.training


def test_a_language_model_reads_what_it_scores(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = build("generate", tiny(layers=2), vocab=tokenizer.vocab_size)
    assert isinstance(model, LanguageModel)
    model.eval()
    trace = trace_inputs(model, language_model_input(model, tokenizer, TEXT, limit=64))
    assert trace.tokens == ["<bos>", *TEXT.split()]
    ids = tokenizer.encode(TEXT)
    (losses,) = token_losses(model, [ids], window=64, specials=tokenizer.specials)
    chances = trace.logits[0].log_softmax(dim=-1)
    targets = torch.tensor([*ids, tokenizer.specials.eos])
    assert np.allclose(-chances[range(len(targets)), targets].numpy(), losses.losses, atol=1e-5)


def test_a_translator_reads_source_and_translation(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = build("translate", tiny(layers=2), vocab=tokenizer.vocab_size)
    assert isinstance(model, Translator)
    model.eval()
    pipeline = TranslationPipeline([model], tokenizer, DecodeConfig(), max_source=60)
    source, target = translation_inputs(pipeline, TEXT, "a dog")
    trace = trace_inputs(model, target, source)
    assert (trace.tokens, trace.source_tokens) == (["<bos>", "a", "dog"], [*TEXT.split(), "<eos>"])
    pairs = [(tokenizer.encode(TEXT), tokenizer.encode("a dog"))]
    weights = cross_weights(model, pairs, tokenizer.specials.bos, tokenizer.specials)
    for layer, expected in zip(trace.cross, weights, strict=True):
        assert apart(layer[:, :, :2], expected.detach()) <= 1e-6
