"""On a GPU Muon's step in few kernels equals the plain step.

Without a GPU most of this runs, slowly, where Triton is and interprets its kernels
(TRITON_INTERPRET=1). Products are float32 but in one test: bfloat16 would hide small differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from torch import Tensor, nn

from heed.train.optimizers import custom, fused_muon, newton_schulz
from heed.train.optimizers.build import OptimizerSettings, build_optimizer, step_optimizer
from heed.train.optimizers.newton_schulz import orthogonalize, orthogonalize_stacks

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
]

SHAPES = [(5, 3), (3, 5), (64, 64), (70, 70), (65, 130), (130, 65), (48, 1), (1, 7), (16, 300)]
"""Whole tiles, odd ends, wide and tall, pairs that share a stack, equally many rows."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Of an update, as a share of its size, by the precision of products. Five iterations amplify what
bfloat16 rounds off: in emulation the two steps differ by up to 0.05."""


@pytest.fixture(autouse=True)
def _by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_products_in(torch.float32, monkeypatch)
    if not CUDA:
        from heed.nn.kernels.triton import muon

        monkeypatch.setattr(fused_muon, "on_gpu", lambda x: True)
        monkeypatch.setattr(muon, "PARTS", 4)  # the interpreter runs one program after another


def compute_products_in(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (newton_schulz, fused_muon):
        monkeypatch.setattr(module, "product_dtype", lambda matrix: dtype)


class Matrices(nn.Module):
    """Matrices of these shapes, each several times."""

    def __init__(self, shapes: Sequence[tuple[int, int]], times: int = 2) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(0)
        sizes = [shape for shape in shapes for _ in range(times)]
        self.all = nn.ParameterList([torch.randn(*size, generator=made) for size in sizes])
        self.bias = nn.Parameter(torch.zeros(3))

    def set_gradients(self, step: int, scale: float = 1.0) -> None:
        made = torch.Generator().manual_seed(1000 + step)
        for parameter in self.parameters():
            grad = scale * torch.randn(parameter.shape, generator=made)
            parameter.grad = grad.to(parameter.device)


def pair(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    *,
    times: int = 2,
    lr_tensor: bool = True,
    **changes: Any,
) -> tuple[tuple[Matrices, Any], tuple[Matrices, Any]]:
    """Twice the same matrices with an optimizer; the second is meant for plain steps."""
    usual: dict[str, Any] = {"name": "muon", "lr": 0.01, "weight_decay": 0.1}
    settings = OptimizerSettings(**usual | changes)
    first = Matrices(shapes, times).to(DEVICE)
    models = (first, deepcopy(first))
    fused, plain = ((m, build_optimizer(m, settings, lr_tensor=lr_tensor)) for m in models)
    return fused, plain


def plain_step(step: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom, "can_fuse_matrices", lambda tensors: False)
        step()


def must_not_run(*args: Any, **options: Any) -> None:
    raise AssertionError("this step is the other one")


def fused_only(step: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom.Muon, "_plain_step", must_not_run)
        step()


def momenta(model: Matrices, optimizer: Any) -> list[Tensor]:
    return [optimizer.state[parameter]["momentum"] for parameter in model.all]


def snapshot(model: Matrices, optimizer: Any) -> list[Tensor]:
    """Copies of all weights and of all state tensors."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *state)]


def assert_same_step(
    before: Sequence[Tensor],
    fused: Matrices,
    plain: Matrices,
    dtype: torch.dtype = torch.float32,
) -> None:
    for old, ours, theirs in zip(before, fused.all, plain.all, strict=True):
        moved, expected = ours.detach() - old, theirs.detach() - old
        assert (moved - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.95])
@pytest.mark.parametrize(("lr_tensor", "divisor"), [(True, 7.5), (False, None)])
def test_a_fused_step_is_the_plain_step(
    momentum: float, lr_tensor: bool, divisor: float | None
) -> None:
    fused, plain = pair(lr_tensor=lr_tensor, momentum=momentum, muon_lr=0.03)
    for step in range(2):
        for target, source in zip(plain[0].parameters(), fused[0].parameters(), strict=True):
            target.data.copy_(source.data)  # small differences do not add up
        before = [parameter.detach().clone() for parameter in fused[0].all]
        for model, optimizer in (fused, plain):
            model.set_gradients(step, scale=divisor or 1.0)
            if divisor is not None:
                optimizer.grad_scale = torch.tensor(divisor, device=DEVICE)
                optimizer.found_inf = torch.tensor(0.0, device=DEVICE)
        fused_only(fused[1].step)
        plain_step(plain[1].step)
        assert_same_step(before, fused[0], plain[0])
        for ours, theirs in zip(momenta(*fused), momenta(*plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_products_in_bfloat16_make_about_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_products_in(torch.bfloat16, monkeypatch)
    fused, plain = pair()
    before = [parameter.detach().clone() for parameter in fused[0].all]
    for model, _ in (fused, plain):
        model.set_gradients(0)
    fused_only(fused[1].step)
    plain_step(plain[1].step)
    assert_same_step(before, fused[0], plain[0], torch.bfloat16)


def test_more_matrices_than_a_launch_takes() -> None:
    from heed.nn.kernels.triton import muon

    fused, plain = pair([(6, 4), (4, 6)], times=muon.MATRICES + 3)
    before = [parameter.detach().clone() for parameter in fused[0].all]
    for model, _ in (fused, plain):
        model.set_gradients(0)
    fused_only(fused[1].step)
    plain_step(plain[1].step)
    assert_same_step(before, fused[0], plain[0])


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_skipped_step_changes_no_bit(bad: float) -> None:
    (model, optimizer), _ = pair([(5, 3), (70, 130)])
    for step in range(2):
        model.set_gradients(step)
        optimizer.step()
    before = snapshot(model, optimizer)
    model.set_gradients(2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.view(-1)[0] = bad
    optimizer.grad_scale = torch.tensor(bad, device=DEVICE)
    optimizer.found_inf = torch.tensor(1.0, device=DEVICE)
    fused_only(optimizer.step)
    for old, new in zip(before, snapshot(model, optimizer), strict=True):
        assert torch.equal(old, new)


def test_a_skipped_first_step_leaves_zero_momenta() -> None:
    (model, optimizer), _ = pair([(5, 3)])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.set_gradients(0, scale=torch.inf)
    optimizer.grad_scale = torch.tensor(1.0, device=DEVICE)
    optimizer.found_inf = torch.tensor(1.0, device=DEVICE)
    fused_only(optimizer.step)
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert not any(momentum.any() for momentum in momenta(model, optimizer))


def test_zero_gradients_only_decay() -> None:
    (model, optimizer), _ = pair([(5, 3), (70, 130)], lr=0.1, weight_decay=0.5)
    before = [parameter.detach().clone() for parameter in model.all]
    model.set_gradients(0, scale=0.0)
    fused_only(optimizer.step)
    for old, new in zip(before, model.all, strict=True):
        torch.testing.assert_close(new.detach(), 0.95 * old)


def test_a_resumed_run_is_the_unbroken_one() -> None:
    """To the bit: partial sums are added in a fixed order."""
    (unbroken, optimizer), (resumed, later) = pair([(5, 3), (65, 130), (130, 65)])
    for step in range(2):
        unbroken.set_gradients(step)
        fused_only(optimizer.step)
    resumed.load_state_dict(unbroken.state_dict())
    later.load_state_dict(deepcopy(optimizer.state_dict()))
    for model, following in ((unbroken, optimizer), (resumed, later)):
        for step in range(2, 4):
            model.set_gradients(step)
            fused_only(following.step)
    ours, theirs = snapshot(unbroken, optimizer), snapshot(resumed, later)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_plain_steps_take_what_kernels_do_not() -> None:
    parameter = nn.Parameter(torch.ones(4, 6, device=DEVICE))
    assert fused_muon.can_fuse_matrices([parameter, torch.ones(4, 6, device=DEVICE)])
    for other in (
        torch.ones(6, 4, device=DEVICE).mT,
        torch.ones(4, 6, device=DEVICE, dtype=torch.bfloat16),
        torch.ones(4, 6, device=DEVICE, dtype=torch.float64),
        torch.ones(25, device=DEVICE)[1:].view(4, 6),
        torch.ones(0, 6, device=DEVICE),
    ):
        assert not fused_muon.can_fuse_matrices([parameter, other])
    if CUDA:
        assert not fused_muon.can_fuse_matrices([parameter, torch.ones(4, 6)])


def test_a_gradient_of_another_layout_gets_the_plain_step() -> None:
    first, second = pair([(6, 4)])
    for model, _ in (first, second):
        model.set_gradients(0)
    grad = first[0].all[0].grad
    assert grad is not None
    first[0].all[0].grad = grad.mT.contiguous().mT
    for _, optimizer in (first, second):
        optimizer.step()
    for ours, theirs in zip(first[0].all, second[0].all, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_stacks_with_equally_many_rows_are_orthogonalized_as_alone() -> None:
    made = torch.Generator().manual_seed(0)
    shapes = {(4, 4): 3, (4, 9): 2, (5, 9): 1}
    stacks = {
        shape: torch.randn(count, *shape, generator=made).to(DEVICE)
        for shape, count in shapes.items()
    }
    expected = {shape: orthogonalize(list(stack)) for shape, stack in stacks.items()}
    together = orthogonalize_stacks(
        {
            shape: stack / torch.linalg.matrix_norm(stack, keepdim=True)
            for shape, stack in stacks.items()
        }
    )
    for shape, alone in expected.items():
        torch.testing.assert_close(together[shape], alone, rtol=1e-4, atol=1e-4)


@needs_gpu
def test_a_captured_step_is_the_eager_step() -> None:
    """Replays read gradients at the addresses they were captured at, and the rate of each step."""
    (eager, optimizer), (captured, recorded) = pair([(64, 64), (65, 130), (130, 65)])
    divisor, finite = torch.tensor(2.0, device=DEVICE), torch.tensor(True, device=DEVICE)
    captured.set_gradients(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        step_optimizer(recorded, divisor, torch.tensor(False, device=DEVICE))
        with torch.cuda.graph(graph, stream=stream):
            step_optimizer(recorded, divisor, finite)
    torch.cuda.current_stream().wait_stream(stream)
    for step in range(4):
        rate = 0.01 / (1 + step)
        finite.fill_(step != 2)
        eager.set_gradients(step)
        for parameter, other in zip(captured.parameters(), eager.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            parameter.grad.copy_(other.grad)
        for one in (optimizer, recorded):
            for group in one.param_groups:
                group["lr"].fill_(rate)
        step_optimizer(optimizer, divisor, finite)
        graph.replay()
    for ours, theirs in zip(snapshot(eager, optimizer), snapshot(captured, recorded), strict=True):
        assert torch.equal(ours, theirs)
