"""On a CPU that only reads: packed weights and few queries give what plain ones give."""

from __future__ import annotations

import copy

import pytest
import torch
from decode import ending_models
from hypothesis import given, settings
from hypothesis import strategies as st
from support import VARIANTS, new_translator, texts
from torch import Tensor

from heed.decode import search as searching
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.decode.strategy import Strategy
from heed.nn.attention import attend
from heed.nn.kernels.decode_attention_cpu import MAX_QUERIES, attend_decode_cpu, fits_decode_cpu
from heed.nn.kernels.prepacked_weights import prepack_weights

NEAR = 1e-5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(
    b=st.integers(1, 3),
    n=st.integers(1, 4),
    m=st.integers(1, 9),
    groups=st.integers(1, 2),
    shared=st.integers(1, 2),
    kind=st.sampled_from(["all", "mask", "bias"]),
    seed=st.integers(0, 99),
)
def test_few_queries_attend_as_the_formula_has_it(
    b: int, n: int, m: int, groups: int, shared: int, kind: str, seed: int
) -> None:
    """For any sharing of keys among queries; zeros for a query that sees nothing."""
    q = drawn(b, n, groups * shared, 4, seed=seed).transpose(1, 2)
    k, v = (drawn(b, groups, m, 4, seed=seed + i) for i in (1, 2))
    visible = drawn(b, 1, n, m, seed=seed + 3) > 0
    bias = drawn(b, groups * shared, n, m, seed=seed + 4)
    mask, added = visible if kind == "mask" else None, bias if kind == "bias" else None
    expected, _ = attend(q, k, v, mask=mask, bias=added)
    with torch.inference_mode():
        found = attend_decode_cpu(q, k, v, added if mask is None else mask, None)
    torch.testing.assert_close(found, expected, atol=NEAR, rtol=NEAR)


def test_only_where_nothing_learns() -> None:
    q, k = drawn(1, 2, 1, 4), drawn(1, 2, 5, 4)
    assert not fits_decode_cpu(q, k)
    with torch.no_grad():
        assert fits_decode_cpu(q, k)
        assert not fits_decode_cpu(q.double(), k.double())
        assert not fits_decode_cpu(drawn(1, 2, MAX_QUERIES + 1, 4), k)


def has_kernels() -> bool:
    return torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("variant", ["rope-concat", "post", "grouped", "lstm"])
def test_packed_weights_say_the_same(variant: str) -> None:
    """And after, nothing is left of it: the model learns and is copied as before."""
    model = new_translator(**VARIANTS[variant]).eval()
    ids = torch.stack(texts([7, 7]))
    with torch.inference_mode():
        expected = model(ids, ids)
        with prepack_weights([model]):
            assert ("project" in vars(model.head)) == has_kernels()
            torch.testing.assert_close(model(ids, ids), expected, atol=NEAR, rtol=NEAR)
        assert torch.equal(model(ids, ids), expected)
    assert not any({"forward", "project"} & vars(module).keys() for module in model.modules())
    copy.deepcopy(model)(ids, ids).sum().backward()


def test_packed_weights_are_those_of_now() -> None:
    """What was learnt since the last time is read."""
    model = new_translator(**VARIANTS["post"]).eval()
    ids = texts([6])[0][None]
    for _ in range(2):
        with torch.inference_mode():
            expected = model(ids, ids)
            with prepack_weights([model]):
                torch.testing.assert_close(model(ids, ids), expected, atol=NEAR, rtol=NEAR)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)


@pytest.mark.parametrize("how", [Greedy(), Beam(3, nbest=3)], ids=["greedy", "beam"])
def test_a_search_writes_the_same(how: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search([ending_models.ending_translator("post")], how, batch_size=3)
    sources = [ids.tolist() for ids in texts([5, 1, 8, 3, 2, 6])]
    found = {}
    for least in (0, 10**9):
        monkeypatch.setattr(searching, "PACK_FROM", least)
        found[least] = search.translate(sources, max_extra=3)
    for several, others in zip(*found.values(), strict=True):
        for one, other in zip(several, others, strict=True):
            assert abs(one.score - other.score) <= 1e-4
