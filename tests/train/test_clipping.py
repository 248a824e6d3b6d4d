"""The end of a step before the optimizer's: on a GPU two launches do what torch's operations do.

Without a GPU the kernels run where Triton interprets them (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import math

import pytest
import torch
from gpu_marks import DEVICE, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heed.nn.kernels.availability import HAS_TRITON
from heed.train import clipping
from heed.train.clipping import Clipping
from heed.train.counters import RECENT, STEP, TARGETS, Counters
from heed.train.optimizers import fused_adamw

EXAMPLES = settings(max_examples=20)
SIZES = st.lists(st.sampled_from([0, 1, 3, 100, 8191, 8192, 8193, 20_000]), min_size=1, max_size=5)


def gradients(sizes: list[int], scale: float, seed: int) -> list[Tensor]:
    """Gradients of these sizes; every second one begins at no multiple of 16 bytes."""
    generator = torch.Generator().manual_seed(seed)
    parts = [scale * torch.randn(size + 1, generator=generator).to(DEVICE) for size in sizes]
    return [
        part[number % 2 :][:size]
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True))
    ]


def counters(targets: float, seed: int, in_a_row: int) -> Counters:
    """Counters in the midst of a run."""
    made = Counters(DEVICE)
    made.sums.copy_(torch.rand(3, 3, generator=torch.Generator().manual_seed(seed)))
    made.sums[STEP, TARGETS] = targets
    made.counts.copy_(torch.tensor([17, 5, in_a_row, -1]))
    return made


@pytest.mark.parametrize("clip", [0.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divisor_outlives_the_counters_of_the_step(dtype: torch.dtype, clip: float) -> None:
    """Without clipping it is the number of targets, which the counters forget."""
    state = Counters(torch.device("cpu"))
    state.start_step(7)
    divisor, finite = Clipping(clip, 0).finish_step([torch.ones(3, dtype=dtype)], state)
    assert finite
    assert divisor == 7


@EXAMPLES
@given(
    sizes=SIZES,
    scale=st.sampled_from([1e-6, 1.0, 300.0]),
    clip=st.sampled_from([0.0, 1.0, 50.0]),
    targets=st.integers(1, 20_000),
    seed=st.integers(0, 2**20),
)
def test_what_is_clipped_is_the_gradient_of_the_mean(
    sizes: list[int], scale: float, clip: float, targets: int, seed: int
) -> None:
    grads = [grad.cpu() for grad in gradients(sizes, scale, seed)]
    state = Counters(torch.device("cpu"))
    state.start_step(targets)
    divisor, finite = Clipping(clip, 0).finish_step(grads, state)
    assert finite
    mean = torch.cat([grad.double() / targets for grad in grads])
    clipped = torch.cat([grad.double() for grad in grads]) / divisor.double()
    norm = float(mean.norm())
    if clip and norm > clip:
        assert float(clipped.norm()) == pytest.approx(clip, rel=1e-4)
    else:
        torch.testing.assert_close(clipped, mean, rtol=1e-6, atol=0)


@pytest.mark.gpu
@needs_kernels
@EXAMPLES
@given(
    sizes=SIZES,
    scale=st.sampled_from([1e-6, 1.0, 300.0, math.nan, math.inf]),
    clip=st.sampled_from([0.0, 1.0, 50.0]),
    targets=st.integers(1, 20_000),
    in_a_row=st.integers(0, 3),
    seed=st.integers(0, 2**20),
)
def test_the_kernels_do_what_torch_does(
    sizes: list[int], scale: float, clip: float, targets: int, in_a_row: int, seed: int
) -> None:
    grads = gradients(sizes, scale, seed)
    ours, theirs = (counters(targets, seed, in_a_row) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipping, "on_gpu", lambda x: True)
        patch.setattr(fused_adamw, "on_gpu", lambda x: True)
        divisor, finite = Clipping(clip, 2).finish_step(grads, ours)
        patch.setattr(clipping, "on_gpu", lambda x: False)
        expected, is_finite = Clipping(clip, 2).finish_step(grads, theirs)
    assert finite.dtype == torch.bool
    assert bool(finite) == bool(is_finite)
    if finite:
        torch.testing.assert_close(divisor, expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(ours.sums, theirs.sums, rtol=0, atol=0)
    assert ours.counts.tolist() == theirs.counts.tolist()
    assert not ours.sums[STEP].any()


@pytest.mark.gpu
@needs_kernels
def test_the_kernels_repeat_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "on_gpu", lambda x: True)
    monkeypatch.setattr(fused_adamw, "on_gpu", lambda x: True)
    grads, clip = gradients([30_000, 5], 1.0, 0), Clipping(0.1, 2)
    divisors = [clip.finish_step(grads, counters(9, 0, 0))[0] for _ in range(3)]
    assert all(torch.equal(divisor, divisors[0]) for divisor in divisors)


@pytest.mark.skipif(not HAS_TRITON, reason="the kernels need Triton")
def test_a_program_knows_the_places_of_the_counters() -> None:
    """The kernel reads sums and counts by number."""
    from heed.train.counters import FAILED_AT, IN_A_ROW, LOSS, SKIPPED, STEPS

    assert (STEP, RECENT, LOSS, TARGETS) == (0, 1, 0, 2)
    assert (STEPS, SKIPPED, IN_A_ROW, FAILED_AT) == (0, 1, 2, 3)
