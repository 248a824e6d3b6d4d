"""The stack as a course writes it, against the models: the same vectors and the same weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import POSITIONS, all_apart, apart, fresh, gradients, packed, padded, texts
from torch import Tensor

from heed.config import MERGES
from heed.models import Model
from heed.models.trace import Trace
from heed.models.translator import Translator
from heed.nn.kernels.linear import ACTIVATIONS
from heed.nn.plain import run_stack
from heed.nn.stack import Stack
from heed.nn.tokens import StackOutput, Tokens

TASKS = ("translate", "classify", "generate")
NORM_PLACES, NORMS = ("pre", "post"), ("layer", "rms")
EXTRAS: dict[str, dict[str, Any]] = {
    "shaw-values": {"position": "shaw", "shaw_values": True},
    "grouped": {"position": "rope", "kv_heads": 2},
    "one-group": {"position": "shaw", "kv_heads": 1, "merge": "reweight"},
    "qk-norm": {"qk_norm": True, "bias": False, "scale": 0.3},
    "wide-heads": {"position": "t5", "head_width": 6, "tie_embeddings": False},
    "embedding-norm": {"position": "learned", "embedding_norm": True, "embedding_scale": 2.0},
    "offset": {"position": "learned", "position_offset": 2},
    "halves": {"position": "sinusoidal", "sinusoids": "halves"},
    "one-layer": {"position": "shaw", "layers": 1},
    "three-layers": {"position": "shaw", "layers": 3},
}
"""What else a stack can be made of."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6}
"""How far vectors may be apart: the plain formula's softmax is in float32, whatever the dtype."""
BOTH = [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]

every_task = pytest.mark.parametrize("task", TASKS)
every_dtype = pytest.mark.parametrize("dtype", BOTH)
lengths = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@cache
def model_of(task: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    """A perturbed model that tests share; its cross-attention knows positions, too."""
    return fresh(task, dtype=dtype, cross_position=task == "translate", **changes)


class Inputs:
    """Ids and tokens for a model; a translator's source as well."""

    def __init__(self, ids: Tensor, tokens: Tokens, source: Tensor, source_tokens: Tokens) -> None:
        self.ids, self.tokens = ids, tokens
        self.source, self.source_tokens = source, source_tokens

    @classmethod
    def with_padding(cls, rows: list[int], left: list[int], *, right: int = 1) -> Inputs:
        """Rows of these lengths between padding on either side; sources in the opposite order."""
        ids, mask = padded(texts(rows), left=left, right=right)
        source, source_mask = padded(texts(rows[::-1], seed=5), left=left, right=right)
        return cls(ids, Tokens.of(ids, mask=mask), source, Tokens.of(source, mask=source_mask))

    @classmethod
    def with_segments(cls, rows: list[int]) -> Inputs:
        """Texts of these lengths packed into one row; sources in the opposite order."""
        ids, segments = packed(texts(rows))
        source, source_segments = packed(texts(rows[::-1], seed=5))
        tokens, source_tokens = (
            Tokens.of(x, segments=of) for x, of in ((ids, segments), (source, source_segments))
        )
        return cls(ids, tokens, source, source_tokens)

    def states(self, model: Model, *, weights: bool = False) -> list[StackOutput]:
        """The output of each stack of a model, by the model itself."""
        if not isinstance(model, Translator):
            return [model.states(self.ids, self.tokens, weights=weights)]
        encoded = model.encode(self.source, self.source_tokens, weights=weights)
        memory = encoded.x_bnw, self.source_tokens
        return [encoded, model.decode(self.ids, self.tokens, *memory, weights=weights)]

    def plain(self, model: Model) -> list[StackOutput]:
        """The output of each stack of a model, as a course computes it."""
        if not isinstance(model, Translator):
            assert isinstance(model.stack, Stack)
            return [run_stack(model.stack, model.embedding, self.ids, self.tokens)]
        assert isinstance(model.encoder, Stack)
        assert isinstance(model.decoder, Stack)
        source_embedding = model.source_embedding or model.embedding
        encoded = run_stack(model.encoder, source_embedding, self.source, self.source_tokens)
        decoded = run_stack(
            model.decoder,
            model.embedding,
            self.ids,
            self.tokens,
            memory_bmw=encoded.x_bnw,
            memory_tokens=self.source_tokens,
        )
        return [encoded, decoded]


PADDED = Inputs.with_padding([5, 9, 3, 2, 0], left=[4, 0, 2, 1, 0])
"""Padding on either side, and a row, and a source, without any token."""
PACKED = Inputs.with_segments([4, 1, 6])


def assert_equal(model: Model, inputs: Inputs) -> None:
    """The same vectors as the model's kernels give, and all weights and vectors of its trace."""
    tolerance = TOLERANCE[next(model.parameters()).dtype]
    with torch.no_grad():
        plain, fused = inputs.plain(model), inputs.states(model)
        traced = inputs.states(model, weights=True)
    for ours, fast, theirs in zip(plain, fused, traced, strict=True):
        assert apart(ours.x_bnw, fast.x_bnw) <= tolerance
        for name in ("self_weights", "cross_weights", "hidden"):
            pairs = zip(getattr(ours, name), getattr(theirs, name), strict=True)
            assert all(apart(a, b) <= tolerance for a, b in pairs), name


# ------------------------------------------------------------------------------- the same numbers


@every_dtype
@every_task
@pytest.mark.parametrize("norm_place", NORM_PLACES)
@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_and_norm_place(
    position: str, norm_place: str, task: str, dtype: torch.dtype
) -> None:
    model = model_of(task, dtype, position=position, norm_place=norm_place)
    assert_equal(model, PADDED)
    assert_equal(model, PACKED)


@every_task
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm_place", NORM_PLACES)
@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_and_activation(norm: str, norm_place: str, activation: str, task: str) -> None:
    changes = {"norm": norm, "norm_place": norm_place, "activation": activation}
    assert_equal(model_of(task, **changes), PADDED)


@every_task
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("when", ["always", "training"])
def test_every_merge_as_at_inference(when: str, merge: str, task: str) -> None:
    model = model_of(task, merge=merge, merge_when=when)
    assert_equal(model, PADDED)
    assert_equal(model, PACKED)


@every_task
@pytest.mark.parametrize("name", EXTRAS)
def test_what_else_a_stack_is_made_of(name: str, task: str) -> None:
    assert_equal(model_of(task, **EXTRAS[name]), PADDED)
    assert_equal(model_of(task, **EXTRAS[name]), PACKED)


@every_task
@given(data=st.data())
def test_any_model_and_any_batch(task: str, data: st.DataObject) -> None:
    def draw(values: Any) -> Any:
        return data.draw(st.sampled_from(sorted(values)))

    changes = {
        "position": draw(POSITIONS),
        "norm": draw(NORMS),
        "norm_place": draw(NORM_PLACES),
        "activation": draw(ACTIVATIONS),
        "merge": draw(MERGES),
        "kv_heads": draw([1, 2, 4]),
    }
    rows = data.draw(lengths)
    left = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    right = data.draw(st.integers(1, 3))  # so that no batch is empty
    model = model_of(task, **changes)
    assert_equal(model, Inputs.with_padding(rows, left, right=right))
    if any(rows):
        assert_equal(model, Inputs.with_segments([max(1, row) for row in rows]))


@every_task
@pytest.mark.parametrize("norm_place", NORM_PLACES)
@pytest.mark.parametrize("position", POSITIONS)
def test_training_has_the_gradients_of_the_plain_formulas(
    position: str, norm_place: str, task: str
) -> None:
    """The kernels of training on a CPU, backward as well."""
    model = fresh(task, position=position, norm_place=norm_place).train()
    parameters = [
        p for name, p in model.named_parameters() if not name.startswith(("pool", "head"))
    ]
    outputs = [runs(model)[-1].x_bnw for runs in (PADDED.states, PADDED.plain)]
    fused, plain = (gradients(x_bnw, parameters) for x_bnw in outputs)
    assert apart(*outputs) <= 1e-5
    assert all_apart(fused, plain) <= 1e-5


def test_a_batch_without_padding_needs_no_tokens() -> None:
    model = model_of("translate", position="rope")
    assert isinstance(model, Translator)
    assert isinstance(model.encoder, Stack)
    assert isinstance(model.decoder, Stack)
    source, ids = (torch.stack(texts([5, 5], seed=seed)) for seed in (1, 2))
    with torch.no_grad():
        memory = run_stack(model.encoder, model.embedding, source).x_bnw
        x_bnw = run_stack(model.decoder, model.embedding, ids, memory_bmw=memory).x_bnw
        logits, expected = model.head(x_bnw), model(source, ids)
        trace: Trace = model.trace(source, ids)
    assert apart(logits, expected) <= 1e-5
    assert apart(logits, trace.logits) <= 1e-5


# ----------------------------------------------------------------------------------- what it shows


@pytest.mark.parametrize("position", POSITIONS)
def test_no_causal_vector_moves_when_the_future_changes(position: str) -> None:
    model = model_of("generate", position=position)
    assert isinstance(model.stack, Stack)
    ids, changed = texts([8])[0][None], texts([8])[0][None].clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 23
    with torch.no_grad():
        before, after = (run_stack(model.stack, model.embedding, x) for x in (ids, changed))
    assert torch.equal(before.x_bnw[:, :5], after.x_bnw[:, :5])
    assert not torch.equal(before.x_bnw[:, 5:], after.x_bnw[:, 5:])
    for weights_bhnm in before.self_weights:
        assert (weights_bhnm.triu(1) == 0).all()
        torch.testing.assert_close(weights_bhnm.sum(dim=-1), torch.ones(1, 4, 8))


def test_padding_and_other_segments_get_no_weight() -> None:
    with torch.no_grad():
        (padded_out,) = PADDED.plain(model_of("classify", position="t5"))
        (packed_out,) = PACKED.plain(model_of("classify", position="t5"))
    real_bn, segments_bn = PADDED.tokens.real_bn, PACKED.tokens.segments_bn
    assert real_bn is not None
    assert segments_bn is not None
    hidden = ~real_bn[:, None, None, :]
    apart_bnm = segments_bn[:, :, None] != segments_bn[:, None, :]
    for weights_bhnm in padded_out.self_weights:
        assert (weights_bhnm.masked_select(hidden) == 0).all()
    for weights_bhnm in packed_out.self_weights:
        assert (weights_bhnm.masked_select(apart_bnm[:, None]) == 0).all()


def test_a_pruned_layer_is_refused() -> None:
    for kept in ([1, 2], []):
        model = fresh("classify", kept_heads={"encoder": [kept, [1, 2, 3, 4]]})
        with pytest.raises(ValueError, match="no pruned layers"):
            PADDED.plain(model)
