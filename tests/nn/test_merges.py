"""Each merge against a plain statement of it, and what a norm over more than a token gives away."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import (
    CLASSES,
    DTYPES,
    TOLERANCE,
    VOCAB,
    apart,
    new_classifier,
    new_language_model,
    padded,
    texts,
    tiny,
)
from torch import Tensor, nn

from heed.config import MERGES
from heed.errors import ConfigError
from heed.models import build
from heed.nn.merges import NORM_AXES, Merge, Reweight, Shift, Shuffle, build_merge

shapes = st.tuples(*(st.integers(1, top) for top in (3, 5, 4, 4)))


def heads_of(shape: tuple[int, int, int, int], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def side_by_side(heads: Tensor, order: list[int] | None = None) -> Tensor:
    """The heads of each token, one after another, in the order given."""
    b, h, n, d = heads.shape
    out = torch.empty(b, n, h * d)
    for place, head in enumerate(order or range(h)):
        out[:, :, place * d : (place + 1) * d] = heads[:, head]
    return out


@given(shapes)
def test_concat_puts_heads_side_by_side(shape: tuple[int, int, int, int]) -> None:
    heads = heads_of(shape)
    assert torch.equal(Merge()(heads), side_by_side(heads))


@given(shapes)
def test_shift_gives_each_head_the_place_of_the_next(shape: tuple[int, int, int, int]) -> None:
    heads = heads_of(shape)
    h = shape[1]
    assert torch.equal(Shift()(heads), side_by_side(heads, [(i - 1) % h for i in range(h)]))


@given(shapes, st.integers(0, 1000))
def test_shuffle_keeps_heads_whole(shape: tuple[int, int, int, int], seed: int) -> None:
    """Some one order of the heads, the same for all tokens and rows; the same seed, the same."""
    heads = heads_of(shape)
    torch.manual_seed(seed)
    out = Shuffle()(heads)
    orders = permutations(range(shape[1]))
    assert any(torch.equal(out, side_by_side(heads, list(order))) for order in orders)
    torch.manual_seed(seed)
    assert torch.equal(Shuffle()(heads), out)


def test_shuffle_draws_every_order_equally_often() -> None:
    torch.manual_seed(0)
    heads = torch.arange(3.0)[None, :, None, None]
    draws = 600
    found = Counter(tuple(Shuffle()(heads).flatten().tolist()) for _ in range(draws))
    assert len(found) == math.factorial(3)
    # Five standard deviations of a binomial count.
    spread = 5 * math.sqrt(draws / 6 * 5 / 6)
    assert all(abs(count - draws / 6) < spread for count in found.values())


@given(shapes, st.integers(0, 1000))
def test_shuffle_at_inference_is_the_mean_over_all_orders(
    shape: tuple[int, int, int, int], seed: int
) -> None:
    """Of what the output layer makes of the heads, which is what the next layer reads."""
    heads = heads_of(shape, seed)
    torch.manual_seed(seed)
    out = nn.Linear(shape[1] * shape[3], 5)
    outputs = [out(side_by_side(heads, list(order))) for order in permutations(range(shape[1]))]
    expected = torch.stack(outputs).mean(dim=0)
    assert torch.allclose(out(Shuffle().eval()(heads)), expected, atol=1e-5)


@pytest.mark.parametrize("merge", MERGES)
def test_inference_draws_nothing(merge: str) -> None:
    """The same answer twice, and a training generator that evaluation leaves where it was."""
    ids = torch.stack(texts([7, 7]))
    model = new_language_model(merge=merge)
    before = torch.get_rng_state()
    assert torch.equal(model(ids), model(ids))
    assert torch.equal(torch.get_rng_state(), before)


def stated_share(heads: Tensor, real: Tensor, over: str, cell: tuple[int, int, int]) -> float:
    """‖head‖ / Σ ‖heads‖ with the norm over the token, its sequence, or the whole batch."""
    row, head, token = cell
    b, h, n, _ = heads.shape
    rows = range(b) if over == "batch" else [row]
    tokens = [token] if over == "token" else range(n)
    counted = [(r, t) for r, t in product(rows, tokens) if real[r, t]]
    norms = [
        math.hypot(*(x for r, t in counted for x in heads[r, i, t].tolist())) for i in range(h)
    ]
    return norms[head] / sum(norms)


@pytest.mark.parametrize("over", NORM_AXES)
@given(shapes, st.integers(0, 1000), st.booleans())
def test_reweight_scales_each_head_by_its_share(
    over: str, shape: tuple[int, int, int, int], seed: int, hides: bool
) -> None:
    heads = heads_of(shape, seed)
    b, h, n, d = shape
    real = torch.ones(b, n, dtype=torch.bool)
    if hides:
        real = torch.rand(b, n, generator=torch.Generator().manual_seed(seed)) < 0.6
        real[:, 0] = True
    out = Reweight(over=over)(heads, real if hides else None).unflatten(2, (h, d))
    for row, head, token in product(range(b), range(h), range(n)):
        if real[row, token]:
            share = stated_share(heads, real, over, (row, head, token))
            expected = share * heads[row, head, token]
            assert torch.allclose(out[row, token, head], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("over", NORM_AXES)
def test_reweight_of_heads_that_are_zeros_has_a_gradient(over: str) -> None:
    """A query that sees nothing gives zeros, whose norm has no slope of its own."""
    heads = heads_of((2, 3, 4, 2))
    heads[0] = 0.0
    heads[1, 1] = 0.0
    heads.requires_grad_()
    out = Reweight(over=over)(heads)
    (slope,) = torch.autograd.grad(out.square().sum() + out.sum(), heads)
    assert out.isfinite().all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("merge", MERGES)
def test_a_merge_for_training_only_is_concat_otherwise(merge: str) -> None:
    heads = heads_of((2, 4, 3, 2))
    always = build_merge(tiny(merge=merge))
    only = build_merge(tiny(merge=merge, merge_when="training"))
    for training in (True, False):
        results = []
        for module in (always, only):
            torch.manual_seed(3)
            results.append(module.train(training)(heads))
        expected = results[0] if training else side_by_side(heads)
        assert torch.equal(results[1], expected)


@pytest.mark.parametrize("merge", [merge for merge in MERGES if merge != "concat"])
def test_a_model_uses_its_configured_merge(merge: str) -> None:
    """The same weights answer otherwise under another merge, in training only if configured."""
    ids = torch.stack(texts([7, 7]))
    plain = new_language_model()
    always = new_language_model(merge=merge)
    only = new_language_model(merge=merge, merge_when="training")
    assert apart(always(ids), plain(ids)) > 1e-2
    assert torch.equal(only(ids), plain(ids))
    torch.manual_seed(1)
    trained = always.train()(ids)
    assert apart(trained, plain(ids)) > 1e-2
    torch.manual_seed(1)
    assert torch.equal(only.train()(ids), trained)


# ---------------------------------------------------------------------------------------- leaks


def change_last(ids: Tensor) -> Tensor:
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    return changed


@pytest.mark.parametrize("dtype", DTYPES)
def test_reweight_over_a_sequence_leaks_the_future(dtype: torch.dtype) -> None:
    ids = torch.stack(texts([8]))
    leaky = new_language_model(dtype=dtype, merge="reweight", reweight_over="sequence", leaky=True)
    before, after = leaky(ids)[:, :-1], leaky(change_last(ids))[:, :-1]
    assert apart(after, before) > 1e-3
    sound = new_language_model(dtype=dtype, merge="reweight", reweight_over="token")
    assert torch.equal(sound(ids)[:, :-1], sound(change_last(ids))[:, :-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_reweight_over_a_batch_leaks_the_neighbours(dtype: torch.dtype) -> None:
    ids = torch.stack(texts([8, 8]))
    other = ids.clone()
    other[1] = texts([8], seed=5)[0]
    leaky = new_language_model(dtype=dtype, merge="reweight", reweight_over="batch", leaky=True)
    assert apart(leaky(other)[0], leaky(ids)[0]) > 1e-3
    for over in ("token", "sequence"):
        kept = new_language_model(dtype=dtype, merge="reweight", reweight_over=over, leaky=True)
        assert torch.equal(kept(other)[0], kept(ids)[0])


@pytest.mark.parametrize("over", ["sequence", "batch"])
@pytest.mark.parametrize("task", ["generate", "translate"])
def test_a_causal_model_refuses_a_leak_unless_leaky(task: str, over: str) -> None:
    changes: dict[str, Any] = {"merge": "reweight", "reweight_over": over}
    with pytest.raises(ConfigError, match="leaky = true") as caught:
        build(task, tiny(**changes), vocab=VOCAB)
    assert len(caught.value.complaints) == 1
    build(task, tiny(**changes, leaky=True), vocab=VOCAB)


@pytest.mark.parametrize("over", ["token", "sequence", "batch"])
def test_a_classifier_may_look_at_the_whole_text(over: str) -> None:
    build("classify", tiny(merge="reweight", reweight_over=over), vocab=VOCAB, classes=CLASSES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", ["token", "sequence"])
def test_padding_does_not_change_the_norm(over: str, dtype: torch.dtype) -> None:
    rows = texts([3, 7, 5])
    ids, mask = padded(rows, left=[0, 1, 4], right=2)
    classifier = new_classifier(dtype=dtype, merge="reweight", reweight_over=over)
    alone = torch.cat([classifier(row[None]) for row in rows])
    assert apart(classifier(ids, mask=mask), alone) <= TOLERANCE[dtype]
    reader = new_language_model(dtype=dtype, merge="reweight", reweight_over=over, leaky=True)
    together = reader(ids, mask=mask)
    for i, row in enumerate(rows):
        assert apart(together[i, mask[i]], reader(row[None])[0]) <= TOLERANCE[dtype]


def test_padding_does_not_change_the_norm_of_a_batch() -> None:
    rows = texts([6, 6])
    model = new_classifier(merge="reweight", reweight_over="batch")
    ids, mask = padded(rows, left=[3, 0], right=2)
    assert apart(model(ids, mask=mask), model(torch.stack(rows))) <= 1e-5
