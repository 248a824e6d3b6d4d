"""RoPE in C is the formula, with its gradient, whatever the strides, threads and neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart, threads, tiny
from torch import Tensor, nn

from heed.nn.kernels import heads, rotary_cpu
from heed.nn.kernels.heads import SharedPosition
from heed.nn.kernels.position_forms import FORMS, RopeForm
from heed.nn.kernels.rotary import rotate_by_tables
from heed.nn.kernels.rotary_cpu import DTYPES, can_rotate, load_kernel, rotate_heads
from heed.nn.positions import Rope

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="no C compiler")
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
sizes = {
    "b": st.integers(1, 3),
    "n": st.integers(1, 9),
    "h": st.integers(1, 4),
    "half": st.sampled_from([1, 3, 8, 16, 20, 33]),
    "own": st.booleans(),
}


def draw_heads(b: int, h: int, n: int, d: int, seed: int = 0) -> Tensor:
    """Heads as one view of a larger tensor, which a linear layer wrote."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(b, n, 3, h, d, generator=generator)
    return packed[:, :, 1].transpose(1, 2)


def draw_tables(b: int, n: int, half: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [b, 1, n, d/2] with strides as those of a joint table."""
    angles = 100 * torch.rand(b, n, half, generator=torch.Generator().manual_seed(1))
    cos, sin = torch.stack([angles.cos(), angles.sin()], dim=2)[:, None].unbind(dim=3)
    return cos, sin


def formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = cos.double(), sin.double()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@given(**sizes)
def test_it_is_the_formula(
    dtype: torch.dtype, b: int, n: int, h: int, half: int, own: bool
) -> None:
    x, (cos, sin) = draw_heads(b, h, n, 2 * half).to(dtype), draw_tables(b if own else 1, n, half)
    assert can_rotate(x, cos, sin)
    out = rotate_heads(x, cos, sin)
    assert out.dtype == dtype
    assert apart(out.double(), formula(x, cos, sin)) <= ROUNDING[dtype]


@needs_kernel
@given(**sizes)
def test_of_bfloat16_only_the_result_is_rounded(
    b: int, n: int, h: int, half: int, own: bool
) -> None:
    x, tables = draw_heads(b, h, n, 2 * half).bfloat16(), draw_tables(b if own else 1, n, half)
    assert torch.equal(rotate_heads(x, *tables), rotate_heads(x.float(), *tables).bfloat16())


@needs_kernel
@given(**sizes)
def test_its_gradient_is_the_rotation_back(b: int, n: int, h: int, half: int, own: bool) -> None:
    x, y = draw_heads(b, h, n, 2 * half).requires_grad_(), draw_heads(b, h, n, 2 * half, seed=2)
    cos, sin = draw_tables(b if own else 1, n, half)
    outs = rotate_by_tables([x, y.requires_grad_()], cos, sin)
    mixes = [torch.randn_like(out) for out in outs]
    grads = torch.autograd.grad(outs, [x, y], mixes)
    for grad, mix in zip(grads, mixes, strict=True):
        assert apart(grad.double(), formula(mix, cos, -sin)) <= 1e-6


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_neighbors_change_no_bit(dtype: torch.dtype) -> None:
    x, (cos, sin) = draw_heads(5, 4, 130, 32).to(dtype), draw_tables(5, 130, 16)
    with threads(2):
        both = rotate_heads(x, cos, sin)
    with threads(1):
        assert torch.equal(rotate_heads(x, cos, sin), both)
        alone = rotate_heads(x[3:4, :, 7:20], cos[3:4, :, 7:20], sin[3:4, :, 7:20])
    assert torch.equal(alone, both[3:4, :, 7:20])


@needs_kernel
def test_it_serves_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(*arguments: Tensor) -> Tensor:
        calls.append(arguments)
        return rotate_heads(*arguments)

    monkeypatch.setattr(rotary_cpu, "rotate_heads", count)
    x, tables = draw_heads(2, 2, 5, 8).requires_grad_(), draw_tables(1, 5, 4)
    with torch.no_grad():
        rotate_by_tables([x], *tables)
    assert not calls
    (out,) = rotate_by_tables([x], *tables)
    assert len(calls) == 1
    out.sum().backward()
    assert len(calls) == 2


class Learned(Rope):
    """RoPE with frequencies that learn."""

    def __init__(self) -> None:
        super().__init__(tiny(head_width=8))
        self.by_pair = nn.Parameter(super().frequencies().clone())

    def frequencies(self) -> Tensor:
        return self.by_pair


@pytest.mark.parametrize("waits", [True, False])
def test_learned_frequencies_have_their_gradient(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel computes it, so that the encoding's own formula rotates."""
    monkeypatch.setitem(FORMS, Learned, RopeForm())
    position, places = Learned(), torch.arange(5)[None]
    q, k = draw_heads(2, 2, 5, 8), draw_heads(2, 2, 5, 8, seed=2)
    if waits:
        found = SharedPosition(places, places).heads(q, k, k, position, places).rotated()[:2]
    else:
        found = heads.rotate(position, q, k, places, places)
    exact = position.rotate(q, k, places, places)
    grads = [
        torch.autograd.grad((q * k.flip(2)).sum(), position.by_pair)[0] for q, k in (found, exact)
    ]
    assert torch.equal(*grads)


@pytest.mark.parametrize("change", ["float64", "table", "size", "odd", "empty", "library"])
def test_torch_rotates_what_c_cannot(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, (cos, sin) = draw_heads(2, 2, 5, 8), draw_tables(2, 5, 4)
    if change == "float64":
        x = x.double()
    if change == "table":
        cos, sin = cos.double(), sin.double()
    if change == "size":
        cos, sin = cos[:, :, :4], sin[:, :, :4]
    if change == "odd":
        x = x[..., :7]
    if change == "empty":
        x, cos, sin = x[:0], cos[:0], sin[:0]
    if change == "library":
        monkeypatch.setattr(rotary_cpu, "load_kernel", lambda: None)
    assert not can_rotate(x, cos, sin)
    if change not in ("size", "odd"):
        (out,) = rotate_by_tables([x], cos, sin)
        assert apart(out.double(), formula(x, cos, sin)) <= 1e-6 or change == "empty"
