"""The lens after the last layer is the model itself; before it, a model without the last layers."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import FEW, VARIANTS, input_tokens, new_classifier, new_translator, texts, tiny

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import RunError
from heed.metrics.perplexity import token_losses
from heed.models import LanguageModel, build
from heed.probe.lens import Lens, read_lens, render_lens
from heed.probe.text_trace import language_model_input
from heed.terminal import PlainConsole

TEXT = "the old cat sleeps and the dog sleeps"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT, "a b c d e f g h i j k l"], kind="word")


def language_model(tokenizer: Tokenizer, *, causal: bool = True, layers: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    model = build("generate", tiny(layers=layers), vocab=tokenizer.vocab_size, causal=causal)
    assert isinstance(model, LanguageModel)
    return model.eval()


def losses_of(lens: Lens) -> list[float]:
    """The losses of all tokens whose truth is known."""
    return [row.loss for row in lens.rows if row.loss is not None]


def lens_of(model: LanguageModel, tokenizer: Tokenizer) -> Lens:
    return read_lens(model, tokenizer, language_model_input(model, tokenizer, TEXT, limit=64))


def test_the_last_layer_has_the_losses_and_predictions_of_the_model(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer)
    lens = lens_of(model, tokenizer)
    ids = tokenizer.encode(TEXT)
    (scored,) = token_losses(model, [ids], window=64)
    assert [row.truth for row in lens.rows] == [*TEXT.split(), None]
    assert np.allclose(losses_of(lens), scored.losses[:-1], atol=1e-5)
    for row, correct in zip(lens.rows[:-1], scored.correct, strict=False):
        assert (row.layers[-1].rank == 1) == correct == (row.layers[-1].token == row.truth)
    for row in lens.rows[:-1]:
        chance = math.exp(-(row.loss or 0.0))
        assert 1 <= (row.layers[-1].rank or 0) <= tokenizer.vocab_size
        assert row.layers[-1].probability >= chance - 1e-6
    assert lens.rows[-1].loss is None


def test_a_layer_predicts_what_a_model_that_ends_there_would(tokenizer: Tokenizer) -> None:
    model, short = language_model(tokenizer), language_model(tokenizer, layers=1)
    weights = model.state_dict()
    short.load_state_dict({name: weights[name] for name in short.state_dict()})
    for row, ended in zip(
        lens_of(model, tokenizer).rows, lens_of(short, tokenizer).rows, strict=True
    ):
        assert row.layers[1].token == ended.layers[1].token
        assert row.layers[1].rank == ended.layers[1].rank


def test_a_masked_token_is_predicted_from_the_others(tokenizer: Tokenizer) -> None:
    model = language_model(tokenizer, causal=False)
    lens = lens_of(model, tokenizer)
    assert [row.truth for row in lens.rows] == TEXT.split()
    specials, ids = tokenizer.specials, tokenizer.encode(TEXT)
    read = torch.tensor([[specials.bos, *ids, specials.eos]])
    read[0, 3] = specials.require_mask("a test")
    with torch.no_grad():
        loss = -model(read)[0, 3].log_softmax(-1)[ids[2]]
    assert np.isclose(losses_of(lens)[2], float(loss), atol=1e-5)


@pytest.mark.parametrize("variant", [name for name in FEW if "lstm" not in name])
def test_classes_and_translations_of_the_last_layer(variant: str, tokenizer: Tokenizer) -> None:
    (row, source), classes = texts([7, 5]), ["a", "b", "c", "d", "e"]
    changes = VARIANTS[variant]
    classifier = new_classifier(**changes)
    (found,) = read_lens(classifier, tokenizer, input_tokens(row), classes=classes).rows
    with torch.no_grad():
        chances = classifier(row[None])[0].softmax(-1)
    assert found.layers[-1].token == classes[int(chances.argmax())]
    assert np.isclose(found.layers[-1].probability, float(chances.max()), atol=1e-5)
    assert len(found.layers) == 3
    translator = new_translator(**changes)
    read = replace(input_tokens(row), written=row.tolist()[1:])
    lens = read_lens(translator, tokenizer, read, input_tokens(source))
    with torch.no_grad():
        logits = translator(source[None], row[None])[0]
    guesses = tokenizer.ids_to_tokens(logits.argmax(-1).tolist())
    assert [one.layers[-1].token for one in lens.rows] == guesses
    losses = -logits.log_softmax(-1)[range(6), row[1:]]
    assert np.allclose(losses_of(lens), losses.numpy(), atol=1e-4)


def test_an_lstm_has_no_residual_stream(tokenizer: Tokenizer) -> None:
    row, source = map(input_tokens, texts([7, 5]))
    with pytest.raises(RunError, match="this is an LSTM"):
        read_lens(new_translator(family="lstm"), tokenizer, row, source)


@pytest.mark.parametrize("layers", [1, 6, 24])
def test_any_depth_fits_80_columns(tokenizer: Tokenizer, layers: int) -> None:
    console = PlainConsole(width=80, record=True, file=io.StringIO())
    console.print(render_lens(lens_of(language_model(tokenizer, layers=layers), tokenizer)))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert re.search(rf"(layer |L){layers}\b", lines[1])
    assert "embed" in lines[1]
    assert len([line for line in lines if "#" in line]) == len(TEXT.split()) + 1  # and the note
