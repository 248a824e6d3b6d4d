"""On a GPU the gradient of a linear layer's bias and the fused activations equal the formulas.

The reference is float64 of the same inputs. Without a GPU these tests run in Triton's interpreter
(TRITON_INTERPRET=1).
"""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_kernels
from support import apart, perturb, tiny
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heed.nn.feed_forward import FeedForward
from heed.nn.kernels import linear as linear_module
from heed.nn.kernels import linear_gpu
from heed.nn.kernels.linear import ACTIVATIONS, GATES, Linear, linear_activation
from heed.nn.kernels.weight_copies import WeightCopies

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda x: str(x).split(".")[1])
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)
SIZES = [(0, 8), (1, 1), (37, 5), (70, 130), (9, 512)] + [(5000, 768), (40_000, 2048)] * CUDA
"""Rows and width: none, within a tile, partial tiles, many parts."""


@pytest.fixture(autouse=True)
def _by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setattr(linear_module, "on_gpu", lambda x: True)


def rows(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (x + 0.3).to(DEVICE, dtype).requires_grad_()


def linear(w: int, f: int, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> Linear:
    torch.manual_seed(0)
    made = Linear(w, f, bias=bias)
    perturb(made)
    return made.to(DEVICE, dtype)


def plainly(x: Tensor, up: nn.Linear, name: str | None = None) -> Tensor:
    """In float64."""
    bias = None if up.bias is None else up.bias.double()
    hidden = F.linear(x.double(), up.weight.double(), bias)
    if name in GATES:
        gate, passed = hidden.chunk(2, dim=-1)
        return ACTIVATIONS[GATES[name]](gate) * passed
    return hidden if name is None else ACTIVATIONS[name](hidden)


def compare(out: Tensor, exact: Tensor, wanted: list[Tensor], tolerance: float) -> None:
    """The values, and gradients of a random mix of them."""
    assert apart(out, exact) <= tolerance
    mix = rows(*out.shape, seed=5).detach()
    found = torch.autograd.grad(out, wanted, mix.to(out.dtype))
    exact_grads = torch.autograd.grad(exact, wanted, mix.double())
    assert [grad.dtype for grad in found] == [part.dtype for part in wanted]
    assert max(apart(a, b) for a, b in zip(found, exact_grads, strict=True)) <= tolerance


@each_dtype
def test_columns_are_summed(dtype: torch.dtype) -> None:
    from heed.nn.kernels.triton.column_sum import column_sums

    for n, w in SIZES:
        x = rows(n, w, dtype=dtype).detach()
        found = column_sums(x)
        assert found.dtype == torch.float32
        assert apart(found, x.double().sum(dim=0)) <= 1e-5
        assert torch.equal(found, column_sums(x))
    strided = rows(3, 40, 7, dtype=dtype).detach().transpose(1, 2)
    assert apart(column_sums(strided), strided.double().sum(dim=(0, 1))) <= 1e-5


@each_dtype
def test_a_linear_layer_is_its_formula(dtype: torch.dtype) -> None:
    up, x = linear(24, 40, dtype=dtype), rows(3, 11, 24, dtype=dtype)
    compare(up(x), plainly(x, up), [x, *up.parameters()], TOLERANCE[dtype])
    unbiased = linear(24, 40, dtype=dtype, bias=False)
    compare(unbiased(x), plainly(x, unbiased), [x, unbiased.weight], TOLERANCE[dtype])


@each_dtype
@each_activation
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_an_activation_is_its_formula(name: str, dtype: torch.dtype, biased: bool) -> None:
    # A number near zero may be rounded across it, where relu has its corner.
    corner = 0.0 if name != "relu" else 1e-3 if dtype == torch.float32 else 0.05
    for n, f in SIZES:
        up = linear(24, f * (2 if name in GATES else 1), bias=biased, dtype=dtype)
        x = rows(n, 24, dtype=dtype)
        out = linear_activation(x, up, name)
        assert out.dtype == dtype
        wanted = [x, *up.parameters()]
        compare(out, plainly(x, up, name), wanted, max(corner, TOLERANCE[dtype]))


@each_activation
@pytest.mark.filterwarnings(
    "default:overflow encountered"
)  # The interpreter warns, a GPU does not.
def test_far_from_zero_activations_stay_finite(name: str) -> None:
    width = 7 * (2 if name in GATES else 1)
    up = linear(width, width, bias=False)
    with torch.no_grad():
        up.weight.copy_(torch.eye(width))
    line = torch.tensor([-1e4, -90.0, -10.0, 0.0, 10.0, 90.0, 1e4], device=DEVICE)
    x = line.repeat(width // 7)[None].requires_grad_()
    compare(linear_activation(x, up, name), plainly(x, up, name), [x], 1e-5)


@each_activation
def test_under_autocast_weights_keep_their_dtype(name: str) -> None:
    up, x = linear(24, 30), rows(50, 24)
    down = linear(15 if name in GATES else 30, 24)
    wanted = [x, *up.parameters(), *down.parameters()]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = down(linear_activation(x, up, name))
    assert out.dtype == torch.bfloat16
    compare(out, plainly(plainly(x, up, name), down), wanted, 0.05)


def test_gradients_of_any_one_input() -> None:
    layer = FeedForward(tiny(activation="swiglu"))
    perturb(layer)
    layer.to(DEVICE)
    x = rows(2, 9, 16)
    wanted = [x, *layer.parameters()]
    whole = torch.autograd.grad(layer(x).square().sum(), wanted)
    for one, expected in zip(wanted, whole, strict=True):
        for other in wanted:
            other.requires_grad_(other is one)
        (alone,) = torch.autograd.grad(layer(x).square().sum(), [one])
        assert apart(alone, expected) <= 1e-6
    with torch.no_grad():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_results_are_deterministic(name: str) -> None:
    layer = FeedForward(tiny(activation=name)).to(DEVICE)
    x = rows(5000 if CUDA else 50, 16)

    def run() -> list[Tensor]:
        out = layer(x)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_partial_sums_are_added_in_a_fixed_order() -> None:
    from heed.nn.kernels.triton.column_sum import add_parts

    for parts, w in ((1, 1), (2, 33), (130, 40), (513, 768)):
        sums = rows(parts, w).detach()
        assert apart(add_parts(sums), sums.double().sum(dim=0)) <= 1e-6
        assert torch.equal(add_parts(sums), add_parts(sums))


# ------------------------------------------------------------------- under autocast


def under_autocast(layer: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of its mix by x and by all parameters."""
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = layer(x)
    mix = rows(*out.shape, seed=5).detach().to(out.dtype)
    return out, list(torch.autograd.grad(out, [x, *layer.parameters()], mix))


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_under_autocast_a_gradient_of_weights_is_rounded_to_float32_alone(biased: bool) -> None:
    layer, x = linear(24, 40, bias=biased), rows(3, 50, 24)
    _, (_, d_weight, *_) = under_autocast(layer, x)
    mix = rows(3, 50, 40, seed=5).detach().bfloat16().double().flatten(0, 1)
    exact = mix.mT @ x.detach().bfloat16().double().flatten(0, 1)
    assert d_weight.dtype == torch.float32
    assert apart(d_weight, exact) <= 1e-5
    assert not torch.equal(d_weight, d_weight.bfloat16().float())


def test_a_computed_weight_does_not_stay_in_memory() -> None:
    """Its copy in 16 bits does, for the backward pass."""
    layer, x = linear(24, 40), rows(5, 24)
    weight = layer.weight * 2
    alive = weakref.ref(weight)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = linear_gpu.linear(x, weight, layer.bias)
    del weight
    assert alive() is None
    out.float().sum().backward()
    assert layer.weight.grad is not None


def test_with_copies_of_the_weights_every_bit_is_the_same() -> None:
    layer, x = FeedForward(tiny(activation="gelu")), rows(2, 9, 16)
    perturb(layer)
    layer.to(DEVICE)
    copies = WeightCopies([layer.up.weight, layer.down.weight])
    for _ in range(2):  # the second time, of other weights
        plain, plain_grads = under_autocast(layer, x)
        with copies.refreshed():
            out, grads = under_autocast(layer, x)
        assert torch.equal(plain, out)
        assert all(torch.equal(a, b) for a, b in zip(plain_grads, grads, strict=True))
        with torch.no_grad():
            torch._foreach_mul_(list(layer.parameters()), 1.7)


def test_copies_are_read_only_while_they_are_fresh() -> None:
    layer, x = linear(24, 40), rows(5, 24)
    copies = WeightCopies([layer.weight])
    with copies.refreshed():
        before, _ = under_autocast(layer, x)
    with torch.no_grad():
        layer.weight.mul_(2).add_(1)
    after, _ = under_autocast(layer, x)
    assert not torch.equal(before, after)
    with copies.refreshed():
        assert torch.equal(after, under_autocast(layer, x)[0])


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_a_model_has_copies_of_its_linear_layers_on_a_gpu_alone() -> None:
    layer = FeedForward(tiny())
    adapted = FeedForward(tiny())
    parametrize.register_parametrization(adapted.up, "weight", nn.Identity())
    both = nn.ModuleList([layer, layer, adapted])
    assert not WeightCopies.of_linear_layers(both).weights
    both.to(DEVICE)
    found = WeightCopies.of_linear_layers(both).weights
    biases = layer.up.bias, layer.down.bias, adapted.up.bias, adapted.down.bias
    expected = layer.up.weight, layer.down.weight, adapted.down.weight, *biases
    assert {id(w) for w in found} == {id(w) for w in expected}
    assert not WeightCopies.of_linear_layers(both.bfloat16()).weights
