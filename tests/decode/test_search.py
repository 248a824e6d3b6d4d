"""The fast search equals `heed.decode.plain`, for every model, batch and strategy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decode import ending_models
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FEW, new_translator, texts

from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.decode import plain
from heed.decode.batch_plan import StateSizes, bucket_size
from heed.decode.beam import Beam, coverage
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, Strategy
from heed.models.translator import Translator

RATIO, EXTRA = 1.0, 4
SOURCES = [ids.tolist() for ids in texts([5, 1, 8, 3, 2, 6])]
SOME = ["rope-concat", "alibi-concat", "shaw-values", "grouped", "post", "lstm"]
STRATEGIES: list[Strategy] = [Greedy(), Beam(3, nbest=3), Sample(2, seed=5)]
lengths = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def translate(search: Search, sources: list[list[int]] = SOURCES) -> list[list[Hypothesis]]:
    """Translate with limits that suit the slow plain search."""
    return search.translate(sources, max_ratio=RATIO, max_extra=EXTRA)


def limit(source: list[int]) -> int:
    return len(source) + EXTRA


# ------------------------------------------------------------------------------- plain equals fast


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("variant", FEW)
def test_greedy_equals_plain_greedy(variant: str, size: int) -> None:
    model = ending_models.ending_translator(variant)
    results = translate(Search([model], Greedy(), batch_size=size))
    for source, (one,) in zip(SOURCES, results, strict=True):
        expected = plain.greedy_search(plain.translation_logprobs(model, source), limit(source))
        assert (one.ids, one.cut) == (expected.ids, expected.cut)
        assert abs(one.logprob - expected.logprob) <= 1e-4
        assert abs(one.score - expected.score) <= 1e-4


@pytest.mark.parametrize(
    ("width", "settings"),
    [(2, {}), (3, {"length_penalty": 0.6}), (2, {"length_penalty": 0.0, "early_stop": True})],
)
@pytest.mark.parametrize("variant", FEW)
def test_beam_equals_plain_beam(variant: str, width: int, settings: dict[str, Any]) -> None:
    model = ending_models.ending_translator(variant)
    strategy = Beam(width, nbest=width, **settings)
    results = translate(Search([model], strategy, batch_size=5), SOURCES[:4])
    for source, hypotheses in zip(SOURCES, results, strict=False):
        next_logprobs = plain.translation_logprobs(model, source)
        expected = plain.beam_search(next_logprobs, width, limit(source), **settings)
        assert [(one.ids, one.cut) for one in hypotheses] == [
            (one.ids, one.cut) for one in expected
        ]
        for one, other in zip(hypotheses, expected, strict=True):
            assert abs(one.score - other.score) <= 1e-4
            assert abs(one.logprob - other.logprob) <= 1e-4


@pytest.mark.parametrize(("penalty", "early"), [(0.0, True), (0.6, False), (2.0, False)])
@pytest.mark.parametrize("variant", SOME)
def test_a_beam_of_one_is_greedy(variant: str, penalty: float, early: bool) -> None:
    model = ending_models.ending_translator(variant)
    greedy = translate(Search([model], Greedy(length_penalty=penalty)))
    strategy = Beam(1, length_penalty=penalty, early_stop=early)
    beam = translate(Search([model], strategy))
    for (one,), (other,) in zip(greedy, beam, strict=True):
        assert one == other


@pytest.mark.parametrize("variant", SOME)
@pytest.mark.parametrize("bucketed", [False, True])
def test_scores_are_those_of_a_fresh_pass(variant: str, bucketed: bool) -> None:
    """Sorted, and matching the returned ids, also with bucketed sizes of the decode state."""
    model = ending_models.ending_translator(variant)
    search = Search([model], Beam(4, nbest=4, length_penalty=0.7), batch_size=5)
    search.sizes = StateSizes(bucketed=bucketed)
    for source, hypotheses in zip(SOURCES, translate(search), strict=True):
        order = [(one.cut, -one.score) for one in hypotheses]
        assert order == sorted(order)
        assert len({(*one.ids, one.cut) for one in hypotheses}) == len(hypotheses)
        for one in hypotheses:
            logprob = ending_models.fresh_logprob(model, source, one.ids, one.cut)
            length = len(one.ids) + (not one.cut)
            assert abs(one.logprob - logprob) <= 1e-4
            assert abs(one.score - logprob / length**0.7) <= 1e-4


@pytest.mark.parametrize("variant", ["rope-concat", "shaw-values", "lstm"])
def test_coverage_is_that_of_a_fresh_pass(variant: str) -> None:
    """Wu et al. 2016: a penalty on source tokens that no target token attended to."""
    model = ending_models.ending_translator(variant)
    strategy = Beam(3, nbest=3, coverage_penalty=0.4)
    for source, hypotheses in zip(SOURCES, translate(Search([model], strategy)), strict=True):
        read = torch.tensor([[*source, EOS]])
        for one in hypotheses:
            said = [*one.ids] if one.cut else [*one.ids, EOS]
            with torch.no_grad():
                trace = model.trace(read, torch.tensor([[BOS, *said[:-1]]]))
            looked_nm = torch.stack([w[0].mean(dim=0) for w in trace.cross]).mean(dim=0)
            penalty = coverage(looked_nm.sum(dim=0), torch.ones(read.shape[1], dtype=torch.bool))
            expected = one.logprob / len(said) + 0.4 * float(penalty)
            assert abs(one.score - expected) <= 1e-4


# ------------------------------------------------------------------------------ alone or in a batch


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("variant", SOME)
@settings(max_examples=4)
@given(sizes=lengths, batch=st.integers(1, 7), seed=st.integers(0, 50))
def test_a_result_does_not_depend_on_the_batch(
    variant: str, strategy: Strategy, sizes: list[int], batch: int, seed: int
) -> None:
    """Scores agree to 1e-4; where tokens differ, the two were tied within that."""
    model = ending_models.ending_translator(variant)
    sources = [ids.tolist() for ids in texts(sizes, seed=seed)]
    together = Search([model], strategy, batch_size=batch).translate(sources, max_extra=3)
    alone = Search([model], strategy)
    for number, (source, hypotheses) in enumerate(zip(sources, together, strict=True)):
        (own,) = alone.translate([source], max_extra=3, numbers=[number])
        assert len(own) == len(hypotheses)
        for one, other in zip(own, hypotheses, strict=True):
            assert abs(one.score - other.score) <= 1e-4
            assert one.cut == other.cut


# ------------------------------------------------------------------------------------------- limits


@settings(max_examples=12)
@given(ratio=st.floats(0.1, 3.0), extra=st.integers(0, 40), width=st.integers(1, 3))
def test_no_output_is_longer_than_allowed(ratio: float, extra: int, width: int) -> None:
    """`cut` is set for hypotheses that the limit ended."""
    model = ending_models.ending_translator("rope-concat")
    strategy = Beam(width, nbest=width) if width > 1 else Greedy()
    results = Search([model], strategy, batch_size=3).translate(
        SOURCES[:4], max_ratio=ratio, max_extra=extra
    )
    for source, hypotheses in zip(SOURCES, results, strict=False):
        allowed = max(1, int(ratio * len(source)) + extra)
        for one in hypotheses:
            assert len(one.ids) <= allowed
            assert EOS not in one.ids
            assert not one.cut or len(one.ids) == allowed


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.4])
@settings(max_examples=12)
@given(extra=st.integers(1, 25), width=st.integers(2, 5), early=st.booleans())
def test_a_beam_returns_as_many_as_it_is_wide(
    coverage_penalty: float, extra: int, width: int, early: bool
) -> None:
    """All differ; cut hypotheses come after finished ones and do not change them."""
    model = ending_models.ending_translator("rope-concat")
    options: dict[str, Any] = {"coverage_penalty": coverage_penalty, "early_stop": early}
    all_of_them = Search([model], Beam(width, nbest=width, **options))
    results, first = (
        search.translate(SOURCES[:4], max_ratio=0.0, max_extra=extra)
        for search in (all_of_them, Search([model], Beam(width, **options)))
    )
    for hypotheses, (best,) in zip(results, first, strict=True):
        assert len({tuple(one.ids) for one in hypotheses}) == width
        order = [(one.cut, -one.score) for one in hypotheses]
        assert order == sorted(order)
        assert hypotheses[0] == best


def test_outputs_end_with_the_learned_positions() -> None:
    model = new_translator(position="learned", max_positions=20)
    results = Search([model], Beam(2)).translate([[6] * 5, [7] * 19], max_ratio=9.0, max_extra=9)
    assert all(len(one.ids) <= 20 for (one,) in results)


@given(length=st.integers(1, 5000))
def test_bucket_sizes_are_few_and_large_enough(length: int) -> None:
    sizes = StateSizes(bucketed=True)
    assert length <= sizes.padded_length(length) <= max(8, 2 * length)
    assert sizes.padded_length(sizes.padded_length(length)) == sizes.padded_length(length)
    assert sizes.capacity(length) > length
    assert length <= sizes.slots(length) <= max(8, 2 * length)
    assert len({bucket_size(n) for n in range(1, length + 1)}) <= 2 * length.bit_length()


# ---------------------------------------------------------------------------------------- ensembles


def other(model: Translator) -> Translator:
    """Another model with other outputs."""
    another = new_translator(tie_embeddings=False, position="alibi", width=8)
    assert another is not model
    return another


def test_an_ensemble_of_one_is_the_model() -> None:
    """Twice the same model gives the same result up to rounding."""
    model = ending_models.ending_translator("rope-concat")
    strategy = Beam(3, nbest=3)
    one = translate(Search([model], strategy))
    assert translate(Search([model], strategy)) == one
    for hypotheses, twice in zip(one, translate(Search([model, model], strategy)), strict=True):
        assert [x.ids for x in hypotheses] == [x.ids for x in twice]
        assert all(abs(x.score - y.score) <= 1e-4 for x, y in zip(hypotheses, twice, strict=True))


@pytest.mark.parametrize("variant", ["rope-concat", "lstm"])
def test_an_ensemble_is_the_mean_of_probabilities(variant: str) -> None:
    model = ending_models.ending_translator(variant)
    models = [model, other(model)]
    for source, (one,) in zip(SOURCES, translate(Search(models, Greedy())), strict=True):
        parts = [plain.translation_logprobs(member, source) for member in models]

        def mean(ids: list[int], parts: list[plain.NextLogprobs] = parts) -> torch.Tensor:
            return torch.stack([part(ids).exp() for part in parts]).mean(dim=0).log()

        expected = plain.greedy_search(mean, limit(source))
        assert one.ids == expected.ids
        assert abs(one.logprob - expected.logprob) <= 1e-4


# ---------------------------------------------------------------------------------- language models


@pytest.mark.parametrize("variant", FEW)
@pytest.mark.parametrize("bucketed", [False, True])
def test_a_language_model_continues_prompts(variant: str, bucketed: bool) -> None:
    """Prompts of different lengths in one batch."""
    model = ending_models.ending_language_model(variant)
    prompts = [[BOS, *ids.tolist()] for ids in texts([4, 0, 7, 1], seed=3)]
    search = Search([model], Greedy())
    search.sizes = StateSizes(bucketed=bucketed)
    for prompt, (one,) in zip(prompts, search.generate(prompts, max_tokens=20), strict=True):
        expected = plain.greedy_search(plain.continuation_logprobs(model, prompt), 20)
        assert one.ids == expected.ids
        assert abs(one.logprob - expected.logprob) <= 1e-4


@pytest.mark.parametrize("variant", SOME)
def test_a_language_model_s_beam_equals_plain_beam(variant: str) -> None:
    model = ending_models.ending_language_model(variant)
    prompts = [[BOS, *ids.tolist()] for ids in texts([4, 0, 7], seed=3)]
    strategy = Beam(3, nbest=3, length_penalty=0.6)
    results = Search([model], strategy).generate(prompts, max_tokens=8)
    for prompt, hypotheses in zip(prompts, results, strict=True):
        next_logprobs = plain.continuation_logprobs(model, prompt)
        expected = plain.beam_search(next_logprobs, 3, 8, length_penalty=0.6)
        assert [one.ids for one in hypotheses] == [one.ids for one in expected]
        for one, other in zip(hypotheses, expected, strict=True):
            assert abs(one.score - other.score) <= 1e-4


def test_the_training_mode_is_restored() -> None:
    """Dropout is off while decoding, and on again after."""
    model = new_translator(dropout=0.5)
    model.train()
    search = Search([model], Greedy())
    assert translate(search) == translate(search)
    assert model.training


def test_empty_inputs() -> None:
    search = Search([ending_models.ending_translator("rope-concat")], Beam(2))
    assert search.translate([]) == []
    assert len(search.translate([[]])) == 1
