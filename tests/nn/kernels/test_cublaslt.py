"""Products that cuBLASLt refuses are torch's, and what it cannot read is copied first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import apart
from torch import Tensor

from heed.nn.kernels import cublaslt

TOLERANCE = 2e-2


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).bfloat16()


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(cublaslt, "_refused", set())


def refuse(shape: cublaslt.Shape) -> cublaslt.Plan:
    raise cublaslt.CublasLtError("cublasLtMatmulAlgoGetHeuristic failed with status 15.")


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_torch_computes_what_cublaslt_refuses(
    biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublaslt, "_plan", refuse)
    x, weight, bias = draw(2, 8, 16), draw(24, 16, seed=1), draw(24, seed=2) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert apart(cublaslt.linear(x, weight, bias), exact) <= TOLERANCE
    activated, hidden = cublaslt.linear_gelu(x, weight, bias)
    assert apart(hidden, exact) <= TOLERANCE
    assert apart(activated, gelu(exact)) <= TOLERANCE
    d, down = draw(16, 16, seed=3), draw(16, 24, seed=4)
    product = d.double() @ down.double()
    assert apart(cublaslt.product(d, down), product) <= TOLERANCE
    exact_hidden = hidden.detach().double().flatten(0, 1).requires_grad_()
    (slope,) = torch.autograd.grad(gelu(exact_hidden).sum(), exact_hidden)
    found = cublaslt.product_gelu_backward(d, down, hidden)
    assert apart(found, product * slope) <= TOLERANCE
    assert len(cublaslt._refused) == 4


def test_a_refused_product_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[cublaslt.Shape] = []

    def record(shape: cublaslt.Shape) -> cublaslt.Plan:
        tried.append(shape)
        return refuse(shape)

    monkeypatch.setattr(cublaslt, "_plan", record)
    for _ in range(2):
        cublaslt.product(draw(8, 16), draw(16, 24))
    assert len(tried) == 1


class RecordedPlan:
    """Has the tensors of one run."""

    def __init__(self) -> None:
        self.read: list[Tensor] = []

    def run(self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor, aux: None) -> None:
        self.read = [x, weight, bias]


@pytest.mark.parametrize(
    "change",
    [lambda x: x, lambda x: x.mT.contiguous().mT, lambda x: F.pad(x.flatten(), (1, 0))[1:]],
    ids=["plain", "transposed", "unaligned"],
)
def test_it_reads_contiguous_and_aligned_memory(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: Any = RecordedPlan()
    monkeypatch.setattr(cublaslt, "_plan", lambda shape: plan)
    x, weight = (change(draw(*size)).view(size) for size in ((16, 8), (24, 8)))
    bias = change(draw(24, 3)).view(24, 3)[:, 0]
    cublaslt.linear(x, weight, bias)
    for given, read in zip((x, weight, bias), plan.read, strict=True):
        assert torch.equal(given, read)
        assert read.is_contiguous()
        assert read.data_ptr() % 16 == 0


class NoMemory(cublaslt.Plan):
    """Has algorithms, but no memory to compare them."""

    def __init__(self, found: list[cublaslt.Heuristic]) -> None:
        self.found = found

    def _candidates(self) -> list[cublaslt.Heuristic]:
        return self.found

    def _fastest(self, *args: object) -> cublaslt.Heuristic:
        raise torch.OutOfMemoryError("no memory left")


def test_without_memory_for_a_search_the_first_algorithm_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    found = [cublaslt.Heuristic(), cublaslt.Heuristic()]
    x = draw(8, 8)
    assert NoMemory(found)._choose(x, x, x, None) is found[0]
