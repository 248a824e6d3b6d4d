"""Runs of tokens: each is numbered alike wherever it stands, and only what is real counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import VOCAB, apart, new_classifier, padded, texts, tiny
from torch import Tensor

from heed.errors import ConfigError
from heed.models import build, holding
from heed.nn.grams import BASE, PRIME, Grams, runs

ids_of = st.lists(st.integers(0, 250_000), min_size=1, max_size=12)


def grams(lengths: int = 3, share: float = 0.0) -> Grams:
    """With vectors that differ."""
    module = Grams(tiny(ngrams=lengths, ngram_buckets=997, ngram_dropout=share))
    torch.nn.init.normal_(module.table.weight)
    return module


def by_hand(module: Grams, ids: list[int]) -> Tensor:
    """The sum over all runs, one at a time."""
    total = torch.zeros(module.table.embedding_dim)
    for size in range(1, module.lengths + 1):
        for start in range(len(ids) - size + 1):
            run = reversed(ids[start : start + size])
            number = sum((id_ + 1) * BASE**place for place, id_ in enumerate(run)) % PRIME
            total += module.table.weight[number % module.table.num_embeddings]
    return total / len(ids) ** 0.5


@given(ids=ids_of, lengths=st.integers(1, 9))
@torch.no_grad()
def test_a_text_is_the_sum_of_its_runs(ids: list[int], lengths: int) -> None:
    module = grams(lengths)
    assert apart(module(torch.tensor([ids]))[0], by_hand(module, ids)) <= 1e-4


@given(ids=ids_of, left=st.integers(0, 4), right=st.integers(0, 4), filler=st.integers(0, 99))
@torch.no_grad()
def test_padding_moves_nothing(ids: list[int], left: int, right: int, filler: int) -> None:
    module = grams()
    row = torch.tensor([[filler] * left + ids + [filler] * right])
    mask = torch.tensor([[False] * left + [True] * len(ids) + [False] * right])
    assert apart(module(row, mask), module(torch.tensor([ids]))) <= 1e-4


def test_no_run_looks_ahead_or_over_a_gap() -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    numbers, whole = runs(ids, torch.tensor([[True, True, False, True]]), 2)
    later, _ = runs(torch.tensor([[5, 6, 9, 9]]), torch.ones(1, 4, dtype=torch.bool), 2)
    assert torch.equal(numbers[..., :2], later[..., :2])
    assert whole.tolist() == [[[True, True, False, True], [False, True, False, False]]]


def test_order_within_a_run_counts() -> None:
    pairs = torch.cartesian_prod(torch.arange(200), torch.arange(200))
    numbers, _ = runs(pairs, torch.ones_like(pairs, dtype=torch.bool), 2)
    assert len(numbers[:, 1, 1].unique()) == len(pairs)


def test_nothing_real_gives_zeros_and_finite_slopes() -> None:
    module = grams()
    out = module(torch.tensor([[1, 2]]), torch.zeros(1, 2, dtype=torch.bool))
    out.sum().backward()
    assert not out.any()
    slope = module.table.weight.grad
    assert slope is not None
    assert slope.isfinite().all()


def test_runs_are_left_out_in_training_alone_and_on_average_not_at_all() -> None:
    torch.manual_seed(0)
    module, ids = grams(share=0.5), torch.arange(6)[None]
    drawn = module(ids.expand(4000, -1))
    module.eval()
    whole = module(ids)
    assert torch.equal(whole, module(ids))
    assert drawn.std(dim=0).min() > 0
    error = drawn.std(dim=0) / len(drawn) ** 0.5
    assert ((drawn.mean(dim=0) - whole[0]).abs() < 5 * error).all()


@torch.no_grad()
def test_a_fresh_classifier_says_what_it_would_without() -> None:
    config = tiny(ngrams=4, ngram_buckets=50)
    torch.manual_seed(1)
    model = build("classify", config, vocab=VOCAB, classes=3).eval()
    state = {name: t for name, t in model.state_dict().items() if not name.startswith("grams")}
    without = holding(state, "classify", tiny()).eval()
    ids, mask = padded(texts([5, 3]), left=[0, 0])
    assert torch.equal(model(ids, mask=mask), without(ids, mask=mask))


@pytest.mark.parametrize("family", ["transformer", "lstm"])
@torch.no_grad()
def test_a_classifier_reads_them_and_traces_alike(family: str) -> None:
    model = new_classifier(ngrams=3, ngram_buckets=101, family=family, classifier_hidden=6)
    assert model.grams is not None
    ids, mask = padded(texts([7, 4]), left=[0, 2])
    said = model(ids, mask=mask)
    assert apart(model.trace(ids, mask=mask).logits, said) <= 1e-5
    model.grams.table.weight.zero_()
    assert apart(model(ids, mask=mask), said) > 1e-4


@pytest.mark.parametrize("task", ["generate", "translate"])
def test_others_have_none(task: str) -> None:
    with pytest.raises(ConfigError, match="ngrams"):
        build(task, tiny(ngrams=2), vocab=VOCAB)


@pytest.mark.parametrize("pooling", ["mean", "first", "max", "attention"])
@torch.no_grad()
def test_a_classifier_reads_in_16_bits(pooling: str) -> None:
    model = new_classifier(ngrams=3, ngram_buckets=101, pooling=pooling)
    ids, mask = padded(texts([7, 4]), left=[0, 2])
    with torch.autocast("cpu", torch.bfloat16):
        said = model(ids, mask=mask)
    assert apart(said.float(), model(ids, mask=mask)) <= 0.1 * model(ids, mask=mask).abs().max()
