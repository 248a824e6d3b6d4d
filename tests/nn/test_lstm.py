"""The recurrent baseline against the equations of its papers, one step at a time.

What it shares with the Transformer (padding, packing, causality, cached decoding) is tested where
that is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import (
    VOCAB,
    apart,
    assert_weights,
    fresh,
    new_classifier,
    new_language_model,
    new_translator,
    padded,
    texts,
    tiny,
)
from torch import Tensor, nn

from heed.errors import ConfigError
from heed.models import Model
from heed.models.translator import Translator
from heed.nn.lstm import LSTMStack

WIDTHS = [pytest.param({}, id="tied"), pytest.param({"embedding_width": 10}, id="apart")]


def recurrent(**changes: Any) -> dict[str, Any]:
    return {"family": "lstm", "tie_embeddings": "embedding_width" not in changes} | changes


def stack_of(model: nn.Module, name: str = "stack") -> LSTMStack:
    stack = getattr(model, name)
    assert isinstance(stack, LSTMStack)
    return stack


def stated_lstm(
    x_tw: Tensor, layer: nn.Module, h: Tensor, c: Tensor, *, suffix: str = "_l0"
) -> Tensor:
    """Hochreiter and Schmidhuber 1997 with a forget gate: gates i, f, g, o at every step."""
    weights = dict(layer.named_parameters())
    w_in, w_state = weights[f"weight_ih{suffix}"], weights[f"weight_hh{suffix}"]
    bias = weights[f"bias_ih{suffix}"] + weights[f"bias_hh{suffix}"]
    out = []
    for x in x_tw:
        i, f, g, o = (w_in @ x + w_state @ h + bias).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out)


def stated_encoder(stack: LSTMStack, x_tw: Tensor) -> Tensor:
    """Each layer reads the text both ways; tanh of a map brings the two back to one width."""
    zero = torch.zeros(stack.width)
    for layer, join in zip(stack.layers, stack.joins, strict=True):
        onwards = stated_lstm(x_tw, layer, zero, zero)
        back = stated_lstm(x_tw.flip(0), layer, zero, zero, suffix="_l0_reverse").flip(0)
        x_tw = torch.tanh(join(torch.cat([onwards, back], dim=1)))
    return x_tw


# ------------------------------------------------------------------------ against the equations


@pytest.mark.parametrize("changes", WIDTHS)
@torch.no_grad()
def test_a_language_model_is_a_stack_of_lstms(changes: dict[str, Any]) -> None:
    model = new_language_model(**recurrent(**changes))
    row = texts([7])[0]
    x, zero = model.embedding(row[None])[0], torch.zeros(16)
    for layer in stack_of(model).layers:
        x = stated_lstm(x, layer, zero, zero)
    assert apart(model(row[None])[0], F.linear(x, model.head.weight)) <= 1e-5


@pytest.mark.parametrize("changes", WIDTHS)
@torch.no_grad()
def test_a_classifier_reads_both_ways(changes: dict[str, Any]) -> None:
    model = new_classifier(**recurrent(**changes))
    row = texts([7])[0]
    x = stated_encoder(stack_of(model), model.embedding(row[None])[0])
    assert apart(model.states(row[None]).x_bnw[0], x) <= 1e-5
    assert apart(model(row[None])[0], model.head(x.mean(dim=0))) <= 1e-5


@pytest.mark.parametrize("changes", WIDTHS)
@torch.no_grad()
def test_a_translator_attends_after_the_recurrence(changes: dict[str, Any]) -> None:
    """Luong et al. 2015: tanh(W [context; h]), the context by softmax over the source.

    Every decoder layer begins from the mean of what the encoder made of the source.
    """
    model = new_translator(**recurrent(**changes))
    source, target = texts([6, 4])
    table = model.embedding if model.source_embedding is None else model.source_embedding
    memory = stated_encoder(stack_of(model, "encoder"), table(source[None])[0])
    decoder = stack_of(model, "decoder")
    x = model.embedding(target[None])[0]
    for layer, start in zip(decoder.layers, decoder.starts, strict=True):
        x = stated_lstm(x, layer, torch.tanh(start(memory.mean(dim=0))), torch.zeros(16))
    shares = (decoder.query(x) @ memory.mT / 16**0.5).softmax(dim=1)
    x = torch.tanh(decoder.combine(torch.cat([shares @ memory, x], dim=1)))
    found = model.trace(source[None], target[None])
    assert apart(found.cross[0][0, 0], shares) <= 1e-5
    assert apart(found.logits[0], F.linear(x, model.head.weight)) <= 1e-5
    assert apart(model(source[None], target[None])[0], F.linear(x, model.head.weight)) <= 1e-5


# ------------------------------------------------------------------------------- what it shows


@torch.no_grad()
def test_a_trace_has_one_head_on_the_source_and_none_elsewhere() -> None:
    model = new_translator(**recurrent())
    source, real = padded(texts([3, 0, 5], seed=5), left=[2, 0, 0])
    target = torch.stack(texts([4, 4, 4]))
    found = model.trace(source, target, mask=real)
    assert found.encoder == found.decoder == []
    (weights,) = found.cross
    assert weights.shape == (3, 1, 4, 5)
    assert_weights(weights, real[:, None].expand(3, 4, 5))
    assert [len(found.hidden[name]) for name in ("encoder", "decoder")] == [3, 3]


@pytest.mark.parametrize("changes", WIDTHS)
@pytest.mark.parametrize("task", ["generate", "classify", "translate"])
def test_every_task_learns(task: str, changes: dict[str, Any]) -> None:
    """Fit one small batch: the loss falls to less than a quarter."""
    model = fresh(task, **recurrent(**changes)).train()
    ids, labels = torch.stack(texts([6] * 8)), torch.arange(8) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(*_guess(model, ids, labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4


def _guess(model: Model, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and what they should have said; a translator repeats its source."""
    if isinstance(model, Translator):
        return model(ids, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
    logits = model(ids)
    if logits.dim() == 2:
        return logits, labels
    return logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()


# ----------------------------------------------------------------------------- its own settings


def test_an_embedding_may_have_its_own_width() -> None:
    model = new_translator(family="lstm", embedding_width=10, tie_embeddings=False)
    assert model.embedding.table.weight.shape == (VOCAB, 10)
    assert model.head.weight.shape == (VOCAB, 16)


def test_an_embedding_of_its_own_width_cannot_be_the_output() -> None:
    with pytest.raises(ConfigError, match="tie_embeddings = false"):
        tiny(family="lstm", embedding_width=10)
    with pytest.raises(ConfigError, match="embedding_width"):
        tiny(embedding_width=10, tie_embeddings=False)


def test_a_decoder_may_have_its_own_depth() -> None:
    model = new_translator(family="lstm", layers=1, decoder_layers=3)
    assert len(stack_of(model, "encoder").layers) == 1
    assert len(stack_of(model, "decoder").layers) == 3
