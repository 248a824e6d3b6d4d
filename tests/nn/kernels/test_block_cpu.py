"""Blocks as one function are their parts, gradients included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import apart, perturb, threads, tiny
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heed.nn import lora
from heed.nn.attention import MultiHeadAttention
from heed.nn.kernels import block_cpu, linear_cpu, matrix_product_cpu
from heed.nn.kernels.linear import ACTIVATIONS
from heed.nn.kernels.residual_norm import ResidualStream
from heed.nn.stack import Stack
from heed.nn.tokens import Tokens
from heed.nn.whole_blocks import find_layers

pytestmark = pytest.mark.skipif(
    block_cpu.load_kernels(False) is None, reason="no C compiler, or a torch without MKL"
)
NAMES = [name for name in ACTIVATIONS if name != "relu"]
ROUNDING = 2e-5
LAYERS = 2


@pytest.fixture(autouse=True, params=["own products", "MKL's products"])
def _products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test with both kinds of products, where this machine has both."""
    if request.param == "own products":
        if matrix_product_cpu.load_kernel() is None:
            pytest.skip("no AMD CPU with AVX-512")
        yield
        return
    for module in (matrix_product_cpu, linear_cpu):
        monkeypatch.setattr(module, "load_kernel", lambda: None)
    block_cpu.load_kernels.cache_clear()
    yield
    block_cpu.load_kernels.cache_clear()


def build(*, causal: bool = True, **changes: Any) -> Stack:
    torch.manual_seed(0)
    built = Stack(tiny(**changes), layers=LAYERS, causal=causal, cross=False)
    perturb(built)
    return built.train()


def draw(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def blocks_of(built: Stack) -> list[Any]:
    return list(built.blocks)


def count_functions(out: Tensor) -> int:
    """How many functions of whole blocks computed this."""
    seen, waiting, count = set(), [out.grad_fn], 0
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += type(node).__name__ == "_BlocksBackward"
        waiting += [before for before, _ in node.next_functions]
    return count


def run(built: Stack, x: Tensor, tokens: Tokens | None = None, *, parts: bool = False) -> Tensor:
    """The stack's output; dropout draws the same numbers every time."""
    tokens = tokens or Tokens(torch.arange(x.shape[1])[None])
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        if parts:
            patch.setattr(ResidualStream, "may_run_blocks", lambda stream: False)
        out = built(x, tokens).x_bnw
    assert not parts or count_functions(out) == 0
    return out


def gradients(built: Stack, x: Tensor, out: Tensor) -> list[Tensor]:
    learns = [p for p in (x, *built.parameters()) if p.requires_grad]
    mix = draw(*out.shape, seed=2).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, learns, mix)]


def assert_same(
    built: Stack, x: Tensor, tokens: Tokens | None = None, *, functions: int = 1
) -> None:
    """Blocks as one function give what their parts give."""
    out = run(built, x, tokens)
    assert count_functions(out) == functions
    found = gradients(built, x, out)
    parts = gradients(built, x, run(built, x, tokens, parts=True))
    for one, two in zip(found, parts, strict=True):
        assert apart(one, two) <= ROUNDING


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.sampled_from([(1, 2), (2, 7), (3, 16), (2, 70)]),
    heads=st.sampled_from([(4, None, 16), (4, 2, 16), (2, 1, 48), (3, 3, 12), (2, None, 20)]),
    name=st.sampled_from(NAMES),
    position=st.sampled_from(["none", "rope", "learned", "sinusoidal"]),
    norm=st.sampled_from(["layer", "rms"]),
    bias=st.booleans(),
    causal=st.booleans(),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_it_is_its_parts(
    shape: tuple[int, int],
    heads: tuple[int, int | None, int],
    name: str,
    position: str,
    norm: str,
    bias: bool,
    causal: bool,
    dropout: float,
) -> None:
    count, kv_heads, width = heads
    if position == "rope" and width // count % 2:
        position = "none"
    built = build(
        causal=causal,
        width=width,
        heads=count,
        kv_heads=kv_heads,
        feed_forward=2 * width,
        activation=name,
        position=position,
        max_positions=128,
        norm=norm,
        bias=bias,
        dropout=dropout,
    )
    assert_same(built, draw(*shape, width).requires_grad_())


@pytest.mark.parametrize("width", [32, 20])
def test_it_is_the_formula(width: int) -> None:
    """In float64 it is the plain formula that runs."""
    built, exact = build(width=width, heads=2), build(width=width, heads=2).double()
    x = draw(3, 9, width).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found = gradients(built, x, run(built, x))
    for one, truth in zip(found, gradients(exact, wide, run(exact, wide)), strict=True):
        assert apart(one, truth) <= ROUNDING


@pytest.mark.parametrize("narrow", ["model", "heads", "feed-forward"])
def test_matrices_of_one_row_or_column_are_multiplied(narrow: str) -> None:
    width = 1 if narrow == "model" else 16
    built = build(
        width=width,
        heads=1,
        head_width=1 if narrow == "heads" else 4,
        feed_forward=1 if narrow == "feed-forward" else 24,
        norm="rms",
        position="none",
    )
    assert_same(built, draw(2, 5, width).requires_grad_())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["padding", "segments", "both"])
def test_masks_hide_padding_and_other_segments(kind: str, causal: bool, dropout: float) -> None:
    real, segments = torch.ones(3, 11, dtype=torch.bool), torch.zeros(3, 11, dtype=torch.int64)
    real[1, 6:], real[2, :2], segments[:, 4:], segments[0, 8:] = False, False, 1, 2
    tokens = Tokens(
        torch.arange(11)[None],
        real if kind != "segments" else None,
        segments if kind != "padding" else None,
    )
    assert_same(build(causal=causal, dropout=dropout), draw(3, 11, 16).requires_grad_(), tokens)


def test_positions_of_their_own_rotate_each_sequence() -> None:
    tokens = Tokens(torch.arange(8) * torch.tensor([[1], [3]]))
    assert_same(build(position="rope"), draw(2, 8, 16).requires_grad_(), tokens)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(learns=st.lists(st.booleans(), min_size=27, max_size=27), dropout=st.booleans())
def test_any_of_the_inputs_may_learn(learns: list[bool], dropout: bool) -> None:
    built, x = build(position="none", dropout=0.2 * dropout), draw(2, 5, 16)
    parts = x, *built.parameters()
    assert len(parts) == len(learns)
    for part, own in zip(parts, learns, strict=True):
        part.requires_grad_(own)
    if any(learns):
        assert_same(built, x, functions=int(any(learns[:25])))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_what_blocks_keep_together_is_bounded(
    monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    built, x = build(dropout=dropout), draw(2, 5, 16).requires_grad_()
    whole = gradients(built, x, run(built, x))
    monkeypatch.setattr(block_cpu, "MAX_KEPT", 1)
    assert_same(built, x, functions=LAYERS)
    for one, two in zip(whole, gradients(built, x, run(built, x)), strict=True):
        assert torch.equal(one, two)


def test_gradients_are_added_and_the_graph_can_be_kept() -> None:
    built, x = build(), draw(2, 5, 16).requires_grad_()
    out = run(built, x).square().sum()
    out.backward(retain_graph=True)
    once = [p.grad.clone() for p in built.parameters() if p.grad is not None]
    out.backward()
    twice = [p.grad for p in built.parameters() if p.grad is not None]
    assert len(once) == len(list(built.parameters()))
    for one, two in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * one, two)


def test_saved_tensors_may_be_moved() -> None:
    """As by hooks that keep them elsewhere until the backward pass."""
    built, x = build(position="rope"), draw(2, 5, 16).requires_grad_()
    found = gradients(built, x, run(built, x))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()):
        out = run(built, x)
    for one, two in zip(found, gradients(built, x, out), strict=True):
        assert torch.equal(one, two)


def test_backward_passes_at_once_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in two threads: one passes over the graph while another is about to call C."""
    built, x = build(position="rope"), draw(2, 5, 16).requires_grad_()
    learns, place, copies, is_first = [x, *built.parameters()], block_cpu._place, [x], True
    found = torch.autograd.grad(run(built, x).sum(), learns)

    def unpack(saved: Tensor) -> Tensor:
        copies.append(saved.clone())
        return copies[-1]

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), unpack):
        out = run(built, x).sum()

    def place_and_pass(*arguments: Any) -> None:
        nonlocal is_first
        place(*arguments)
        if is_first:
            is_first, before = False, len(copies)
            torch.autograd.grad(out, learns, retain_graph=True)
            for copy in copies[before:]:
                copy.zero_()

    monkeypatch.setattr(block_cpu, "_place", place_and_pass)
    again = torch.autograd.grad(out, learns, retain_graph=True)
    assert not is_first
    assert all(map(torch.equal, found, again))


def test_a_weight_changed_before_the_backward_pass_is_an_error() -> None:
    built, x = build(), draw(2, 5, 16)
    out = run(built, x)
    with torch.no_grad():
        blocks_of(built)[0].feed_forward.up.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_the_number_of_threads_changes_rounding_alone() -> None:
    built, x = build(width=64, feed_forward=256), draw(8, 100, 64).requires_grad_()
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(gradients(built, x, run(built, x)))
    for one, two in zip(*found, strict=True):
        assert apart(one, two) <= ROUNDING


def test_the_same_step_gives_the_same_bits() -> None:
    built, x = build(dropout=0.1), draw(3, 20, 16).requires_grad_()
    first, again = (gradients(built, x, run(built, x)) for _ in range(2))
    assert all(map(torch.equal, first, again))


def _add_adapter(built: Stack) -> None:
    lora.adapt(built, rank=2)


def _add_hook(built: Stack) -> None:
    for block in blocks_of(built):
        block.attention.out.register_forward_hook(lambda *_: None)


def _edit_heads(built: Stack) -> None:
    class Edit:
        needs_weights = False

        def edit_outputs(self, out_bhnd: Tensor, context: object) -> Tensor:
            return out_bhnd * 2

    for block in blocks_of(built):
        block.attention.head_edit = Edit()


def _compile_nothing(built: Stack) -> None:
    for block in blocks_of(built):
        block.feed_forward._compiled_call_impl = block.feed_forward._call_impl


def _turn_weights(built: Stack) -> None:
    for block in blocks_of(built):
        block.attention.qkv.weight = nn.Parameter(block.attention.qkv.weight.mT.contiguous().mT)


CHANGES: dict[str, Callable[[Stack], None]] = {
    "LoRA": _add_adapter,
    "hook": _add_hook,
    "head edit": _edit_heads,
    "compiled layer": _compile_nothing,
    "strided weights": _turn_weights,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "post-norm": {"norm_place": "post"},
    "attention dropout": {"attention_dropout": 0.2},
    "feed-forward dropout": {"feed_forward_dropout": 0.2},
    "bias of positions": {"position": "alibi"},
    "merge": {"merge": "reweight"},
    "norms of heads": {"qk_norm": True},
    "no heads": {"kept_heads": {"decoder": [[], []]}},
}


@pytest.mark.parametrize("case", [*CHANGES, *SETTINGS])
def test_elsewhere_the_parts_run(case: str) -> None:
    built = build(**SETTINGS.get(case, {}))
    if case in CHANGES:
        CHANGES[case](built)
    assert count_functions(run(built, draw(2, 5, 16).requires_grad_())) == 0


@pytest.mark.parametrize("case", ["autocast", "double", "one token", "many tokens", "weights"])
def test_other_inputs_are_for_the_parts(case: str) -> None:
    built, x = build(max_positions=256), draw(2, 5, 16).requires_grad_()
    tokens = Tokens(torch.arange(5)[None])
    if case == "double":
        built, x = built.double(), x.detach().double().requires_grad_()
    if "token" in case:
        n = 1 if case == "one token" else 129
        tokens, x = Tokens(torch.arange(n)[None]), draw(2, n, 16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        out = built(x, tokens, weights=case == "weights").x_bnw
    assert count_functions(out) == 0


def _move_bias(layer: Any) -> None:
    bias = layer.bias.detach().clone()
    del layer.bias
    layer.bias = bias


def _move_bias_to_buffer(layer: Any) -> None:
    bias = layer.bias.detach().clone()
    del layer.bias
    layer.register_buffer("bias", bias)


@pytest.mark.parametrize("change", [_move_bias, _move_bias_to_buffer])
def test_a_bias_may_be_no_parameter(change: Callable[[Any], object]) -> None:
    built, x = build(), draw(2, 5, 16).requires_grad_()
    for block in blocks_of(built):
        forward, attention = block.feed_forward, block.attention
        for layer in (attention.qkv, attention.out, forward.up, forward.down):
            change(layer)
        for norm in (block.attention_norm, block.feed_forward_norm):
            change(norm)
    assert_same(built, x)


def test_vectors_of_another_width_are_for_the_parts() -> None:
    """C would read past the end of the weights."""
    built = build()
    found = [find_layers(block, built.position) for block in blocks_of(built)]
    layers = [one for one in found if one is not None]
    assert len(layers) == LAYERS
    for width in (8, 32):
        assert block_cpu.run_blocks(draw(2, 5, width), None, layers, None, None, 0.0) is None
    assert block_cpu.run_blocks(draw(2, 5, 16), None, layers, None, None, 0.0) is not None


def test_heads_that_cannot_share_keys_are_an_error() -> None:
    built = build()
    blocks_of(built)[0].attention = MultiHeadAttention(16, 3, kv_heads=2, head_width=4)
    with pytest.raises(RuntimeError, match="must divide the number of heads"):
        run(built, draw(2, 5, 16).requires_grad_())


def test_pruned_layers_have_fewer_heads() -> None:
    built = build(heads=4, kept_heads={"decoder": [[1, 2, 4], [1]]}, position="none")
    assert_same(built, draw(2, 5, 16).requires_grad_())


def test_a_mode_that_counts_operations_sees_torchs() -> None:
    built, x = build(), draw(2, 5, 16).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        out = run(built, x)
    assert count_functions(out) == 0
    assert counter.get_total_flops() > 0


def test_a_second_differentiation_is_an_error() -> None:
    x = draw(2, 5, 16).requires_grad_()
    (grad,) = torch.autograd.grad(run(build(), x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
