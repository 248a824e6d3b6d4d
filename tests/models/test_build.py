"""What `build` makes of a config, what it refuses, and how an eighth encoding joins in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import (
    CLASSES,
    VARIANTS,
    VOCAB,
    apart,
    fresh,
    new_classifier,
    new_language_model,
    new_translator,
    padded,
    perturb,
    texts,
    tiny,
)
from torch import Tensor, nn

import heed
from heed.config import POSITIONS, TASKS, ModelConfig
from heed.errors import ConfigError
from heed.models import Model, build
from heed.models.translator import Translator
from heed.nn.attention import AttentionContext
from heed.nn.cache import Cache
from heed.nn.feed_forward import FeedForward
from heed.nn.positions import Position
from heed.nn.stack import Block, Stack


def answer(model: Model, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logits; a translator translates its ids into themselves."""
    if isinstance(model, Translator):
        return model(ids, ids, mask=mask, target_mask=mask)
    return model(ids, mask=mask)


# --------------------------------------------------------------------------------- what is made


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_parameter_is_idle(variant: str, task: str) -> None:
    """A parameter that no logit depends on takes memory, and stops distributed training."""
    model = fresh(task, cross_position=task == "translate", **VARIANTS[variant])
    answer(model, torch.stack(texts([8, 8]))).sum().backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert idle == []


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_kept_once_and_load_again(variant: str, task: str) -> None:
    """What is saved has no table twice, and brings back the same answers."""
    model = fresh(task, **VARIANTS[variant]).eval()
    saved = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert set(saved) == {name for name, _ in model.named_parameters()}
    ids = torch.stack(texts([6, 6]))
    torch.manual_seed(0)
    before = answer(model, ids)
    perturb(model)
    model.load_state_dict(saved)
    torch.manual_seed(0)
    assert torch.equal(answer(model, ids), before)


def test_tied_embeddings_are_one_table() -> None:
    tied, apart_ = new_language_model(), new_language_model(tie_embeddings=False)
    assert tied.head.weight is tied.embedding.table.weight
    assert apart_.head.weight is not apart_.embedding.table.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, apart_)]
    assert sizes[1] - sizes[0] == VOCAB * 16


def test_a_tied_table_learns_from_both_ends() -> None:
    model = new_language_model()
    ids = torch.stack(texts([5]))
    rows = model(ids).square().sum()
    rows.backward()
    slope = model.embedding.table.weight.grad
    assert slope is not None
    assert (slope.abs().sum(dim=1) > 0).all(), "every token is an output, if not an input"


@pytest.mark.parametrize(
    ("source_vocab", "tied", "tables"),
    [(None, True, 1), (None, False, 3), (11, True, 2), (11, False, 3)],
    ids=["shared", "untied", "own-source", "own-source-untied"],
)
def test_a_translator_has_as_many_tables_as_it_needs(
    source_vocab: int | None, tied: bool, tables: int
) -> None:
    config = tiny(tie_embeddings=tied, position="rope")
    model = build("translate", config, vocab=VOCAB, source_vocab=source_vocab)
    perturb(model)
    wide = {VOCAB, source_vocab}
    found = [p for p in model.parameters() if p.dim() == 2 and p.shape[0] in wide]
    assert len(found) == tables
    source = torch.randint(source_vocab or VOCAB, (2, 5))
    assert isinstance(model, Translator)
    assert model(source, torch.stack(texts([4, 4]))).shape == (2, 4, VOCAB)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_every_block_answers_in_shape(activation: str, norm: str, place: str) -> None:
    changes: dict[str, Any] = {"activation": activation, "norm": norm, "norm_place": place}
    ids, mask = padded(texts([4, 6]), left=[0, 0])
    shapes = [answer(fresh(task, **changes), ids, mask).shape for task in TASKS]
    assert shapes == [(2, 6, VOCAB), (2, CLASSES), (2, 6, VOCAB)]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *GATES])
@torch.no_grad()
def test_a_feed_forward_is_its_formula(activation: str) -> None:
    """down(f(up(x))); a gated one is down(f(gate(x)) · up(x)) (Shazeer 2020)."""
    layer = FeedForward(tiny(activation=activation))
    perturb(layer)
    x = torch.randn(3, 16)
    inner = F.linear(x, layer.up.weight, layer.up.bias)
    if activation in GATES:
        gate, up = inner[:, :24], inner[:, 24:]
        hidden = ACTIVATIONS[GATES[activation]](gate) * up
    else:
        hidden = ACTIVATIONS[activation](inner)
    assert apart(layer(x), F.linear(hidden, layer.down.weight, layer.down.bias)) <= 1e-5


@pytest.mark.parametrize("place", ["pre", "post"])
@torch.no_grad()
def test_a_block_normalizes_where_configured(place: str) -> None:
    """x + f(norm(x)), with one more norm at the end; or norm(x + f(x)) as the 2017 paper has it."""
    model = new_classifier(norm_place=place, layers=1, position="none")
    assert isinstance(model.stack, Stack)
    block = model.stack.blocks[0]
    assert isinstance(block, Block)
    ids = torch.stack(texts([6, 6]))
    x = model.embedding(ids)
    context = AttentionContext(torch.arange(6)[None], torch.arange(6)[None])

    def attention(vectors: Tensor) -> Tensor:
        return block.attention(vectors, context, Position())[0]

    branches: list[tuple[Callable[[Tensor], Tensor], nn.Module]] = [
        (attention, block.attention_norm),
        (block.feed_forward, block.feed_forward_norm),
    ]
    for branch, norm in branches:
        x = x + branch(norm(x)) if place == "pre" else norm(x + branch(x))
    expected = model.stack.norm(x) if place == "pre" else x
    assert apart(model.states(ids).x_bnw, expected) <= 1e-5


def test_dropout_acts_in_training_alone() -> None:
    ids = torch.stack(texts([6, 6]))
    for key in ("dropout", "attention_dropout", "feed_forward_dropout"):
        changes: dict[str, Any] = {key: 0.5}
        model = new_language_model(**changes)
        assert torch.equal(model(ids), model(ids))
        model.train()
        assert apart(model(ids), model(ids)) > 1e-2


def test_a_trace_holds_every_layer() -> None:
    model = new_translator(layers=1, decoder_layers=3)
    ids = torch.stack(texts([6, 6]))
    found = model.trace(ids, ids)
    assert [len(w) for w in (found.encoder, found.decoder, found.cross)] == [1, 3, 3]
    assert [len(found.hidden[name]) for name in ("encoder", "decoder")] == [2, 4]
    assert isinstance(model.decoder, Stack)
    last = model.decoder.norm(found.hidden["decoder"][-1])
    assert apart(model.head(last), found.logits) <= 1e-5


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("translat", {"vocab": 5}, ("no task 'translat'", "'translate'?")),
        ("generate", {"vocab": 0}, ("vocab cannot be 0",)),
        ("classify", {"vocab": 5}, ("classes cannot be None",)),
        ("classify", {"vocab": 5, "classes": 1}, ("classes cannot be 1",)),
    ],
    ids=["task", "vocab", "no-classes", "one-class"],
)
def test_a_wrong_configuration_is_refused(
    task: str, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(task, tiny(), **options)
    (said,) = caught.value.complaints
    assert all(word in said for word in words)


def test_all_refusals_come_at_once() -> None:
    config = tiny(position="rope", head_width=3, merge="reweight", reweight_over="batch")
    with pytest.raises(ConfigError) as caught:
        build("generate", config, vocab=0)
    assert len(caught.value.complaints) == 3


def test_an_lstm_ignores_positions_and_heads() -> None:
    build("generate", tiny(family="lstm", width=15, position="sinusoidal"), vocab=VOCAB)


def test_a_classifier_takes_no_cache() -> None:
    with pytest.raises(ValueError, match="no cache"):
        new_classifier()(torch.stack(texts([3])), cache=Cache())


# --------------------------------------------------------------------------- an eighth encoding


class Decay(Position):
    """A learned rate a head by which scores fall with distance: all that an encoding needs."""

    name = "decay"

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.rate = nn.Parameter(torch.zeros(config.heads))

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """-rate · distance."""
        distance = (k_positions[:, None, :] - q_positions[:, :, None]).abs()
        return -self.rate[:, None, None] * distance[:, None]


@pytest.fixture
def eighth(monkeypatch: pytest.MonkeyPatch) -> str:
    """The class above, as if it stood in `nn/positions.py`."""
    monkeypatch.setattr(POSITIONS, "classes", dict(POSITIONS.classes))
    heed.register(Decay)
    return Decay.name


@pytest.mark.parametrize("task", TASKS)
def test_an_eighth_encoding_trains_in_every_task(task: str, eighth: str) -> None:
    """No other file knows its name, and it is trained, padded, traced and fused like the seven."""
    model = fresh(task, position=eighth, cross_position=True).train()
    rows = texts([6, 4, 5])
    ids, mask = padded(rows, left=[0, 2, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        logits = answer(model, ids, mask)
        wanted = torch.arange(3) if task == "classify" else ids[mask]
        loss = F.cross_entropy(logits if task == "classify" else logits[mask], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4
    assert math.isfinite(losses[-1])
    model.eval()
    for i, row in enumerate(rows):
        alone = answer(model, row[None])[0]
        together = answer(model, ids, mask)[i]
        assert apart(together if task == "classify" else together[mask[i]], alone) <= 1e-5


def test_an_eighth_encoding_decodes_with_a_cache(eighth: str) -> None:
    model = new_language_model(position=eighth)
    ids, cache = torch.stack(texts([9, 9])), Cache()
    stepped = torch.cat([model(step, cache=cache) for step in ids.split(2, dim=1)], dim=1)
    assert apart(stepped, model(ids)) <= 1e-5
    assert apart(model.trace(ids).logits, model(ids)) <= 1e-5


class ValueTerm(Position):
    """An encoding whose only hook is `values`: each key's position, as its head's values."""

    name = "value_term"

    def values(self, weights_bhnm: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Σ weight · position, in every dimension of a head."""
        return weights_bhnm @ k_positions[:, None, :, None].to(weights_bhnm.dtype)


@pytest.mark.parametrize("task", TASKS)
def test_the_values_hook_alone_acts_where_no_weights_are_asked_for(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POSITIONS, "classes", dict(POSITIONS.classes))
    heed.register(ValueTerm)
    model = fresh(task, position=ValueTerm.name, cross_position=True)
    ids = torch.stack(texts([7, 7]))
    traced = model.trace(ids, ids) if isinstance(model, Translator) else model.trace(ids)
    assert apart(answer(model, ids), traced.logits) <= 1e-5
    plain = fresh(task)
    plain.load_state_dict(model.state_dict(), strict=False)
    assert apart(answer(model, ids), answer(plain, ids)) > 1e-3
    if isinstance(model, Translator):
        assert isinstance(model.decoder.cross_position, ValueTerm)


class ContentRotation(Position):
    """A rotation without a registered form, a bias that reads the query, parameters per layer."""

    name = "content_rotation"
    per_layer = True
    bias_uses_query = True

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.gain = nn.Parameter(torch.randn(config.resolved_head_width))

    def rotate(
        self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each vector with its halves swapped at odd positions."""
        swapped = (x.roll(x.shape[-1] // 2, dims=-1) for x in (q_bhnd, k_bgmd))
        odd = (p[:, None, :, None] % 2 == 1 for p in (q_positions, k_positions))
        q, k = (
            torch.where(o, s, x) for o, s, x in zip(odd, swapped, (q_bhnd, k_bgmd), strict=True)
        )
        return q, k

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """tanh(q · gain) · distance / 10."""
        assert q_bhnd is not None
        distance = (k_positions[:, None, :] - q_positions[:, :, None]).abs()
        return (q_bhnd @ self.gain).tanh()[..., None] * distance[:, None] / 10


class LayerDecay(Decay):
    """A bias without a registered form that each layer has for itself."""

    name = "layer_decay"
    per_layer = True


@pytest.mark.parametrize("kind", [Decay, LayerDecay, ContentRotation])
@pytest.mark.parametrize("task", TASKS)
@torch.no_grad()
def test_encodings_without_a_form_are_the_same_on_every_path(
    task: str, kind: type[Position], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fast, traced, padded and (where there is one) cached passes agree."""
    monkeypatch.setattr(POSITIONS, "classes", dict(POSITIONS.classes))
    heed.register(kind)
    model = fresh(task, position=kind.name, cross_position=True, layers=3).eval()
    perturb(model)
    ids, mask = padded(texts([6, 4]), left=[0, 2])
    fast = answer(model, ids, mask)
    if isinstance(model, Translator):
        traced = model.trace(ids, ids, mask=mask, target_mask=mask).logits
    else:
        traced = model.trace(ids, mask=mask).logits
    real = slice(None) if task == "classify" else mask
    assert apart(fast[real], traced[real]) <= 1e-5
    if task == "classify":
        return
    cache, whole = Cache(), answer(model, ids[:1])
    steps = [
        model(ids[:1], step, cache=cache) if task == "translate" else model(step, cache=cache)
        for step in ids[:1].split(2, dim=1)
    ]
    assert apart(torch.cat(steps, dim=1), whole) <= 1e-5


def test_without_its_file_an_eighth_encoding_is_unknown() -> None:
    with pytest.raises(ConfigError, match="position cannot be 'decay'"):
        tiny(position=Decay.name)
