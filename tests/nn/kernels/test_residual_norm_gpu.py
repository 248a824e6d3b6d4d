"""On a GPU residual add, dropout and norm in one kernel equal the plain steps.

The reference is float64 of the very numbers the kernel is given. Without a GPU most of this runs,
slowly, where Triton is and interprets its kernels (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from support import all_apart, apart, perturb, tiny
from torch import Tensor, nn

from heed.models import build
from heed.nn.kernels import residual_norm
from heed.nn.kernels.residual_norm import ResidualStream, add_norm, draw_seeds

Norm = nn.LayerNorm | nn.RMSNorm
pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
# Compiling, torch warns of what it uses itself, and of settings that are faster and less exact.
COMPILES = pytest.mark.filterwarnings("default::UserWarning", "default::DeprecationWarning")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda x: str(x).split(".")[1])
each_norm = pytest.mark.parametrize("kind", ["layer", "unbiased", "rms"])
SIZES = [(5, 3), (7, 16), (65, 200), (9, 512), (3, 768), (2, 1025)] + [(4, 8192)] * CUDA
"""Rows and width: whole tiles, odd ends, the widest."""
MANY = 3000 if CUDA else 40


@pytest.fixture(autouse=True)
def _by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setattr(residual_norm, "on_gpu", lambda x: True)
        monkeypatch.setattr(residual_norm, "trains_on_cpu", lambda x: False)


def build_norm(kind: str, w: int, dtype: torch.dtype = torch.float32) -> Norm:
    norm: Norm = nn.RMSNorm(w, eps=1e-5) if kind == "rms" else nn.LayerNorm(w, bias=kind == "layer")
    perturb(norm, by=0.3)
    return norm.to(DEVICE, dtype)


def rows(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (x + 0.5).to(DEVICE, dtype).requires_grad_()


def plainly(x: Tensor, branch: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """The plain steps in float64."""
    total = x.double() if branch is None else x.double() + branch.double()
    shape, weight = x.shape[-1:], norm.weight.double()
    if isinstance(norm, nn.RMSNorm):
        return total, F.rms_norm(total, shape, weight, eps=norm.eps)
    bias = None if norm.bias is None else norm.bias.double()
    return total, F.layer_norm(total, shape, weight, bias, eps=norm.eps)


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], used: tuple[bool, bool] = (True, True)
) -> list[Tensor]:
    """Gradients of a random mix of the sum and of its norm."""
    chosen = [x for x, wanted in zip(outputs, used, strict=True) if wanted]
    mixes = [rows(*x.shape, seed=5 + i).detach().to(x.dtype) for i, x in enumerate(outputs)]
    mixes = [x for x, wanted in zip(mixes, used, strict=True) if wanted]
    return list(torch.autograd.grad(chosen, list(inputs), mixes, retain_graph=True))


def seed_of(number: int) -> Tensor:
    return torch.tensor([number, 0], device=DEVICE)


def mask_of(rows_: int, w: int, p: float, seed: Tensor) -> Tensor:
    """What dropout keeps of a branch of ones added to zeros."""
    zeros, ones = torch.zeros(rows_, w, device=DEVICE), torch.ones(rows_, w, device=DEVICE)
    return add_norm(zeros, ones, build_norm("layer", w), nn.Dropout(p), seed=seed)[0]


NONE = nn.Dropout(0.0)


@each_dtype
@each_norm
@pytest.mark.parametrize("used", [(True, True), (False, True), (True, False)])
def test_it_is_a_sum_and_its_norm(kind: str, dtype: torch.dtype, used: tuple[bool, bool]) -> None:
    """Pre-norm uses both, post-norm and the last norm of a stack only the norm."""
    for n, w in SIZES:
        norm = build_norm(kind, w)
        x, branch = rows(n, w), rows(n, w, dtype=dtype, seed=1)
        found, exact = add_norm(x, branch, norm, NONE), plainly(x, branch, norm)
        assert [part.dtype for part in found] == [torch.float32] * 2
        assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= 1e-6
        wanted = [x, branch, *norm.parameters()] if used[1] else [x, branch]
        grads, exact_grads = (gradients(out, wanted, used) for out in (found, exact))
        assert [grad.dtype for grad in grads] == [part.dtype for part in wanted]
        assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= TOLERANCE[dtype]


@each_dtype
@each_norm
def test_a_whole_model_may_have_fewer_bits(kind: str, dtype: torch.dtype) -> None:
    norm = build_norm(kind, 200, dtype)
    x, branch = rows(2, 5, 200, dtype=dtype), rows(2, 5, 200, dtype=dtype, seed=1)
    found, exact = add_norm(x, branch, norm, NONE), plainly(x, branch, norm)
    assert [part.dtype for part in found] == [dtype] * 2
    assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= TOLERANCE[dtype]
    wanted = [x, branch, *norm.parameters()]
    grads, exact_grads = (gradients(out, wanted) for out in (found, exact))
    assert [grad.dtype for grad in grads] == [dtype] * len(wanted)
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= TOLERANCE[dtype]


@each_norm
def test_without_a_branch_it_is_the_norm(kind: str) -> None:
    for n, w in SIZES:
        norm, x = build_norm(kind, w), rows(n, w)
        found, exact = add_norm(x, None, norm, nn.Dropout(0.5)), plainly(x, None, norm)
        assert torch.equal(found[0], x)
        assert apart(found[1], exact[1]) <= 1e-6
        wanted = [x, *norm.parameters()]
        grads, exact_grads = (gradients(out, wanted) for out in (found, exact))
        assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 1e-5


@each_norm
def test_under_autocast_a_linear_layer_reads_its_own_dtype(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The residual stream stays float32; a linear layer's input is rounded once."""
    norm, map_ = build_norm(kind, 192), nn.Linear(192, 64).to(DEVICE)
    x, branch = rows(9, 192), rows(9, 192, dtype=torch.bfloat16, seed=1)
    wanted = [x, branch, *norm.parameters(), *map_.parameters()]

    def run() -> tuple[Tensor, Tensor, list[Tensor]]:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            joined, normed = add_norm(x, branch, norm, NONE, for_linear=True)
            out = map_(normed)
        return joined, normed, gradients((joined, out), wanted)

    joined, normed, found = run()
    assert (joined.dtype, normed.dtype) == (torch.float32, torch.bfloat16)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert add_norm(x, branch, norm, NONE)[1].dtype == torch.float32
    monkeypatch.setattr(residual_norm, "on_gpu", lambda x: False)
    plain_joined, plain_normed, plain = run()
    assert torch.equal(joined, plain_joined)
    torch.testing.assert_close(normed, plain_normed.bfloat16(), rtol=2**-7, atol=1e-6)
    assert [grad.dtype for grad in found] == [grad.dtype for grad in plain]
    assert max(apart(a, b) for a, b in zip(found, plain, strict=True)) <= TOLERANCE[torch.bfloat16]


def test_gradients_of_any_one_input() -> None:
    norm, x, branch = build_norm("layer", 48), rows(6, 48), rows(6, 48, seed=1)
    wanted = [x, branch, *norm.parameters()]
    whole = gradients(add_norm(x, branch, norm, NONE), wanted)
    for i, one in enumerate(wanted):
        for other in wanted:
            other.requires_grad_(other is one)
        (alone,) = gradients(add_norm(x, branch, norm, NONE), [one])
        assert torch.equal(alone, whole[i])
    with torch.no_grad():
        assert not any(out.requires_grad for out in add_norm(x, branch, norm, NONE))


def test_no_rows() -> None:
    norm, x, branch = build_norm("layer", 32), rows(0, 32), rows(0, 32, seed=1)
    joined, normed = add_norm(x, branch, norm, nn.Dropout(0.5), seed=seed_of(1))
    assert joined.shape == normed.shape == (0, 32)
    grads = gradients((joined, normed), [x, branch, *norm.parameters()])
    assert all((grad == 0).all() for grad in grads)


def test_inputs_need_not_be_contiguous() -> None:
    norm, x, branch = build_norm("rms", 24), rows(2, 24, 6), rows(6, 2, 24, seed=1)
    strided = x.transpose(1, 2), branch.transpose(0, 1)
    found, exact = add_norm(*strided, norm, NONE), plainly(*strided, norm)
    assert max(apart(a, b) for a, b in zip(found, exact, strict=True)) <= 1e-6
    grads, exact_grads = (gradients(out, [x, branch]) for out in (found, exact))
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 1e-5


def test_results_are_deterministic() -> None:
    norm, x, branch = build_norm("layer", 320), rows(MANY, 320), rows(MANY, 320, seed=1)

    def run() -> list[Tensor]:
        out = add_norm(x, branch, norm, nn.Dropout(0.3), seed=seed_of(4))
        return [*out, *gradients(out, [x, branch, *norm.parameters()])]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


# --------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_it(p: float) -> None:
    for w in (100, 512):
        kept = mask_of(MANY, w, p, seed_of(7))
        assert set(kept.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p)))}
        # Of six standard deviations, chance is one in a billion: of all cells, and of each column.
        share, cells = (kept != 0).double(), MANY * w
        spread = (p * (1 - p)) ** 0.5
        assert abs(share.mean() - (1 - p)) <= 6 * spread / cells**0.5
        assert (share.mean(dim=0) - (1 - p)).abs().max() <= 6 * spread / MANY**0.5 + 1 / MANY


def test_neighbours_are_dropped_independently() -> None:
    """Consecutive cells, rows and seeds agree as often as by chance."""
    first, second = (mask_of(MANY, 256, 0.5, seed_of(number)) != 0 for number in (8, 9))
    pairs = [(first[:, :-1], first[:, 1:]), (first[:-1], first[1:]), (first, second)]
    pairs += [(first[:, :-4], first[:, 4:]), (first[:, :128], first[:, 128:])]
    for a, b in pairs:
        assert abs((a == b).double().mean() - 0.5) <= 6 * 0.5 / a.numel() ** 0.5


def test_what_is_dropped_has_no_gradient() -> None:
    """The backward pass drops the cells that the forward pass dropped."""
    p, w = 0.3, 200
    norm, x, branch = build_norm("layer", w), rows(11, w), rows(11, w, dtype=torch.bfloat16)
    out = add_norm(x, branch, norm, nn.Dropout(p), seed=seed_of(3))
    kept = mask_of(11, w, p, seed_of(3))
    exact = plainly(x, branch.double() * kept, norm)
    assert max(apart(a, b) for a, b in zip(out, exact, strict=True)) <= 1e-6
    wanted = [x, branch, *norm.parameters()]
    grads, exact_grads = gradients(out, wanted), gradients(exact, wanted)
    assert torch.equal(grads[1] == 0, kept == 0)
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 1e-2
    assert apart(grads[0], exact_grads[0]) <= 1e-5


@each_dtype
@each_norm
@pytest.mark.parametrize("used", [(True, True), (False, True), (True, False)])
def test_a_branch_alone_is_its_dropout_and_the_norm_of_that(
    kind: str, dtype: torch.dtype, used: tuple[bool, bool]
) -> None:
    """With the mask that the branch would have if it were added to zeros."""
    for n, w in SIZES:
        norm, branch = build_norm(kind, w), rows(n, w, dtype=dtype)
        out = add_norm(None, branch, norm, nn.Dropout(0.3), seed=seed_of(3))
        kept = mask_of(n, w, 0.3, seed_of(3))
        exact = plainly(branch.double() * kept, None, norm)
        assert [part.dtype for part in out] == [dtype] * 2
        assert torch.equal(out[0] == 0, kept == 0)
        assert max(apart(a, b) for a, b in zip(out, exact, strict=True)) <= TOLERANCE[dtype]
        wanted = [branch, *norm.parameters()] if used[1] else [branch]
        grads, exact_grads = (gradients(part, wanted, used) for part in (out, exact))
        assert [grad.dtype for grad in grads] == [part.dtype for part in wanted]
        assert (grads[0][kept == 0] == 0).all()
        assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= TOLERANCE[dtype]


@each_norm
def test_a_branch_alone_without_dropout_is_what_x_alone_is(kind: str) -> None:
    norm, x = build_norm(kind, 200), rows(9, 200)
    wanted = [x, *norm.parameters()]
    branch_alone, x_alone = add_norm(None, x, norm, NONE), add_norm(x, None, norm, NONE)
    for found, expected in (
        (branch_alone, x_alone),
        (gradients(branch_alone, wanted), gradients(x_alone, wanted)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_pass_draws_one_seed_per_residual_add() -> None:
    torch.manual_seed(0)
    x, dropout = rows(4, 64), nn.Dropout(0.5)
    seeds = draw_seeds(x, dropout, 5, 3)
    assert seeds is not None
    own = seeds.flatten(0, 1)
    assert len(own.unique(dim=0)) == 15
    masks = torch.stack([mask_of(40, 64, 0.5, seed).flatten() != 0 for seed in own])
    agree = (masks[:, None] == masks[None]).double().mean(dim=-1)
    assert (agree - 0.5).abs().fill_diagonal_(0).max() <= 6 * 0.5 / masks.shape[1] ** 0.5
    assert all(seed.data_ptr() % 16 == 0 for seed in own)
    assert draw_seeds(x, nn.Dropout(0.0), 1) is None
    assert draw_seeds(x, dropout.eval(), 1) is None


@pytest.mark.parametrize("p", [0.4, 1.0])
def test_without_a_seed_dropout_is_torchs(p: float) -> None:
    norm, x, branch = build_norm("layer", 64), rows(50, 64), rows(50, 64, seed=1)
    torch.manual_seed(3)
    joined, _ = add_norm(x, branch, norm, nn.Dropout(p), seed=seed_of(1) if p == 1 else None)
    torch.manual_seed(3)
    assert torch.equal(joined, x + F.dropout(branch, p))


# ---------------------------------------------------------------------- dropout of the embedding


def begin(embedded: Tensor, dropout: nn.Dropout, **changes: Any) -> ResidualStream:
    blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
    wanted: Any = {"pre_norm": True, "blocks": blocks, "sublayers": 2} | changes
    return ResidualStream.begin(embedded, dropout, **wanted)


def test_the_first_norm_drops_the_embedding() -> None:
    """By a mask of its own, which the gradient has, too."""
    p, w = 0.3, 64
    norm, embedded, branch = build_norm("layer", w), rows(2, 40, w), rows(2, 40, w, seed=1)
    stream = begin(embedded, nn.Dropout(p))
    assert stream.x_bnw is None
    stream, normed = stream.normalize(norm)
    x = stream.x_bnw
    assert x is not None
    kept = x != 0
    assert abs(kept.double().mean() - (1 - p)) <= 6 * (p * (1 - p) / kept.numel()) ** 0.5
    exact = plainly(embedded.double() * kept / (1 - p), None, norm)
    assert max(apart(a, b) for a, b in zip((x, normed), exact, strict=True)) <= 1e-6
    wanted = [embedded, *norm.parameters()]
    grads, exact_grads = gradients((x, normed), wanted), gradients(exact, wanted)
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True)) <= 1e-5
    added = stream.add(branch, norm).normalize(norm)[0].x_bnw
    assert added is not None
    agree = ((added != x) == kept).double().mean()
    chance = (1 - p) ** 2 + p**2
    assert abs(agree - chance) <= 6 * (chance * (1 - chance) / kept.numel()) ** 0.5


@COMPILES
@pytest.mark.parametrize("place", ["pre", "post"])
def test_an_embedding_that_does_not_wait_is_dropped_by_torch(place: str) -> None:
    compiled, embedded = nn.Identity(), rows(2, 40, 64)
    compiled.compile()
    changes: list[Any] = [{"pre_norm": False}, {"blocks": nn.ModuleList([compiled])}]
    torch.manual_seed(3)
    stream = begin(embedded, nn.Dropout(0.3), **changes[place == "pre"])
    torch.manual_seed(3)
    assert stream.branch_bnw is None
    assert stream.x_bnw is not None
    assert torch.equal(stream.x_bnw, F.dropout(embedded, 0.3))
    for dropout in (nn.Dropout(0.3).eval(), NONE):
        stream = begin(embedded, dropout, pre_norm=place == "pre")
        assert stream.branch_bnw is None
        assert stream.x_bnw is not None
        assert torch.equal(stream.x_bnw, embedded)


def test_an_embedding_may_be_dropped_whole() -> None:
    embedded, norm = rows(2, 40, 64), build_norm("layer", 64)
    stream, normed = begin(embedded, nn.Dropout(1.0)).normalize(norm)
    assert stream.x_bnw is not None
    assert not stream.x_bnw.any()
    assert torch.equal(normed, norm(torch.zeros_like(embedded)))


# ---------------------------------------------------------------------------------- whole models


def language_model(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = build("generate", tiny(width=48, layers=2, position="none", **changes), vocab=50)
    perturb(model, by=0.05)
    return model.to(DEVICE)


def ids() -> Tensor:
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0)).to(DEVICE)


def result(model: Any, ids_bn: Tensor) -> list[Tensor]:
    """Logits, and the gradients of all parameters."""
    logits = model(ids_bn)
    return [logits.detach(), *torch.autograd.grad(logits.square().mean(), model.parameters())]


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("biased", [True, False])
def test_a_stack_of_fused_adds_is_a_stack_of_plain_steps(
    place: str, norm: str, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(norm_place=place, norm=norm, bias=biased)
    found, traced = result(model, ids()), model.trace(ids())
    assert apart(traced.logits, found[0]) <= 1e-5
    monkeypatch.setattr(residual_norm, "on_gpu", lambda x: False)
    plain, plainly_traced = result(model, ids()), model.trace(ids())
    assert apart(found[0], plain[0]) <= 1e-5
    assert all_apart(found[1:], plain[1:]) <= 1e-4
    for mine, exact in zip(traced.hidden["decoder"], plainly_traced.hidden["decoder"], strict=True):
        assert apart(mine, exact) <= 1e-5


@pytest.mark.parametrize("place", ["pre", "post"])
def test_dropout_depends_on_the_generator_alone(place: str) -> None:
    model = language_model(norm_place=place, dropout=0.3).train()

    def run(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return result(model, ids())

    assert all(torch.equal(a, b) for a, b in zip(run(1), run(1), strict=True))
    assert not torch.equal(run(1)[0], run(2)[0])
    assert not torch.equal(result(model, ids())[0], result(model, ids())[0])


@torch.no_grad()
def test_a_trace_begins_with_the_embedding_after_dropout() -> None:
    model = language_model(dropout=0.3).train()
    embedded = model.embedding(ids())
    first = model.trace(ids()).hidden["decoder"][0]
    kept = first != 0
    assert 0 < kept.double().mean() < 1
    torch.testing.assert_close(first, embedded * kept / 0.7)


@needs_gpu
@pytest.mark.parametrize("residual", [True, False])
def test_each_replay_of_a_graph_draws_new_dropout(residual: bool) -> None:
    """It is the dropout of eager calls with the same state of the generator."""
    norm, branch = build_norm("layer", 320), rows(500, 320, seed=1)
    x, dropout = rows(500, 320) if residual else None, nn.Dropout(0.3)
    wanted = [*([] if x is None else [x]), branch, *norm.parameters()]

    def run() -> list[Tensor]:
        seeds = draw_seeds(branch, dropout, 1)
        assert seeds is not None
        out = add_norm(x, branch, norm, dropout, seed=seeds[0])
        return [*(part.detach() for part in out), *gradients_of_sums(out, wanted)]

    graph, captured = capture(run)
    torch.manual_seed(5)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append([part.clone() for part in captured])
    torch.manual_seed(5)
    for found in replayed:
        assert all(torch.equal(a, b) for a, b in zip(found, run(), strict=True))
    assert not torch.equal(replayed[0][0], replayed[1][0])
    assert not torch.equal(replayed[1][0], replayed[2][0])


def gradients_of_sums(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    total = torch.stack([x.square().sum() for x in outputs]).sum()
    return list(torch.autograd.grad(total, list(inputs)))


def capture(run: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    return graph, captured


@needs_gpu
@COMPILES
@pytest.mark.parametrize("place", ["pre", "post"])
def test_blocks_compiled_without_a_graph_break_are_the_same(place: str) -> None:
    model = language_model(norm_place=place, dropout=0.3).eval()
    eager = result(model, ids())
    for block in model.stack.blocks:
        block.compile(fullgraph=True, dynamic=False)
    found = result(model, ids())
    assert apart(found[0], eager[0]) <= 1e-4
    assert all_apart(found[1:], eager[1:]) <= 1e-3
    model.train()
    assert not torch.equal(result(model, ids())[0], result(model, ids())[0])
