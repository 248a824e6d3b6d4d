"""Edits of attention: exact, in every pass, for every model, and gone after their context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from decode import ending_models
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    FEW,
    VARIANTS,
    apart,
    assert_weights,
    classifier,
    language_model,
    new_classifier,
    new_translator,
    padded,
    texts,
    translator,
)
from torch import Tensor

import heed
from heed.data.tokenizers.special_tokens import BOS
from heed.decode import plain
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.errors import ConfigError
from heed.models import Model, Translator
from heed.nn.attention import has_head_edits
from heed.probe.patch import (
    PATTERNS,
    ZERO,
    Edit,
    Head,
    HeadWeights,
    edit_attention,
    list_heads,
    parse_head,
    parse_heads,
    record_head_means,
)

SOURCES = [ids.tolist() for ids in texts([5, 1, 8, 3])]
SOURCE_BM, REAL_BM = padded(texts([5, 2, 7]), left=[1, 3, 0], right=2)
TARGET_BN, TARGET_REAL = padded(texts([4, 6, 3], seed=1), left=[2, 0, 1])
EDITS: list[Edit] = [*PATTERNS, ZERO, torch.rand(6, 6, generator=torch.manual_seed(0))]


def other(model: Model) -> dict[tuple[str, int, int], Edit]:
    """A different edit for every other head."""
    return {head: EDITS[i % len(EDITS)] for i, head in enumerate(list_heads(model)[::2])}


def translate_padded(model: Translator) -> Tensor:
    return model(SOURCE_BM, TARGET_BN, mask=REAL_BM, target_mask=TARGET_REAL)


# ------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("variant", [*FEW, "rope-reweight", "alibi-shift", "t5-shuffle"])
def test_a_models_own_weights_change_nothing(variant: str) -> None:
    """Every head's weights given as an array: the logits are those of the model."""
    model = translator(variant)
    source, target = (ids[None] for ids in texts([6, 5]))
    with torch.no_grad():
        trace = model.trace(source, target)
        edits = {h: getattr(trace, h.kind)[h.layer][0, h.head] for h in list_heads(model)}
        with edit_attention(model, edits):
            edited = model(source, target)
            again = model.trace(source, target)
    assert apart(edited, trace.logits) <= 1e-5
    assert apart(again.cross[0], trace.cross[0]) <= 1e-6


@pytest.mark.parametrize("variant", [*FEW, "rope-reweight", "alibi-shift", "t5-shuffle"])
def test_edited_weights_are_those_that_a_trace_shows(variant: str) -> None:
    model = translator(variant)
    heads = list_heads(model)
    with torch.no_grad(), edit_attention(model, dict.fromkeys(heads, "uniform")):
        masks = {"mask": REAL_BM, "target_mask": TARGET_REAL}
        trace = model.trace(SOURCE_BM, TARGET_BN, **masks)
        assert apart(translate_padded(model), trace.logits) <= 1e-5
    keys = {"encoder": REAL_BM, "decoder": TARGET_REAL, "cross": REAL_BM}
    for kind, layer, head in heads:
        weights_bnm = getattr(trace, kind)[layer][:, head]
        visible = keys[kind][:, None].expand_as(weights_bnm)
        visible = visible.tril() if kind == "decoder" else visible
        assert_weights(weights_bnm[:, None], visible)
        wanted = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        assert torch.allclose(weights_bnm, wanted, atol=1e-6)


@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "shaw-values", "grouped"])
def test_a_silent_head_is_one_without_its_columns_of_the_output(variant: str) -> None:
    model, head = new_classifier(**VARIANTS[variant]), Head("encoder", 1, 2)
    with torch.no_grad():
        with edit_attention(model, {head: ZERO}):
            silenced = model(SOURCE_BM, mask=REAL_BM)
        attention: Any = model.get_submodule("stack.blocks.1.attention")
        attention.out.weight[:, 2 * attention.head_width : 3 * attention.head_width] = 0
        assert apart(silenced, model(SOURCE_BM, mask=REAL_BM)) <= 1e-5


def test_patterns_select_the_key_they_name() -> None:
    model = language_model("rope-concat")
    (ids,) = texts([5])
    columns = {
        "first": [0, 0, 0, 0, 0],
        "last": [0, 1, 2, 3, 4],
        "diagonal": [0, 1, 2, 3, 4],
        "previous": [0, 0, 1, 2, 3],
        "next": [0, 1, 2, 3, 4],  # hidden from a causal model: the nearest it sees
    }
    for pattern, wanted in columns.items():
        with torch.no_grad(), edit_attention(model, {("decoder", 0, 1): pattern}):
            weights_nm = model.trace(ids[None]).decoder[0][0, 1]
        assert weights_nm.argmax(-1).tolist() == wanted
        assert weights_nm.sum(-1).tolist() == [1.0] * 5


@settings(max_examples=10)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_weights_of_another_sentence_keep_their_sum(n: int, m: int, seed: int) -> None:
    """What falls on keys that this sentence lacks is shared out over the others."""
    model, source_bm = translator("none-concat"), texts([4])[0][None]
    given_nm = torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) + 0.1
    target_bn = texts([5])[0][None]
    with torch.no_grad():
        plain_nm = model.trace(source_bm, target_bn).cross[0][0, 0]
        with edit_attention(model, {("cross", 0, 0): given_nm.numpy()}):
            weights_nm = model.trace(source_bm, target_bn).cross[0][0, 0]
    rows, columns = min(n, 5), min(m, 4)
    assert torch.equal(weights_nm[rows:], plain_nm[rows:])
    assert torch.allclose(weights_nm[:rows].sum(-1), given_nm[:rows].sum(-1))
    share = given_nm[:rows, :columns] / given_nm[:rows, :columns].sum(-1, keepdim=True)
    assert torch.allclose(weights_nm[:rows, :columns], share * given_nm[:rows].sum(-1)[:, None])
    assert (weights_nm[:rows, columns:] == 0).all()


def test_a_function_edits_weights_and_never_shows_hidden_keys() -> None:
    model = translator("alibi-concat")

    def sharpen(head: HeadWeights) -> Tensor:
        assert head.weights_bnm.shape == head.visible_bnm.shape
        return head.weights_bnm**2 + 1

    with torch.no_grad(), edit_attention(model, {("decoder", 0, 3): sharpen}):
        weights = model.trace(SOURCE_BM, TARGET_BN, target_mask=TARGET_REAL).decoder[0][:, 3]
    visible = TARGET_REAL[:, None].expand_as(weights).tril()
    assert (weights[visible] >= 1).all()
    assert (weights[~visible] == 0).all()


# -------------------------------------------------------------------------------------- decoding


BEAM = Beam(3, nbest=1)


@pytest.mark.parametrize(
    ("variant", "strategy"),
    [*((name, Greedy()) for name in FEW), *((name, BEAM) for name in ("t5-concat", "lstm"))],
)
def test_decoding_with_a_cache_sees_every_edit(variant: str, strategy: Greedy | Beam) -> None:
    """The search, its cells and its cache, against a pass over the whole prefix for each token."""
    model = ending_models.ending_translator(variant)
    search = Search([model], strategy, batch_size=2)
    unedited = search.translate(SOURCES, max_ratio=1.0, max_extra=4)
    with edit_attention(model, other(model)):
        results = search.translate(SOURCES, max_ratio=1.0, max_extra=4)
        for source, (one, *_) in zip(SOURCES, results, strict=True):
            logprobs = plain.translation_logprobs(model, source)
            if isinstance(strategy, Greedy):
                expected = plain.greedy_search(logprobs, len(source) + 4)
            else:
                expected = plain.beam_search(logprobs, 3, len(source) + 4)[0]
            assert one.ids == expected.ids
            assert abs(one.logprob - expected.logprob) <= 1e-4
    assert [r[0].logprob for r in results] != [r[0].logprob for r in unedited]
    assert search.translate(SOURCES, max_ratio=1.0, max_extra=4) == unedited


@pytest.mark.parametrize("variant", ["rope-concat", "alibi-concat", "shaw-values", "grouped"])
def test_generation_with_a_cache_sees_every_edit(variant: str) -> None:
    model = ending_models.ending_language_model(variant)
    prompts = [[BOS, *ids.tolist()] for ids in texts([3, 5], seed=4)]
    with edit_attention(model, other(model)):
        results = Search([model], Greedy()).generate(prompts, max_tokens=6)
        for prompt, (one,) in zip(prompts, results, strict=True):
            expected = plain.greedy_search(plain.continuation_logprobs(model, prompt), 6)
            assert one.ids == expected.ids
            assert abs(one.logprob - expected.logprob) <= 1e-4


# --------------------------------------------------------------------------- nothing left behind


def test_nothing_remains_after_the_context_or_an_exception() -> None:
    model = classifier("t5-concat")
    before, state = model(SOURCE_BM, mask=REAL_BM), model.state_dict()
    with edit_attention(model, other(model)):
        assert has_head_edits(model)
        assert model.state_dict().keys() == state.keys()
        assert not torch.equal(model(SOURCE_BM, mask=REAL_BM), before)

    def fail(head: HeadWeights) -> Tensor:
        raise RuntimeError("in the middle of a pass")

    with (
        pytest.raises(RuntimeError, match="in the middle"),
        edit_attention(model, {("encoder", 1, 0): fail}),
    ):
        model(SOURCE_BM, mask=REAL_BM)
    assert not has_head_edits(model)
    assert torch.equal(model(SOURCE_BM, mask=REAL_BM), before)


def test_a_pipeline_is_no_model() -> None:
    pipeline: Any = object()
    with (
        pytest.raises(ConfigError, match=r"pass \.model of what heed\.load returns"),
        edit_attention(pipeline, {("cross", 0, 0): ZERO}),
    ):
        raise AssertionError("unreachable")


def test_a_wrong_edit_among_right_ones_sets_none() -> None:
    model = classifier("none-concat")
    with (
        pytest.raises(ConfigError, match="uniform"),
        edit_attention(model, {("encoder", 0, 0): ZERO, ("encoder", 1, 0): "unifrom"}),
    ):
        raise AssertionError("unreachable")
    assert not has_head_edits(model)


def test_contexts_nest_and_the_inner_edit_is_last() -> None:
    model, first, second = classifier("none-concat"), ("encoder", 0, 0), ("encoder", 0, 1)
    with torch.no_grad():
        with edit_attention(model, {first: "first", second: "last"}):
            both = model(SOURCE_BM)
            with edit_attention(model, {second: "uniform"}):
                inner = model(SOURCE_BM)
            assert torch.equal(model(SOURCE_BM), both)
        with edit_attention(model, {first: "first", second: "uniform"}):
            assert torch.equal(model(SOURCE_BM), inner)


def test_gradients_flow_around_an_edited_head() -> None:
    model = new_classifier(attention_dropout=0.1, dropout=0.1).train()
    with edit_attention(model, {("encoder", 0, 0): "uniform"}):
        model(SOURCE_BM, mask=REAL_BM).sum().backward()
    attention: Any = model.get_submodule("stack.blocks.0.attention")
    rows = attention.qkv.weight.grad.unflatten(0, (3, 4, -1))
    assert (rows[:2, 0] == 0).all()  # queries and keys of the head no longer count, its values do
    assert rows[2, 0].abs().sum() > 0
    assert rows[0, 1].abs().sum() > 0


# ------------------------------------------------------------------------------------- the means


@pytest.mark.parametrize("variant", ["rope-concat", "shaw-values", "lstm"])
def test_means_are_over_real_tokens_alone(variant: str) -> None:
    model, rows = new_translator(**VARIANTS[variant]), texts([4, 6, 3], seed=1)
    with torch.no_grad():
        with record_head_means(model) as padded_means:
            before = translate_padded(model)
        with record_head_means(model) as single_means:
            for source, target in zip(texts([5, 2, 7]), rows, strict=True):
                model(source[None], target[None])
        for head, mean_d in padded_means.means().items():
            assert apart(mean_d, single_means.means()[head]) <= 1e-5
        with edit_attention(model, padded_means.means()):
            assert not torch.equal(translate_padded(model), before)
        assert torch.equal(translate_padded(model), before)


# ------------------------------------------------------------------------------- names and errors


def test_heads_are_named_from_one() -> None:
    model = translator("none-concat")
    assert parse_head("cross.2.3", model) == ("cross", 1, 2)
    assert parse_head("2.3", classifier("none-concat")) == ("encoder", 1, 2)
    for head in list_heads(model):
        assert parse_head(head.label, model) == head
    assert parse_heads("cross.2.*", model) == [("cross", 1, head) for head in range(4)]
    assert parse_heads("decoder.*.*", model) == [h for h in list_heads(model) if h[0] == "decoder"]
    assert parse_heads("*.1", classifier("none-concat")) == [("encoder", i, 0) for i in range(2)]
    assert parse_heads("cross.1.1", model) == [("cross", 0, 0)]
    assert list_heads(new_translator(family="lstm")) == [("cross", 0, 0)]
    assert list_heads(classifier("lstm")) == []


@pytest.mark.parametrize(
    "name", ["", "1", "2.3", "cross.1", "cross.x.1", "cross.1.1.1", "..", "1.²"]
)
def test_what_names_no_head_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names no head: write kind"):
        parse_head(name, translator("none-concat"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cros.1.1", "Did you mean 'cross'"),
        ("decoder.3.1", "layers 1 to 2"),
        ("decoder.0.1", "layers 1 to 2"),
        ("decoder.2.5", "heads 1 to 4"),
    ],
)
def test_a_head_that_is_not_there_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_head(name, translator("none-concat"))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("previuos", "Did you mean 'previous'"),
        (torch.rand(2, 3, 3), "not of shape 2×3×3"),
        (torch.rand(5), "an output of 4 numbers"),
        (np.full((2, 2), np.nan), "finite real numbers"),
        (torch.ones(2, 2, dtype=torch.long), "finite real numbers"),
        (lambda head: head.weights_bnm[:, :1], "returned weights of shape"),
    ],
)
def test_what_is_no_edit_is_refused(edit: Edit, says: str) -> None:
    model: Callable[..., Tensor] = classifier("none-concat")
    with (
        pytest.raises(ConfigError, match=says),
        heed.edit_attention(classifier("none-concat"), {("encoder", 0, 0): edit}),
    ):
        model(SOURCE_BM)
