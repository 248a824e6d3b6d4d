"""A vocabulary that no matrix product likes is padded, which changes no loss and no gradient.

It runs on a GPU, and without one where Triton interprets its kernels (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_kernels
from support import apart
from torch import nn

from heed.nn.kernels import linear_cross_entropy as cross_entropy_module
from heed.nn.kernels import padded_vocabulary
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.kernels.padded_vocabulary import MULTIPLE, reserve_padding

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]

IGNORED = -100
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda x: str(x).split(".")[1])


@pytest.fixture(autouse=True)
def _by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cross_entropy_module, padded_vocabulary):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)


@each_dtype
@pytest.mark.parametrize("v", [1, 7, 50, 64, 8195, *[30_437] * CUDA])
@pytest.mark.parametrize("biased", [False, True], ids=["unbiased", "biased"])
@pytest.mark.parametrize("chunked", [False, True])
def test_it_is_cross_entropy_in_float64(
    dtype: torch.dtype, v: int, biased: bool, chunked: bool
) -> None:
    generator = torch.Generator().manual_seed(v)
    sizes = ((12, 16), (v, 16), (v,))[: 2 + biased]
    parts = [
        torch.randn(size, generator=generator).to(DEVICE, dtype).requires_grad_() for size in sizes
    ]
    targets = torch.randint(v, (12,), generator=generator).to(DEVICE)
    targets[::4] = IGNORED
    total, correct = linear_cross_entropy(
        parts[0],
        parts[1],
        targets,
        bias_v=parts[2] if biased else None,
        label_smoothing=0.1,
        max_logits=5 * v if chunked else None,
    )
    logits = F.linear(*(part.double() for part in parts))
    expected = F.cross_entropy(
        logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=0.1
    )
    assert total.item() == pytest.approx(expected.item(), rel=TOLERANCE[dtype], abs=1e-5)
    if dtype == torch.float32:
        assert correct == (logits.argmax(dim=-1) == targets).sum()
    found, exact = torch.autograd.grad(total, parts), torch.autograd.grad(expected, parts)
    for one, other in zip(found, exact, strict=True):
        assert one.is_contiguous()
        # With one token there is nothing to learn: gradients are zero but for rounding.
        assert (one.abs() <= 1e-5).all() if v == 1 else apart(one, other) <= TOLERANCE[dtype]


@each_dtype
def test_an_aligned_vocabulary_is_not_copied(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = []
    linear = cross_entropy_module._linear

    def record(*args: torch.Tensor) -> None:
        factors.append((*args[1].shape, args[1].data_ptr()))
        linear(*args)

    monkeypatch.setattr(cross_entropy_module, "_linear", record)
    for v in (2 * MULTIPLE, 2 * MULTIPLE + 1):
        x, weight = (torch.randn(n, 8).to(DEVICE, dtype).requires_grad_() for n in (4, v))
        linear_cross_entropy(x, weight, torch.arange(4, device=DEVICE))
        rows, _, address = factors.pop()
        assert rows % MULTIPLE == 0
        assert (address == weight.data_ptr()) == (v % MULTIPLE == 0)


@each_dtype
def test_a_weight_with_room_for_its_padding_is_not_copied(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays the same parameter with the same numbers, and an optimizer updates no padding."""
    v = 2 * MULTIPLE + 1
    weight = nn.Parameter(torch.randn(v, 8).to(DEVICE, dtype))
    before, addresses = weight.detach().clone(), []
    reserve_padding(weight)
    assert torch.equal(weight, before)
    assert weight.is_contiguous()
    linear = cross_entropy_module._linear

    def record(*args: torch.Tensor) -> None:
        addresses.append(args[1].data_ptr())
        assert not args[1][v:].any()
        linear(*args)

    monkeypatch.setattr(cross_entropy_module, "_linear", record)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for _ in range(2):
        x = torch.randn(4, 8).to(DEVICE, dtype).requires_grad_()
        total, _ = linear_cross_entropy(x, weight, torch.arange(4, device=DEVICE))
        total.backward()
        optimizer.step()
    assert addresses == [weight.data_ptr()] * 2
    assert not torch.equal(weight, before)
    weight.data = before.clone()  # as a copy of the model has it: there is no room behind it
    linear_cross_entropy(x, weight, torch.arange(4, device=DEVICE))
    assert addresses[-1] != weight.data_ptr()


@each_dtype
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_the_factor_of_the_loss_scales_gradients_once(dtype: torch.dtype, factor: float) -> None:
    """In place: a second backward pass is refused, and does not scale them twice."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((12, 16), (50, 16))
    parts = [
        torch.randn(size, generator=generator).to(DEVICE, dtype).requires_grad_() for size in sizes
    ]
    targets = torch.randint(50, (12,), generator=generator).to(DEVICE)
    total, _ = linear_cross_entropy(parts[0], parts[1], targets)
    found = torch.autograd.grad(total * factor, parts, retain_graph=True)
    logits = F.linear(*(part.double() for part in parts))
    exact = torch.autograd.grad(F.cross_entropy(logits, targets, reduction="sum") * factor, parts)
    for one, other in zip(found, exact, strict=True):
        assert apart(one, other) <= TOLERANCE[dtype]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total, parts)
