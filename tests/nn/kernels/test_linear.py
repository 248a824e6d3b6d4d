"""What maps do on a CPU in their own way is what torch does in its."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heed.nn.kernels.linear import Dropout
from heed.nn.kernels.rotary import rotate_by_tables


@given(p=st.sampled_from([0.1, 0.25, 0.5, 0.9]), size=st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_dropout_keeps_its_share_and_scales_it(p: float, size: int) -> None:
    x = torch.ones(size, 20_001)
    out = Dropout(p)(x)
    kept = out != 0
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - p)))
    # Six standard deviations of so many coins.
    assert abs(float(kept.float().mean()) - (1 - p)) < 6 * (p * (1 - p) / x.numel()) ** 0.5


def test_dropout_is_drawn_anew_from_torchs_generator() -> None:
    drop, x = Dropout(0.5), torch.ones(101)
    torch.manual_seed(1)
    first, second = drop(x), drop(x)
    torch.manual_seed(1)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    neighbours = (first[:-1] != 0) == (first[1:] != 0)
    assert 0.2 < float(neighbours.float().mean()) < 0.8


def test_the_gradient_of_dropout_is_what_it_kept() -> None:
    x = torch.randn(3, 57, requires_grad=True)
    out = Dropout(0.3)(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.allclose(out, x * x.grad)


def test_dropout_is_torchs_where_nothing_is_drawn() -> None:
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
    assert isinstance(Dropout(0.5), nn.Dropout)


def plain(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def test_halves_rotate_by_the_formula() -> None:
    angles = torch.randn(1, 1, 5, 4, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    packed = torch.randn(2, 5, 3 * 8, dtype=torch.float64, requires_grad=True)
    x = packed.unflatten(2, (3, 8)).transpose(1, 2)  # not contiguous, as heads are
    (out,) = rotate_by_tables([x], cos, sin)
    assert torch.allclose(out, plain(x, cos, sin))

    def turned(x: Tensor) -> Tensor:
        return rotate_by_tables([x], cos, sin)[0]

    assert torch.autograd.gradcheck(turned, (x.detach().requires_grad_(),))


def test_halves_of_16_bits_rotate_in_32() -> None:
    angles = torch.randn(2, 1, 5, 4)
    x = torch.randn(2, 3, 5, 8).bfloat16()
    (out,) = rotate_by_tables([x], angles.cos(), angles.sin())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, plain(x.float(), angles.cos(), angles.sin()).bfloat16())
