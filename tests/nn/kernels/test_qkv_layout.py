"""Heads are views of one tensor, and so are their gradients where they can be."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tiny
from torch import Tensor

from heed.nn.attention import AttentionContext
from heed.nn.kernels import dispatch, qkv_layout
from heed.nn.kernels.heads import PendingRotation
from heed.nn.merges import Merge
from heed.nn.positions import Alibi, Position, Rope

shapes = st.tuples(
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 6),
)


def draw(b: int, n: int, counts: list[int], d: int) -> Tensor:
    """A tensor as a joint map makes it."""
    return torch.randn(b, n, sum(counts) * d, requires_grad=True)


@given(shape=shapes)
def test_splitting_copies_nothing_and_joining_undoes_it(
    shape: tuple[int, int, list[int], int],
) -> None:
    b, n, counts, d = shape
    packed = draw(*shape)
    for split in (qkv_layout.split_heads, qkv_layout.split_heads_autograd, dispatch.split_heads):
        parts = split(packed, counts, d)
        assert [x.shape for x in parts] == [(b, count, n, d) for count in counts]
        assert parts[0].data_ptr() == packed.data_ptr()
        assert torch.equal(torch.cat([x.transpose(1, 2).flatten(2) for x in parts], 2), packed)
        joined = qkv_layout.find_packed(parts)
        assert joined is not None
        assert torch.equal(joined, packed)
        assert joined.data_ptr() == packed.data_ptr()


@given(shape=shapes)
def test_the_gradient_of_parts_that_lie_side_by_side_is_their_memory(
    shape: tuple[int, int, list[int], int],
) -> None:
    packed = draw(*shape)
    parts = qkv_layout.split_heads_autograd(packed, *shape[2:])
    grads = qkv_layout.split_heads(torch.randn_like(packed), *shape[2:])
    (found,) = torch.autograd.grad(parts, packed, grads, retain_graph=True)
    assert found.data_ptr() == grads[0].data_ptr()
    (expected,) = torch.autograd.grad(qkv_layout.split_heads(packed, *shape[2:]), packed, grads)
    assert torch.equal(found, expected)


@given(shape=shapes)
def test_room_lies_as_its_parts_do(shape: tuple[int, int, list[int], int]) -> None:
    packed = draw(*shape)
    parts = qkv_layout.split_heads(packed, *shape[2:])
    together = qkv_layout.empty_grads(parts)
    assert [x.shape for x in together] == [x.shape for x in parts]
    assert qkv_layout.find_packed(together) is not None
    # The first apart from the rest: queries of one map, keys and values of another.
    apart = qkv_layout.empty_grads([parts[0].clone(), *parts[1:]])
    assert [x.shape for x in apart] == [x.shape for x in parts]
    assert qkv_layout.find_packed(apart[:1]) is not None
    assert len(apart) == 1 or qkv_layout.find_packed(apart[1:]) is not None


def test_parts_that_only_seem_to_lie_side_by_side_do_not() -> None:
    packed = torch.randn(2, 3, 4 * 8)
    q, k, v = qkv_layout.split_heads(packed, (2, 1, 1), 8)
    assert qkv_layout.find_packed([q, v, k]) is None
    assert qkv_layout.find_packed([k, k]) is None
    assert qkv_layout.find_packed([q, k.contiguous()]) is None
    assert qkv_layout.find_packed([q.expand(2, 2, 3, 8)[:, :, :, :4], k]) is None
    assert qkv_layout.find_packed([q[:, :, :2], k]) is None
    assert qkv_layout.find_packed([torch.zeros(1, 1, 1, 1).expand(2, 2, 3, 8)]) is None


def test_merging_heads_that_lie_side_by_side_copies_nothing() -> None:
    heads_bhnd = torch.randn(2, 3, 4, 5).transpose(1, 2)
    assert Merge()(heads_bhnd).data_ptr() == heads_bhnd.data_ptr()


def test_only_a_rotation_with_a_registered_form_is_left_to_a_kernel() -> None:
    class Bent(Position):
        """Changes queries and keys, but has no registered form."""

        def rotate(
            self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
        ) -> tuple[Tensor, Tensor]:
            return -q_bhnd, k_bgmd

    places = torch.arange(3)[None]
    shared = AttentionContext(places, places).shared
    rope, other = Rope(tiny()), Rope(tiny())
    q = k = v = torch.randn(1, 4, 3, 4)

    def rotation(position: Position) -> PendingRotation | None:
        return shared.heads(q, k, v, position, places).rotation

    pending = rotation(rope)
    assert pending is not None
    assert rotation(rope) is pending
    assert rotation(other) is not pending
    assert pending.tables()[0] is pending.tables()[1]
    for position in (Position(), Alibi(tiny()), Bent(tiny())):
        assert rotation(position) is None
    assert torch.equal(shared.heads(q, k, v, Bent(tiny()), places).q_bhnd, -q)
    assert torch.equal(shared.heads(q, k, v, Position(), places).q_bhnd, q)
