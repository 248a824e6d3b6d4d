"""The audit of a mask: sound models pass; a leaking weight and a leaking norm are located."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    VOCAB,
    classifier,
    input_tokens,
    language_model,
    new_language_model,
    texts,
    translator,
)

from heed.errors import HeedError
from heed.probe.attention_maps import map_inputs
from heed.probe.mask_audit import audit_map, change_future

(READ, SOURCE) = (input_tokens(row) for row in texts([9, 7], seed=3))


@settings(max_examples=6)
@given(place=st.integers(1, len(READ.ids) - 1))
def test_earlier_rows_do_not_move(place: int) -> None:
    for model, source in ((translator("t5-concat"), SOURCE), (language_model("rope-concat"), None)):
        change = change_future(model, READ, source, place, vocab=VOCAB)
        assert change.passed
        assert change.ids[:place] == READ.ids[:place]
        assert all(a != b for a, b in zip(change.ids[place:], READ.ids[place:], strict=True))
        assert change.earlier_weights == max(max(w[:place]) for w in change.weights.values())
        assert min(change.outputs[place:]) > 1e-6, "later rows do move"


def test_a_leak_around_the_mask_moves_earlier_rows() -> None:
    model = new_language_model(merge="reweight", reweight_over="sequence", leaky=True)
    attention = map_inputs(model, READ).decoder
    assert attention is not None
    assert audit_map(attention).passed, "the mask itself hides the future"
    change = change_future(model, READ, None, 4, vocab=VOCAB)
    assert not change.passed
    assert change.earlier_outputs > 1e-3
    assert change.to_dict()["passed"] is False


def test_a_weight_on_a_hidden_key_is_located() -> None:
    attention = map_inputs(language_model("none-concat"), READ).decoder
    assert attention is not None
    audit = audit_map(attention)
    assert audit.passed
    assert (audit.largest_hidden, audit.place, audit.hidden) == (0.0, None, 36)
    weights = [layer.copy() for layer in attention.weights]
    weights[1][2, 3, 7] = 0.25
    audit = audit_map(replace(attention, weights=weights))
    assert not audit.passed
    assert audit.place is not None
    assert (audit.place[0].label, *audit.place[1:]) == ("decoder.2.3", 3, 7)
    assert audit.largest_hidden == np.float32(0.25)
    assert audit.to_dict()["place"] == {"layer": 1, "head": 2, "query": 3, "key": 7}


def test_a_model_without_a_future_is_refused() -> None:
    with pytest.raises(HeedError, match="both directions"):
        change_future(classifier("none-concat"), READ, None, 1, vocab=VOCAB)
    for place in (0, len(READ.ids)):
        with pytest.raises(HeedError, match="future cannot begin"):
            change_future(language_model("none-concat"), READ, None, place, vocab=VOCAB)
