"""A branch joins the stream, and a stack joins all of its branches, in the order they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support import apart, new_language_model, texts, tiny
from torch import Tensor, nn

from heed.models import build
from heed.nn.kernels.linear import Dropout
from heed.nn.kernels.residual_norm import ResidualStream, add_norm, draw_seeds
from heed.nn.stack import Stack

each_place = pytest.mark.parametrize("place", ["pre", "post"])


@given(
    b=st.integers(0, 3),
    w=st.integers(1, 20),
    p=st.floats(0.0, 0.9),
    training=st.booleans(),
    rms=st.booleans(),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_it_is_a_sum_and_its_norm(
    b: int, w: int, p: float, training: bool, rms: bool, seed: int
) -> None:
    """Without gradients: to the bit, and with torch's own dropout."""
    torch.manual_seed(seed)
    norm: nn.Module = nn.RMSNorm(w) if rms else nn.LayerNorm(w)
    x, branch, dropout = torch.randn(b, 5, w), torch.randn(b, 5, w), nn.Dropout(p).train(training)
    torch.manual_seed(seed)
    joined, normed = add_norm(x, branch, norm, dropout)
    torch.manual_seed(seed)
    expected = x + F.dropout(branch, p, training)
    assert torch.equal(joined, expected)
    assert torch.equal(normed, norm(expected))
    alone, normed = add_norm(x, None, norm, dropout)
    assert alone is x
    assert torch.equal(normed, norm(x))
    torch.manual_seed(seed)
    alone, normed = add_norm(None, branch, norm, dropout)
    torch.manual_seed(seed)
    expected = F.dropout(branch, p, training)
    assert torch.equal(alone, expected)
    assert torch.equal(normed, norm(expected))


def test_a_cpu_needs_no_seeds() -> None:
    """Its dropout is torch's, and draws nothing beside."""
    before = torch.get_rng_state()
    assert draw_seeds(torch.zeros(2, 3), nn.Dropout(0.5), 4) is None
    assert torch.equal(torch.get_rng_state(), before)


@each_place
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_cpu_drops_the_embedding_at_once(place: str, grad: bool, training: bool) -> None:
    """And draws nothing beside."""
    embedded, dropout = torch.randn(2, 7, 16), Dropout(0.3).train(training)
    blocks = nn.ModuleList([nn.Identity()])
    with torch.set_grad_enabled(grad):
        torch.manual_seed(1)
        stream = ResidualStream.begin(
            embedded, dropout, pre_norm=place == "pre", blocks=blocks, sublayers=2
        )
        after = torch.get_rng_state()
        torch.manual_seed(1)
        expected = dropout(embedded)
    assert stream.branch_bnw is None
    assert stream.x_bnw is not None
    assert torch.equal(stream.x_bnw, expected)
    assert torch.equal(torch.get_rng_state(), after)


@each_place
@torch.no_grad()
def test_looking_inside_changes_no_draw(place: str) -> None:
    """A pass that reports each layer adds each branch at once, one that does not a step later."""
    model = new_language_model(norm_place=place, dropout=0.3).train()
    ids = torch.stack(texts([7, 7]))
    torch.manual_seed(1)
    fast = model(ids)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    traced = model.trace(ids)
    assert torch.equal(torch.get_rng_state(), after)
    assert apart(fast, traced.logits) <= 1e-5


@each_place
@torch.no_grad()
def test_each_layer_reports_a_whole_stream(place: str) -> None:
    """What a layer reports is what a stack that ends with it holds."""
    model, ids = new_language_model(norm_place=place, layers=3), torch.stack(texts([7, 7]))
    stack = model.stack
    assert isinstance(stack, Stack)
    reported = model.trace(ids).hidden["decoder"]
    for layers in (3, 2, 1):
        stack.blocks = stack.blocks[:layers]
        assert apart(model.states(ids).x_bnw, stack.norm(reported[layers])) <= 1e-5


@each_place
def test_every_parameter_learns(place: str) -> None:
    """Nothing that a block leaves to the next one is lost, neither of the first nor of the last."""
    model = new_language_model(norm_place=place, dropout=0.1).train()
    loss = model(torch.stack(texts([7, 7]))).square().sum()
    grads: tuple[Tensor, ...] = torch.autograd.grad(loss, list(model.parameters()))
    assert all(grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_an_output_that_is_scaled_is_not_for_linear_layers_alone(scale: float | None) -> None:
    """It would be rounded to 16 bits twice."""
    config = tiny(lm_head_scale=scale)
    generator: Any = build("generate", config, vocab=20)
    translator: Any = build("translate", config, vocab=20)
    assert generator.stack.for_linear == translator.decoder.for_linear == (scale is None)
    assert translator.encoder.for_linear
