"""Fast forms of position encodings for kernels, registered by the encoding's class.

An encoding in `nn/positions.py` reads as its paper does. A kernel can do better with one of these:

    embed           token vectors with their positions, by a kernel for training
    frequencies     a rotation of each pair (i, i + d/2) by position · frequency
    distance_bias   a bias that depends on the distance alone, as slopes or as a table
    score_mod       a bias computed one score at a time, for FlexAttention

An encoding without a registered form works everywhere, more slowly: its bias becomes a dense
tensor, its rotation the plain formula. Forms are looked up by exact class, so a subclass that
changes a formula never inherits a form that contradicts it.

Shapes: b batch, n queries, m keys, h heads, d head width, c buckets of distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from heed.nn.kernels.availability import on_gpu
from heed.nn.kernels.distance_attention import BLOCK, DistanceBias
from heed.nn.kernels.flex_attention import ScoreMod
from heed.nn.positions import SINUSOID_BASE, T5, Alibi, Position, Rope, Shaw, Sinusoidal


class PositionForm:
    """The forms that kernels can ask for; each is None unless an encoding has it."""

    @property
    def has_distance_form(self) -> bool:
        """Whether the encoding's bias has a form by distance."""
        return type(self).distance_bias is not PositionForm.distance_bias

    def embed(self, position: Any, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """Token vectors with their positions, as a GPU trains."""
        embedded: Tensor = position.embed(x_bnw, positions_bn)
        return embedded

    def frequencies(self, position: Any) -> Tensor | None:
        """The angle per position of each pair (i, i + d/2), [d/2]."""
        return None

    def max_distance(self, position: Any) -> int | None:
        """The distance beyond which the bias is constant."""
        return None

    def distance_bias(
        self, position: Any, q_positions: Tensor, k_positions: Tensor
    ) -> DistanceBias | None:
        """The bias by distance: the fastest form on a GPU."""
        return None

    def score_mod(
        self, position: Any, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod | None:
        """The bias one score at a time, for sequences too long to hold [n, m] numbers."""
        return None


FORMS: dict[type[Position], PositionForm] = {}
NO_FORM = PositionForm()


def position_form(
    encoding: type[Position],
) -> Callable[[type[PositionForm]], type[PositionForm]]:
    """Class decorator: register a form for this encoding."""

    def register(form: type[PositionForm]) -> type[PositionForm]:
        FORMS[encoding] = form()
        return form

    return register


def form_of(position: Position) -> PositionForm:
    """The registered form of an encoding, or one that has none of the forms."""
    return FORMS.get(type(position), NO_FORM)


def embed(position: Position, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
    """Token vectors with their positions, as the first layer reads them."""
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if trains and on_gpu(x_bnw) and x_bnw.dtype != torch.float64:
        return form_of(position).embed(position, x_bnw, positions_bn)
    return position.embed(x_bnw, positions_bn)


@position_form(Sinusoidal)
class SinusoidalForm(PositionForm):
    """Sines and cosines, computed where they are added."""

    def embed(self, position: Sinusoidal, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """x + PE."""
        from heed.nn.kernels.sinusoids import add_sinusoids

        return add_sinusoids(x_bnw, positions_bn, SINUSOID_BASE, halves=position.halves)


@position_form(Rope)
class RopeForm(PositionForm):
    """A rotation by position · frequency."""

    def frequencies(self, position: Rope) -> Tensor:
        """base^(-2i/d)."""
        return position.frequencies()


@position_form(Alibi)
class AlibiForm(PositionForm):
    """One slope per head."""

    def distance_bias(
        self, position: Alibi, q_positions: Tensor, k_positions: Tensor
    ) -> DistanceBias:
        """The slopes themselves."""
        return DistanceBias(q_positions, k_positions, slopes_h=position.slopes.float())

    def score_mod(
        self, position: Alibi, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """-slope · |query - key| of one score."""
        slopes = position.slopes.float()
        q_at, k_at = _reader(q_positions), _reader(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score - slopes[h] * (k_at(b, k) - q_at(b, q)).abs()

        return add


@position_form(Shaw)
class ShawForm(PositionForm):
    """Learned vectors, whose products with a query are its own table by distance."""

    def max_distance(self, position: Shaw) -> int:
        """The clipping distance."""
        return position.clip

    def distance_bias(
        self, position: Shaw, q_positions: Tensor, k_positions: Tensor
    ) -> DistanceBias:
        """q · a^K by distance."""
        return DistanceBias(
            q_positions,
            k_positions,
            vectors_cd=position.keys.weight,
            max_distance=position.clip,
            num_buckets=position.keys.num_embeddings,
        )

    def score_mod(
        self, position: Shaw, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """q · a^K of one score."""
        products_bhnc, clip = position.products(q_bhnd), position.clip
        q_at, k_at = _reader(q_positions), _reader(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = (k_at(b, k) - q_at(b, q)).clamp(-clip, clip) + clip
            return score + products_bhnc[b, h, q, distance]

        return add


@position_form(T5)
class T5Form(PositionForm):
    """One table per head over buckets of distances."""

    def max_distance(self, position: T5) -> int:
        """The distance from which on all share the last bucket."""
        return position.distance

    def distance_bias(self, position: T5, q_positions: Tensor, k_positions: Tensor) -> DistanceBias:
        """The table by bucket and head; its buckets are numbered in the order of distance."""
        index, table_kh = _bucket_index(position), position.scaled_table()
        fixed_hk, buckets = table_kh.detach().mT, position.bucket_of_distance
        return DistanceBias(
            q_positions,
            k_positions,
            table_1h1c=table_kh.mT[:, index.buckets_in_order][None, :, None],
            max_distance=position.distance,
            num_buckets=len(index.buckets_in_order),
            bucket_of=index.order_of_distance,
            table_by_distance=fixed_hk[:, buckets][None, :, None],
            band=(fixed_hk - fixed_hk[:, buckets[:1]])[:, index.band],
        )

    def score_mod(
        self, position: T5, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """The bucket's bias of one score."""
        table_hk = position.scaled_table().mT
        q_at, k_at = _reader(q_positions), _reader(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + table_hk[h, position.lookup(k_at(b, k) - q_at(b, q))]

        return add


@dataclass(frozen=True)
class BucketIndex:
    """Where the distance kernels find each bucket."""

    buckets_in_order: Tensor
    """[c]: the buckets in the order in which rising distances meet them."""
    order_of_distance: Tensor
    """[2 · max_distance + 1]: the place in that order of each distance, rising."""
    band: Tensor
    """[2, BLOCK, columns]: buckets laid out for tiles of queries by keys and of keys by queries."""


_BUCKET_INDEXES: WeakKeyDictionary[T5, dict[torch.device, BucketIndex]] = WeakKeyDictionary()


def _bucket_index(position: T5) -> BucketIndex:
    """The encoding's index on its device, computed once on the CPU."""
    by_device, device = _BUCKET_INDEXES.setdefault(position, {}), position.table.weight.device
    if device not in by_device:
        with torch.inference_mode(False):  # Made while evaluating, it also serves training.
            far = position.distance
            buckets = position.bucket(torch.arange(-far, far + 1))
            in_order, order = torch.unique_consecutive(buckets, return_inverse=True)
            along = _band_distances(far)
            band = torch.stack([position.bucket(along), position.bucket(-along)])
            tensors = in_order, order.int(), band
            by_device[device] = BucketIndex(*(x.to(device) for x in tensors))
    return by_device[device]


def _band_distances(max_distance: int) -> Tensor:
    """Distances such that those of any tile of BLOCK rows are some columns of it.

    At row r and column edge + x it has the distance x - r, clipped to the maximum. At either edge
    all of BLOCK columns are clipped.
    """
    edge = -(-(max_distance + BLOCK - 1) // BLOCK) * BLOCK
    columns = torch.arange(-edge, edge + BLOCK)
    return (columns - torch.arange(BLOCK)[:, None]).clamp(-max_distance, max_distance)


def _reader(positions: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Read a position by (batch, index), where one row may stand for the whole batch."""
    if positions.shape[0] == 1:
        return lambda b, i: positions[0, i]
    return lambda b, i: positions[b, i]
