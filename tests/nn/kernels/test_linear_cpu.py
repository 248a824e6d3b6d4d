"""Linear layers in C have the outputs and gradients of their formula."""

from __future__ import annotations

import pytest
import torch
from support import apart
from torch import Tensor

from heed.nn.kernels import linear_cpu
from heed.nn.kernels.c_library import cpu_instructions, cpu_vendor
from heed.nn.kernels.linear import Linear
from heed.nn.kernels.linear_cpu import serves
from heed.nn.kernels.matrix_product_cpu import load_kernel

has_kernel = load_kernel() is not None
needs_kernel = pytest.mark.skipif(not has_kernel, reason="no AMD CPU with AVX-512, or no compiler")
ROUNDING = 3e-6


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_it_is_used_where_it_is_made_for() -> None:
    if cpu_vendor() != "AuthenticAMD" or "avx512f" not in cpu_instructions():
        assert not has_kernel
    layer = Linear(16, 32)
    assert serves(draw(3, 16), layer.weight, layer.bias) == has_kernel


@needs_kernel
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
@pytest.mark.parametrize("learns", [(0,), (1,), (0, 1), (0, 1, 2)], ids=str)
def test_a_layer_has_the_gradients_of_its_formula(biased: bool, learns: tuple[int, ...]) -> None:
    layer, x = Linear(48, 80, bias=biased), draw(2, 9, 48)
    parts = [x, *layer.parameters()]
    for i, part in enumerate(parts):
        part.requires_grad_(i in learns)
    wanted = [part for part in parts if part.requires_grad]
    mix = draw(2, 9, 80, seed=3)
    out = layer(x)
    assert type(out.grad_fn).__name__ == "_LinearBackward"
    found = torch.autograd.grad(out, wanted, mix)
    doubled = [part.detach().double().requires_grad_(part.requires_grad) for part in parts]
    exact = doubled[0] @ doubled[1].mT + (doubled[2] if biased else 0)
    gradients = torch.autograd.grad(exact, [p for p in doubled if p.requires_grad], mix.double())
    assert apart(out.double(), exact) <= ROUNDING
    for a, b in zip(found, gradients, strict=True):
        assert apart(a.double(), b) <= ROUNDING


@needs_kernel
def test_gradients_and_inputs_may_have_any_strides() -> None:
    layer, x = Linear(32, 16), draw(9, 2, 64)[..., ::2].transpose(0, 1).requires_grad_()
    (found,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(found, layer.weight.sum(dim=0).expand_as(x))


def test_an_input_of_another_width_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        Linear(32, 64)(draw(20, 48))


@pytest.mark.parametrize("changes", ["width", "double", "autocast", "strided", "library"])
def test_other_layers_are_torchs(changes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(16, 24 if changes == "width" else 32), draw(3, 16)
    if changes == "double":
        layer, x = layer.double(), x.double()
    if changes == "strided":
        layer.weight = torch.nn.Parameter(layer.weight.detach().mT.contiguous().mT)
    if changes == "library":
        monkeypatch.setattr(linear_cpu, "load_kernel", lambda: None)
    with torch.autocast("cpu", torch.bfloat16, enabled=changes == "autocast"):
        assert not serves(x, layer.weight, layer.bias)
        out = layer(x)
    assert type(out.grad_fn).__name__ != "_LinearBackward"


def test_without_gradients_torch_computes() -> None:
    layer, x = Linear(16, 32), draw(3, 16)
    with torch.no_grad():
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
