"""Checks pass on every sound model and catch every leak, by how far it moves an output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import (
    FEW,
    VARIANTS,
    input_tokens,
    new_classifier,
    new_language_model,
    new_translator,
    texts,
)

from heed.models import Model
from heed.probe.mask_checks import Check, check_attention, check_weights

LEAKS = {
    "sequence": "output unchanged by later tokens",
    "batch": "output unchanged by padding and batch",
}


def check(model: Model, task: str) -> dict[str, Check]:
    inputs, sources = map(input_tokens, texts([9, 5])), map(input_tokens, texts([6, 8], seed=1))
    found = check_attention(model, [*inputs], [*sources] if task == "translate" else (), pad=0)
    return {one.name: one for one in found}


@pytest.mark.parametrize("variant", FEW)
def test_sound_models_pass(variant: str) -> None:
    changes = VARIANTS[variant]
    for task, build in (
        ("classify", new_classifier),
        ("generate", new_language_model),
        ("translate", new_translator),
    ):
        checks = check(build(**changes), task)
        assert [one for one in checks.values() if not one.passed] == []
        assert (LEAKS["sequence"] in checks) == (task != "classify")
        if "lstm" not in variant:
            assert any("sums to one" in name for name in checks)


@pytest.mark.parametrize("over", LEAKS)
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_a_leaking_model_is_caught(over: str, task: str) -> None:
    changes: dict[str, Any] = {"merge": "reweight", "reweight_over": over, "leaky": True}
    build = new_language_model if task == "generate" else new_translator
    checks = check(build(**changes), task)
    assert not checks[LEAKS[over]].passed
    assert checks[LEAKS[over]].deviation > 1e-3
    weights = [one for name, one in checks.items() if ":" in name]
    assert all(one.passed for one in weights), "attention itself hides the future"


def test_weights_that_are_not_shares_are_caught() -> None:
    """Queries that attend to all keys with a weight of one, the last of which is padding."""
    weights = torch.ones(1, 4, 3, 3)
    found = {one.name: one for one in check_weights("decoder", [weights], [3], [2])}
    assert [name for name, one in found.items() if not one.passed] == [
        "decoder: every row sums to one",
        "decoder: padding gets no weight",
        "decoder: later tokens get no weight",
    ]
    assert found["decoder: every row sums to one"].deviation == 2.0
    assert not Check("", float("nan"), 1.0).passed
