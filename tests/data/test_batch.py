"""Which tensors of a batch have a row per example, for every kind of batch, of one row too."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.data.batching.batch import IGNORE_INDEX, Batch, concat_batches, pad_rows
from heed.data.batching.length_buckets import BatchShape
from heed.train.distributed.ranks import World
from heed.train.distributed.sharding import shard_batch
from heed.train.execution.cuda_graphs import blank_batch
from heed.train.step import split_batches

POSITIONS = ("positions", "source_positions")


def make_batch(kind: str, rows: int, length: int, source_length: int) -> Batch:
    """A batch in which no two rows are alike."""
    ids = torch.arange(rows * length).view(rows, length)
    mask, positions = torch.ones_like(ids, dtype=torch.bool), torch.arange(length)[None]
    targets = ids[:, 0] if kind == "classify" else ids + 1
    batch = Batch(ids, targets, mask, positions, targets.numel(), tuple(range(rows)))
    if kind == "packed":
        segments = (ids + torch.arange(rows)[:, None]) % 3
        return batch.with_tensors({"segments": segments, "positions": ids // 3})
    if kind == "translate":
        source = torch.arange(rows * source_length).view(rows, source_length)
        source_positions = torch.arange(source_length)[None]
        tensors = {"source": source, "source_positions": source_positions}
        return batch.with_tensors(tensors | {"source_mask": source % 5 > 0})
    return batch


batches = st.builds(
    make_batch,
    st.sampled_from(["translate", "classify", "generate", "packed"]),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 5),
)


def are_equal(one: Batch, other: Batch) -> bool:
    tensors, others = one.tensors(), other.tensors()
    return tensors.keys() == others.keys() and all(
        torch.equal(tensor, others[name]) for name, tensor in tensors.items()
    )


@given(batches)
def test_a_tensor_has_a_row_per_example_or_one_for_all(batch: Batch) -> None:
    """Positions are shared unless sequences are packed, however many rows there are."""
    own = batch.row_tensors()
    assert all(len(tensor) == len(batch.rows) for tensor in own.values())
    shared = {name: t for name, t in batch.tensors().items() if name not in own}
    are_shared = POSITIONS if batch.segments is None else ()
    assert set(shared) == batch.tensors().keys() & {*are_shared}
    assert all(len(tensor) == 1 for tensor in shared.values())


@given(batches, st.integers(1, 7))
def test_the_parts_of_a_batch_are_the_batch(batch: Batch, parts: int) -> None:
    split = list(split_batches([batch], parts))
    whole = concat_batches(split)
    assert are_equal(whole, batch)
    assert (whole.count, whole.rows) == (batch.count, batch.rows)


@given(batches, st.integers(1, 4))
def test_padding_adds_rows_without_targets(batch: Batch, missing: int) -> None:
    rows = len(batch.rows)
    padded = pad_rows(batch, rows + missing)
    for name, tensor in padded.tensors().items():
        own = name in batch.row_tensors()
        assert len(tensor) == (rows + missing if own else 1)
        assert torch.equal(tensor[:rows], batch.tensors()[name])
    assert (padded.targets[rows:] == IGNORE_INDEX).all()
    assert not padded.mask[rows:].any()
    assert padded.source_mask is None or not padded.source_mask[rows:].any()


@given(batches, st.integers(1, 4))
def test_the_shards_of_a_batch_are_its_rows(batch: Batch, size: int) -> None:
    for rank in range(size):
        shard = shard_batch(batch, World(rank, size))
        for name, tensor in shard.tensors().items():
            whole = batch.tensors()[name]
            wanted = whole[rank::size] if name in batch.row_tensors() else whole
            assert torch.equal(tensor[: len(wanted)], wanted)


@given(batches, st.integers(1, 6))
def test_a_blank_batch_has_the_shapes_of_a_full_one(batch: Batch, rows: int) -> None:
    length = batch.ids.shape[1]
    source_length = None if batch.source is None else batch.source.shape[1]
    blank = blank_batch(batch, BatchShape(rows, length, source_length))
    for name, tensor in blank.tensors().items():
        like = batch.tensors()[name]
        wanted = rows if name in batch.row_tensors() else 1
        assert tensor.shape == (wanted, *like.shape[1:])
        assert tensor.dtype == like.dtype
