"""Rows of an embedding by token id on a GPU: the values and gradients of torch's own operation.

These tests run on a GPU, and without one where Triton interprets its kernels (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_marks import CUDA, DEVICE, needs_gpu, needs_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heed.config import ModelConfig
from heed.models import build
from heed.nn.kernels.embedding_lookup import look_up

pytestmark = [
    pytest.mark.gpu,
    needs_kernels,
]
EXAMPLES = settings(max_examples=40 if CUDA else 12, deadline=None)


def plain(table: Tensor, ids: Tensor, scale: float) -> Tensor:
    """The same in float64 by torch's own operations."""
    return F.embedding(ids, table.double()) * scale


def gradients(run: Any, table: Tensor, ids: Tensor, scale: float, d_out: Tensor) -> Tensor:
    out = run(table, ids, scale)
    (d_table,) = torch.autograd.grad(out, table, d_out.to(out.dtype))
    return d_table


def kernels() -> Any:
    """The module of the kernels, which is there where Triton is."""
    from heed.nn.kernels.triton import embedding_lookup

    return embedding_lookup


def draw(v: int, w: int, ids: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A table, and a gradient of its rows."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(v, w, generator=generator).to(DEVICE).requires_grad_()
    return table, torch.randn(*ids.shape, w, generator=generator).to(DEVICE)


@EXAMPLES
@given(
    v=st.integers(1, 70),
    w=st.sampled_from([1, 8, 40, 128, 200, 768]),
    shape=st.sampled_from([(1,), (15,), (16,), (17,), (3, 33), (4, 64), (2, 0)]),
    skew=st.floats(0.5, 8.0),
    scale=st.sampled_from([1.0, 0.5, 22.6]),
    seed=st.integers(0, 2**31),
)
def test_values_and_gradients_are_those_of_the_plain_formula(
    v: int, w: int, shape: tuple[int, ...], skew: float, scale: float, seed: int
) -> None:
    """With ids that occur not at all, once, or in several chunks of sorted tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(shape, generator=generator) ** skew * v).long().clamp(max=v - 1).to(DEVICE)
    table, d_out = draw(v, w, ids, seed)
    found = look_up(table, ids, scale)
    torch.testing.assert_close(found.double(), plain(table, ids, scale), rtol=1e-6, atol=1e-6)
    d_table = gradients(look_up, table, ids, scale, d_out)
    expected = gradients(plain, table, ids, scale, d_out)
    size = 1.0 + ids.numel() ** 0.5
    torch.testing.assert_close(d_table, expected, rtol=1e-5, atol=3e-6 * size * scale)


@pytest.mark.parametrize("count", [16, 17, 48, 100])
def test_a_run_may_begin_and_end_anywhere(count: int) -> None:
    """One id fills whole chunks, with other ids before and after it."""
    for before in (0, 1, 15, 16):
        ids = torch.tensor([0] * before + [1] * count + [3, 3, 4], device=DEVICE)
        table, d_out = draw(6, 24, ids)
        d_table = gradients(look_up, table, ids, 2.0, d_out)
        expected = gradients(plain, table, ids, 2.0, d_out)
        torch.testing.assert_close(d_table, expected, rtol=1e-5, atol=1e-4)
        assert torch.equal(d_table[[2, 5]], torch.zeros_like(d_table[[2, 5]]))


def test_a_vocabulary_beyond_16_bits() -> None:
    """Up to 32,767 tokens are sorted by 16-bit numbers."""
    for v in (32_766, 32_767, 32_768):
        ids = torch.tensor([[v - 1, 5, 5, 32_765, 0, v - 1]], device=DEVICE)
        table, d_out = draw(v, 8, ids)
        d_table = gradients(look_up, table, ids, 1.5, d_out)
        expected = gradients(plain, table, ids, 1.5, d_out)
        torch.testing.assert_close(d_table, expected, rtol=1e-5, atol=0)


def test_the_order_of_tokens_changes_no_other_row() -> None:
    """The sum of an id's tokens is taken in their order: the same bits at every call."""
    ids = torch.randint(0, 30, (4, 50), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    table, d_out = draw(30, 96, ids)
    first = gradients(look_up, table, ids, 3.0, d_out)
    assert torch.equal(first, gradients(look_up, table, ids, 3.0, d_out))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    ids = torch.tensor([[3, 1, 3, 0], [3, 2, 2, 3]], device=DEVICE)
    table, d_out = draw(5, 32, ids)
    narrow = table.detach().to(dtype).requires_grad_()
    found = look_up(narrow, ids, 2.0)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), plain(narrow, ids, 2.0).float(), rtol=1e-2, atol=1e-2)
    d_table = gradients(look_up, narrow, ids, 2.0, d_out.to(dtype))
    assert d_table.dtype == dtype
    expected = gradients(plain, narrow, ids, 2.0, d_out.to(dtype))
    torch.testing.assert_close(d_table.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_an_id_outside_the_vocabulary_gives_nan() -> None:
    table, _ = draw(4, 8, torch.zeros(1))
    found = look_up(table, torch.tensor([1, 4, -1], device=DEVICE), 1.0)
    assert found[0].isfinite().all()
    assert found[1:].isnan().all()


@pytest.mark.parametrize("v", [4, 40])
@pytest.mark.parametrize("wrong", [-1, 40, 41, 65_537, 2**31])
def test_an_id_outside_the_vocabulary_changes_no_gradient(v: int, wrong: int) -> None:
    """A number cut to 16 bits could be that of another token."""
    ids = torch.tensor([wrong, 1, 3, wrong, 1], device=DEVICE)
    known = ids[(ids >= 0) & (ids < v)]
    table, d_out = draw(v, 8, ids)
    d_table = gradients(look_up, table, ids, 2.0, d_out)
    expected = gradients(plain, table, known, 2.0, d_out[(ids >= 0) & (ids < v)])
    torch.testing.assert_close(d_table, expected, rtol=1e-5, atol=1e-6)


def test_no_row_beyond_the_table_is_written() -> None:
    v, w = 4, 8
    keys = torch.tensor([1, 3, 3, v, v], device=DEVICE, dtype=torch.int16)
    order = torch.arange(len(keys), device=DEVICE)
    d_out = torch.ones(len(keys), w, device=DEVICE)
    d_table = torch.full((v + 4, w), 7.0, device=DEVICE)
    partial = torch.empty(2, w, device=DEVICE)
    sizes: dict[str, Any] = {"SCALE": 1.0, "CHUNK": 16, "COLUMNS": 128}
    kernels()._sum_chunk[(1, 1)](d_out, keys, order, d_table, partial, len(keys), v, w, **sizes)
    assert d_table[:, 0].tolist() == [7.0, 1.0, 7.0, 2.0, 7.0, 7.0, 7.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_and_tables_need_not_be_contiguous(dtype: torch.dtype) -> None:
    ids = torch.tensor([[3, 1, 2], [0, 3, 3]], device=DEVICE, dtype=dtype).mT
    table, d_out = draw(5, 24, ids)
    transposed = table.detach().mT.contiguous().mT.requires_grad_()
    found = look_up(transposed, ids, 0.5)
    torch.testing.assert_close(found.double(), plain(table, ids, 0.5), rtol=1e-6, atol=1e-6)
    spread = d_out[:1, :1].expand_as(d_out)
    d_table = gradients(look_up, transposed, ids, 0.5, spread)
    torch.testing.assert_close(d_table, gradients(plain, table, ids, 0.5, spread))


@needs_gpu
def test_captured_steps_are_eager_steps() -> None:
    ids = torch.randint(0, 900, (64, 128), device=DEVICE)
    table, d_out = draw(1000, 256, ids)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        gradients(look_up, table, ids, 2.0, d_out)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(look_up, table, ids, 2.0, d_out)
    ids.copy_(torch.randint(0, 900, (64, 128), device=DEVICE))
    graph.replay()
    assert torch.equal(captured, gradients(look_up, table, ids, 2.0, d_out))


@needs_gpu
def test_a_model_without_gradients_looks_up_the_same_rows() -> None:
    """Decoding uses torch's operation: its values are those of training to the last bit."""
    model = build("translate", ModelConfig(layers=1, heads=2, width=32), vocab=50).to(DEVICE)
    ids = torch.randint(0, 50, (3, 9), device=DEVICE)
    trained = model.embedding(ids)
    with torch.no_grad():
        assert torch.equal(trained, model.embedding(ids))
