"""On a CPU bias and activation in one kernel equal the formulas, gradients included.

The reference is torch's float64 of the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart, perturb, threads, tiny
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

from heed.nn.feed_forward import FeedForward
from heed.nn.kernels import bias_activation_cpu as kernels
from heed.nn.kernels.bias_activation_cpu import bias_activation
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.linear import ACTIVATIONS, GATES, linear_activation

pytestmark = pytest.mark.skipif(
    cpu_library("bias_activation") is None, reason="no C compiler for the kernels of a CPU"
)
NAMES = [name for name in ACTIVATIONS if name != "relu"]
each_activation = pytest.mark.parametrize("name", NAMES)
SIZES = st.tuples(st.integers(0, 150), st.integers(1, 70) | st.sampled_from([512, 513, 1100]))
"""Rows and width: partial vectors, several tiles, several blocks of rows."""


def plain(h: Tensor, bias: Tensor | None, name: str) -> Tensor:
    """Torch's own steps, in h's dtype."""
    hidden = h if bias is None else h + bias
    if name not in GATES:
        return ACTIVATIONS[name](hidden)
    gate, value = hidden.chunk(2, dim=-1)
    return ACTIVATIONS[name](gate) * value


def fused(h: Tensor, bias: Tensor | None, name: str) -> Tensor:
    return bias_activation(h, bias, GATES.get(name, name), name in GATES)


def inputs(
    rows: int, f: int, name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """h, bias, and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (rows, f * (1 + (name in GATES))), (f * (1 + (name in GATES)),), (rows, f)
    h, bias, d_out = (torch.randn(size, generator=generator) for size in sizes)
    return (2 * h).to(dtype).requires_grad_(), bias.requires_grad_(), d_out.to(dtype)


def in_double(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads, for however few numbers."""
    monkeypatch.setattr(kernels, "MIN_NUMBERS", 0)
    with threads(2):
        yield


@given(SIZES, st.sampled_from(NAMES), st.booleans(), st.integers(0, 99))
def test_values_and_gradients_are_those_of_the_formulas(
    size: tuple[int, int], name: str, biased: bool, seed: int
) -> None:
    h, bias, d_out = inputs(*size, name, seed=seed)
    wanted = [h, bias] if biased else [h]
    out = fused(h, bias if biased else None, name)
    assert out.dtype == torch.float32
    exact_wanted = in_double(*wanted)
    exact = plain(exact_wanted[0], exact_wanted[1] if biased else None, name)
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-6)
    found = torch.autograd.grad(out, wanted, d_out)
    exact_grads = torch.autograd.grad(exact, exact_wanted, d_out.double())
    torch.testing.assert_close(found[0].double(), exact_grads[0], rtol=5e-6, atol=3e-6)
    if biased:
        size_of_sum = 1 + size[0] ** 0.5
        torch.testing.assert_close(
            found[1].double(), exact_grads[1], rtol=1e-5, atol=3e-6 * size_of_sum
        )


@each_activation
def test_the_whole_line_is_as_exact_as_torchs(name: str) -> None:
    """From -30 to 30, values and slopes: the error is at most a little above that of torch."""
    line = torch.linspace(-30, 30, 120_001)
    h = torch.stack([line, torch.ones_like(line)] if name in GATES else [line], dim=1)
    h.requires_grad_()
    (exact_h,) = in_double(h)
    exact = plain(exact_h, None, name)
    (exact_grad,) = torch.autograd.grad(exact.sum(), exact_h)
    errors = []
    for run in (plain, fused):
        out = run(h, None, name)
        (grad,) = torch.autograd.grad(out.sum(), h)
        pairs = (out.detach(), exact.detach()), (grad, exact_grad)
        errors.append([float(((a - b).abs() / (1 + b.abs())).max()) for a, b in pairs])
    (plain_value, plain_slope), (value, slope) = errors
    assert value <= 1.5 * plain_value + 1e-7
    assert slope <= 1.5 * plain_slope + 1e-7


@each_activation
def test_extreme_numbers_behave_as_torchs(name: str) -> None:
    edges = [1e4, 1e3, 300.0, 100.0, 88.5, 87.5, 87.0, 50.0, 13.5, 5.5]
    line = torch.tensor([*edges, *(-x for x in edges), 0.0, torch.inf, -torch.inf, torch.nan])
    line = line.repeat(3)[None]  # vectors and the rest after them
    h = (torch.cat([line, line.flip(1)], dim=1) if name in GATES else line).requires_grad_()
    (exact_h,) = in_double(h)
    out, exact = fused(h, None, name), plain(exact_h, None, name)
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-5, equal_nan=True)
    (grad,), (exact_grad,) = (
        torch.autograd.grad(y.sum(), x) for y, x in ((out, h), (exact, exact_h))
    )
    torch.testing.assert_close(grad.double(), exact_grad, rtol=2e-6, atol=1e-5, equal_nan=True)


@each_activation
def test_in_bfloat16_only_inputs_and_outputs_are_rounded(name: str) -> None:
    h, bias, d_out = inputs(130, 600, name, dtype=torch.bfloat16)
    out = fused(h, bias, name)
    exact_h, exact_bias = in_double(h, bias)
    exact = plain(exact_h, exact_bias, name)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-6)
    found = torch.autograd.grad(out, [h, bias], d_out)
    exact_grads = torch.autograd.grad(exact, [exact_h, exact_bias], d_out.double())
    assert [x.dtype for x in found] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(found[0].double(), exact_grads[0], rtol=2**-8, atol=1e-5)
    # The sum is of gradients before they are rounded.
    torch.testing.assert_close(found[1].double(), exact_grads[1], rtol=1e-4, atol=1e-4)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    numbers = torch.randn(40_000, generator=torch.Generator().manual_seed(0)) * 50
    bits = torch.arange(0, 2**31 - 2**24, 65_537, dtype=torch.int32).view(torch.float32)
    numbers = torch.cat([numbers, bits, -bits, torch.tensor([torch.nan, torch.inf])])
    # 1000 · silu'(1000) is 1, so that the gradient of h is the gradient of the output.
    h = torch.full((1, len(numbers)), 1000.0).bfloat16().requires_grad_()
    (grad,) = torch.autograd.grad(
        bias_activation(h, None, "silu", False), h, numbers.bfloat16()[None]
    )
    torch.testing.assert_close(grad[0], numbers.bfloat16(), rtol=0, atol=0, equal_nan=True)


@each_activation
@pytest.mark.usefixtures("two_threads")
def test_results_are_the_same_with_any_number_of_threads(name: str) -> None:
    h, bias, d_out = inputs(333, 75, name)

    def run() -> list[Tensor]:
        out = fused(h, bias, name)
        return [out, *torch.autograd.grad(out, [h, bias], d_out)]

    both = run()
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(both, run(), strict=True))


@each_activation
def test_rows_depend_on_no_neighbours(name: str) -> None:
    h, bias, d_out = inputs(9, 75, name)
    out = fused(h, bias, name)
    (grad,) = torch.autograd.grad(out, [h], d_out)
    for row in range(9):
        alone = h[row : row + 1].detach().clone().requires_grad_()
        out_alone = fused(alone, bias, name)
        (grad_alone,) = torch.autograd.grad(out_alone, [alone], d_out[row : row + 1])
        assert torch.equal(out_alone[0], out[row])
        assert torch.equal(grad_alone[0], grad[row])


@each_activation
def test_shapes_and_strides_of_any_kind(name: str) -> None:
    h, bias, _ = inputs(24, 10, name)
    expected = fused(h, bias, name)
    assert torch.equal(fused(h.view(2, 3, 4, -1), bias, name), expected.view(2, 3, 4, 10))
    strided = h.t().contiguous().t()
    assert torch.equal(fused(strided, bias, name), expected)
    (grad,) = torch.autograd.grad(fused(strided, bias, name).sum(), h)  # a gradient without strides
    (expected_grad,) = torch.autograd.grad(expected, h, torch.ones_like(expected))
    assert torch.equal(grad, expected_grad)


@given(f=st.integers(1, 40), other=st.integers(0, 80), gated=st.booleans())
def test_a_bias_of_other_numbers_is_an_error(f: int, other: int, gated: bool) -> None:
    """C would read beyond the end of it."""
    numbers = f * (1 + gated)
    h, bias = torch.randn(3, numbers), torch.randn(other + (other >= numbers))
    with pytest.raises(ValueError, match=f"for {numbers} numbers"):
        bias_activation(h, bias, "silu", gated)


def test_what_c_cannot_read_is_an_error() -> None:
    h, bias = torch.randn(3, 8), torch.randn(8)
    for numbers, added in ((h.to("meta"), None), (h.to("meta"), bias), (h, bias.to("meta"))):
        with pytest.raises(ValueError, match="memory of a CPU"):
            bias_activation(numbers, added, "gelu", False)
    with pytest.raises(ValueError, match="7 numbers have no halves"):
        bias_activation(h[:, :7], None, "silu", True)


# ------------------------------------------------------------------------------------- its layer


def layer(name: str, *, bias: bool = True) -> FeedForward:
    torch.manual_seed(0)
    made = FeedForward(tiny(activation=name, bias=bias))
    perturb(made)
    return made


@each_activation
@pytest.mark.parametrize("bias", [True, False], ids=["biased", "unbiased"])
def test_the_feed_forward_sublayer_is_its_formula(name: str, bias: bool) -> None:
    feed_forward, x = layer(name, bias=bias), torch.randn(2, 9, 16, requires_grad=True)
    wanted = [x, *feed_forward.parameters()]
    out = feed_forward(x)
    exact_layer, (exact_x,) = layer(name, bias=bias).double(), in_double(x)
    exact = exact_layer(exact_x)  # float64 is left to torch
    assert apart(out, exact) <= 1e-5
    found = torch.autograd.grad(out.square().sum(), wanted)
    exact_grads = torch.autograd.grad(exact.square().sum(), [exact_x, *exact_layer.parameters()])
    assert max(apart(a, b) for a, b in zip(found, exact_grads, strict=True)) <= 1e-5


def test_gradients_of_any_one_input() -> None:
    """Frozen weights and biases among them."""
    feed_forward, x = layer("swiglu"), torch.randn(2, 9, 16, requires_grad=True)
    wanted = [x, *feed_forward.parameters()]
    whole = torch.autograd.grad(feed_forward(x).square().sum(), wanted)
    for one, expected in zip(wanted, whole, strict=True):
        for other in wanted:
            other.requires_grad_(other is one)
        feed_forward(x).square().sum().backward()
        assert one.grad is not None
        assert apart(one.grad, expected) <= 1e-6
        assert all(other.grad is None for other in wanted if other is not one)
        one.grad = None


def test_a_weight_with_a_parametrization() -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    feed_forward, x = layer("gelu_tanh"), torch.randn(5, 16)
    hidden = x @ (2 * feed_forward.up.weight).T + feed_forward.up.bias
    expected = ACTIVATIONS["gelu_tanh"](hidden.double())
    (expected_grad,) = torch.autograd.grad(expected.sum(), feed_forward.up.weight)
    original = feed_forward.up.weight
    parametrize.register_parametrization(feed_forward.up, "weight", Double())
    out = linear_activation(x, feed_forward.up, "gelu_tanh")
    assert apart(out, expected) <= 1e-5
    out.sum().backward()
    assert original.grad is not None
    assert apart(original.grad, expected_grad) <= 1e-5


@each_activation
def test_under_autocast_weights_keep_their_dtype(name: str) -> None:
    feed_forward, x = layer(name), torch.randn(50, 16, requires_grad=True)
    wanted = [x, *feed_forward.parameters()]
    exact = torch.autograd.grad(feed_forward(x).square().sum(), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        out = feed_forward(x)
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out.float().square().sum(), wanted)
    assert all(grad.dtype == torch.float32 for grad in found)
    assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= 0.05


def test_the_kernel_is_for_training_in_its_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    launch = kernels._launch

    def count(name: str, *args: Any) -> None:
        calls.append(name)
        launch(name, *args)

    monkeypatch.setattr(kernels, "_launch", count)
    feed_forward, x = layer("gelu"), torch.randn(5, 16)
    feed_forward(x).sum().backward()
    assert calls == ["activate", "differentiate"]
    with torch.no_grad():
        feed_forward(x)
    with torch.autocast("cpu", torch.float16):
        feed_forward(x)
    layer("relu")(x)
    feed_forward.double()(x.double())
    assert calls == ["activate", "differentiate"]


def test_fake_tensors_are_left_to_torch() -> None:
    """They have a shape and no numbers; a kernel in C would read where nothing is."""
    with FakeTensorMode():
        assert layer("gelu")(torch.randn(5, 16)).shape == (5, 16)


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    feed_forward, x = layer("gelu_tanh"), torch.randn(5, 16)
    expected = feed_forward(x)
    monkeypatch.setattr(kernels, "_library", lambda: None)
    out = feed_forward(x)
    hidden = feed_forward.up(x)
    assert torch.equal(out, feed_forward.down(ACTIVATIONS["gelu_tanh"](hidden)))
    assert apart(out, expected) <= 1e-5


def test_a_second_derivative_is_refused_not_wrong() -> None:
    h = torch.randn(3, 4, requires_grad=True)
    out = bias_activation(h, None, "silu", False)
    (grad,) = torch.autograd.grad(out.sum(), [h], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


def test_torchs_default_dtype_changes_nothing() -> None:
    h = torch.randn(6, 64)
    expected = bias_activation(h, None, "gelu", False)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(bias_activation(h, None, "gelu", False), expected)
    finally:
        torch.set_default_dtype(torch.float32)
