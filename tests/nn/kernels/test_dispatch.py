"""The table of kernels: which one serves which call, on a CPU and as if there were a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny
from torch import Tensor

from heed.nn.kernels import dispatch
from heed.nn.kernels.decode_attention import ExplicitMask
from heed.nn.kernels.flex_attention import ScoreMod
from heed.nn.kernels.heads import Heads, SharedPosition
from heed.nn.kernels.position_bias import PositionBias
from heed.nn.kernels.position_forms import FORMS, NO_FORM, AlibiForm, PositionForm, form_of
from heed.nn.kernels.short_attention_cpu import load_kernels
from heed.nn.masks import Mask
from heed.nn.positions import Alibi, Position, build_position

CPU = torch.device("cpu")


class OwnBias(Alibi):
    """A subclass has no form unless one is registered for it."""


class ScoreModForm(PositionForm):
    """A form for FlexAttention alone."""

    def score_mod(self, position: Alibi, *places: Any) -> ScoreMod:
        return AlibiForm().score_mod(position, *places)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions as on a GPU; nothing is run."""
    monkeypatch.setattr(dispatch, "on_gpu", lambda x: True)
    monkeypatch.setattr(dispatch, "on_gpu_device", lambda device: True)
    monkeypatch.setattr(dispatch, "on_cpu", lambda x: False)
    monkeypatch.setattr(dispatch, "may_compute_in_c", lambda x: False)
    monkeypatch.setattr(dispatch, "trains_on_cpu", lambda x: False)


def call(
    position: Position | None,
    n: int,
    *,
    mask: Mask | Tensor | None = None,
    m: int | None = None,
    rows: int = 1,
    width: int = 8,
    dropout: float = 0.0,
) -> dispatch.Call:
    """`rows`: as many sequences have positions of their own."""
    m = n if m is None else m
    q, k = torch.zeros(1, 4, n, width), torch.zeros(1, 4, m, width)
    places = torch.arange(n).repeat(rows, 1), torch.arange(m).repeat(rows, 1)
    bias = None if position is None else PositionBias(position, *places, q_bhnd=q)
    return dispatch.Call(Heads(q, k, k), mask, bias, None, dropout)


def serving(call: dispatch.Call) -> str:
    return next(kernel.name for kernel in dispatch.KERNELS if kernel.serves(call))


def encoding(name: str) -> Position:
    return build_position(tiny(position=name, head_width=8), causal=True)


def causal(n: int) -> Mask:
    return Mask(n, n, CPU, causal=True)


def padded(n: int) -> Mask:
    return Mask(n, n, CPU, real_bm=torch.ones(1, n, dtype=torch.bool))


def test_the_last_row_serves_everything() -> None:
    names = [kernel.name for kernel in dispatch.KERNELS]
    assert len(set(names)) == len(names)
    assert names[-1] == "sdpa"
    assert all(kernel.why and kernel.serves.__doc__ for kernel in dispatch.KERNELS)
    assert dispatch.KERNELS[-1].serves(call(None, 3, dropout=0.5))


def test_on_a_cpu_decode_steps_and_sequences_that_train_have_kernels() -> None:
    position, is_compiled = encoding("alibi"), load_kernels() is not None
    long = "long_attention_cpu" if is_compiled else "sdpa"
    for n, m, reading, training in (
        (1, 30, "decode_attention_cpu", "sdpa"),
        (20, 30, "sdpa", "short_attention_cpu" if is_compiled else "sdpa"),
        (20, 129, "sdpa", long),
        (512, 600, long, long),
    ):
        case = call(position, n, m=m, mask=Mask(n, m, CPU, causal=True))
        with torch.no_grad():
            assert serving(case) == reading
        assert serving(case) == training


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["rope", "sinusoidal", "learned", "none"])
def test_without_a_bias_short_sequences_have_a_kernel(name: str) -> None:
    position = encoding(name)
    for mask in (None, causal(64), padded(64)):
        assert serving(call(position, 64, mask=mask)) == "short_attention"
        assert serving(call(position, 64, mask=mask, rows=2)) == "short_attention"
        assert serving(call(position, 64, mask=mask, dropout=0.1)) == "sdpa"
        with torch.no_grad():
            assert serving(call(position, 64, mask=mask)) != "short_attention"
    assert serving(call(position, 129, mask=causal(129))) == "sdpa"
    assert serving(call(position, 64, mask=torch.ones(1, 1, 64, 64, dtype=torch.bool))) == "sdpa"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["t5", "alibi"])
def test_a_bias_has_the_kernel_for_short_sequences_where_they_share_it(name: str) -> None:
    position = encoding(name)
    for mask in (None, causal(64), padded(64)):
        assert serving(call(position, 64, mask=mask)) == "short_attention"
        assert serving(call(position, 64, mask=mask, rows=2)) == "sdpa"
        assert serving(call(position, 64, mask=mask, dropout=0.1)) == "sdpa"
        with torch.no_grad():
            assert serving(call(position, 64, mask=mask)) == "sdpa"
    assert serving(call(position, 20, m=64)) == "short_attention"
    assert serving(call(position, 129, mask=causal(129))) == "sdpa"
    assert serving(call(position, 64, mask=torch.ones(1, 1, 64, 64, dtype=torch.bool))) == "sdpa"
    assert serving(call(encoding("shaw"), 64, mask=causal(64))) == "sdpa"
    given = call(None, 64)._replace(bias=torch.zeros(1, 4, 64, 64))
    assert serving(given) == "sdpa"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["t5", "alibi", "shaw"])
def test_a_dense_bias_is_not_computed_to_find_that_a_call_is_not_short(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = encoding(name)
    monkeypatch.setattr(type(position), "bias", lambda *_: pytest.fail("computed"))
    packed, long = call(position, 64, rows=2), call(position, 512)
    assert not dispatch._is_short(packed)
    assert not dispatch._is_short(long)
    assert not dispatch._is_short(call(position, 64, dropout=0.1))
    for case, mask in ((packed, causal(64)), (long, causal(512))):
        bias = case.bias
        assert isinstance(bias, PositionBias)
        shared = SharedPosition(bias.q_positions, bias.k_positions)
        monkeypatch.setattr(shared.plans, "get", lambda *_: None)
        dispatch.prepare_shared(shared, mask, position)
    with torch.no_grad():
        assert not dispatch._is_short(call(position, 64))


@pytest.mark.usefixtures("gpu")
def test_a_bias_for_short_sequences_is_made_once_before_the_first_layer() -> None:
    """So all layers read one tensor, to which their gradients are added."""
    position, places = encoding("t5"), torch.arange(20)[None]
    shared = SharedPosition(places, places)
    dispatch.prepare_shared(shared, causal(20), position)
    made = shared.bias(position)._of_batch
    assert made is not None
    assert made is shared.bias(position).of_batch()
    assert made.is_contiguous()
    assert made.shape == (1, 4, 20, 32)
    dense = shared.bias(position).dense()
    assert dense is not None
    assert torch.equal(made[..., :20], dense)
    kept = shared.bias(position, kept_heads=torch.tensor([3, 1])).of_batch()
    assert kept is not None
    assert torch.equal(kept, made[:, [3, 1]])


@pytest.mark.usefixtures("gpu")
def test_long_sequences_go_by_distance_where_sdpa_would_need_a_tensor() -> None:
    for name, long in (("alibi", 512), ("t5", 512), ("shaw", 128)):
        position = encoding(name)
        assert serving(call(position, long - 1, mask=causal(long - 1))) == "sdpa"
        assert serving(call(position, long, mask=causal(long))) == "distance_attention"
        assert serving(call(position, long, mask=causal(long), dropout=0.1)) == "sdpa"
        assert serving(call(position, long, mask=causal(long), width=264)) == "sdpa"
    for name in ("rope", "none"):
        assert serving(call(encoding(name), 512, mask=causal(512))) == "sdpa"
        assert serving(call(encoding(name), 512, mask=padded(512))) == "distance_attention"


@pytest.mark.usefixtures("gpu")
def test_an_encoding_without_a_form_keeps_its_dense_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    position = OwnBias(tiny(head_width=8))
    assert form_of(position) is NO_FORM
    for n, expected in ((64, "short_attention"), (256, "sdpa"), (512, "sdpa")):
        for mask in (causal(n), padded(n)):
            assert serving(call(position, n, mask=mask)) == expected
    monkeypatch.setitem(FORMS, OwnBias, ScoreModForm())
    assert serving(call(position, 512, mask=padded(512))) == "flex_attention"


@pytest.mark.usefixtures("gpu")
@torch.no_grad()
def test_an_explicit_mask_is_read_by_its_own_kernel_or_as_a_tensor() -> None:
    for n, expected in ((4, "decode_attention"), (600, "sdpa")):
        visible = torch.ones(1, n, 700, dtype=torch.bool)
        mask = ExplicitMask(n, 700, CPU, visible_bnm=visible)
        for name in ("shaw", "alibi", "rope"):
            assert serving(call(encoding(name), n, m=700, mask=mask)) == expected


@pytest.mark.usefixtures("gpu")
def test_tile_plans_are_made_once_and_only_where_they_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int | None] = []

    def note(mask: Mask, q: Tensor, k: Tensor, max_distance: int | None) -> tuple[Tensor, Tensor]:
        made.append(max_distance)
        return q, k

    monkeypatch.setattr("heed.nn.kernels.position_bias.tile_plans", note)
    places = torch.arange(512)[None]
    cases = [("t5", causal, [20]), ("shaw", causal, [3]), ("alibi", causal, [None])]
    cases += [("rope", causal, []), ("rope", padded, [None])]
    for name, mask, expected in cases:
        made.clear()
        position, shared = encoding(name), SharedPosition(places, places)
        for _ in range(2):
            dispatch.prepare_shared(shared, mask(512), position)
        assert made == expected
    made.clear()
    shared = SharedPosition(places, places)
    dispatch.prepare_shared(shared, padded(512), OwnBias(tiny(head_width=8)))
    assert made == []


def test_a_shared_bias_is_the_layers_own_where_layers_differ() -> None:
    places = torch.arange(5)[None]
    shared, first, second = SharedPosition(places, places), encoding("alibi"), encoding("alibi")
    assert shared.bias(first) is shared.bias(first)
    assert shared.bias(second).position is second
    shaw, q = encoding("shaw"), torch.randn(1, 4, 5, 8)
    assert shared.bias(shaw, q) is not shared.bias(shaw, q)
