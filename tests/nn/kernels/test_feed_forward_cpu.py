"""The feed-forward sublayer as one function is its parts, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart, perturb, threads, tiny
from torch import Tensor

from heed.nn.feed_forward import FeedForward
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.linear import ACTIVATIONS, linear_activation

pytestmark = pytest.mark.skipif(
    cpu_library("bias_activation") is None, reason="no C compiler for the kernels of a CPU"
)
NAMES = [name for name in ACTIVATIONS if name != "relu"]
ROUNDING = 1e-5


def build(name: str, *, width: int = 16, bias: bool = True, **changes: Any) -> FeedForward:
    torch.manual_seed(0)
    shape = {"width": width, "activation": name, "bias": bias, "feed_forward": 2 * width}
    layer = FeedForward(tiny(**(shape | changes)))
    perturb(layer)
    return layer


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def gradients(layer: FeedForward, x: Tensor, out: Tensor) -> list[Tensor]:
    learns = [p for p in (x, *layer.parameters()) if p.requires_grad]
    mix = draw(*out.shape, seed=1).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, learns, mix)]


def in_parts(layer: FeedForward, x: Tensor) -> Tensor:
    return layer.down(linear_activation(x, layer.up, layer.activation))


def is_one_function(out: Tensor) -> bool:
    return type(out.grad_fn).__name__ == "_FeedForwardBackward"


@pytest.mark.parametrize("name", NAMES)
@given(
    rows=st.integers(0, 70),
    width=st.sampled_from([4, 16, 24, 48]),
    bias=st.booleans(),
    learns=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_it_is_its_parts_and_the_formula(
    name: str, rows: int, width: int, bias: bool, learns: list[bool]
) -> None:
    """For any choice of what learns: the input, and each of the parameters."""
    layer, x = build(name, width=width, bias=bias), draw(2, rows, width)
    for part, own in zip((x, *layer.parameters()), learns, strict=False):
        part.requires_grad_(own)
    out = layer(x)
    if not out.requires_grad:
        return
    assert is_one_function(out)
    found, parts = gradients(layer, x, out), gradients(layer, x, in_parts(layer, x))
    exact, wide = build(name, width=width, bias=bias).double(), x.detach().double()
    for part, own in zip((wide, *exact.parameters()), learns, strict=False):
        part.requires_grad_(own)
    for one, two, truth in zip(found, parts, gradients(exact, wide, exact(wide)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        assert one.shape == truth.shape
        if truth.numel():
            assert apart(one.double(), truth) <= ROUNDING


def test_inputs_and_gradients_may_have_any_strides() -> None:
    layer, x = build("gelu"), draw(9, 2, 32)[..., ::2].transpose(0, 1).requires_grad_()
    found, plain = layer(x), layer(x.contiguous())
    assert torch.equal(found, plain)
    (one,) = torch.autograd.grad(found.sum(), x)
    (two,) = torch.autograd.grad(plain, x, torch.ones_like(plain))
    assert torch.equal(one, two)


def test_the_number_of_threads_changes_rounding_alone() -> None:
    layer, x = build("gelu", width=64), draw(1, 600, 64).requires_grad_()
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(gradients(layer, x, layer(x)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 33])
def test_a_bias_of_another_size_is_refused_before_it_is_read(size: int) -> None:
    layer = build("gelu")
    layer.up.bias = torch.nn.Parameter(torch.zeros(size))
    with pytest.raises(ValueError, match="for 32 numbers"):
        layer(draw(3, 16))


@pytest.mark.parametrize("case", ["autocast", "double", "dropout", "relu", "evaluation"])
def test_elsewhere_the_parts_run(case: str) -> None:
    name, dropout = "relu" if case == "relu" else "gelu", 0.5 if case == "dropout" else 0.0
    layer, x = build(name, feed_forward_dropout=dropout), draw(3, 16)
    if case == "double":
        layer, x = layer.double(), x.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        with torch.set_grad_enabled(case != "evaluation"):
            out = layer(x)
        assert not is_one_function(out)


def test_a_second_differentiation_is_an_error() -> None:
    layer, x = build("gelu"), draw(3, 16).requires_grad_()
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
