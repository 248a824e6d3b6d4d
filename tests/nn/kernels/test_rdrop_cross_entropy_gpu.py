"""The kernel of cross-entropy with R-Drop equals its formula in float64, gradients included.

It runs on a GPU, and without one where Triton interprets its kernels (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_kernels
from support import apart
from torch import Tensor

from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.rdrop import rdrop_loss, repeat_rows

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]

IGNORED, ALPHA = -100, 5.0
ROUNDING = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""Each number of a gradient is rounded once."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
VOCABS = [1, 2, 63, 64, 500, 2049, 4096, 4097, 8192, 9001]
VOCABS += [32_000, 100_003] * CUDA
"""Within a tile, whole tiles and partial tiles; up to 4,096 rows stay in registers."""
each_dtype = pytest.mark.parametrize("dtype", list(ROUNDING), ids=lambda x: str(x).split(".")[1])


def reference(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses of rows and the gradient of their sum, by autograd in float64."""
    exact = logits.detach().double().requires_grad_()
    cross_entropies = F.cross_entropy(
        exact, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    divergences = repeat_rows(rdrop_loss(exact.unflatten(0, (-1, 2)), ALPHA))
    losses = (cross_entropies + divergences.where(targets != IGNORED, 0)) / 2
    (gradient,) = torch.autograd.grad(losses.sum(), [exact])
    return losses.detach(), gradient


def run(
    logits: Tensor, targets: Tensor, smoothing: float, gradient: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, correct predictions and the gradient by the kernel."""
    from heed.nn.kernels.triton.rdrop_cross_entropy import chunk_rdrop

    losses = torch.full([len(logits)], float("nan"), device=DEVICE)
    correct = torch.full([len(logits)], -1, device=DEVICE, dtype=torch.int32)
    d = chunk_rdrop(ALPHA, logits, targets, losses, correct, IGNORED, smoothing, gradient)
    return losses, correct, d


@each_dtype
@pytest.mark.parametrize("v", VOCABS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_kernel_equals_float64_row_by_row(dtype: torch.dtype, v: int, smoothing: float) -> None:
    """Losses, predictions and gradients of the same logits, ties included."""
    pairs, wide = 10, -(-v // 64) * 64
    generator = torch.Generator().manual_seed(v)
    # Padding does not count, so it may be NaN.
    buffer = torch.full((2 * pairs, wide), float("nan"))
    buffer[:, :v] = 3 * torch.randn(2 * pairs, v, generator=generator)
    buffer[::3] = buffer[::3].round()
    buffer[7] = buffer[6]
    buffer = buffer.to(DEVICE, dtype)
    logits = buffer[:, :v]
    targets = torch.randint(v, (pairs,), generator=generator).to(DEVICE)
    targets[::2] = logits[::2].float().argmax(dim=-1)[::2]
    targets[::5] = IGNORED
    targets = repeat_rows(targets)
    expected, d_exact = reference(logits, targets, smoothing)
    all_correct = (logits.float().argmax(dim=-1) == targets).int()
    before = logits.clone()
    for gradient in (False, True):
        losses, correct, d = run(logits, targets, smoothing, gradient)
        torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(correct, all_correct)
        if not gradient:
            assert torch.equal(logits, before)
    # A difference of nearly equal numbers has the rounding of float32 sums.
    torch.testing.assert_close(d.double(), d_exact, rtol=ROUNDING[dtype], atol=2e-6)
    assert (d[targets == IGNORED] == 0).all()
    assert (buffer[:, v:] == 0).all()


@each_dtype
@pytest.mark.parametrize("v", [50, 5000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_huge_logits_stay_finite(dtype: torch.dtype, v: int, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(v)
    logits = (1e3 * torch.randn(8, v, generator=generator)).to(DEVICE, dtype)
    logits[:, 1:4] = torch.tensor([1e4, -1e4, 1e4], dtype=dtype)
    logits[6:] = torch.tensor([[-2e4], [2e4]], dtype=dtype)
    targets = repeat_rows(torch.tensor([0, 1, 2, 3])).to(DEVICE)
    expected, d_exact = reference(logits, targets, smoothing)
    losses, _, d = run(logits, targets, smoothing)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-2)
    assert d.isfinite().all()
    assert apart(d, d_exact) <= TOLERANCE[dtype]


@pytest.mark.parametrize("v", [50, 5000])
def test_a_target_outside_the_vocabulary_gives_nan(v: int) -> None:
    for wrong in (v, -1, 2**40):
        targets = torch.tensor([3, 3, wrong, wrong], device=DEVICE)
        losses, correct, _ = run(torch.randn(4, v).to(DEVICE), targets, 0.1)
        assert losses.isnan().tolist() == [False, False, True, True]
        assert (correct[2:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("v", [7, 128, 5003])
@pytest.mark.parametrize("biased", [False, True], ids=["unbiased", "biased"])
@pytest.mark.parametrize("max_logits", [None, 5003 * 6])
def test_the_output_layer_uses_it(
    dtype: torch.dtype,
    v: int,
    biased: bool,
    max_logits: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the plain formula in float64 of the same numbers."""
    monkeypatch.setattr(cross_entropy_module, "on_gpu", lambda x: True)
    generator = torch.Generator().manual_seed(v)
    sizes = ((20, 16), (v, 16), (v,))
    x, weight, bias = (torch.randn(size, generator=generator) / 2 for size in sizes)
    parts = [part.to(DEVICE, dtype) for part in (x, weight, bias)[: 2 + biased]]
    targets = torch.randint(v, (10,), generator=generator)
    targets[::3] = IGNORED
    targets = repeat_rows(targets).to(DEVICE)
    found = []
    for exact in (torch.float64, dtype):
        here = [part.to(exact, copy=True).requires_grad_() for part in parts]
        total, correct = linear_cross_entropy(
            here[0],
            here[1],
            targets,
            bias_v=here[2] if biased else None,
            label_smoothing=0.1,
            rdrop=ALPHA,
            max_logits=max_logits,
        )
        gradients = torch.autograd.grad(total, here)
        assert all(grad.is_contiguous() for grad in gradients)
        found.append([total.detach(), *gradients])
        assert correct.dtype == torch.int64
    assert max(apart(one, other) for other, one in zip(*found, strict=True)) <= TOLERANCE[dtype]
