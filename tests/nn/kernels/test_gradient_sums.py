"""Column sums travel with a gradient as long as nothing changes it, and no further."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heed.nn.kernels.gradient_sums import attach_sums, attached_sums, wants_sums


class _Doubled(torch.autograd.Function):
    """2 x, whose gradient brings its column sums along."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        dx = 2 * dy
        attach_sums(dx, dx.sum(dim=0, keepdim=True))
        return dx


class _Layer(torch.autograd.Function):
    """x, whose gradient is summed; it keeps what it got."""

    found: list[Tensor | None]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sums_gradient = True
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        sums = attached_sums(dy)
        assert sums is None or torch.equal(sums[0], dy.sum(dim=0))
        _Layer.found.append(sums)
        return dy


def _layer(x: Tensor) -> Tensor:
    _Layer.found = []
    run: Any = _Layer.apply
    return run(x)


def _double(x: Tensor) -> Tensor:
    run: Any = _Doubled.apply
    return run(x)


def _inputs() -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_a_function_says_whether_its_gradient_is_summed() -> None:
    x = _inputs()
    assert wants_sums(_layer(x))
    assert not wants_sums(_double(_layer(x)))
    assert not wants_sums(x)


def test_sums_come_with_the_gradient() -> None:
    _double(_layer(_inputs())).sum().backward()
    assert _Layer.found[0] is not None


def test_a_gradient_to_which_another_is_added_has_no_sums() -> None:
    """Autograd may add in place, to the very tensor that carries the sums."""
    for parts in (1, 2, 3):
        y = _layer(_inputs())
        torch.stack([_double(y) for _ in range(parts)]).sum().backward()
        assert (_Layer.found[0] is not None) == (parts == 1)
        y = _layer(_inputs())
        (_double(y) + 3 * y).sum().backward()
        assert _Layer.found == [None]


def test_a_gradient_that_a_hook_changes_has_no_sums() -> None:
    y = _layer(_inputs())
    y.register_hook(lambda gradient: gradient.mul_(2))
    _double(y).sum().backward()
    assert _Layer.found == [None]


def test_a_changed_or_copied_tensor_has_no_sums() -> None:
    x = torch.ones(4, 3)
    assert attached_sums(x) is None
    attach_sums(x, torch.full((1, 3), 4.0))
    assert attached_sums(x) is not None
    assert attached_sums(x.clone()) is None
    assert attached_sums(x.view(12)) is None
    x[0] = 0
    assert attached_sums(x) is None
