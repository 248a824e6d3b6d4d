"""Maps layer by layer are those of one call, and each layer is reported once it is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support import classifier, input_tokens, language_model, new_language_model, texts, translator

from heed.errors import RunError
from heed.models import Model
from heed.probe.attention_maps import map_inputs
from heed.probe.map_layers import fill_maps, outline_maps

(READ, SOURCE) = (input_tokens(row) for row in texts([9, 7], seed=3))


@pytest.mark.parametrize("build", [translator, language_model, classifier])
def test_layers_are_those_of_one_call_to_the_bit(build: Callable[[str], Model]) -> None:
    model = build("rope-concat")
    source = SOURCE if build is translator else None
    maps, expected = outline_maps(model, READ, source), map_inputs(model, READ, source)
    places = [(one.kind, layer) for one in maps.maps for layer in range(len(one.weights))]
    assert all(np.isnan(layer).all() for one in maps.maps for layer in one.weights)
    assert [one.describe_axes() for one in maps.maps] == [
        one.describe_axes() for one in expected.maps
    ]
    seen = list[tuple[str, int]]()

    def note(kind: str, layer: int) -> None:
        assert np.isfinite(maps.get(kind).weights[layer]).all()
        seen.append((kind, layer))

    fill_maps(model, maps, READ, source, note)
    assert sorted(seen) == sorted(places)
    for one, same in zip(maps.maps, expected.maps, strict=True):
        for layer, weights in zip(one.weights, same.weights, strict=True):
            assert np.array_equal(layer, weights)


def test_a_model_of_nan_has_no_maps_and_keeps_no_hook() -> None:
    model = new_language_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    maps = outline_maps(model, READ)
    with pytest.raises(RunError, match="not a number"):
        fill_maps(model, maps, READ, None, lambda *_: None)
    assert not any(module._forward_hooks for module in model.modules())
