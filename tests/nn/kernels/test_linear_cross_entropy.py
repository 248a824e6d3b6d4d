"""The output map and its cross-entropy in one say what the two say one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support import all_apart, apart
from torch import Tensor

from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels.linear_cross_entropy import chunk_rows, linear_cross_entropy

IGNORED = -100
SMOOTHINGS = st.sampled_from([0.0, 0.1, 0.5, 0.9])
WIDTHS = st.sampled_from([1, 3, 8, 16, 20, 48])
"""From 16 on, an AMD CPU multiplies in C."""
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 70), WIDTHS)
"""Rows, vocabulary, width."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(
    n: int,
    v: int,
    w: int,
    *,
    dtype: torch.dtype = torch.float32,
    ignored: float = 0.3,
    seed: int = 0,
) -> Inputs:
    """Vectors, map, bias and targets, a share of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((n, w), (v, w), (v,))
    x, weight, bias = (torch.randn(size, generator=generator) for size in sizes)
    weight /= w**0.5
    x, weight, bias = (part.to(dtype).requires_grad_() for part in (x, weight, bias))
    targets = torch.randint(v, (n,), generator=generator)
    hidden = torch.rand(n, generator=generator) < ignored
    return x, weight, bias, targets.masked_fill(hidden, IGNORED)


def plainly(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """One after the other."""
    logits = F.linear(x, weight, bias)
    total = F.cross_entropy(
        logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    return total, (logits.argmax(dim=-1) == targets).sum()


def gradients(total: Tensor, *tensors: Tensor, by: float = 0.3) -> list[Tensor]:
    """Of a share of the total, as when it is a mean."""
    return list(torch.autograd.grad(total * by, tensors))


@given(SIZES, SMOOTHINGS, st.booleans(), st.none() | st.integers(1, 300), st.integers(0, 99))
def test_it_is_cross_entropy_of_a_linear_map(
    sizes: tuple[int, int, int], smoothing: float, biased: bool, max_logits: int | None, seed: int
) -> None:
    """Whatever is ignored, and in however many chunks."""
    x, weight, bias, targets = inputs(*sizes, seed=seed)
    leaves = [x, weight, bias] if biased else [x, weight]
    total, right = linear_cross_entropy(
        x,
        weight,
        targets,
        label_smoothing=smoothing,
        bias_v=bias if biased else None,
        max_logits=max_logits,
    )
    expected, all_right = plainly(x, weight, bias if biased else None, targets, smoothing)
    assert total.dtype == torch.float32
    assert total.shape == right.shape == ()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    assert right.dtype == torch.int64
    assert right == all_right
    found, exact = gradients(total, *leaves), gradients(expected, *leaves)
    # A gradient may be nothing but rounding, where the answer is all but sure.
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    assert (found[0][targets == IGNORED] == 0).all()


@pytest.mark.parametrize("v", [33, 70])
@pytest.mark.parametrize("w", [16, 48])
def test_every_chunk_counts_in_the_gradient_of_the_weights(w: int, v: int) -> None:
    x, weight, bias, targets = inputs(40, v, w)
    total, _ = linear_cross_entropy(x, weight, targets, bias_v=bias, max_logits=9 * v)
    expected, _ = plainly(x, weight, bias, targets)
    leaves = x, weight, bias
    assert all_apart(gradients(total, *leaves), gradients(expected, *leaves)) <= 1e-5


def test_a_bias_of_another_size_is_an_error() -> None:
    x, weight, bias, targets = inputs(5, 70, 16)
    with pytest.raises(ValueError, match=r"bias \[40\] for a vocabulary of 70"):
        linear_cross_entropy(x, weight, targets, bias_v=bias[:40])


@given(SMOOTHINGS, st.booleans())
def test_gradients_are_those_of_the_numbers(smoothing: float, chunked: bool) -> None:
    x, weight, bias, targets = inputs(5, 7, 3, dtype=torch.float64)

    def total(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        max_logits = 14 if chunked else None
        return linear_cross_entropy(
            x, weight, targets, label_smoothing=smoothing, bias_v=bias, max_logits=max_logits
        )[0]

    assert torch.autograd.gradcheck(total, (x, weight, bias))


@given(SIZES, st.booleans())
def test_without_targets_loss_and_gradients_are_zero(
    sizes: tuple[int, int, int], empty: bool
) -> None:
    x, weight, bias, targets = inputs(*sizes, ignored=1.0)
    if empty:
        x, targets = x[:0], targets[:0]
    total, right = linear_cross_entropy(x, weight, targets, label_smoothing=0.1, bias_v=bias)
    assert total == right == 0
    assert all((grad == 0).all() for grad in gradients(total, x, weight, bias))


def test_the_ignored_index_can_be_chosen() -> None:
    x, weight, _, targets = inputs(20, 9, 4)
    elsewhere = targets.masked_fill(targets == IGNORED, 3)
    total, right = linear_cross_entropy(x, weight, elsewhere, ignore_index=3)
    kept = elsewhere != 3
    expected, all_right = linear_cross_entropy(x[kept], weight, elsewhere[kept])
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert right == all_right


@given(st.sampled_from([0.0, 0.1]), st.integers(0, 20))
def test_huge_logits_stay_numbers(smoothing: float, seed: int) -> None:
    x, weight, _, targets = inputs(12, 9, 4, ignored=0.0, seed=seed)
    sized = (x.detach() * 1e4 / (x @ weight.mT).abs().max().detach()).requires_grad_()
    total, _ = linear_cross_entropy(sized, weight, targets, label_smoothing=smoothing)
    expected, _ = plainly(sized, weight, None, targets, smoothing)
    found, exact = gradients(total, sized, weight), gradients(expected, sized, weight)
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all_apart(found, exact) <= 1e-4


def test_of_equal_scores_the_first_is_the_answer() -> None:
    x, weight = torch.ones(3, 2), torch.ones(5, 2)
    _, right = linear_cross_entropy(x, weight, torch.tensor([0, 1, 4]))
    assert right == 1


@given(SIZES, SMOOTHINGS)
def test_in_bfloat16_only_the_products_are_rounded(
    sizes: tuple[int, int, int], smoothing: float
) -> None:
    """Against float32 of the same numbers: losses to 1%, gradients to 2% of their size, or of 1."""
    x, weight, bias, targets = inputs(*sizes, dtype=torch.bfloat16)
    total, _ = linear_cross_entropy(
        x, weight, targets, label_smoothing=smoothing, bias_v=bias, max_logits=200
    )
    expected, _ = plainly(x.float(), weight.float(), bias.float(), targets, smoothing)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(expected.item(), rel=1e-2, abs=1e-2)
    found = gradients(total, x, weight, bias)
    assert [grad.dtype for grad in found] == [torch.bfloat16] * 3
    for grad, exact in zip(found, gradients(expected, x, weight, bias), strict=True):
        assert (grad - exact).norm() <= 2e-2 * max(1.0, float(exact.norm()))


def test_under_autocast_a_float32_map_has_a_float32_gradient() -> None:
    x, weight, _, targets = inputs(30, 50, 16)
    with torch.autocast("cpu", torch.bfloat16):
        total, right = linear_cross_entropy(x, weight, targets, max_logits=500)
        as_told, as_right = linear_cross_entropy(x.bfloat16(), weight, targets, max_logits=500)
        doubled, _ = linear_cross_entropy(x.double(), weight.double(), targets)
    halves = x.bfloat16(), weight.bfloat16()
    expected, _ = linear_cross_entropy(*halves, targets, max_logits=500)
    assert doubled.dtype == torch.float64
    assert total.dtype == torch.float32
    assert total == as_told == expected
    assert right == as_right
    found = gradients(total, x, weight)
    assert [grad.dtype for grad in found] == [torch.float32] * 2
    exact = gradients(plainly(x, weight, None, targets)[0], x, weight)
    assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= 2e-2


@pytest.mark.parametrize("max_logits", [None, 90])
def test_inputs_stay_as_they_are_and_so_do_gradients(max_logits: int | None) -> None:
    """A second backward pass gives what the first gave, and so does a second call, bit for bit."""
    x, weight, bias, targets = inputs(30, 20, 8)
    before = [part.detach().clone() for part in (x, weight, bias, targets)]

    def run() -> list[Tensor]:
        total, right = linear_cross_entropy(x, weight, targets, bias_v=bias, max_logits=max_logits)
        parts = (x, weight, bias)
        first = torch.autograd.grad(total, parts, torch.tensor(0.5), retain_graph=True)
        second = torch.autograd.grad(total, parts, torch.tensor(0.5))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        return [total, right, *first]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
    after = (x, weight, bias, targets)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "learns", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_gradient_goes_only_where_one_is_wanted(learns: tuple[bool, bool, bool]) -> None:
    *parts, targets = inputs(12, 9, 4)
    expected = gradients(plainly(parts[0], parts[1], parts[2], targets)[0], *parts)
    x, weight, bias = (
        part.detach().requires_grad_(wanted) for part, wanted in zip(parts, learns, strict=True)
    )
    total, _ = linear_cross_entropy(x, weight, targets, bias_v=bias)
    (total * 0.3).backward()
    for part, wanted, grad in zip((x, weight, bias), learns, expected, strict=True):
        assert (part.grad is not None) == wanted
        assert part.grad is None or apart(part.grad, grad) <= 1e-5


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_no_work_is_done_for_them(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, _, targets = inputs(12, 9, 4)
    expected, all_right = linear_cross_entropy(x, weight, targets)
    monkeypatch.setattr(cross_entropy_module, "_add_product", None)
    with context():
        total, right = linear_cross_entropy(x, weight, targets)
    assert not total.requires_grad
    assert total == expected
    assert right == all_right


def test_a_tied_map_gathers_the_gradients_of_both_its_uses() -> None:
    _, table, _, targets = inputs(30, 20, 8)
    ids = torch.randint(20, (30,), generator=torch.Generator().manual_seed(1))

    def run(total_of: Any) -> list[Tensor]:
        x = F.embedding(ids, table).tanh()
        return gradients(total_of(x) + total_of(2 * x), table)

    found = run(lambda x: linear_cross_entropy(x, table, targets)[0])
    exact = run(lambda x: plainly(x, table, None, targets)[0])
    assert all_apart(found, exact) <= 1e-5


def test_a_second_derivative_is_refused_not_wrong() -> None:
    x, weight, _, targets = inputs(6, 5, 4)
    (grad,) = torch.autograd.grad(
        linear_cross_entropy(x, weight, targets)[0], [x], create_graph=True
    )
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


def test_targets_that_fit_no_rows_are_an_error() -> None:
    x, weight, _, targets = inputs(6, 5, 4)
    with pytest.raises(ValueError, match="6 rows"):
        linear_cross_entropy(x, weight, targets[:5])


@given(
    st.integers(0, 10**6),
    st.integers(1, 300_000),
    st.booleans(),
    st.none() | st.integers(1, 2**30),
)
def test_chunks_are_even_and_bounded(n: int, v: int, gpu: bool, max_logits: int | None) -> None:
    rows = chunk_rows(n, v, gpu=gpu, max_logits=max_logits)
    bound = max_logits or max(
        cross_entropy_module.MAX_LOGITS_GPU if gpu else cross_entropy_module.MAX_LOGITS,
        cross_entropy_module.MIN_ROWS * v,
    )
    assert rows == 1 or rows * v <= bound
    most = max(1, bound // v)
    fewest = -(-n // most)
    chunks = -(-n // rows)
    # Round chunks are a little smaller than the largest that would do.
    assert fewest <= chunks <= 2 * fewest


# ------------------------------------------------------------------------------ under a compiler


def arguments(
    *, biased: bool, dtype: torch.dtype = torch.float32, rdrop: float = 0.0
) -> tuple[Any, ...]:
    x, weight, bias, targets = inputs(12, 9, 4, dtype=dtype)
    wanted = [True, True, biased]
    return x, weight, bias if biased else None, targets, IGNORED, 0.1, rdrop, 30, False, wanted


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rdrop", [0.0, 3.0])
def test_the_operation_keeps_what_it_promises_a_compiler(biased: bool, rdrop: float) -> None:
    torch.library.opcheck(
        torch.ops.heed.linear_cross_entropy.default,
        arguments(biased=biased, rdrop=rdrop),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_it_does_the_same_without_a_break(autocast: bool) -> None:
    x, weight, bias, targets = inputs(12, 9, 4)

    def run(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            total, right = linear_cross_entropy(x.tanh(), weight, targets, bias_v=bias)
        return total * 2, right

    compiled: Any = torch.compile(run, backend="aot_eager", fullgraph=True)
    (total, right), (expected, all_right) = compiled(x, weight), run(x, weight)
    assert total == expected
    assert right == all_right
    found, exact = gradients(total, x, weight, bias), gradients(expected, x, weight, bias)
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
