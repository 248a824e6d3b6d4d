"""On a GPU linear_cross_entropy equals the output layer followed by cross-entropy.

The reference is float64 of the same inputs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import apart
from torch import Tensor

from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]

# torch.compile warns about functions it uses itself and about faster, less exact settings.
COMPILES = pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning")
IGNORED = -100
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda x: str(x).split(".")[1])
SIZES = [(9, 2, 8), (300, 500, 64), (257, 8000, 96), (130, 30_437, 72), (40, 256_000, 32)]
"""Rows, vocabulary, width: within a tile, whole tiles, partial tiles, a very large vocabulary."""


def inputs(
    n: int,
    v: int,
    w: int,
    *,
    dtype: torch.dtype = torch.float32,
    ignored: float = 0.2,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, weight, bias and targets, a share of which is ignored."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((n, w), (v, w), (v,)))
    weight *= 2 / w**0.5
    x, weight, bias = (part.to("cuda", dtype).requires_grad_() for part in (x, weight, bias))
    targets = torch.randint(v, (n,), generator=generator)
    hidden = torch.rand(n, generator=generator) < ignored
    return x, weight, bias, targets.masked_fill(hidden, IGNORED).to("cuda")


def plainly(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0
) -> Tensor:
    """F.linear, then F.cross_entropy, in float64."""
    logits = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return F.cross_entropy(
        logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )


def gradients(total: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Gradients of 0.3 times the total: a loss is usually divided."""
    return list(torch.autograd.grad(total * 0.3, tensors))


def all_apart(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(apart(a, b) for a, b in zip(found, exact, strict=True))


@each_dtype
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("biased", [False, True], ids=["unbiased", "biased"])
def test_it_is_cross_entropy_of_a_linear_layer(
    dtype: torch.dtype, smoothing: float, biased: bool
) -> None:
    for n, v, w in SIZES:
        x, weight, bias, targets = inputs(n, v, w, dtype=dtype)
        tensors = [x, weight, bias] if biased else [x, weight]
        expected = plainly(x, weight, bias if biased else None, targets, smoothing)
        exact = gradients(expected, *tensors)
        for max_logits in (None, 100 * v):
            total, correct = linear_cross_entropy(
                x,
                weight,
                targets,
                label_smoothing=smoothing,
                bias_v=bias if biased else None,
                max_logits=max_logits,
            )
            assert total.dtype == torch.float32
            assert correct.dtype == torch.int64
            assert total.item() == pytest.approx(expected.item(), rel=TOLERANCE[dtype], abs=1e-5)
            found = gradients(total, *tensors)
            assert [grad.dtype for grad in found] == [dtype] * len(tensors)
            assert all_apart(found, exact) <= TOLERANCE[dtype]
            assert (found[0][targets == IGNORED] == 0).all()


@each_dtype
@pytest.mark.parametrize("v", [1, 63, 500, 2049, 8192, 50_304, 100_003])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_kernel_equals_torch_row_by_row(dtype: torch.dtype, v: int, smoothing: float) -> None:
    """Losses, predictions and gradients of the same logits, ties included."""
    from heed.nn.kernels.triton.cross_entropy import chunk_cross_entropy

    n, wide = 37, -(-v // 64) * 64
    generator = torch.Generator().manual_seed(v)
    # Padding does not count, so it may be NaN.
    buffer = torch.full((n, wide), float("nan"))
    buffer[:, :v] = 3 * torch.randn(n, v, generator=generator)
    buffer[::3] = buffer[::3].round()
    buffer = buffer.to("cuda", dtype)
    logits = buffer[:, :v]
    targets = torch.randint(v, (n,), generator=generator).to("cuda")
    targets[::2] = logits.float().argmax(dim=-1)[::2]
    targets[::5] = IGNORED
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(
        exact, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    (d_exact,) = torch.autograd.grad(expected.sum(), [exact])
    all_correct = (exact.argmax(dim=-1) == targets).int()
    before = logits.clone()
    rows = torch.empty(n, device="cuda"), torch.empty(n, device="cuda", dtype=torch.int32)
    for gradient in (False, True):
        d = chunk_cross_entropy(logits, targets, *rows, IGNORED, smoothing, gradient)
        torch.testing.assert_close(rows[0].double(), expected.detach(), rtol=1e-5, atol=1e-5)
        assert torch.equal(rows[1], all_correct)
        if not gradient:
            assert torch.equal(logits, before)
    # Each number is rounded once, so by 2^-8 of itself at most.
    rounding = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    torch.testing.assert_close(d.double(), d_exact, rtol=rounding, atol=1e-6)
    assert (d[::5] == 0).all()
    assert (buffer[:, v:] == 0).all()


def test_a_target_outside_the_vocabulary_gives_nan() -> None:
    x, weight, _, targets = inputs(20, 500, 16)
    for wrong in (500, -1, 2**40):
        targets[3] = wrong
        total, _ = linear_cross_entropy(x, weight, targets)
        assert total.isnan()


@pytest.mark.parametrize("n", [0, 50])
def test_ignored_targets_give_no_loss_and_no_gradient(n: int) -> None:
    x, weight, bias, targets = inputs(n, 3000, 16, dtype=torch.bfloat16, ignored=2.0)
    total, correct = linear_cross_entropy(x, weight, targets, label_smoothing=0.1, bias_v=bias)
    assert total == correct == 0
    assert all((grad == 0).all() for grad in gradients(total, x, weight, bias))


@each_dtype
def test_huge_logits_stay_finite(dtype: torch.dtype) -> None:
    x, weight, _, targets = inputs(50, 3000, 16, dtype=dtype)
    largest = (x.detach() @ weight.detach().mT).float().abs().max()
    sized = (x.detach().float() * 1e4 / largest).to(dtype).requires_grad_()
    total, _ = linear_cross_entropy(sized, weight, targets, label_smoothing=0.1)
    assert total.item() == pytest.approx(
        plainly(sized, weight, None, targets, 0.1).item(), rel=1e-2
    )
    assert all(grad.isfinite().all() for grad in gradients(total, sized, weight))


def test_under_autocast_a_float32_weight_has_a_float32_gradient() -> None:
    """It is summed in float32 over all chunks, which is more exact than a sum of rounded parts."""
    x, weight, bias, targets = inputs(3000, 700, 64)
    exact = gradients(plainly(x, weight, bias, targets), x, weight, bias)
    with torch.autocast("cuda", torch.bfloat16):
        total, _ = linear_cross_entropy(x, weight, targets, bias_v=bias, max_logits=700 * 128)
    found = gradients(total, x, weight, bias)
    assert [grad.dtype for grad in found] == [torch.float32] * 3
    assert all_apart(found, exact) <= TOLERANCE[torch.bfloat16]


def test_the_plain_formula_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used without Triton, and for float64."""
    x, weight, bias, targets = inputs(300, 3001, 32)
    fast = linear_cross_entropy(x, weight, targets, label_smoothing=0.1, bias_v=bias)
    found = gradients(fast[0], x, weight, bias)
    doubles = [part.detach().double().requires_grad_() for part in (x, weight, bias)]
    exact, _ = linear_cross_entropy(
        doubles[0], doubles[1], targets, label_smoothing=0.1, bias_v=doubles[2]
    )
    assert exact.dtype == torch.float64
    assert all_apart(found, gradients(exact, *doubles)) <= 1e-5
    monkeypatch.setattr(cross_entropy_module, "on_gpu", lambda x: False)
    plain = linear_cross_entropy(
        x, weight, targets, label_smoothing=0.1, bias_v=bias, max_logits=300_000
    )
    assert plain[0].item() == pytest.approx(fast[0].item(), rel=1e-5)
    assert plain[1] == fast[1]
    assert all_apart(gradients(plain[0], x, weight, bias), found) <= 1e-5


@pytest.mark.parametrize("max_logits", [None, 3001 * 128])
def test_results_are_deterministic(max_logits: int | None) -> None:
    x, weight, bias, targets = inputs(1000, 3001, 64, dtype=torch.bfloat16)
    before = [part.detach().clone() for part in (x, weight, bias, targets)]

    def run() -> list[Tensor]:
        total, correct = linear_cross_entropy(
            x, weight, targets, bias_v=bias, max_logits=max_logits
        )
        return [total, correct, *gradients(total, x, weight, bias)]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
    after = (x, weight, bias, targets)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_logits_of_a_batch_are_never_all_held() -> None:
    """Only one chunk of them is held, and the gradients; without gradients, its copies as well."""
    n, v, w = 16_384, 32_000, 64
    x, weight, _, targets = inputs(n, v, w, dtype=torch.bfloat16)

    def peak(training: bool) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.set_grad_enabled(training):
            total, _ = linear_cross_entropy(x, weight, targets, max_logits=2**25)
            if training:
                gradients(total, x, weight)
        return torch.cuda.max_memory_allocated() - before

    peak(True)  # Allocates what cuBLAS keeps.
    chunk, some = 2 * 2**25, 2**21
    assert peak(False) <= chunk + some
    # The weight's gradient in float32 and scaled in bfloat16; the inputs' gradient twice.
    assert peak(True) <= chunk + 6 * v * w + 4 * n * w + some
    assert peak(True) < n * v


@pytest.mark.parametrize("max_logits", [None, 3001 * 128])
def test_a_captured_graph_reads_new_inputs(max_logits: int | None) -> None:
    """Nothing waits for the host, and no shape depends on the targets."""
    *parts, targets = inputs(500, 3001, 64)
    x, weight, bias = parts

    def run() -> tuple[Tensor, Tensor, list[Tensor]]:
        with torch.autocast("cuda", torch.bfloat16):
            total, correct = linear_cross_entropy(
                x, weight, targets, label_smoothing=0.1, bias_v=bias, max_logits=max_logits
            )
        mean = total / (targets != IGNORED).sum().clamp(min=1)
        return total.detach(), correct, list(torch.autograd.grad(mean, parts))

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, correct, found = run()
    for seed, ignored in enumerate((0.0, 0.5, 2.0)):
        new = inputs(500, 3001, 64, ignored=ignored, seed=1 + seed)
        with torch.no_grad():
            for mine, given in zip([*parts, targets], new, strict=True):
                mine.copy_(given)
        graph.replay()
        expected, all_correct, exact = run()
        assert total.item() == pytest.approx(expected.item(), rel=1e-4)
        assert abs(int(correct) - int(all_correct)) <= 2
        assert all_apart(found, exact) <= 1e-3


@COMPILES
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_without_a_graph_break_it_is_the_same(autocast: bool) -> None:
    x, weight, bias, targets = inputs(300, 3001, 64)

    def run(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            total, correct = linear_cross_entropy(x.tanh(), weight, targets, bias_v=bias)
        return total * 2, correct

    compiled: Any = torch.compile(run, fullgraph=True, dynamic=False)
    (total, correct), (expected, all_correct) = compiled(x, weight), run(x, weight)
    tolerance = TOLERANCE[torch.bfloat16 if autocast else torch.float32]
    assert total.item() == pytest.approx(expected.item(), rel=tolerance)
    assert abs(int(correct) - int(all_correct)) <= autocast * 3
    found, exact = gradients(total, x, weight, bias), gradients(expected, x, weight, bias)
    assert [grad.dtype for grad in found] == [torch.float32] * 3
    assert all_apart(found, exact) <= tolerance
