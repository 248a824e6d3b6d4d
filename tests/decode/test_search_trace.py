"""A traced search returns what the search returns, and its tree holds together; forced prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from decode import ending_models
from hypothesis import given, settings
from hypothesis import strategies as st
from support import texts
from torch import Tensor

from heed.data.tokenizers.special_tokens import BOS, EOS
from heed.decode import plain
from heed.decode.batch_plan import StateSizes
from heed.decode.beam import Beam
from heed.decode.forced_prefix import force_prefix
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.search_trace import Node, SearchTrace, TracedSearch
from heed.decode.strategy import Hypothesis, Strategy

EXTRA = 4
STRATEGIES: list[Strategy] = [
    Greedy(),
    Beam(3, nbest=3, length_penalty=0.7),
    Beam(2, nbest=2, coverage_penalty=0.3),
    Sample(2, seed=5, temperature=1.5, top_k=6),
]
some_models = pytest.mark.parametrize(
    "variant", ["rope-concat", pytest.param("lstm", marks=pytest.mark.slow)]
)
each_strategy = pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=["greedy", "beam", "coverage", "sample"]
)
sources = st.lists(st.integers(5, 20), min_size=1, max_size=7)


def search(variant: str, strategy: Strategy, source: list[int]) -> list[Hypothesis]:
    model = ending_models.ending_translator(variant)
    (hypotheses,) = Search([model], strategy).translate([source], max_ratio=1.0, max_extra=EXTRA)
    return hypotheses


def trace(variant: str, strategy: Strategy, source: list[int]) -> SearchTrace:
    model = ending_models.ending_translator(variant)
    traced = TracedSearch([model], strategy, alternatives=4)
    return traced.trace_source(source, max_ratio=1.0, max_extra=EXTRA)


def path_ids(tree: SearchTrace, node: int) -> list[int]:
    return [tree.nodes[i].choice.id for i in tree.path(node)]


@torch.no_grad()
def next_logits(variant: str, source: Sequence[int], ids: Sequence[int]) -> Tensor:
    """The model's logits after each token, by one forward pass without a cache [n + 1, v]."""
    model = ending_models.ending_translator(variant)
    return model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *ids]]))[0]


# ------------------------------------------------------------------------------------ traces


@some_models
@each_strategy
@settings(max_examples=2)
@given(source=sources)
def test_a_trace_has_the_hypotheses_of_the_search(
    variant: str, strategy: Strategy, source: list[int]
) -> None:
    """The best leaf of the tree is the answer, and every leaf spells its hypothesis."""
    tree = trace(variant, strategy, source)
    assert tree.hypotheses == search(variant, strategy, source)
    for one, leaf in zip(tree.hypotheses, tree.leaves, strict=True):
        assert path_ids(tree, leaf) == (one.ids if one.cut else [*one.ids, EOS])
        assert tree.nodes[leaf].logprob == pytest.approx(one.logprob, abs=1e-12)
        if not (one.cut and strategy.needs_attention):  # a running node has no coverage penalty
            assert tree.nodes[leaf].score == pytest.approx(one.score, abs=1e-12)
    assert [choice.id for choice in tree.best] == path_ids(tree, tree.leaves[0])


@some_models
@each_strategy
def test_every_score_of_the_tree_is_a_sum_of_log_probabilities(
    variant: str, strategy: Strategy
) -> None:
    """They are the log-softmax of the model's logits, and alternatives are its likeliest tokens."""
    source = [7, 12, 9, 6, 15]
    tree = trace(variant, strategy, source)
    for index, node in enumerate(tree.nodes):
        path = [tree.nodes[i] for i in tree.path(index)]
        assert [one.depth for one in path] == [*range(1, len(path) + 1)]
        assert node.logprob == pytest.approx(sum(one.choice.logprob for one in path), abs=1e-9)
        assert not any(one.ended for one in path[:-1])
        logprobs_v = next_logits(variant, source, path_ids(tree, index)[:-1])[-1].log_softmax(-1)
        assert node.choice.logprob == pytest.approx(float(logprobs_v[node.choice.id]), abs=1e-4)
        for one in node.choice.alternatives:
            assert one.logprob == pytest.approx(float(logprobs_v[one.id]), abs=1e-4)
        listed = [one.logprob for one in node.choice.alternatives]
        assert listed == sorted(listed, reverse=True)
        assert len({one.id for one in node.choice.alternatives}) == 4
        assert listed[-1] >= float(logprobs_v.sort(descending=True).values[3]) - 1e-4
        assert (node.choice.rank == 0) == (node.choice.logprob >= listed[0] - 1e-12)


def test_a_beam_keeps_as_many_hypotheses_as_it_is_wide() -> None:
    tree = trace("rope-concat", Beam(3, nbest=3), [7, 12, 9, 6, 15])
    for depth in range(2, 1 + max(node.depth for node in tree.nodes)):
        running = [node for node in tree.nodes if node.depth == depth and not node.ended]
        assert len(running) == 3
        assert len({(node.parent, node.choice.id) for node in running}) == 3


def test_sampling_draws_from_the_probabilities_that_the_trace_says() -> None:
    temperature, top_k = 0.7, 5
    strategy = Sample(seed=2, temperature=temperature, top_k=top_k)
    source = [7, 12, 9, 6]
    tree = trace("rope-concat", strategy, source)
    logits_nv = next_logits("rope-concat", source, [choice.id for choice in tree.best])
    for choice, logits_v in zip(tree.best, logits_nv, strict=False):
        top = (logits_v / temperature).topk(top_k)
        expected = dict(zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True))
        assert choice.drawn is not None
        assert choice.drawn > 0
        for one in choice.alternatives:
            assert one.drawn == pytest.approx(expected.get(one.id, 0.0), abs=1e-4)


@each_strategy
def test_steps_are_reported_as_they_are_searched(strategy: Strategy) -> None:
    reported: list[Node] = []
    model = ending_models.ending_translator("rope-concat")
    traced = TracedSearch([model], strategy, on_step=reported.extend)
    tree = traced.trace_source([7, 12, 9, 6], max_ratio=1.0, max_extra=EXTRA)
    assert reported == tree.nodes


def test_an_exception_of_the_callback_ends_the_search() -> None:
    steps: list[int] = []

    def stop_at_two(nodes: Sequence[Node]) -> None:
        steps.append(nodes[0].depth)
        if len(steps) == 2:
            raise InterruptedError

    model = ending_models.ending_translator("rope-concat")
    traced = TracedSearch([model], Beam(3), on_step=stop_at_two)
    with pytest.raises(InterruptedError):
        traced.trace_source([7, 12, 9, 6])
    assert steps == [1, 2]


def test_a_trace_is_of_one_input() -> None:
    model = ending_models.ending_translator("rope-concat")
    with pytest.raises(ValueError, match="one input"):
        TracedSearch([model], Greedy()).translate([ids.tolist() for ids in texts([3, 4])])


# ---------------------------------------------------------------------------- forced prefixes


@some_models
@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=5, temperature=1.5)])
def test_forcing_what_a_search_chose_changes_nothing(variant: str, strategy: Strategy) -> None:
    for source in ([7, 12, 9, 6, 15], [11, 5]):
        (one,) = search(variant, strategy, source)
        for length in {1, len(one.ids) // 2, len(one.ids)}:
            (forced,) = search(variant, force_prefix(strategy, one.ids[:length]), source)
            assert (forced.ids, forced.cut) == (one.ids, one.cut)
            assert forced.logprob == pytest.approx(one.logprob, abs=1e-5)
            assert forced.score == pytest.approx(one.score, abs=1e-5)


@some_models
@pytest.mark.parametrize("width", [1, 3])
@settings(max_examples=3)
@given(source=sources, prefix=st.lists(st.integers(5, 20), min_size=1, max_size=4))
def test_a_forced_continuation_is_that_of_the_plain_search(
    variant: str, width: int, source: list[int], prefix: list[int]
) -> None:
    """The plain search, where all tokens but the prefix's have probability 0 there."""
    model = ending_models.ending_translator(variant)
    logprobs = plain.translation_logprobs(model, source)

    def forced_logprobs(ids: list[int]) -> Tensor:
        logprobs_v = logprobs(ids)
        if len(ids) >= len(prefix):
            return logprobs_v
        forced_v = torch.full_like(logprobs_v, -torch.inf)
        forced_v[prefix[len(ids)]] = logprobs_v[prefix[len(ids)]]
        return forced_v

    limit = len(source) + EXTRA
    beam = Beam(width, nbest=width)
    forced = search(variant, force_prefix(beam, prefix), source)
    expected = plain.beam_search(forced_logprobs, width, limit)
    expected = [one for one in expected if one.score > -math.inf]
    assert [(one.ids, one.cut) for one in forced] == [(one.ids, one.cut) for one in expected]
    for one, other in zip(forced, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


@each_strategy
@pytest.mark.parametrize("bucketed", [False, True])
def test_a_prefix_is_forced_in_every_input_of_a_batch(strategy: Strategy, bucketed: bool) -> None:
    """Also with the bucketed sizes of the decode state that a GPU has."""
    sources, prefix = [[7, 12, 9, 6, 15], [11, 5], [8, 8, 13]], [9, 7]
    model = ending_models.ending_translator("rope-concat")
    forced = Search([model], force_prefix(strategy, prefix), batch_size=3)
    forced.sizes = StateSizes(bucketed=bucketed)
    together = forced.translate(sources, max_ratio=1.0, max_extra=EXTRA)
    for number, (source, hypotheses) in enumerate(zip(sources, together, strict=True)):
        alone = Search([model], force_prefix(strategy, prefix))
        (expected,) = alone.translate([source], max_ratio=1.0, max_extra=EXTRA, numbers=[number])
        assert all(one.ids[:2] == prefix for one in hypotheses)
        assert [one.score for one in hypotheses] == pytest.approx(
            [one.score for one in expected], abs=1e-5
        )


@each_strategy
def test_a_prefix_may_end_the_output(strategy: Strategy) -> None:
    best = trace("rope-concat", force_prefix(strategy, [7, 9, EOS]), [11, 5, 8])
    assert [one.ids for one in best.hypotheses] == [[7, 9]] * len(best.hypotheses)
    assert not best.hypotheses[0].cut
    assert max(node.depth for node in best.nodes) == 3


def test_an_empty_prefix_is_no_prefix() -> None:
    strategy = Greedy()
    assert force_prefix(strategy, []) is strategy


def test_a_language_model_continues_a_forced_prefix() -> None:
    model = ending_models.ending_language_model("rope-concat")
    prompt, prefix = [BOS, 8, 6], [12, 7]
    traced = TracedSearch([model], force_prefix(Greedy(), prefix)).trace_prompt(
        prompt, max_tokens=9
    )
    expected = plain.greedy_search(plain.continuation_logprobs(model, [*prompt, *prefix]), 7)
    assert traced.hypotheses[0].ids == [*prefix, *expected.ids]
