"""The matrix product in C is the plain one, whatever its strides, threads and neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart, threads
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from heed.nn.kernels.matrix_product_cpu import LANES, can_multiply, load_kernel, multiply

needs_kernel = pytest.mark.skipif(
    load_kernel() is None, reason="no AMD CPU with AVX-512, or no compiler"
)
ROUNDING = 3e-6
sizes = {
    "rows": st.integers(1, 40),
    "inner": st.sampled_from([1, 3, 64, 191, 192, 193, 400]),
    "columns": st.sampled_from([16, 17, 32, 47, 48, 512, 528]),
}


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def draw_factors(
    rows: int, inner: int, columns: int, turned: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    a = draw(inner, rows).mT if turned[0] else draw(rows, inner)
    b = draw(columns, inner, seed=1).mT if turned[1] else draw(inner, columns, seed=1)
    return a, b


@needs_kernel
@given(**sizes, turned=st.tuples(st.booleans(), st.booleans()), biased=st.booleans())
def test_it_is_the_product(
    rows: int, inner: int, columns: int, turned: tuple[bool, bool], biased: bool
) -> None:
    a, b = draw_factors(rows, inner, columns, turned)
    bias = draw(columns, seed=2) if biased else None
    exact = a.double() @ b.double()
    if bias is not None:
        exact = exact + bias.double()
    assert apart(multiply(a, b, bias).double(), exact) <= ROUNDING


@needs_kernel
@pytest.mark.parametrize(
    ("b_size", "bias_size", "out_size"),
    [((48, 64), None, None), ((16, 64), None, None), ((32, 64), 40, None), ((32, 64), None, 16)],
)
def test_sizes_that_do_not_fit_are_an_error(
    b_size: tuple[int, int], bias_size: int | None, out_size: int | None
) -> None:
    bias = None if bias_size is None else draw(bias_size)
    out = None if out_size is None else draw(5, out_size)
    with pytest.raises((ValueError, RuntimeError)):
        multiply(draw(5, 32), draw(*b_size), bias, out=out)


@needs_kernel
def test_a_bias_may_have_any_stride() -> None:
    a, b, bias = draw(5, 32), draw(32, 64), draw(128, seed=2)
    assert apart(multiply(a, b, bias[::2]), a @ b + bias[::2]) <= ROUNDING
    assert apart(multiply(a, b, bias[:1].expand(64)), a @ b + bias[0]) <= ROUNDING


@needs_kernel
@given(**sizes, turned=st.tuples(st.booleans(), st.booleans()), adds=st.booleans())
def test_it_writes_or_adds_to_rows_of_a_larger_matrix(
    rows: int, inner: int, columns: int, turned: tuple[bool, bool], adds: bool
) -> None:
    a, b = draw_factors(rows, inner, columns, turned)
    larger = draw(rows, columns + 3, seed=3)
    before, exact = larger.clone(), a.double() @ b.double()
    out = larger[:, 1:-2]
    assert multiply(a, b, out=out, adds=adds) is out
    if adds:
        exact += before[:, 1:-2].double()
    assert apart(out.double(), exact) <= ROUNDING
    assert torch.equal(larger[:, [0, -2, -1]], before[:, [0, -2, -1]])


@needs_kernel
@given(
    **sizes | {"columns": st.sampled_from([16, 32, 48, 512, 528])},
    turned=st.booleans(),
    count=st.integers(1, 5),
)
def test_threads_and_neighbours_change_no_bit(
    rows: int, inner: int, columns: int, turned: bool, count: int
) -> None:
    a = draw(rows, inner)
    b = draw(columns, inner, seed=1).mT if turned else draw(inner, columns, seed=1)
    with threads(1):
        expected = multiply(a, b)
    with threads(count):
        assert torch.equal(multiply(a, b), expected)
    for row in (0, rows // 2, rows - 1):
        assert torch.equal(multiply(a[row : row + 1], b)[0], expected[row])


@needs_kernel
def test_other_products_are_torchs() -> None:
    a, b = draw(3, 16), draw(16, 32)
    assert can_multiply(a, b)
    assert not can_multiply(a.double(), b.double())
    assert not can_multiply(a.bfloat16(), b.bfloat16())
    assert not can_multiply(a.to("meta"), b.to("meta"))
    assert not can_multiply(a[:0], b)
    assert not can_multiply(a, b[:, : LANES - 1])
    with FlopCounterMode(display=False):
        assert not can_multiply(a, b)
