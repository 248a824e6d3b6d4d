"""R-Drop in the loss is the paper's formula, halved, with its gradient, in however many chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.rdrop import pair_rows, rdrop_loss, rdrop_loss_and_grad, repeat_rows

IGNORED = -100
SIZES = st.tuples(st.integers(1, 20), st.integers(2, 50), st.integers(1, 16))
"""Pairs, vocabulary, width."""
ALPHAS = st.sampled_from([0.5, 1.0, 5.0])
SMOOTHINGS = st.sampled_from([0.0, 0.1])


def inputs(
    n: int, v: int, w: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors of two passes, the output map, and a target a pair, some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in ((n, 2, w), (v, w), (v,))
    )
    targets = torch.randint(v, (n,), generator=generator)
    hidden = torch.rand(n, generator=generator) < 0.3
    parts = [part.to(dtype).requires_grad_() for part in (x, weight / w**0.5, bias)]
    return parts[0], parts[1], parts[2], targets.masked_fill(hidden, IGNORED)


def paper(
    x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, alpha: float, smoothing: float
) -> Tensor:
    """Liang et al. 2021, equations 1 to 4: two likelihoods, and α times the mean divergence."""
    logits = F.linear(x, weight, bias)
    one, other = logits.log_softmax(dim=-1).unbind(dim=1)
    nll = sum(
        F.cross_entropy(
            each, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
        for each in logits.unbind(dim=1)
    )
    apart = F.kl_div(other, one, log_target=True, reduction="none")
    apart = apart + F.kl_div(one, other, log_target=True, reduction="none")
    return nll + alpha * 0.5 * apart.sum(dim=-1)[targets != IGNORED].sum()


@given(SIZES, ALPHAS, SMOOTHINGS, st.none() | st.integers(1, 200), st.integers(0, 99))
def test_it_is_half_the_papers_loss(
    sizes: tuple[int, int, int], alpha: float, smoothing: float, max_logits: int | None, seed: int
) -> None:
    x, weight, bias, targets = inputs(*sizes, seed=seed)
    total, right = linear_cross_entropy(
        x.flatten(0, 1),
        weight,
        repeat_rows(targets),
        bias_v=bias,
        label_smoothing=smoothing,
        max_logits=max_logits,
        rdrop=alpha,
    )
    expected = paper(x, weight, bias, targets, alpha, smoothing) / 2
    torch.testing.assert_close(total, expected)
    found, exact = (torch.autograd.grad(loss, (x, weight, bias)) for loss in (total, expected))
    torch.testing.assert_close(found, exact)
    assert (found[0][targets == IGNORED] == 0).all()
    said = F.linear(x, weight, bias).argmax(dim=-1)
    assert right == (said == targets[:, None]).sum()


@given(SIZES, ALPHAS, SMOOTHINGS, st.integers(0, 99))
def test_passes_that_agree_have_the_plain_loss(
    sizes: tuple[int, int, int], alpha: float, smoothing: float, seed: int
) -> None:
    x, weight, bias, targets = inputs(*sizes, seed=seed)
    one = x[:, 0].detach().requires_grad_()
    kwargs: dict[str, Any] = {"bias_v": bias, "label_smoothing": smoothing}
    total, right = linear_cross_entropy(
        repeat_rows(one), weight, repeat_rows(targets), rdrop=alpha, **kwargs
    )
    expected, once = linear_cross_entropy(one, weight, targets, **kwargs)
    torch.testing.assert_close(total, expected)
    assert right == 2 * once
    found, exact = (torch.autograd.grad(loss, (one, weight, bias)) for loss in (total, expected))
    torch.testing.assert_close(found, exact)


@given(SIZES, ALPHAS, st.integers(0, 99))
def test_the_returned_gradient_is_autograd_s(
    sizes: tuple[int, int, int], alpha: float, seed: int
) -> None:
    x, weight, bias, _ = inputs(*sizes, seed=seed)
    logits = F.linear(x, weight, bias).detach().requires_grad_()
    losses, gradient = rdrop_loss_and_grad(logits, alpha)
    expected = rdrop_loss(logits, alpha)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected.sum(), logits))
    assert (losses >= -1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coarse_numbers_give_nearly_the_same(dtype: torch.dtype) -> None:
    x, weight, bias, targets = inputs(60, 40, 16, dtype=dtype)
    total, _ = linear_cross_entropy(
        x.flatten(0, 1), weight, repeat_rows(targets), bias_v=bias, rdrop=5.0
    )
    exact = [part.detach().double().requires_grad_() for part in (x, weight, bias)]
    expected = paper(exact[0], exact[1], exact[2], targets, 5.0, 0.0) / 2
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected, rtol=tolerance, atol=0.0)
    found, wanted = (
        torch.autograd.grad(total, (x, weight, bias)),
        torch.autograd.grad(expected, exact),
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() <= tolerance * other.norm()


def test_pairs_stand_side_by_side() -> None:
    texts = torch.arange(6).reshape(3, 2, 1)
    rows = pair_rows(repeat_rows(texts)).flatten().tolist()
    assert rows == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
