"""How weights begin: the same from the same seed, at a sensible size, so that deep models learn.

These models, and no others among the tests, are left as they begin.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import POSITIONS, tiny

from heed.config import ModelConfig
from heed.models import Model, build
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.nn.stack import Stack

TASKS = ("generate", "classify", "translate")
TIES = [pytest.param(True, id="tied"), pytest.param(False, id="untied")]
PLACES = ("pre", "post")
FAMILIES = ("transformer", "lstm")


def begin(task: str, config: ModelConfig, *, vocab: int = 100, seed: int = 0) -> Model:
    """A model as it is before anyone has touched it."""
    torch.manual_seed(seed)
    return build(task, config, vocab=vocab, classes=3 if task == "classify" else None)


def medium(**changes: Any) -> ModelConfig:
    """Wide enough for sizes to average out."""
    return ModelConfig(**({"width": 128, "layers": 2, "dropout": 0.0} | changes))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_weights(task: str, family: str) -> None:
    config = tiny(family=family, position="shaw")
    one, same, other = (begin(task, config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("tied", TIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocab", [50, 2000])
@torch.no_grad()
def test_a_language_model_begins_by_guessing_evenly(
    vocab: int, family: str, place: str, tied: bool
) -> None:
    """On random text its loss is that of a uniform guess, log(vocab), within one nat."""
    config = medium(family=family, norm_place=place, tie_embeddings=tied)
    model = begin("generate", config, vocab=vocab)
    assert isinstance(model, LanguageModel)
    ids = torch.randint(vocab, (8, 33))
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert float(loss) == pytest.approx(math.log(vocab), abs=1.0)
    assert float(logits.std()) < 2.0


@pytest.mark.parametrize("tied", TIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_translator_begins_by_guessing_evenly(family: str, place: str, tied: bool) -> None:
    config = medium(family=family, norm_place=place, tie_embeddings=tied)
    model = begin("translate", config, vocab=500)
    assert isinstance(model, Translator)
    source, target = torch.randint(500, (8, 20)), torch.randint(500, (8, 21))
    logits = model(source, target[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    assert float(loss) == pytest.approx(math.log(500), abs=1.0)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layers", [1, 6, 12])
@torch.no_grad()
def test_depth_does_not_change_the_size_of_the_stream(layers: int, place: str) -> None:
    """Vectors begin with unit variance, and no number of branches makes them grow or vanish."""
    config = medium(width=64, layers=layers, norm_place=place)
    model = begin("generate", config)
    assert isinstance(model, LanguageModel)
    held = model.trace(torch.randint(100, (4, 16))).hidden["decoder"]
    sizes = [float(x.square().mean().sqrt()) for x in held]
    assert all(0.5 < size < 2.0 for size in sizes)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_tokens_begin_at_unit_size_and_what_is_added_is_neither_lost_nor_louder(
    position: str, width: int
) -> None:
    model = begin("generate", medium(width=width, position=position))
    tokens, added = entering(model, torch.randint(100, (8, 32)))
    assert float(tokens.std()) == pytest.approx(1.0, abs=0.1)
    assert float(added.square().mean().sqrt()) in (0.0, pytest.approx(0.6, abs=0.15))


@torch.no_grad()
def test_positions_keep_up_with_the_tokens_they_are_added_to() -> None:
    """Whatever Adam does to a number of one table, it does as much to one of the other."""
    model = begin("generate", medium(position="learned"))
    ids = torch.randint(100, (1, 5))
    before = entering(model, ids)
    for name, weight in model.named_parameters():
        if name.endswith("table.weight"):
            weight.add_(1e-3)
    moved = [float((x - y).mean()) for x, y in zip(entering(model, ids), before, strict=True)]
    assert moved[0] == pytest.approx(moved[1], rel=1e-3)


def entering(model: Model, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What tokens bring into the first block, and what their places add."""
    assert isinstance(model, LanguageModel)
    assert isinstance(model.stack, Stack)
    tokens, places = model.embedding(ids), torch.arange(ids.shape[1])[None]
    return tokens, model.stack.position.embed(torch.zeros_like(tokens), places)


# ------------------------------------------------------------------------------- deep post-norm


def deep(**changes: Any) -> ModelConfig:
    """The 2017 paper's block, six layers deep, normalized after each sum."""
    return ModelConfig(
        norm_place="post",
        activation="relu",
        position="sinusoidal",
        layers=6,
        dropout=0.0,
        **changes,
    )


def steps_to_learn(model: Model, *, vocab: int, rate: float, at_most: int) -> int:
    """Steps of AdamW, warmed up over eight, until the loss is below a fifth of log(vocab).

    The task: token i is followed by f(token i), where f is some fixed permutation.
    """
    generator = torch.Generator().manual_seed(0)
    following = torch.randperm(vocab, generator=generator)
    ids = torch.randint(vocab, (4, 12), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    for step in range(at_most):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 8)
        logits = model(ids, ids) if isinstance(model, Translator) else model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), following[ids].flatten())
        if float(loss.detach()) < 0.2 * math.log(vocab):
            return step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return at_most


@pytest.mark.parametrize("tied", TIES)
@pytest.mark.parametrize(
    ("task", "width", "heads", "rate"),
    [("generate", 768, 12, 1e-4), ("translate", 256, 4, 3e-4)],
    ids=["decoder-768", "encoder-decoder-256"],
)
def test_a_deep_post_norm_model_learns(
    task: str, width: int, heads: int, rate: float, tied: bool
) -> None:
    """Six layers deep, post-norm is hard: a poor beginning does not get there in as many steps."""
    model = begin(task, deep(width=width, heads=heads, tie_embeddings=tied), vocab=16)
    assert steps_to_learn(model, vocab=16, rate=rate, at_most=70) < 70
