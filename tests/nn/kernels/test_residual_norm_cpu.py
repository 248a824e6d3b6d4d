"""In training on a CPU, residual add, dropout and norm in C equal the plain steps.

The reference is float64 of the very numbers the kernel is given. What dropout keeps is read from
the kernel itself, as dropout of ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import all_apart, apart, new_language_model, perturb, texts, threads
from torch import Tensor, nn

from heed.nn.kernels import c_library, cpu_library, residual_norm_cpu
from heed.nn.kernels.linear import Dropout
from heed.nn.kernels.residual_norm import add_norm

Norm = nn.LayerNorm | nn.RMSNorm
pytestmark = pytest.mark.skipif(
    cpu_library.cpu_library("residual_norm") is None, reason="no C compiler for this CPU"
)
KINDS = ["layer", "unbiased", "rms"]
each_norm = pytest.mark.parametrize("kind", KINDS)
each_place = pytest.mark.parametrize("place", ["pre", "post"])
NONE = Dropout(0.0)
IN_C = "_AddNormBackward"


def build_norm(kind: str, w: int) -> Norm:
    norm: Norm = nn.RMSNorm(w, eps=1e-5) if kind == "rms" else nn.LayerNorm(w, bias=kind == "layer")
    perturb(norm, by=0.3)
    return norm


def rows(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (x + 0.5).to(dtype).requires_grad_()


def plainly(
    x: Tensor, branch: Tensor | None, norm: Norm, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The plain steps in float64."""
    total, shape = x.double(), x.shape[-1:]
    if branch is not None:
        total = total + (branch.double() if kept is None else branch.double() * kept.double())
    if isinstance(norm, nn.RMSNorm):
        return total, F.rms_norm(total, shape, norm.weight.double(), eps=norm.eps)
    bias = None if norm.bias is None else norm.bias.double()
    return total, F.layer_norm(total, shape, norm.weight.double(), bias, eps=norm.eps)


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], used: tuple[bool, bool] = (True, True)
) -> list[Tensor]:
    """Gradients of a random mix of the sum and of its norm."""
    mixes = [rows(*x.shape, seed=5 + i).detach().to(x.dtype) for i, x in enumerate(outputs)]
    chosen = [
        pair for pair, wanted in zip(zip(outputs, mixes, strict=True), used, strict=True) if wanted
    ]
    return list(torch.autograd.grad([x for x, _ in chosen], list(inputs), [x for _, x in chosen]))


def run(
    x: Tensor, branch: Tensor | None, norm: Norm, p: float, *, seed: int = 3
) -> tuple[Tensor, Tensor]:
    """The sum and its norm by the kernel, and nothing else."""
    torch.manual_seed(seed)
    out = add_norm(x, branch, norm, Dropout(p))
    assert all(type(part.grad_fn).__name__ == IN_C for part in out)
    return out


def mask_of(rows_: int, w: int, p: float, *, seed: int = 3) -> Tensor:
    """What dropout of ones is."""
    return run(torch.zeros(rows_, w), torch.ones(rows_, w), build_norm("layer", w), p, seed=seed)[0]


@given(
    n=st.integers(0, 140),
    w=st.integers(1, 80),
    kind=st.sampled_from(KINDS),
    p=st.sampled_from([0.0, 0.1, 0.5]),
    has_branch=st.booleans(),
    used=st.sampled_from([(True, True), (False, True), (True, False)]),
)
@settings(deadline=None)
def test_it_is_a_sum_and_its_norm(
    n: int, w: int, kind: str, p: float, has_branch: bool, used: tuple[bool, bool]
) -> None:
    """Pre-norm uses both, post-norm and the last norm of a stack only the norm."""
    norm, x, branch = build_norm(kind, w), rows(n, w), rows(n, w, seed=1)
    added = branch if has_branch else None
    found, exact = run(x, added, norm, p), plainly(x, added, norm, mask_of(n, w, p))
    # Of one number, or of nearly equal ones, the norm is rounding magnified.
    torch.testing.assert_close(found[0].double(), exact[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1].double(), exact[1], rtol=1e-4, atol=1e-4)
    wanted = [x, branch] if has_branch else [x]
    wanted += norm.parameters() if used[1] else []
    grads, exact_grads = (gradients(out, wanted, used) for out in (found, exact))
    assert [grad.dtype for grad in grads] == [torch.float32] * len(wanted)
    for grad, exact_grad in zip(grads, exact_grads, strict=True):
        size = max(1.0, float(exact_grad.abs().max())) if exact_grad.numel() else 1.0
        assert float((grad - exact_grad).abs().max() if grad.numel() else 0.0) <= 3e-4 * size


@each_norm
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("size", [(65, 200), (300, 512), (3, 768), (2, 8192)])
def test_rounding_is_that_of_float32(kind: str, p: float, size: tuple[int, int]) -> None:
    norm, x, branch = build_norm(kind, size[1]), rows(*size), rows(*size, seed=1)
    found, exact = run(x, branch, norm, p), plainly(x, branch, norm, mask_of(*size, p))
    assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= 1e-6
    wanted = [x, branch, *norm.parameters()]
    grads, exact_grads = gradients(found, wanted), gradients(exact, wanted)
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 1e-6


def test_a_large_mean_costs_no_digits() -> None:
    """The mean is subtracted before squares are summed, and again in the gradient."""
    norm, x = build_norm("layer", 256), (rows(9, 256).detach() + 1000).requires_grad_()
    found, exact = run(x, None, norm, 0.0), plainly(x, None, norm)
    assert apart(found[1], exact[1]) <= 1e-4
    assert all_apart(*(gradients(out, [x, *norm.parameters()]) for out in (found, exact))) <= 1e-3


@each_norm
@pytest.mark.parametrize("for_linear", [False, True])
def test_under_autocast_a_linear_layer_reads_its_own_dtype(kind: str, for_linear: bool) -> None:
    """The residual stream stays float32; a linear layer's input is rounded once."""
    w = 192
    norm, x = build_norm(kind, w), rows(9, w)
    branch = rows(9, w, seed=1, dtype=torch.bfloat16)
    kept = mask_of(9, w, 0.3)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = add_norm(x, branch, norm, Dropout(0.3), for_linear=for_linear)
    expected = torch.bfloat16 if for_linear else torch.float32
    assert [part.dtype for part in found] == [torch.float32, expected]
    exact = plainly(x, branch, norm, kept)
    assert apart(found[0], exact[0]) <= 1e-6
    torch.testing.assert_close(
        found[1], exact[1].to(expected), rtol=2**-7 if for_linear else 1e-5, atol=1e-5
    )
    wanted = [x, branch, *norm.parameters()]
    grads, exact_grads = gradients(found, wanted), gradients(exact, wanted)
    assert [grad.dtype for grad in grads] == [part.dtype for part in wanted]
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 3e-3
    assert torch.equal(grads[1] == 0, kept == 0)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_gradients_of_any_one_input(p: float) -> None:
    """Frozen parameters, a stream without a gradient, a branch without one."""
    norm, x, branch = build_norm("layer", 48), rows(6, 48), rows(6, 48, seed=1)
    wanted = [x, branch, *norm.parameters()]
    whole = gradients(run(x, branch, norm, p), wanted)
    for i, one in enumerate(wanted):
        for other in wanted:
            other.requires_grad_(other is one)
        (alone,) = gradients(run(x, branch, norm, p), [one], (i < 2, True))
        assert torch.equal(alone, whole[i])


def test_gradients_that_are_one_number_in_memory() -> None:
    """The gradient of a sum is such a tensor, of stride zero."""
    norm, x = build_norm("layer", 48), rows(6, 48)
    (found,) = torch.autograd.grad([part.sum() for part in run(x, None, norm, 0.0)], [x])
    (exact,) = torch.autograd.grad([part.sum() for part in plainly(x, None, norm)], [x])
    assert apart(found, exact) <= 1e-5


@each_norm
def test_no_result_depends_on_the_number_of_threads(kind: str) -> None:
    size = 1000, 96
    norm, x, branch = build_norm(kind, size[1]), rows(*size), rows(*size, seed=1)
    results = []
    for count in (1, 2, 3):
        with threads(count):
            out = run(x, branch, norm, 0.3)
            dropped = Dropout(0.3)(x)
            results.append([*out, dropped, *gradients(out, [x, branch, *norm.parameters()])])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@each_norm
@pytest.mark.parametrize("w", [16, 37, 512])
def test_a_row_does_not_depend_on_its_neighbours(kind: str, w: int) -> None:
    """To the last bit, wherever in memory the row begins."""
    norm, x, branch = build_norm(kind, w), rows(11, w), rows(11, w, seed=1)
    whole = run(x, branch, norm, 0.0)
    for i in range(11):
        alone = run(x[i : i + 1], branch[i : i + 1], norm, 0.0)
        assert all(torch.equal(a[i : i + 1], b) for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_row(poison: float) -> None:
    norm, x = build_norm("layer", 40), rows(5, 40).detach()
    x[2, 7] = poison
    _, normed = run(x, None, norm, 0.0)
    assert normed[2].isnan().all()
    assert normed[[0, 1, 3, 4]].isfinite().all()


# --------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_it(p: float) -> None:
    n = 3000
    for w in (100, 512):
        kept = mask_of(n, w, p, seed=7)
        assert set(kept.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p)))}
        # Of six standard deviations, chance is one in a billion: of all cells, of each column, row.
        share, spread = (kept != 0).double(), (p * (1 - p)) ** 0.5
        assert abs(share.mean() - (1 - p)) <= 6 * spread / (n * w) ** 0.5
        for dim, count in ((0, n), (1, w)):
            apart_by = (share.mean(dim=dim) - (1 - p)).abs().max()
            assert apart_by <= 6 * spread / count**0.5 + 1 / count


def test_neighbours_are_dropped_independently() -> None:
    """Consecutive cells, rows and seeds agree as often as by chance."""
    first, second = (mask_of(3000, 256, 0.5, seed=seed) != 0 for seed in (8, 9))
    pairs = [(first[:, :-d], first[:, d:]) for d in (1, 2, 4, 16, 128)]
    pairs += [(first[:-d], first[d:]) for d in (1, 2, 64)] + [(first, second)]
    for a, b in pairs:
        assert abs((a == b).double().mean() - 0.5) <= 6 * 0.5 / a.numel() ** 0.5


def test_every_residual_add_draws_its_own_mask() -> None:
    norm, zeros, ones = build_norm("layer", 64), torch.zeros(40, 64), torch.ones(40, 64)
    torch.manual_seed(0)
    masks = [add_norm(zeros, ones, norm, Dropout(0.5))[0].flatten() != 0 for _ in range(15)]
    agree = torch.stack([(a == b).double().mean() for a in masks for b in masks if a is not b])
    assert (agree - 0.5).abs().max() <= 6 * 0.5 / masks[0].numel() ** 0.5


def test_the_seed_comes_from_torchs_generator() -> None:
    """A checkpoint saves its state: from there, the same masks follow."""
    norm, x, branch = build_norm("layer", 64), rows(8, 64), rows(8, 64, seed=1)
    torch.manual_seed(5)
    add_norm(x, branch, norm, Dropout(0.5))
    saved = torch.get_rng_state()
    unbroken = [add_norm(x, branch, norm, Dropout(0.5))[0], Dropout(0.5)(x)]
    torch.set_rng_state(saved)
    resumed = [add_norm(x, branch, norm, Dropout(0.5))[0], Dropout(0.5)(x)]
    assert all(torch.equal(a, b) for a, b in zip(unbroken, resumed, strict=True))
    assert not torch.equal(torch.get_rng_state(), saved)


def test_what_is_dropped_has_no_gradient() -> None:
    """The backward pass drops the cells that the forward pass dropped."""
    x, branch = rows(11, 200), rows(11, 200, seed=1)
    out = run(x, branch, build_norm("layer", 200), 0.3)
    (grad,) = gradients(out, [branch])
    assert torch.equal(grad == 0, mask_of(11, 200, 0.3) == 0)


def test_dropout_alone_has_the_mask_of_a_residual_add() -> None:
    """So a pass that reports every layer, and adds each branch by itself, draws the same."""
    x = rows(3, 5, 57)
    torch.manual_seed(3)
    out = Dropout(0.3)(x)
    assert type(out.grad_fn).__name__ == "_DropoutBackward"
    kept = mask_of(15, 57, 0.3).view(3, 5, 57)
    assert torch.equal(out, x * kept)
    (grad,) = torch.autograd.grad(out.sum(), [x])
    assert torch.equal(grad, kept)


@pytest.mark.parametrize("size", [(), (0,), (1,), (7,), (3, 0), (2, 3, 4, 5)])
def test_dropout_of_any_shape(size: tuple[int, ...]) -> None:
    x = rows(*size)
    out = Dropout(0.5)(x)
    (grad,) = torch.autograd.grad(out.sum(), [x])
    assert out.shape == x.shape
    assert torch.equal(out, x * grad)


@each_place
def test_looking_inside_changes_no_draw(place: str) -> None:
    """A pass that reports each layer adds each branch at once, one that does not a step later."""
    model = new_language_model(norm_place=place, dropout=0.3).train()
    ids = torch.stack(texts([7, 7]))
    torch.manual_seed(1)
    fast = model(ids)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    traced = model.trace(ids)
    assert torch.equal(torch.get_rng_state(), after)
    assert apart(fast, traced.logits) <= 1e-5


# -------------------------------------------------------------------------------- torch's own path


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches: list[Any] = [residual_norm_cpu._library, cpu_library.cpu_library]
    for function in caches:
        function.cache_clear()
    monkeypatch.setattr(c_library, "COMPILERS", ("no-such-compiler",))
    yield
    for function in caches:
        function.cache_clear()


def is_torchs(outputs: Sequence[Tensor]) -> bool:
    return all(type(part.grad_fn).__name__ != IN_C for part in outputs)


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_torch_computes() -> None:
    norm, x, branch = build_norm("layer", 32), rows(4, 32), rows(4, 32, seed=1)
    torch.manual_seed(1)
    out = add_norm(x, branch, norm, Dropout(0.5))
    torch.manual_seed(1)
    total = x + Dropout(0.5)(branch)
    assert is_torchs(out)
    assert torch.equal(out[0], total)
    assert torch.equal(out[1], norm(total))


def test_what_the_kernel_does_not_serve_torch_computes() -> None:
    w = 24
    norm, x, branch = build_norm("layer", w), rows(4, w), rows(4, w, seed=1)
    strided = rows(w, 4).mT
    assert is_torchs(add_norm(strided, branch, norm, NONE))
    assert is_torchs(add_norm(x, strided, norm, NONE))
    assert is_torchs(add_norm(x.double(), branch.double(), norm.double(), NONE))
    norm = norm.float()
    assert is_torchs(add_norm(x, branch, nn.LayerNorm(w, elementwise_affine=False), NONE))
    assert is_torchs(add_norm(x, branch, nn.RMSNorm(w), NONE))
    assert is_torchs(add_norm(x, branch, nn.Identity(), NONE))
    assert is_torchs(add_norm(x, rows(1, w, seed=1), norm, NONE))
    assert is_torchs(add_norm(x, branch, norm, Dropout(1.0)))
    with pytest.raises(RuntimeError, match="meta"):  # in C its address would be that of no branch
        add_norm(x, branch.to("meta"), norm, NONE)
    with torch.no_grad():
        assert torch.equal(add_norm(x, branch, norm, NONE)[1], norm(x + branch))
