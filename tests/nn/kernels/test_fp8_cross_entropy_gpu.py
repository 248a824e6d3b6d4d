"""On a GPU the output layer in 8 bits equals its reference, and float64 within 8 bits.

Without a GPU most of this runs, slowly, where Triton is and interprets its kernels
(TRITON_INTERPRET=1): torch has 8-bit products on a CPU, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8_reference import (
    IGNORED,
    exact_cross_entropy,
    fp8_reference,
    quantized,
    round_as_a_gpu,
)
from fp8_reference import logits_gradient as reference_gradient
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from support import apart
from torch import Tensor

from heed.nn.kernels import fp8_cross_entropy
from heed.nn.kernels.fp8_cross_entropy import GRADIENT_FACTOR, MIN_CAPABILITY, round_up
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    pytest.mark.skipif(
        CUDA and torch.cuda.get_device_capability() < MIN_CAPABILITY, reason="no 8-bit products"
    ),
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
# torch.compile warns about functions it uses itself and about faster, less exact settings.
COMPILES = pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning")
SIZES = [(9, 2, 16), (64, 64, 32), (75, 500, 48)]
SIZES += [(300, 8000, 96), (1030, 30_437, 128), (40, 256_000, 32)] * CUDA
"""Rows, vocabulary, width: within a tile, whole tiles, partial tiles, a very large vocabulary."""


@pytest.fixture(autouse=True)
def _by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setattr(fp8_cross_entropy, "find_obstacle", lambda *args, **kwargs: None)
        round_as_a_gpu(monkeypatch)


def inputs(
    n: int, v: int, w: int, *, ignored: float = 0.2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in bfloat16, weights in float32, and targets, a share of which is ignored."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, w, generator=generator).to(DEVICE, torch.bfloat16).requires_grad_()
    weight = (2 / w**0.5 * torch.randn(v, w, generator=generator)).to(DEVICE).requires_grad_()
    targets = torch.randint(v, (n,), generator=generator)
    hidden = torch.rand(n, generator=generator) < ignored
    return x, weight, targets.masked_fill(hidden, IGNORED).to(DEVICE)


def run(x: Tensor, weight: Tensor, targets: Tensor, **settings: Any) -> list[Tensor]:
    """Loss, correct predictions and gradients."""
    total, correct = linear_cross_entropy(x, weight, targets, fp8=True, **settings)
    return [total.detach(), correct, *torch.autograd.grad(total, [x, weight])]


# ------------------------------------------------------------------------------------ the kernels


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize(("n", "w"), [(5, 16), (64, 64), (100, 48), (130, 208)])
def test_rounding_is_that_of_torch(n: int, w: int) -> None:
    from heed.nn.kernels.triton.fp8_cross_entropy import quantize

    x = torch.randn(n, w, generator=torch.Generator().manual_seed(n))
    x = x.to(DEVICE, torch.bfloat16)
    x[0, :4] = torch.tensor([0.0, float("nan"), 1e-9, -1e-3])
    scale = fp8_cross_entropy.compute_scale(x.nan_to_num())
    rows = round_up(n, 16)
    found, transposed = quantize(x, scale.reciprocal(), rows)
    expected = F.pad(x.float() * scale.reciprocal(), (0, 0, 0, rows - n)).to(torch.float8_e4m3fn)
    assert found.float()[0, 1].isnan()
    assert torch.equal(found.float().nan_to_num(nan=999), expected.float().nan_to_num(nan=999))
    assert torch.equal(bits(transposed), bits(found.view(torch.uint8).mT))
    assert (found.float()[n:] == 0).all()


@pytest.mark.parametrize(("n", "v"), [(5, 1), (16, 64), (70, 100), (129, 300)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_of_logits_is_rounded_once(n: int, v: int, smoothing: float) -> None:
    from heed.nn.kernels.triton.cross_entropy import chunk_cross_entropy
    from heed.nn.kernels.triton.fp8_cross_entropy import logits_gradient

    rows, columns = round_up(n, 16), round_up(v, 64)
    generator = torch.Generator().manual_seed(v)
    # Padding does not count, so it may be NaN.
    logits = torch.full((rows, columns), float("nan"))
    logits[:n, :v] = 3 * torch.randn(n, v, generator=generator)
    logits = logits.to(DEVICE, torch.bfloat16)
    targets = torch.randint(v, (n,), generator=generator).to(DEVICE)
    targets[::5] = IGNORED
    logits[5 * (n // 10), 0] = float("nan")  # in a row that is ignored
    real = logits[:n, :v]
    losses, levels = torch.empty(n, device=DEVICE), torch.full((n,), 7.0, device=DEVICE)
    correct = torch.empty(n, device=DEVICE, dtype=torch.int32)
    chunk_cross_entropy(real, targets, losses, correct, IGNORED, smoothing, False, levels)
    counted = targets != IGNORED
    expected_levels = real.float().logsumexp(dim=-1)
    torch.testing.assert_close(levels[counted], expected_levels[counted])
    assert (levels[~counted] == 7).all()

    d = torch.empty(rows, columns, device=DEVICE, dtype=torch.float8_e5m2)
    d_t = torch.empty(columns, rows, device=DEVICE, dtype=torch.float8_e5m2)
    logits_gradient(logits, targets, levels, d, d_t, v, IGNORED, smoothing)
    exact = reference_gradient(real.nan_to_num(), targets, smoothing) * GRADIENT_FACTOR
    found, expected = d.float()[:n, :v], exact.to(torch.float8_e5m2).float()
    # Next to the middle between two numbers, an error of float32 decides.
    tiny = GRADIENT_FACTOR * 2.0**-20
    torch.testing.assert_close(found, exact, rtol=0.126, atol=tiny)
    assert ((found - expected).abs() > tiny).float().mean() <= 1e-3
    assert (d.float()[n:] == 0).all()
    assert (d.float()[:, v:] == 0).all()
    assert (found[~counted] == 0).all()
    assert torch.equal(bits(d_t), bits(d.view(torch.uint8).mT))


# ------------------------------------------------------------------------------ the whole function


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_it_equals_the_reference(smoothing: float, chunked: bool) -> None:
    for n, v, w in SIZES:
        x, weight, targets = inputs(n, v, w)
        max_logits = (128 if CUDA else 32) * round_up(v, 64) if chunked else None
        total, correct, dx, d_weight = run(
            x, weight, targets, label_smoothing=smoothing, max_logits=max_logits
        )
        expected = fp8_reference(x, weight, targets, smoothing)
        assert [total.dtype, correct.dtype] == [torch.float32, torch.int64]
        assert [dx.dtype, d_weight.dtype] == [torch.bfloat16, torch.float32]
        assert total.item() == pytest.approx(expected.total.item(), rel=2e-3, abs=1e-3)
        assert abs(int(correct) - int(expected.correct)) <= 0.01 * n
        # A logit at the middle between two of bfloat16 is rounded as its product was summed.
        tolerance = 0.02 if n * v >= 10_000 else 0.1
        assert apart(dx, expected.dx) <= tolerance
        assert apart(d_weight, expected.d_weight) <= tolerance
        assert (dx[targets == IGNORED] == 0).all()


def test_it_is_cross_entropy_within_8_bits() -> None:
    n, v, w = (4096, 20_011, 256) if CUDA else (256, 500, 64)
    x, weight, targets = inputs(n, v, w)
    total, dx, d_weight = exact_cross_entropy(x, weight, targets)
    found, _, *gradients = run(x, weight, targets)
    assert found.item() == pytest.approx(total.item(), rel=1e-2)
    assert apart(gradients[0], dx) <= 0.06
    assert apart(gradients[1], d_weight) <= 0.06


@given(st.integers(1, 40), st.integers(2, 140), st.sampled_from([0.0, 0.2]), st.integers(1, 3000))
@settings(max_examples=10)
def test_chunks_and_padding_change_nothing(
    n: int, v: int, smoothing: float, max_logits: int
) -> None:
    x, weight, targets = inputs(n, v, 16)
    total, _, dx, d_weight = run(
        x, weight, targets, label_smoothing=smoothing, max_logits=max_logits
    )
    expected = fp8_reference(x, weight, targets, smoothing)
    assert total.item() == pytest.approx(expected.total.item(), rel=1e-3, abs=1e-3)
    # One number of few may be rounded to its other neighbour.
    assert apart(dx, expected.dx) <= 0.15
    assert apart(d_weight, expected.d_weight) <= 0.15


def test_a_target_outside_the_vocabulary_gives_nan() -> None:
    x, weight, targets = inputs(20, 100, 16)
    for wrong in (100, -1, 2**40):
        targets[3] = wrong
        assert run(x, weight, targets)[0].isnan()


@pytest.mark.filterwarnings("default::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["inputs", "weights"])
def test_what_is_not_finite_is_not_hidden(wrong: float, where: str) -> None:
    """The step is skipped by the norm of its gradient."""
    x, weight, targets = inputs(40, 100, 32)
    with torch.no_grad():
        (x if where == "inputs" else weight)[3, 5] = wrong
    total, _, dx, d_weight = run(x, weight, targets)
    assert not total.isfinite()
    assert not dx.norm().isfinite()
    assert not d_weight.norm().isfinite()


@pytest.mark.parametrize("zero", ["inputs", "weights", "both"])
def test_zeros_and_tiny_numbers_stay_finite(zero: str) -> None:
    x, weight, targets = inputs(40, 100, 32)
    with torch.no_grad():
        for part, name in ((x, "inputs"), (weight, "weights")):
            if zero in (name, "both"):
                part.zero_()
    total, _, dx, d_weight = run(x, weight, targets)
    assert total.item() == pytest.approx((targets != IGNORED).sum().item() * 4.6052, rel=1e-3)
    assert dx.isfinite().all()
    assert d_weight.isfinite().all()


def test_ignored_targets_give_no_loss_and_no_gradient() -> None:
    x, weight, targets = inputs(50, 100, 16, ignored=2.0)
    total, correct, *gradients = run(x, weight, targets, label_smoothing=0.1)
    assert total == correct == 0
    assert all((grad == 0).all() for grad in gradients)


def test_powers_of_two_in_inputs_and_weights_change_no_bit() -> None:
    x, weight, targets = inputs(40, 100, 32)
    total, correct, dx, d_weight = run(x, weight, targets)
    scaled = [part.detach().mul(f).requires_grad_() for part, f in ((x, 8.0), (weight, 0.125))]
    again, correct_again, dx_again, d_weight_again = run(scaled[0], scaled[1], targets)
    assert (total, correct) == (again, correct_again)
    assert torch.equal(dx_again, dx / 8)
    assert torch.equal(d_weight_again, d_weight * 8)


def test_under_autocast_gradients_have_the_dtypes_of_their_tensors() -> None:
    x, weight, targets = inputs(40, 100, 32)
    float_x = x.detach().float().requires_grad_()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found = run(float_x, weight, targets)
    expected = run(x, weight, targets)
    assert [grad.dtype for grad in found[2:]] == [torch.float32] * 2
    assert found[0] == expected[0]
    assert torch.equal(found[2], expected[2].float())
    assert torch.equal(found[3], expected[3])


def test_quantized_numbers_fill_the_range_of_8_bits() -> None:
    x, _, _ = inputs(40, 100, 32)
    rounded, _ = quantized(x.detach())
    assert rounded.float().abs().max() == 448


# --------------------------------------------------------------------------------- only on a GPU


@needs_gpu
def test_results_are_deterministic() -> None:
    x, weight, targets = inputs(1000, 3001, 64)
    for max_logits in (None, 3008 * 128):
        first, second = (run(x, weight, targets, max_logits=max_logits) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_gpu
@pytest.mark.parametrize("max_logits", [None, 3008 * 128])
def test_a_captured_graph_gives_the_same_bits(max_logits: int | None) -> None:
    """Nothing waits for the host: scales are those of the new inputs."""
    parts = inputs(500, 3001, 64)

    def step() -> list[Tensor]:
        return run(*parts, label_smoothing=0.1, max_logits=max_logits)

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for seed, ignored in enumerate((0.0, 0.5, 2.0)):
        new = inputs(500, 3001, 64, ignored=ignored, seed=1 + seed)
        with torch.no_grad():
            for mine, given_part in zip(parts, new, strict=True):
                mine.copy_(
                    given_part * (1 + seed) if given_part.is_floating_point() else given_part
                )
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, step(), strict=True))


@needs_gpu
def test_where_it_does_not_serve_it_changes_no_bit() -> None:
    x, weight, targets = inputs(300, 3001, 64)
    bias = torch.zeros(3001, device=DEVICE, requires_grad=True)

    def results(fp8: bool) -> list[Tensor]:
        outputs = []
        for options in ({"bias_v": bias}, {"rdrop": 2.0}):
            total, correct = linear_cross_entropy(x, weight, targets, fp8=fp8, **options)
            outputs += [total, correct, *torch.autograd.grad(total, [x, weight])]
        for part in (x.float(), x[:, :40]):
            total, correct = linear_cross_entropy(
                part, weight[:, : part.shape[1]], targets, fp8=fp8
            )
            outputs += [total, correct, *torch.autograd.grad(total, [x, weight])]
        with torch.no_grad():
            outputs += linear_cross_entropy(x, weight, targets, fp8=fp8)
        return outputs

    assert all(torch.equal(a, b) for a, b in zip(results(False), results(True), strict=True))


@needs_gpu
def test_the_logits_of_a_batch_are_never_all_held() -> None:
    """One chunk of logits in bfloat16 is held, and its gradient twice in 8 bits."""
    n, v, w = 16_384, 32_000, 64
    x, weight, targets = inputs(n, v, w)
    run(x, weight, targets, max_logits=2**25)  # Allocates what cuBLAS keeps.
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(x, weight, targets, max_logits=2**25)
    chunk, some = 4 * 2**25, 2**23
    # The weight's gradient, its next part, and it scaled; both forms of 8-bit inputs and weights.
    rest = 12 * v * w + 2 * (n + v) * w + 4 * n * w
    assert torch.cuda.max_memory_allocated() - before <= chunk + rest + some


@needs_gpu
@COMPILES
def test_compiled_without_a_graph_break_it_is_the_same() -> None:
    x, weight, targets = inputs(300, 3001, 64)

    def step(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total, correct = linear_cross_entropy(x, weight, targets, fp8=True)
        return total * 2, correct

    compiled: Any = torch.compile(step, fullgraph=True, dynamic=False)
    (total, correct), (expected, all_correct) = compiled(x, weight), step(x, weight)
    assert (total, correct) == (expected, all_correct)
    found, exact = (torch.autograd.grad(t, [x, weight]) for t in (total, expected))
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
