"""The output layer in 8 bits: how exact it is, and where it is not computed.

The reference on torch alone stands for the kernels here; that they equal it is tested on a GPU and
in Triton's interpreter (test_fp8_cross_entropy_gpu.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fp8_reference import IGNORED, exact_cross_entropy, fp8_reference
from hypothesis import given
from hypothesis import strategies as st
from support import apart
from torch import Tensor

from heed.nn.kernels import fp8_cross_entropy as kernels
from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels.fp8_cross_entropy import compute_scale, find_obstacle, round_up
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy

CUDA = torch.device("cuda")
SIZES = st.tuples(st.integers(8, 60), st.integers(2, 150), st.sampled_from([16, 32, 64]))
"""Rows, vocabulary, width."""
SMOOTHINGS = st.sampled_from([0.0, 0.1, 0.5])


def inputs(
    n: int, v: int, w: int, *, ignored: float = 0.3, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in bfloat16, weights, and targets, a share of which is ignored."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, w, generator=generator).bfloat16()
    weight = torch.randn(v, w, generator=generator) / w**0.5
    targets = torch.randint(v, (n,), generator=generator)
    hidden = torch.rand(n, generator=generator) < ignored
    return x.requires_grad_(), weight.requires_grad_(), targets.masked_fill(hidden, IGNORED)


# ------------------------------------------------------------------------------- how exact it is


@given(SIZES, SMOOTHINGS, st.integers(0, 99))
def test_it_is_cross_entropy_within_8_bits(
    sizes: tuple[int, int, int], smoothing: float, seed: int
) -> None:
    """An element of e4m3 is rounded by 2⁻⁴ of itself at most, one of e5m2 by 2⁻³."""
    x, weight, targets = inputs(*sizes, ignored=0.2, seed=seed)
    found = fp8_reference(x, weight, targets, smoothing)
    total, dx, d_weight = exact_cross_entropy(x, weight, targets, smoothing)
    assert found.total.item() == pytest.approx(total.item(), rel=0.05, abs=0.05)
    if smoothing < 0.5:  # otherwise gradients are differences of nearly equal numbers
        assert apart(found.dx, dx) <= 0.15
        assert apart(found.d_weight, d_weight) <= 0.15


def test_errors_average_out_over_a_real_shape() -> None:
    x, weight, targets = inputs(512, 2000, 128)
    found = fp8_reference(x, weight, targets)
    total, dx, d_weight = exact_cross_entropy(x, weight, targets, 0.0)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-3)
    assert apart(found.dx, dx) <= 0.06
    assert apart(found.d_weight, d_weight) <= 0.06


@given(SIZES, SMOOTHINGS, st.integers(-20, 20), st.integers(-20, 20))
def test_scales_of_inputs_and_weights_do_not_matter(
    sizes: tuple[int, int, int], smoothing: float, power: int, other: int
) -> None:
    """By powers of two: the same bits."""
    x, weight, targets = inputs(*sizes)
    found = fp8_reference(x, weight, targets, smoothing)
    scaled = fp8_reference(x * 2.0**power, weight * 2.0**-power, targets, smoothing)
    assert scaled.total == found.total
    assert torch.equal(scaled.dx, found.dx * 2.0**-power)
    assert torch.equal(scaled.d_weight, found.d_weight * 2.0**power)
    assert compute_scale(x * 2.0**other) == compute_scale(x) * 2.0**other


@given(SIZES, SMOOTHINGS)
def test_ignored_targets_have_no_gradient(sizes: tuple[int, int, int], smoothing: float) -> None:
    x, weight, targets = inputs(*sizes)
    found = fp8_reference(x, weight, targets, smoothing)
    assert (found.dx[targets == IGNORED] == 0).all()


def test_a_scale_is_never_zero_and_shows_what_is_not_finite() -> None:
    assert compute_scale(torch.zeros(3)) == kernels.MIN_SCALE
    assert compute_scale(torch.zeros(3)).reciprocal().isfinite()
    assert compute_scale(torch.tensor([1.0, -448.0, 2.0])) == 1.0
    for wrong in (float("nan"), float("inf"), -float("inf")):
        for dtype in (torch.bfloat16, torch.float32):
            assert not compute_scale(torch.tensor([1.0, wrong, 2.0], dtype=dtype)).isfinite()


@given(st.integers(1, 10**6), st.sampled_from([16, 64]))
def test_sizes_are_rounded_up(size: int, multiple: int) -> None:
    rounded = round_up(size, multiple)
    assert rounded % multiple == 0
    assert size <= rounded < size + multiple


# ------------------------------------------------------------------------ where it is not computed


def obstacle(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str | None:
    settings: dict[str, Any] = {"device": CUDA, "dtype": torch.bfloat16, "w": 64} | changes
    capability = settings.pop("capability", (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernels, "HAS_TRITON", settings.pop("triton", True))
    return find_obstacle(**settings)


def test_on_a_gpu_with_8_bit_products_there_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for capability in ((8, 9), (9, 0), (10, 0)):
        assert obstacle(monkeypatch, capability=capability) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": torch.device("cpu")}, "need a GPU, and this device is a CPU"),
        ({"capability": (8, 6)}, "need compute capability 8.9, and this GPU has 8.6"),
        ({"triton": False}, "Triton is missing"),
        ({"dtype": torch.float32}, "for training in bf16"),
        ({"w": 72}, "width 72 is not a multiple of 16"),
        ({"biased": True}, "has a bias"),
        ({"trained": False}, "frozen"),
    ],
)
def test_an_obstacle_is_named(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str
) -> None:
    assert why in str(obstacle(monkeypatch, **changes))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled where the 8-bit path is taken, on a pretended GPU."""
    calls: list[str] = []
    monkeypatch.setattr(kernels, "find_obstacle", _pretended_gpu(find_obstacle))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "HAS_TRITON", True)

    def launch(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        calls.append("fp8")
        total, correct = x.new_zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.int64)
        return total, correct, x.detach() * 0, weight.detach() * 0, x.new_empty(0)

    monkeypatch.setattr(cross_entropy_module, "_launch_fp8", launch)
    return calls


def _pretended_gpu(find: Any) -> Any:
    return lambda device, *args, **kwargs: find(CUDA, *args, **kwargs)


def test_it_serves_only_where_it_is_asked_for_and_can(served: list[str]) -> None:
    x, weight, targets = inputs(16, 20, 32)
    bias = torch.zeros(20, requires_grad=True)
    with torch.no_grad():
        linear_cross_entropy(x, weight, targets, fp8=True)
    linear_cross_entropy(x, weight, targets)
    linear_cross_entropy(x, weight, targets, fp8=True, rdrop=1.0)
    linear_cross_entropy(x, weight, targets, fp8=True, bias_v=bias)
    linear_cross_entropy(x.float(), weight, targets, fp8=True)
    linear_cross_entropy(x.detach(), weight, targets, fp8=True)
    linear_cross_entropy(x, weight.detach(), targets, fp8=True)
    linear_cross_entropy(x[:0], weight, targets[:0], fp8=True)
    linear_cross_entropy(x[:, :24], weight[:, :24], targets, fp8=True)
    assert served == []
    linear_cross_entropy(x, weight, targets, fp8=True)
    with torch.autocast("cpu", torch.bfloat16):
        linear_cross_entropy(x.float(), weight, targets, fp8=True)
    assert served == ["fp8"] * 2


@given(SIZES, SMOOTHINGS)
def test_on_a_cpu_it_changes_no_bit(sizes: tuple[int, int, int], smoothing: float) -> None:
    x, weight, targets = inputs(*sizes)
    results = []
    for fp8 in (False, True):
        total, correct = linear_cross_entropy(
            x, weight, targets, label_smoothing=smoothing, fp8=fp8
        )
        results.append([total, correct, *torch.autograd.grad(total, [x, weight])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
