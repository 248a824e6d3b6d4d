"""What pretrained models needed of the core, as options of any model: each is its formula."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from support import (
    VOCAB,
    apart,
    fresh,
    new_classifier,
    new_language_model,
    new_translator,
    padded,
    texts,
    tiny,
)
from torch import Tensor

from heed.config import ModelConfig
from heed.data.batching.batch import Batch
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.errors import ConfigError, DataError
from heed.models import Backbone, LanguageModel, build, from_weights
from heed.nn.cache import Cache
from heed.nn.positions import sinusoids
from heed.nn.stack import Stack
from heed.nn.tokens import Tokens
from heed.train.objective import loss

POST: dict[str, Any] = {"norm_place": "post", "embedding_norm": True, "position": "learned"}
BERT = POST | {
    "lm_head_transform": True,
    "lm_head_bias": True,
    "embedding_scale": 1.0,
    "position_offset": 2,
}
T5 = {"position": "t5", "norm": "rms", "bias": False, "activation": "geglu", "lm_head_scale": 0.3}
MARIAN = {
    "norm_place": "post",
    "position": "sinusoidal",
    "sinusoids": "halves",
    "lm_head_bias": True,
}
SHAPES: dict[str, dict[str, Any]] = {"bert": BERT, "t5": T5, "marian": MARIAN}
each_shape = pytest.mark.parametrize("shape", SHAPES)


def first_vectors(model: LanguageModel, ids: Tensor, types: Tensor | None = None) -> Tensor:
    """What the first block reads."""
    return model.trace(ids, Tokens.of(ids, types=types)).hidden["decoder"][0]


# ----------------------------------------------------------------------------------- formulas


@torch.no_grad()
def test_what_enters_the_first_block() -> None:
    """norm(table[id] · scale + types[type] + positions[place + offset] · another)."""
    changes = POST | {"token_types": 3, "embedding_scale": 2.5, "position_offset": 2}
    changes |= {"position_scale": 1.5}
    model = new_language_model(**changes)
    ids, types = torch.stack(texts([6, 6])), torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(2, 6)
    state = model.state_dict()
    x = state["embedding.table.weight"][ids] * 2.5 + state["embedding.types.weight"][types]
    x = x + state["stack.position.table.weight"][torch.arange(6) + 2] * 1.5
    norm = (state["stack.embedding_norm.weight"], state["stack.embedding_norm.bias"])
    expected = F.layer_norm(x, (16,), *norm, eps=1e-5)
    assert apart(first_vectors(model, ids, types=types), expected) <= 1e-6
    default, zeros = (first_vectors(model, ids, types=t) for t in (None, torch.zeros_like(ids)))
    assert torch.equal(default, zeros)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_the_head_is_its_formula(tied: bool, bias: bool) -> None:
    """W · scale · norm(f(map(x))) + b."""
    model = new_language_model(
        lm_head_transform=True,
        lm_head_bias=bias,
        lm_head_scale=0.7,
        activation="relu",
        tie_embeddings=tied,
    )
    state, x = model.state_dict(), torch.randn(2, 5, 16)
    hidden = F.relu(
        F.linear(x, state["head.transform_linear.weight"], state["head.transform_linear.bias"])
    )
    hidden = F.layer_norm(hidden, (16,), state["head.norm.weight"], state["head.norm.bias"])
    table = state["embedding.table.weight" if tied else "head.own.weight"]
    expected = F.linear(0.7 * hidden, table, state["head.bias"] if bias else None)
    assert apart(model.head(x), expected) <= 1e-5


@torch.no_grad()
def test_a_pooler_is_a_map_and_a_tanh() -> None:
    plain = new_classifier(pooling="first", pooler=True)
    ids, mask = padded(texts([4, 6]), left=[1, 0])
    state, x = plain.state_dict(), plain.states(ids, mask=mask).x_bnw
    first = torch.stack([x[0, 1], x[1, 0]])
    pooled = torch.tanh(F.linear(first, state["pool.linear.weight"], state["pool.linear.bias"]))
    expected = F.linear(pooled, state["head.weight"], state["head.bias"])
    assert apart(plain(ids, mask=mask), expected) <= 1e-5


@pytest.mark.parametrize(("name", "f"), [("relu", torch.relu), ("tanh", torch.tanh)])
@torch.no_grad()
def test_a_hidden_layer_in_a_classifier(name: str, f: Any) -> None:
    model = new_classifier(classifier_hidden=7, classifier_activation=name)
    state, x = model.state_dict(), torch.randn(3, 16)
    hidden = f(F.linear(x, state["head.0.weight"], state["head.0.bias"]))
    assert (
        apart(model.head(x), F.linear(hidden, state["head.3.weight"], state["head.3.bias"])) < 1e-5
    )


@torch.no_grad()
def test_halves_are_pairs_in_another_order() -> None:
    places, order = torch.arange(50), torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    assert torch.equal(sinusoids(places, 8, halves=True), sinusoids(places, 8)[:, order])


# ------------------------------------------------------------------- what holds for every model


@each_shape
@torch.no_grad()
def test_padding_changes_nothing(shape: str) -> None:
    model, rows = new_language_model(**SHAPES[shape]), texts([5, 3, 1])
    ids, mask = padded(rows, left=[0, 2, 1], right=2)
    together = model(ids, mask=mask)
    for i, row in enumerate(rows):
        assert apart(together[i][mask[i]], model(row[None])[0]) <= 1e-5


@each_shape
@torch.no_grad()
def test_a_cache_changes_nothing(shape: str) -> None:
    model, (source, target) = new_translator(**SHAPES[shape]), texts([6, 7])
    whole, cache = model(source[None], target[None]), Cache()
    for i in range(7):
        source_or_none = source[None] if i == 0 else None
        step = model(source_or_none, target[None, i : i + 1], cache=cache)
        assert apart(step[:, 0], whole[:, i]) <= 1e-5


@each_shape
@torch.no_grad()
def test_the_search_reads_as_the_model_does(shape: str) -> None:
    """Greedy, with a decode state, and by the whole text again at every step."""
    model = new_translator(**SHAPES[shape])
    source = texts([5])[0].tolist()
    ((found,),) = Search([model], Greedy()).translate([source], max_ratio=1e-9, max_extra=8)
    written = [2]
    while len(written) < 9 and (len(written) == 1 or written[-1] != 3):
        logits = model(torch.tensor([[*source, 3]]), torch.tensor([written]))
        written.append(int(logits[0, -1].argmax()))
    assert [token for token in written[1:] if token != 3] == found.ids


@each_shape
def test_the_loss_is_that_of_the_logits(shape: str) -> None:
    model = new_language_model(**SHAPES[shape])
    ids, said = torch.stack(texts([6, 6])), torch.stack(texts([6, 6], seed=1))
    real, places = torch.ones_like(ids, dtype=torch.bool), torch.arange(6)[None]
    found = loss(model, Batch(ids, said, real, places, 12, ()))
    expected = F.cross_entropy(model(ids).flatten(0, 1), said.flatten(), reduction="sum")
    assert apart(found.total, expected) <= 1e-5
    names = [name for name, _ in model.named_parameters()]
    ours = torch.autograd.grad(found.total, list(model.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    for name, one, other in zip(names, ours, theirs, strict=True):
        assert (one is None) == (other is None), name
        assert one is None or other is None or apart(one, other) <= 1e-4, name


@each_shape
@pytest.mark.parametrize("task", ["generate", "classify", "translate"])
def test_weights_say_how_large_a_model_is(task: str, shape: str) -> None:
    hidden: dict[str, Any] = {"classifier_hidden": 5, "classifier_activation": "tanh"}
    model = fresh(task, **SHAPES[shape], **hidden)
    again = from_weights(model.state_dict(), task, model.config)
    assert type(again) is type(model)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())


def test_an_lstm_has_no_table_of_positions() -> None:
    model = fresh("generate", family="lstm", position="learned", max_positions=2**16)
    again = from_weights(model.state_dict(), "generate", model.config)
    assert again.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("scale", [None, 1.0, 20.0])
@pytest.mark.parametrize("shape", [POST, POST | {"lm_head_transform": True, "lm_head_bias": True}])
@torch.no_grad()
def test_a_model_begins_by_guessing_evenly(shape: dict[str, Any], scale: float | None) -> None:
    """And by seeing tokens, not only where they stand."""
    config = ModelConfig(width=128, layers=2, dropout=0.0, embedding_scale=scale, **shape)
    torch.manual_seed(0)
    model = cast(LanguageModel, build("generate", config, vocab=500))
    ids = torch.randint(500, (8, 33))
    logits = model(ids[:, :-1])
    value = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert float(value) == pytest.approx(math.log(500), abs=1.0)
    stack = cast(Stack, model.stack)
    tokens = float(model.embedding(ids).std())
    places = float(stack.position.embed(torch.zeros(1, 32, 128), torch.arange(32)[None]).std())
    assert places == pytest.approx(tokens / 2, rel=0.2)


# ----------------------------------------------------------------------------------- a reader


@torch.no_grad()
def test_a_backbone_is_a_model_without_its_head() -> None:
    model = new_classifier(pooling="first", pooler=True)
    backbone = Backbone(model.config, vocab=VOCAB).eval()
    rest = {name: x for name, x in model.state_dict().items() if not name.startswith("head.")}
    backbone.load_state_dict(rest)
    ids, mask = padded(texts([4, 6]), left=[0, 0])
    assert torch.equal(backbone(ids, mask=mask), model.states(ids, mask=mask).x_bnw)
    assert torch.equal(model.head(backbone.summary(ids, mask=mask)), model(ids, mask=mask))
    trace = backbone.trace(ids, mask=mask)
    assert apart(trace.logits, backbone(ids, mask=mask)) <= 1e-5
    assert len(trace.encoder) == 2
    with pytest.raises(ValueError, match="a whole sequence at once: no cache"):
        backbone(ids, cache=Cache())
    with pytest.raises(ValueError, match="no pooler"):
        Backbone(tiny(), vocab=VOCAB).summary(ids)


@pytest.mark.parametrize("causal", [True, False])
def test_a_trace_lies_under_what_its_stack_is(causal: bool) -> None:
    """Alike with a head and without: what reads both ways is an encoder."""
    config, (ids,) = tiny(), texts([5])
    headed = cast(LanguageModel, build("generate", config, vocab=VOCAB, causal=causal))
    for model in (headed, Backbone(config, vocab=VOCAB, causal=causal)):
        trace = model.eval().trace(ids[None])
        assert [len(trace.decoder), len(trace.encoder)] == ([2, 0] if causal else [0, 2])
        assert list(trace.hidden) == ["decoder" if causal else "encoder"]


# ------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"family": "lstm", "embedding_norm": True}, "embedding_norm belongs to family"),
        ({"position": "rope", "position_offset": 2}, "position_offset belongs to position"),
        ({"embedding_scale": 0.0}, "embedding_scale cannot be 0.0"),
        ({"token_types": -1}, "token_types cannot be -1"),
        ({"sinusoids": "thirds"}, "sinusoids cannot be 'thirds'"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny(**changes)


def test_a_translator_has_no_types() -> None:
    with pytest.raises(ConfigError, match="token_types are for models that read one sequence"):
        build("translate", tiny(token_types=2), vocab=VOCAB)


def test_an_offset_takes_no_position_away() -> None:
    model = new_language_model(position="learned", position_offset=3, max_positions=6)
    model(torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(DataError, match="has 6 positions"):
        model(torch.zeros(1, 7, dtype=torch.long))
