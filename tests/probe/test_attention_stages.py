"""The stages of a row recompose to the weights of the model's pass, for every position encoding."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from support import (
    EXTRAS,
    POSITIONS,
    classifier,
    input_tokens,
    language_model,
    texts,
    translator,
)

from heed.errors import HeedError
from heed.models import Model
from heed.probe.attention_stages import RowStages, row_stages
from heed.probe.patch import Head, list_heads
from heed.probe.text_trace import InputTokens, trace_batch

SHAPES = [f"{position}-concat" for position in POSITIONS]
(READ, SOURCE) = (input_tokens(row) for row in texts([9, 7], seed=3))
FLOAT32 = 1e-6


def some_rows(model: Model) -> list[tuple[Head, int]]:
    """The first and the last head of every layer, each at one row."""
    heads = [head for head in list_heads(model) if head.head in (0, 3)]
    return [(head, 2 if head.head else len(SOURCE.ids) - 1) for head in heads]


def recompose(stages: dict[str, object]) -> list[float]:
    """softmax(scores · scale + bias) over the visible keys, from the JSON alone."""
    scores, scale, bias, visible = (stages[name] for name in ("scores", "scale", "bias", "visible"))
    assert isinstance(scores, list)
    assert isinstance(visible, list)
    assert isinstance(scale, float)
    added = bias if isinstance(bias, list) else [0.0] * len(scores)
    powers = [
        math.exp(score * scale + more) if seen else 0.0
        for score, more, seen in zip(scores, added, visible, strict=True)
    ]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("variant", SHAPES + list(EXTRAS))
def test_stages_recompose_to_the_weights(variant: str) -> None:
    assert_recomposed(translator(variant), SOURCE)


def test_models_of_one_stack_recompose_too() -> None:
    assert_recomposed(language_model("rope-concat"), None)
    assert_recomposed(classifier("t5-concat"), None)


def assert_recomposed(model: Model, source: InputTokens | None) -> None:
    with torch.no_grad():
        trace = trace_batch(model, [READ], [] if source is None else [source])
    for head, row in some_rows(model):
        stages = row_stages(model, READ, source, head, row)
        weights = getattr(trace, head.kind)[head.layer][0, head.head, row].numpy()
        stages_json = json.loads(json.dumps(stages.to_dict(), allow_nan=False))
        assert np.abs(np.array(recompose(stages_json)) - weights).max() < FLOAT32
        assert stages.deviation < FLOAT32
        assert np.array_equal(stages.weights.astype(np.float32), weights)
        hides = head.kind == "decoder"
        assert stages.visible.tolist() == [not hides or m <= row for m in range(len(weights))]


def test_a_position_enters_where_its_paper_says() -> None:
    def first(position: str) -> RowStages:
        return row_stages(
            language_model(f"{position}-concat"), READ, None, Head("decoder", 0, 1), 5
        )

    has_bias = {position: first(position).bias is not None for position in POSITIONS}
    assert [name for name, has in has_bias.items() if has] == ["shaw", "t5", "alibi"]
    assert [name for name in POSITIONS if first(name).is_rotated] == ["rope"]
    bias = first("alibi").bias
    assert bias is not None
    assert np.allclose(np.diff(bias[:6]), bias[1] - bias[0])  # linear in distance


def test_a_head_that_there_is_not_is_refused() -> None:
    for head in (Head("decoder", 9, 0), Head("cross", 0, 0)):
        with pytest.raises(HeedError, match="attention"):
            row_stages(language_model("rope-concat"), READ, None, head, 0)
    with pytest.raises(HeedError, match="Choose 1 to 9"):
        row_stages(language_model("rope-concat"), READ, None, Head("decoder", 0, 0), 9)
