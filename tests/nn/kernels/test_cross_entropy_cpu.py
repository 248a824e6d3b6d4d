"""On a CPU the cross-entropy of a chunk in C is that of the plain formula, row by row.

The reference is the plain function in float64; where numbers are not finite, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import apart, threads
from torch import Tensor

from heed.nn.kernels import cross_entropy_cpu as kernels
from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels.linear_cross_entropy import chunk_cross_entropy, linear_cross_entropy

pytestmark = pytest.mark.skipif(
    kernels.load_kernel() is None, reason="no C compiler for the kernels of a CPU"
)
IGNORED = -100
SMOOTHINGS = st.sampled_from([0.0, 0.1, 0.9])
SIZES = st.tuples(st.integers(0, 30), st.integers(1, 200) | st.just(1025))
"""Rows and vocabulary."""
Results = tuple[Tensor, Tensor, Tensor]


def inputs(rows: int, v: int, *, seed: int = 0, ignored: float = 0.2) -> tuple[Tensor, Tensor]:
    """Logits and targets; half of the targets are the largest logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, v, generator=generator)
    targets = torch.randint(v, (rows,), generator=generator)
    is_correct = torch.rand(rows, generator=generator) < 0.5
    targets = logits.argmax(dim=-1).where(is_correct, targets)
    return logits, targets.masked_fill(torch.rand(rows, generator=generator) < ignored, IGNORED)


def plain(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, ignore_index: int = IGNORED
) -> Results:
    """Losses, correct predictions and gradients by the plain formula."""
    losses = torch.empty(len(logits), dtype=logits.dtype)
    correct = torch.empty(len(logits), dtype=torch.int32)
    copy = logits.clone()
    d = chunk_cross_entropy(copy, targets, losses, correct, ignore_index, smoothing, True)
    return losses, correct, d


def compiled(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, ignore_index: int = IGNORED
) -> Results:
    """Losses, correct predictions and gradients by the kernel."""
    kernel = kernels.load_kernel()
    assert kernel is not None
    losses, correct = torch.empty(len(logits)), torch.empty(len(logits), dtype=torch.int32)
    copy = logits.clone(memory_format=torch.preserve_format)
    d = kernel(copy, targets, losses, correct, ignore_index, smoothing, True)
    assert d.data_ptr() == copy.data_ptr()
    return losses, correct, d


@given(SIZES, SMOOTHINGS, st.integers(0, 99))
def test_rows_are_those_of_the_formula(size: tuple[int, int], smoothing: float, seed: int) -> None:
    logits, targets = inputs(*size, seed=seed)
    losses, correct, d = compiled(logits, targets, smoothing)
    exact_losses, exact_correct, exact_d = plain(logits.double(), targets, smoothing)
    torch.testing.assert_close(losses.double(), exact_losses, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(d.double(), exact_d, rtol=2e-6, atol=5e-7)
    assert torch.equal(correct, exact_correct)
    ignored = targets == IGNORED
    assert not losses[ignored].any()
    assert not d[ignored].any()


@given(SIZES, SMOOTHINGS, st.integers(0, 99))
def test_of_bfloat16_only_the_gradient_is_rounded(
    size: tuple[int, int], smoothing: float, seed: int
) -> None:
    logits, targets = inputs(*size, seed=seed)
    logits = logits.bfloat16()
    losses, correct, d = compiled(logits, targets, smoothing)
    wide_losses, wide_correct, wide_d = compiled(logits.float(), targets, smoothing)
    assert torch.equal(losses, wide_losses)
    assert torch.equal(correct, wide_correct)
    assert torch.equal(d, wide_d.bfloat16())


def test_torchs_default_dtype_changes_nothing() -> None:
    logits, targets = inputs(12, 300)
    expected = compiled(logits.bfloat16(), targets)
    torch.set_default_dtype(torch.bfloat16)
    try:
        losses, correct = torch.empty(12, dtype=torch.float32), torch.empty(12, dtype=torch.int32)
        kernel = kernels.load_kernel()
        assert kernel is not None
        d = kernel(logits.bfloat16(), targets, losses, correct, IGNORED, 0.0, True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, (losses, correct, d), expected))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_large_vocabulary_is_summed_exactly(smoothing: float) -> None:
    logits, targets = inputs(16, 50_257, ignored=0.0)
    losses, correct, d = compiled(logits, targets, smoothing)
    exact_losses, exact_correct, exact_d = plain(logits.double(), targets, smoothing)
    torch.testing.assert_close(losses.double(), exact_losses, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(d.double(), exact_d, rtol=3e-6, atol=5e-7)
    assert torch.equal(correct, exact_correct)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("v", [3, 70, 200])
def test_extreme_logits_behave_as_the_formulas(v: int, smoothing: float) -> None:
    """Each number in the first, a middle and the last column, as target and beside it."""
    extremes = [1e4, -1e4, 3e38, -3e38, torch.inf, -torch.inf, torch.nan]
    logits, targets = [], []
    generator = torch.Generator().manual_seed(0)
    for number in extremes:
        for column in (0, v // 2, v - 1):
            for target in (0, v // 2, v - 1):
                row = torch.randn(v, generator=generator)
                row[column] = number
                logits.append(row)
                targets.append(target)
    for numbers in ([torch.inf, -torch.inf], [torch.nan, torch.inf], [torch.nan, torch.nan]):
        for target in range(3):
            row = torch.randn(v, generator=generator)
            row[1:3] = torch.tensor(numbers)
            logits.append(row)
            targets.append(target)
    for target in (0, 1):
        logits += [torch.full((v,), -torch.inf), torch.full((v,), torch.inf)]
        targets += [target] * 2
    found = compiled(torch.stack(logits), torch.tensor(targets), smoothing)
    expected = plain(torch.stack(logits), torch.tensor(targets), smoothing)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7, equal_nan=True)


def test_an_ignored_row_is_zero_whatever_it_holds() -> None:
    logits = torch.tensor([[torch.nan, torch.inf, -torch.inf]])
    for result in compiled(logits, torch.tensor([IGNORED]), 0.1):
        assert not result.any()


def test_the_ignored_index_may_be_a_token() -> None:
    logits, targets = inputs(40, 5, ignored=0.0)
    found, expected = (run(logits, targets, 0.1, ignore_index=3) for run in (compiled, plain))
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)


def test_of_equal_logits_the_first_is_the_prediction() -> None:
    logits = torch.zeros(4, 150)
    logits[:, [70, 140]] = 1.0
    _, correct, _ = compiled(logits, torch.tensor([70, 140, 0, 71]))
    assert correct.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("target", [9, -1, -101])
def test_a_target_outside_the_vocabulary_is_an_error(target: int) -> None:
    logits, _ = inputs(3, 9)
    targets = torch.tensor([1, target, IGNORED])
    with pytest.raises(IndexError, match="1 targets are not in the vocabulary, which has 9 tokens"):
        compiled(logits, targets)
    with pytest.raises(RuntimeError, match="out of bounds"):
        plain(logits, targets)


def test_targets_of_other_rows_or_devices_are_an_error() -> None:
    logits, targets = inputs(3, 9, ignored=0.0)
    for others in (targets[:2], targets[None], targets.to("meta")):
        with pytest.raises(ValueError, match="for 3 rows of logits on the CPU"):
            compiled(logits, others)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(9, 4)
    with pytest.raises(ValueError, match="on meta"):
        linear_cross_entropy(x, weight, targets.to("meta"))


@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_rows_may_be_apart_and_targets_of_another_dtype(dtype: torch.dtype) -> None:
    logits, targets = inputs(20, 50)
    logits = logits.to(dtype)
    wide = torch.full((20, 64), 7.0, dtype=dtype)
    wide[:, :50] = logits
    losses, correct = torch.empty(20), torch.empty(20, dtype=torch.int32)
    kernel = kernels.load_kernel()
    assert kernel is not None
    d = kernel(wide[:, :50], targets.int(), losses, correct, IGNORED, 0.1, True)
    for a, b in zip((losses, correct, d), compiled(logits, targets, 0.1), strict=True):
        assert torch.equal(a, b)
    assert (wide[:, 50:] == 7.0).all()


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads, for however few logits."""
    monkeypatch.setattr(kernels, "MIN_NUMBERS", 0)
    with threads(2):
        yield


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_results_are_the_same_with_any_number_of_threads(dtype: torch.dtype) -> None:
    """With so many rows that threads work at once."""
    logits, targets = inputs(600, 1511)
    logits = logits.to(dtype)
    several = [compiled(logits, targets, 0.1) for _ in range(5)]
    torch.set_num_threads(1)
    alone = compiled(logits, targets, 0.1)
    for results in several:
        assert all(map(torch.equal, results, alone))


def test_rows_depend_on_no_neighbours() -> None:
    logits, targets = inputs(9, 211)
    whole = compiled(logits, targets, 0.1)
    for row in range(9):
        alone = compiled(logits[row : row + 1], targets[row : row + 1], 0.1)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, whole, strict=True))


# ------------------------------------------------------------------------ within the linear layer


def run_linear(rdrop: float = 0.0) -> list[Tensor]:
    """Loss, correct predictions and gradients, in several chunks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 8, generator=generator).requires_grad_()
    weight = torch.randn(40, 8, generator=generator).requires_grad_()
    targets = torch.randint(40, (30,), generator=generator)
    targets[::5] = IGNORED
    total, correct = linear_cross_entropy(
        x, weight, targets, label_smoothing=0.1, max_logits=300, rdrop=rdrop
    )
    return [total, correct, *torch.autograd.grad(total, [x, weight])]


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_linear()
    monkeypatch.setattr(kernels, "load_kernel", lambda: None)
    expected = run_linear()
    assert found[1] == expected[1]
    for a, b in zip(found, expected, strict=True):
        assert apart(a.double(), b.double()) <= 1e-6


@pytest.mark.parametrize("rdrop", [0.0, 2.0])
def test_the_kernel_serves_all_but_rdrop(rdrop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> Tensor:
        raise AssertionError("the plain formula")

    monkeypatch.setattr(cross_entropy_module, "chunk_cross_entropy", refuse)
    if rdrop:
        with pytest.raises(AssertionError, match="the plain formula"):
            run_linear(rdrop)
        return
    run_linear()
    with torch.no_grad():
        linear_cross_entropy(torch.ones(3, 2), torch.ones(5, 2), torch.tensor([0, 1, 2]))


@given(rows=st.integers(0, 9), v=st.integers(1, 200), smoothing=st.sampled_from([0.0, 0.1]))
def test_losses_are_the_same_without_a_gradient(rows: int, v: int, smoothing: float) -> None:
    kernel = kernels.load_kernel()
    assert kernel is not None
    logits, targets = inputs(rows, v)
    losses, correct, _ = compiled(logits, targets, smoothing)
    found, found_correct = torch.empty_like(losses), torch.empty_like(correct)
    kernel(logits.clone(), targets, found, found_correct, IGNORED, smoothing, False)
    assert torch.equal(found, losses)
    assert torch.equal(found_correct, correct)
