"""Seven position encodings. An eighth is one more class, registered in the same way.

A position encoding is an object with hooks, each a no-op by default. Positions are explicit integer
tensors [b or 1, n], so padding on either side, packing and cached decoding are right by
construction. Faster forms of these formulas, for kernels, are in `nn/kernels/position_forms.py`.

Shapes: b batch, n queries, m keys, h heads, d head width, w model width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import POSITIONS, ModelConfig
from heed.config.registry import register
from heed.errors import DataError
from heed.nn.initialization import Embedding, position_scale, token_size

SINUSOID_BASE = 10_000.0
"""The longest sinusoid has about 2π times as many positions."""


@register
class Position(nn.Module):
    """The base class: four hooks, each a no-op.

    As it stands this is `none`: only a causal mask tells such a model of order.
    """

    name: ClassVar[str] = "none"
    per_layer: ClassVar[bool] = False
    """Whether every layer has its own parameters."""
    bias_uses_query: ClassVar[bool] = False
    """Whether the bias depends on the query, so that layers cannot share it."""
    needs_weights: bool
    """Whether the encoding reads the attention weights, which only `attend` returns."""

    def __init__(self, config: ModelConfig | None = None, *, causal: bool = False) -> None:
        super().__init__()
        self.needs_weights = type(self).values is not Position.values

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Why this encoding cannot be used in such a model, or None."""
        return None

    @classmethod
    def limit(cls, config: ModelConfig) -> int | None:
        """The number of positions; None where it is unlimited."""
        return None

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """Token vectors with their positions, as the first layer reads them."""
        return x_bnw

    def rotate(
        self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys with their positions, as their product reads them."""
        return q_bhnd, k_bgmd

    def bias(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """What to add to the scores [b or 1, h, n, m]. The query is already scaled."""
        return None

    def values(
        self, weights_bhnm: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """What to add to each head's output [b, h, n, d]."""
        return None


@register
class Sinusoidal(Position):
    """Vaswani et al. 2017, section 3.5: sines in even dimensions, cosines in odd ones."""

    name = "sinusoidal"

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Sines and cosines come in pairs."""
        odd = f"position 'sinusoidal' needs an even width, not {config.width}."
        return odd if config.width % 2 else None

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.halves = config.sinusoids == "halves"

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """x + PE, with PE(pos, 2i) = sin(pos / 10000^(2i/w)) and cos for 2i + 1."""
        return x_bnw + sinusoids(positions_bn, x_bnw.shape[-1], halves=self.halves).to(x_bnw.dtype)


@register
class Learned(Position):
    """A table with one learned vector per position (Gehring et al. 2017). Its length is a limit."""

    name = "learned"

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.offset, rows = config.position_offset, config.max_positions + config.position_offset
        self.scale = position_scale(config)
        self.table = Embedding(rows, config.width, std=0.5 * token_size(config) / self.scale)

    @classmethod
    def limit(cls, config: ModelConfig) -> int | None:
        """The length of the table."""
        return config.max_positions

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """x + scale · table[position]."""
        rows = positions_bn + self.offset if self.offset else positions_bn
        try:
            return x_bnw + self.table(rows) * self.scale
        except IndexError as problem:
            limit = self.table.num_embeddings - self.offset
            raise position_limit_error(int(positions_bn.max()), limit) from problem


def position_limit_error(position: int, limit: int) -> DataError:
    """The error for a position that a table of `limit` positions does not have."""
    return DataError(
        f"Position {position} is beyond the learned table, which has {limit} positions.",
        where="model.max_positions",
        todo=f"Shorten the text to {limit} tokens, raise max_positions before training, "
        "or use another position encoding: only `learned` has a limit.",
    )


@register
class Shaw(Position):
    """Shaw et al. 2018: a learned vector per clipped distance is added to keys (and values)."""

    name = "shaw"
    per_layer = True
    bias_uses_query = True

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.clip, rows = config.shaw_clip, 2 * config.shaw_clip + 1
        head_width = config.resolved_head_width
        self.keys = Embedding(rows, head_width)
        self.value_vectors = Embedding(rows, head_width) if config.shaw_values else None
        self.needs_weights = config.shaw_values

    def products(self, q_bhnd: Tensor | None) -> Tensor:
        """q · a^K for each clipped distance, [b, h, n, 2·clip + 1]."""
        if q_bhnd is None:
            raise ValueError("Shaw's bias depends on the query: pass q_bhnd.")
        return q_bhnd @ self.keys.weight.mT.to(q_bhnd.dtype)

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """q · a^K for each pair's distance (equation 4, without a vector per pair in memory)."""
        products_bhnc = self.products(q_bhnd)
        index = self._clipped(q_positions, k_positions)[:, None]
        return products_bhnc.gather(3, index.expand(*products_bhnc.shape[:3], -1))

    def values(
        self, weights_bhnm: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """Σ weight · a^V (equation 3): the weights summed by distance, then one matrix product."""
        if self.value_vectors is None:
            return None
        index = self._clipped(q_positions, k_positions)[:, None].expand_as(weights_bhnm)
        sums_bhnc = weights_bhnm.new_zeros(*weights_bhnm.shape[:3], 2 * self.clip + 1)
        sums_bhnc = sums_bhnc.scatter_add(3, index, weights_bhnm)
        return sums_bhnc @ self.value_vectors.weight.to(weights_bhnm.dtype)

    def _clipped(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """The table's row for each pair [b or 1, n, m]."""
        return distances(q_positions, k_positions).clamp(-self.clip, self.clip) + self.clip


@register
class T5(Position):
    """Raffel et al. 2020: a learned bias for each bucket of distances and each head."""

    name = "t5"

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Half the buckets are logarithmic, in each of two directions."""
        if config.t5_buckets >= 4 and config.t5_distance > config.t5_buckets:
            return None
        return (
            f"t5_buckets {config.t5_buckets} and t5_distance {config.t5_distance} leave no room "
            "for logarithmic buckets: use at least 4 buckets and a distance beyond their number."
        )

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.bidirectional = not causal
        self.buckets, self.distance = config.t5_buckets, config.t5_distance
        self.scale = position_scale(config)
        self.table = Embedding(self.buckets, config.heads, std=0.1 / self.scale)
        # Buckets are looked up, not computed, so that every device rounds them alike.
        lookup = self.bucket(torch.arange(-self.distance, self.distance + 1))
        self.register_buffer("bucket_of_distance", lookup, persistent=False)
        self.bucket_of_distance: Tensor

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """scale · table[bucket(key - query)] for each head."""
        bucket = self.lookup(distances(q_positions, k_positions))
        # The gradient of an index would sort all pairs of tokens on a GPU; this sorts many only.
        return F.embedding(bucket, self.scaled_table()).permute(0, 3, 1, 2)

    def scaled_table(self) -> Tensor:
        """The bias by bucket and head."""
        return self.table.weight * self.scale

    def lookup(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, by the table of buckets."""
        far = self.distance
        return self.bucket_of_distance[distance.clamp(-far, far) + far]

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets hold one small distance each, the rest grow logarithmically.

        Bidirectional, the upper half of all buckets is for keys after the query. Causal, such keys
        are hidden and share bucket 0.
        """
        buckets, bucket = self.buckets, torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            bucket = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        exact = buckets // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.distance / exact)
        far = exact + (growth * (buckets - exact)).long()
        return bucket + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


@register
class Alibi(Position):
    """Press et al. 2022: scores fall linearly with distance, each head with its own slope.

    The distance is symmetric; under a causal mask that is the paper's linear bias.
    """

    name = "alibi"

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        slopes = torch.tensor(alibi_slopes(config.heads), dtype=torch.float32)
        self.register_buffer("slopes", slopes, persistent=False)
        self.slopes: Tensor

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """-slope · |query - key|."""
        distance = distances(q_positions, k_positions).abs()
        return distance[:, None] * -self.slopes.float()[:, None, None]


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/h), its square, … for a power of two; else also every second slope of twice as many."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


@register
class Rope(Position):
    """Su et al. 2021: rotate each pair of dimensions by an angle proportional to the position.

    The pairs are (i, i + d/2), as in most code, not (2i, 2i + 1) as the paper prints them: a fixed
    permutation of dimensions, the same for queries and keys, that no score depends on.
    """

    name = "rope"

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Dimensions are rotated in pairs."""
        width = config.resolved_head_width
        if width % 2:
            return f"position 'rope' rotates dimensions in pairs: a head cannot be {width} wide."
        return None

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        by_pair = frequencies(config.resolved_head_width, config.rope_base, torch.device("cpu"))
        # Stored as integers, which stay exact when a model is cast to fewer bits.
        self.register_buffer("frequency_bits", by_pair.view(torch.int32), persistent=False)
        self.frequency_bits: Tensor

    def rotate(
        self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each rotated by its own position; their product depends only on the difference."""
        by_pair = self.frequencies()
        return rotate(q_bhnd, q_positions, by_pair), rotate(k_bgmd, k_positions, by_pair)

    def frequencies(self) -> Tensor:
        """base^(-2i/d), the angle per position of each pair [d/2]."""
        return self.frequency_bits.view(torch.float32)


def rotate(x_bhnd: Tensor, positions_bn: Tensor, frequencies: Tensor) -> Tensor:
    """Each pair (x_i, x_(i + d/2)) rotated by position · frequency_i."""
    angles = positions_bn[:, None, :, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    x, y = x_bhnd.chunk(2, dim=-1)
    return torch.cat([x * cos - y * sin, y * cos + x * sin], dim=-1).to(x_bhnd.dtype)


def sinusoids(positions: Tensor, width: int, *, halves: bool = False) -> Tensor:
    """The sinusoids of integer positions, in pairs as the paper prints them, or in two halves."""
    angles = positions[..., None].float() * frequencies(width, SINUSOID_BASE, positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-2 if halves else -1).flatten(-2)


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width) for i = 0 … width/2 - 1, in float32."""
    even = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    return torch.exp(even * (-math.log(base) / width))


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """key - query for each pair [b or 1, n, m]."""
    return k_positions[:, None, :] - q_positions[:, :, None]


def build_position(config: ModelConfig, *, causal: bool) -> Position:
    """The encoding that a config names, for a causal or a bidirectional stack."""
    position: Position = POSITIONS[config.position](config, causal=causal)
    return position
