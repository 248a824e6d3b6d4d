"""On a GPU the kernel that writes a gradient also sums it for the bias of a linear layer.

The reference is float64 of the same numbers. Without a GPU these tests run in Triton's interpreter
(TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from support import all_apart, apart, perturb, tiny
from torch import Tensor, nn

from heed.models import build
from heed.nn.attention import attend
from heed.nn.kernels import linear as linear_module
from heed.nn.kernels import qkv_layout, residual_norm
from heed.nn.kernels.heads import PendingRotation
from heed.nn.kernels.linear import Linear
from heed.nn.kernels.residual_norm import add_norm
from heed.nn.kernels.short_attention import attend_short
from heed.nn.masks import Mask
from heed.nn.positions import Rope
from heed.nn.tokens import Tokens

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda x: str(x).split(".")[1])
B, WIDTH = 3, 16


@pytest.fixture(autouse=True)
def _by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        for module in (linear_module, residual_norm):
            monkeypatch.setattr(module, "on_gpu", lambda x: True)
        monkeypatch.setattr(residual_norm, "trains_on_cpu", lambda x: False)


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the gradients that are read again to be summed."""
    from heed.nn.kernels.triton import column_sum

    shapes, column_sums = [], column_sum.column_sums

    def note(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return column_sums(x)

    monkeypatch.setattr(column_sum, "column_sums", note)
    return shapes


def rows(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return (x + 0.3).to(DEVICE, dtype).requires_grad_()


def linear(w: int, f: int, *, dtype: torch.dtype = torch.float32, bias: bool = True) -> Linear:
    made = Linear(w, f, bias=bias)
    perturb(made)
    return made.to(DEVICE, dtype)


def plain_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x.double(), layer.weight.double(), layer.bias.double())


def mixed(out: Tensor) -> Tensor:
    """A random mix of the outputs."""
    return (out * rows(*out.shape, seed=5).detach().to(out.dtype)).sum()


# ---------------------------------------------------------------------------- the norm's gradient


@each_dtype
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("w", [16, 200, 1025])
def test_the_norm_sums_the_gradient_of_its_branch(
    kind: str, w: int, dtype: torch.dtype, read_again: list[object]
) -> None:
    norm = nn.RMSNorm(w, eps=1e-5) if kind == "rms" else nn.LayerNorm(w)
    perturb(norm, by=0.3)
    norm.to(DEVICE)
    layer, x, inputs = linear(8, w, dtype=dtype), rows(2, 37, w), rows(2, 37, 8, dtype=dtype)
    stream, normed = add_norm(x, layer(inputs), norm, nn.Dropout(0.0))
    branch = plain_linear(inputs, layer).to(dtype).double()
    total, weight = x.double() + branch, norm.weight.double()
    if isinstance(norm, nn.RMSNorm):
        exact = F.rms_norm(total, (w,), weight, eps=1e-5)
    else:
        exact = F.layer_norm(total, (w,), weight, norm.bias.double(), eps=1e-5)
    wanted = [layer.bias, layer.weight, inputs]
    found = torch.autograd.grad(mixed(stream) + mixed(normed), wanted)
    expected = torch.autograd.grad(mixed(total) + mixed(exact), wanted)
    assert max(apart(a, b) for a, b in zip(found, expected, strict=True)) <= TOLERANCE[dtype]
    assert read_again == []


def test_what_dropout_hides_is_not_summed(read_again: list[object]) -> None:
    """The bias's gradient is the column sum of the branch's, which is zero where it was dropped."""
    w, norm = 64, nn.LayerNorm(64, device=DEVICE)
    layer, x, inputs = linear(8, w), rows(50, w), rows(50, 8)
    branch = layer(inputs)
    seed = torch.tensor([7, 0], device=DEVICE)
    stream, normed = add_norm(x, branch, norm, nn.Dropout(0.4), seed=seed)
    d_branch, d_bias = torch.autograd.grad(mixed(stream) + mixed(normed), [branch, layer.bias])
    assert 0.3 < (d_branch == 0).float().mean() < 0.5
    assert apart(d_bias, d_branch.sum(dim=0)) <= 1e-5
    assert read_again == []


def test_a_branch_with_another_use_is_summed_by_its_layer(read_again: list[object]) -> None:
    w, norm = 16, nn.LayerNorm(16, device=DEVICE)
    layer, x, inputs = linear(8, w), rows(50, w), rows(50, 8)
    branch = layer(inputs)
    stream, _ = add_norm(x, branch, norm, nn.Dropout(0.0))
    (found,) = torch.autograd.grad(mixed(stream) + 2 * branch.sum(), [layer.bias])
    mix = rows(*stream.shape, seed=5).detach()
    assert apart(found, mix.sum(dim=0) + 2 * len(inputs)) <= 1e-5
    assert read_again == [(50, w)]


def test_without_a_bias_nothing_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    from heed.nn.kernels.triton import residual_norm as kernels

    asked, backward = [], kernels.add_and_norm_backward

    def note(*inputs: Any) -> Any:
        asked.append(inputs[-1])
        return backward(*inputs)

    monkeypatch.setattr(kernels, "add_and_norm_backward", note)
    frozen = linear(8, 16)
    assert frozen.bias is not None
    frozen.bias.requires_grad_(False)
    norm = nn.LayerNorm(16, device=DEVICE)
    for layer in (linear(8, 16), linear(8, 16, bias=False), frozen):
        add_norm(rows(9, 16), layer(rows(9, 8)), norm, nn.Dropout(0.0))[1].sum().backward()
    assert asked == [True, False, False]


# ------------------------------------------------------------------------------------- attention


@each_dtype
@pytest.mark.parametrize("rotates", [False, True], ids=["plain", "rope"])
@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("tokens", [(20, None), (20, 33), (70, None)], ids=str)
def test_short_attention_sums_the_gradients_of_q_k_and_v(
    tokens: tuple[int, int | None],
    share: int,
    rotates: bool,
    dtype: torch.dtype,
    read_again: list[object],
) -> None:
    n, m = tokens
    if not CUDA and dtype == torch.bfloat16:
        pytest.skip("the interpreter has no bfloat16")
    groups, sizes = 2, [n] if m is None else [n, m]
    heads = groups * share
    counts = [(heads, groups, groups)] if m is None else [(heads,), (groups, groups)]
    layers = [linear(24, sum(count) * WIDTH, dtype=dtype) for count in counts]
    inputs = [rows(B, size, 24, dtype=dtype, seed=i) for i, size in enumerate(sizes)]
    places = [torch.randint(90, (B, size), device=DEVICE) for size in sizes]
    places = [places[0], places[-1]]
    rope = Rope(tiny(head_width=WIDTH)).to(DEVICE)
    mask = Mask(n, sizes[-1], DEVICE, causal=m is None)

    def q_k_v(made: list[Tensor], split: Callable[..., tuple[Tensor, ...]]) -> list[Tensor]:
        return [x for y, count in zip(made, counts, strict=True) for x in split(y, count, WIDTH)]

    made = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    rotation = PendingRotation(rope, *places) if rotates else None
    parts = q_k_v(made, qkv_layout.split_heads_autograd)
    out = attend_short(*parts, mask=mask, rotation=rotation, scale=0.3)
    biases = [layer.bias for layer in layers]
    found = torch.autograd.grad(mixed(out), biases)
    q, k, v = q_k_v([x.detach().float().requires_grad_() for x in made], qkv_layout.split_heads)
    exact = [x.detach().requires_grad_() for x in (q, k, v)]
    q, k = rope.rotate(*exact[:2], *places) if rotates else exact[:2]
    plain, _ = attend(q, k, exact[2], mask=mask.dense(), scale=0.3)
    grads = torch.autograd.grad(mixed(plain), exact)
    sums = [x.sum(dim=(0, 2)).flatten() for x in grads]
    expected = [torch.cat(sums)] if m is None else [sums[0], torch.cat(sums[1:])]
    assert all_apart([x.float() for x in found], expected) <= TOLERANCE[dtype]
    assert read_again == []


@needs_gpu
@pytest.mark.parametrize("task", ["translate", "generate"])
@pytest.mark.parametrize("norm_place", ["pre", "post"])
def test_no_gradient_of_a_model_is_read_again(
    task: str, norm_place: str, read_again: list[tuple[int, ...]]
) -> None:
    """In a whole model only the output layer's bias, if any, is summed by a pass of its own."""
    config = tiny(dropout=0.1, norm_place=norm_place, position="sinusoidal", bias=True)
    model = build(task, config, vocab=40).to(DEVICE).train()
    ids = torch.randint(5, 40, (B, 20), device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        sides = 2 if task == "translate" else 1
        inputs: list[Any] = [*[ids] * sides, *[Tokens.of(ids)] * sides]
        model.states(*inputs).x_bnw.sum().backward()
    assert read_again == []
    assert all(p.grad is not None for name, p in model.named_parameters() if "head" not in name)
