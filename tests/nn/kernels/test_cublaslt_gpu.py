"""On a GPU products by cuBLASLt equal their formulas, whichever algorithm is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import DEVICE, needs_gpu
from support import apart, perturb, tiny
from torch import Tensor

from heed.nn.feed_forward import FeedForward
from heed.nn.kernels import cublaslt, linear_gpu

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
TOLERANCE = 2e-2
SIZES = [(8, 8, 8), (128, 64, 256), (200, 136, 72), (2048, 512, 1536)]
"""Rows, inner dimension and columns: one tile, whole tiles, partial tiles, many."""
each_size = pytest.mark.parametrize("size", SIZES, ids=str)
each_bias = pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])


@pytest.fixture(autouse=True)
def _plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test searches anew, and for products of any size; torch computes none of them."""
    cublaslt._plan.cache_clear()
    monkeypatch.setattr(cublaslt, "MIN_OPERATIONS", 0)
    monkeypatch.setattr(cublaslt, "_refused", set())
    yield
    assert not cublaslt._refused


def draw(*size: int, seed: int = 0) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return x.to(DEVICE, torch.bfloat16)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@each_size
@each_bias
def test_a_linear_layer_is_its_formula(size: tuple[int, int, int], biased: bool) -> None:
    n, k, m = size
    x, weight, bias = draw(n, k), draw(m, k, seed=1), draw(m, seed=2) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert cublaslt.serves(x, weight)
    assert apart(cublaslt.linear(x, weight, bias), exact) <= TOLERANCE
    activated, hidden = cublaslt.linear_gelu(x, weight, bias)
    assert apart(hidden, exact) <= TOLERANCE
    assert apart(activated, gelu(exact)) <= TOLERANCE


@each_size
def test_a_product_is_its_formula(size: tuple[int, int, int]) -> None:
    n, k, m = size
    d, weight = draw(n, k), draw(k, m, seed=1)
    exact = d.double() @ weight.double()
    assert apart(cublaslt.product(d, weight), exact) <= TOLERANCE
    hidden = draw(n, m, seed=2).double().requires_grad_()
    (slope,) = torch.autograd.grad(gelu(hidden).sum(), hidden)
    found = cublaslt.product_gelu_backward(d, weight, hidden.detach().bfloat16())
    assert apart(found, exact * slope) <= TOLERANCE


def test_leading_dimensions_are_kept() -> None:
    x, weight = draw(2, 4, 16), draw(24, 16, seed=1)
    activated, hidden = cublaslt.linear_gelu(x, weight)
    assert cublaslt.linear(x, weight).shape == activated.shape == hidden.shape == (2, 4, 24)


@pytest.mark.parametrize("call", ["linear", "gelu", "product", "backward"])
def test_the_choice_of_an_algorithm_changes_no_bit(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What timing prefers has the bits of the algorithm that is taken without it."""
    x, weight, other = draw(1024, 512), draw(2048, 512, seed=1), draw(512, 2048, seed=1)
    hidden = draw(1024, 2048, seed=2)
    calls: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: cublaslt.linear(x, weight),
        "gelu": lambda: cublaslt.linear_gelu(x, weight)[0],
        "product": lambda: cublaslt.product(x, other),
        "backward": lambda: cublaslt.product_gelu_backward(x, other, hidden),
    }
    results = []
    for order in (1, -1):  # the first agreeing algorithm is the fastest, then the last
        times = count()
        with monkeypatch.context() as patched:
            patched.setattr(cublaslt.Plan, "_time", lambda *_, t=times, o=order: o * next(t))
            cublaslt._plan.cache_clear()
            results.append(calls[call]())
    assert torch.equal(*results)


def test_a_search_draws_nothing_from_the_run_s_generator() -> None:
    x, weight = draw(256, 64), draw(128, 64, seed=1)
    state = torch.cuda.get_rng_state()
    cublaslt.linear(x, weight)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_in_a_captured_graph_it_is_the_eager_product() -> None:
    x, weight, down = draw(512, 256), draw(1024, 256, seed=1), draw(256, 1024, seed=2)

    def run() -> list[Tensor]:
        activated, hidden = cublaslt.linear_gelu(x, weight)
        back = cublaslt.product_gelu_backward(x, down.mT.contiguous().mT.contiguous(), hidden)
        return [activated, hidden, back, cublaslt.product(activated, weight)]

    eager = run()
    for searched in (True, False):  # the second time there are no plans before the capture
        if not searched:
            cublaslt._plan.cache_clear()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            captured = run()
        for part in captured:
            part.zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


def test_what_it_cannot_read_is_left_to_torch() -> None:
    x, weight = draw(16, 16), draw(24, 16)
    assert cublaslt.serves(x, weight)
    assert not cublaslt.serves(x.float(), weight.float())
    assert not cublaslt.serves(x.mT, weight)
    assert not cublaslt.serves(x, draw(21, 16))
    assert not cublaslt.serves(draw(15, 16), weight)
    assert not cublaslt.serves(x.cpu(), weight.cpu())
    assert not cublaslt.serves(draw(257)[1:].view(16, 16), weight)


# ------------------------------------------------------------------------------ feed-forward layer


@each_bias
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_feed_forward_layer_is_its_formula(
    biased: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FeedForward(tiny(activation="gelu_tanh", bias=biased))
    perturb(layer)
    layer.to(DEVICE)
    x = draw(2, 8, 16, seed=3).to(dtype).requires_grad_()
    wanted = [x, *layer.parameters()]

    def run() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            out = layer(x)
        mix = draw(*out.shape, seed=5)
        return [out, *torch.autograd.grad(out, wanted, mix)]

    found = run()
    with monkeypatch.context() as patched:
        patched.setattr(linear_gpu, "has_gelu_products", lambda *args: False)
        plain = run()
    assert [part.dtype for part in found] == [part.dtype for part in plain]
    assert max(apart(a, b) for a, b in zip(found, plain, strict=True)) <= TOLERANCE
    up, down = layer.up, layer.down
    biases = [None if part.bias is None else part.bias.double() for part in (up, down)]
    hidden = gelu(F.linear(x.double(), up.weight.double(), biases[0]))
    exact = F.linear(hidden, down.weight.double(), biases[1])
    exact_grads = torch.autograd.grad(exact, wanted, draw(*exact.shape, seed=5).double())
    assert apart(found[0], exact) <= TOLERANCE
    assert max(apart(a, b) for a, b in zip(found[1:], exact_grads, strict=True)) <= TOLERANCE


def test_gradients_of_any_one_input() -> None:
    layer = FeedForward(tiny(activation="gelu_tanh")).to(DEVICE)
    x = draw(2, 8, 16, seed=3).float().requires_grad_()
    wanted = [x, *layer.parameters()]

    def run() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return layer(x).float().square().sum()

    whole = torch.autograd.grad(run(), wanted)
    for one, expected in zip(wanted, whole, strict=True):
        for other in wanted:
            other.requires_grad_(other is one)
        assert torch.equal(torch.autograd.grad(run(), [one])[0], expected)


def test_dropout_and_other_activations_keep_their_own_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, products = count(), linear_gpu.feed_forward_gelu

    def counted(*args: Any) -> Tensor:
        next(calls)
        return products(*args)

    monkeypatch.setattr(linear_gpu, "feed_forward_gelu", counted)
    others: list[dict[str, Any]] = [{"feed_forward_dropout": 0.5}, {"activation": "gelu"}]
    for changes in (*others, {}):
        layer = FeedForward(tiny(**({"activation": "gelu_tanh"} | changes))).to(DEVICE).train()
        with torch.autocast("cuda", torch.bfloat16):
            layer(draw(2, 8, 16))
    assert next(calls) == 1
