"""Adapters: nothing at first, little by rank, and the same model once they are merged."""

from __future__ import annotations

from copy import deepcopy
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ATTENDING, FEW, VARIANTS, apart, fresh, new_classifier, perturb, texts
from torch import Tensor, nn

from heed.errors import ConfigError
from heed.models import Model, Translator
from heed.nn.lora import LowRank, Targets, adapt, merge_adapters

TARGETS: tuple[Targets, ...] = get_args(Targets)
VARIOUS = [name for name in FEW if name in ATTENDING]
TASKS = ("translate", "classify", "generate")
CASES: list[tuple[str, Targets, str]] = [(variant, "all", "translate") for variant in VARIOUS]
CASES += [("modern", targets, task) for targets in TARGETS for task in TASKS]


def answers(model: Model) -> Tensor:
    ids = torch.stack(texts([7, 7, 7]))
    with torch.no_grad():
        return model(ids, ids) if isinstance(model, Translator) else model(ids)


def moved(model: Model) -> Model:
    """The model with its adapters somewhere, all else where it was."""
    adapters = [part for part in model.modules() if isinstance(part, LowRank)]
    factors = {id(parameter) for part in adapters for parameter in part.parameters()}
    base = [(p, p.clone()) for p in model.parameters() if id(p) not in factors]
    perturb(model, by=0.3)
    with torch.no_grad():
        for parameter, before in base:
            parameter.copy_(before)
    return model


@pytest.mark.parametrize(("variant", "targets", "task"), CASES)
def test_a_fresh_adapter_changes_nothing(variant: str, targets: Targets, task: str) -> None:
    base = fresh(task, **VARIANTS[variant])
    adapted = deepcopy(base)
    adapt(adapted, rank=2, targets=targets)
    assert torch.equal(answers(adapted), answers(base))


@pytest.mark.parametrize(("variant", "targets", "task"), CASES)
def test_merged_is_unmerged(variant: str, targets: Targets, task: str) -> None:
    base = fresh(task, **VARIANTS[variant])
    adapted = deepcopy(base)
    adapt(adapted, rank=3, targets=targets)
    before = answers(base)
    moved(adapted)
    base.load_state_dict(merge_adapters(adapted, adapted.state_dict()))
    assert apart(answers(base), answers(adapted)) <= 1e-5
    assert apart(answers(adapted), before) > 1e-4


@given(
    rank=st.integers(1, 4), kv_heads=st.sampled_from([1, 2, 4]), targets=st.sampled_from(TARGETS)
)
def test_each_projection_has_a_rank_of_its_own(rank: int, kv_heads: int, targets: Targets) -> None:
    base = new_classifier(kv_heads=kv_heads, head_width=6)
    adapted = deepcopy(base)
    adapt(adapted, rank=rank, targets=targets)
    after = merge_adapters(moved(adapted), adapted.state_dict())
    name = "stack.blocks.0.attention.qkv.weight"
    change = (after[name] - base.state_dict()[name]).detach()
    q, k, v = (int(torch.linalg.matrix_rank(x, rtol=1e-4)) for x in change.split(_rows(kv_heads)))
    assert (q, v) == (rank, min(rank, 6 * kv_heads))
    assert k == (0 if targets == "qv" else min(rank, 6 * kv_heads))


def _rows(kv_heads: int) -> list[int]:
    return [4 * 6, kv_heads * 6, kv_heads * 6]


@pytest.mark.parametrize(
    ("targets", "maps"),
    [
        ("qv", {"attention.qkv", "cross.q", "cross.kv"}),
        ("attention", {"attention.qkv", "attention.out", "cross.q", "cross.kv", "cross.out"}),
    ],
)
def test_what_is_adapted_is_what_was_named(targets: Targets, maps: set[str]) -> None:
    model = fresh("translate", layers=1)
    adapt(model, rank=2, targets=targets)
    assert _adapted(model) == maps
    model = fresh("translate", layers=1)
    adapt(model, rank=2, targets="all")
    assert _adapted(model) >= {"feed_forward.up", "feed_forward.down", *maps}


def _adapted(model: nn.Module) -> set[str]:
    places = [name for name, module in model.named_modules() if isinstance(module, LowRank)]
    return {".".join(place.split(".")[3:5]) for place in places}


def test_the_factors_learn_and_the_maps_do_not() -> None:
    model = new_classifier()
    adapt(model, rank=2, targets="all")
    model.train()
    model(torch.stack(texts([5, 5]))).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name.endswith("parametrizations.weight.original"):
            assert parameter.grad is None, name
        elif ".weight.0.up." in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@given(alpha=st.floats(0.5, 8.0), rank=st.integers(1, 5))
def test_alpha_over_rank_is_how_much_a_factor_counts(alpha: float, rank: int) -> None:
    one, other = (LowRank([(6, True)], 5, rank=rank, alpha=a) for a in (alpha, 2.0 * rank))
    perturb(one)
    other.load_state_dict(one.state_dict())
    zero = torch.zeros(6, 5)
    assert torch.allclose(one(zero) * 2.0 * rank, other(zero) * alpha, atol=1e-5)


def test_the_sum_is_in_full_precision_whatever_is_around_it() -> None:
    factors = LowRank([(8, True)], 8, rank=2, alpha=4.0)
    perturb(factors)
    weight = torch.randn(8, 8)
    plain = factors(weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(factors(weight), plain)


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_a_model_without_a_layer_to_adapt_is_refused(family: str) -> None:
    model = fresh("classify", family=family)
    exclude = {*model.parameters()} if family == "transformer" else set()
    with pytest.raises(ConfigError, match="lora finds no layer to adapt"):
        adapt(model, rank=2, exclude=exclude)
