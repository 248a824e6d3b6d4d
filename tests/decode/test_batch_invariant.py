"""A batch-invariant search: an input's results are the same bits alone and among others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EXTRAS, FEW, VOCAB, language_model, new_translator, translator
from torch import nn

from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Strategy
from heed.decode.streaming import StreamingSearch
from heed.nn.kernels.prepacked_weights import prepack_weights

FIRST = 5
"""The first id that is no special token."""
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "beam": Beam(3, nbest=2),
    "sample": Sample(1, temperature=1.3, top_p=0.9, seed=4),
}
rows = st.lists(
    st.lists(st.integers(FIRST, VOCAB - 1), min_size=1, max_size=24), min_size=1, max_size=7
)


def search_of(model: Any, strategy: Strategy, **options: Any) -> Search:
    return Search([model], strategy, batch_invariant=True, **options)


@pytest.mark.parametrize("variant", [name for name in FEW if "lstm" not in name])
def test_every_transformer_translates_the_same_bits_alone(variant: str) -> None:
    sources = [list(range(FIRST, FIRST + n)) for n in (3, 17, 9, 1, 16)]
    # Torch's SiLU has another formula for the last numbers of a tensor of another width.
    changes = EXTRAS[variant] | {"feed_forward": 64} if variant in EXTRAS else None
    model = translator(variant) if changes is None else new_translator(**changes)
    search = search_of(model, Greedy())
    together = search.translate(sources)
    assert together == [search.translate([source])[0] for source in sources]


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=6)
@given(sources=rows)
def test_every_strategy_gives_the_same_bits_alone(name: str, sources: list[list[int]]) -> None:
    search = search_of(translator("rope-concat"), STRATEGIES[name])
    together = search.translate(sources, numbers=range(len(sources)))
    for i, source in enumerate(sources):
        assert together[i] == search.translate([source], numbers=[i])[0]


@settings(max_examples=6)
@given(prompts=rows, limits=st.lists(st.integers(1, 20), min_size=7, max_size=7))
def test_prompts_with_limits_of_their_own(prompts: list[list[int]], limits: list[int]) -> None:
    search = search_of(language_model("rope-concat"), STRATEGIES["sample"])
    numbers = range(len(prompts))
    together = search.generate(prompts, max_tokens=limits[: len(prompts)], numbers=numbers)
    for i, prompt in enumerate(prompts):
        alone = search.generate([prompt], max_tokens=limits[i], numbers=[i])
        assert together[i] == alone[0]
        assert len(together[i][0].ids) <= limits[i]


def test_a_copy_of_a_lonely_input_is_not_reported() -> None:
    reported: list[tuple[int, list[int]]] = []

    def on_tokens(number: int, ids: list[int]) -> bool:
        reported.append((number, ids))
        return len(reported) == 3

    model = language_model("rope-concat")
    search = StreamingSearch([model], Greedy(), on_tokens, batch_invariant=True)
    [[hypothesis]] = search.generate([[1, 7, 8]], max_tokens=12, numbers=[9])
    assert [number for number, _ in reported] == [9, 9, 9]
    assert [token for _, ids in reported for token in ids] == hypothesis.ids


def test_packed_weights_stay_packed_within_another_packing() -> None:
    model = new_translator()
    layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
    with prepack_weights([model]):
        packed = vars(layer)["forward"]
        with prepack_weights([model]):
            assert vars(layer)["forward"] is packed
        assert vars(layer)["forward"] is packed
    assert "forward" not in vars(layer)
