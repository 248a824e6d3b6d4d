"""Seven ways for order to enter a Transformer. An eighth is one more class in this file.

A position encoding is an object with hooks, each a no-op by default. Positions are explicit integer
tensors [b or 1, n], so padding on either side, packing and cached decoding are right by
construction. Shapes: b batch, n queries, m keys, h heads, d head width, w model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from heed.config import POSITIONS, ModelConfig
from heed.errors import DataError
from heed.nn.embedding import Table, position_scale, token_size
from heed.nn.kernels import dispatch
from heed.nn.kernels.distance_attention import ByBucket, Relative, ScoreMod
from heed.nn.kernels.position_bias import PositionBias as PositionBias
from heed.nn.waves import sinusoids as sinusoids
from heed.nn.waves import wavelengths


class Position(nn.Module):
    """The hooks. As it stands this is `none`: a model that cannot tell order but by its mask."""

    name: ClassVar[str] = "none"
    per_layer: ClassVar[bool] = False
    """Whether every layer has parameters of its own."""
    bias_uses_query: ClassVar[bool] = False
    """Whether the bias differs between layers because it reads their queries."""
    needs_weights: bool = False
    """Whether the encoding must see the attention weights, which only the plain path has."""
    reach: int | None = None
    """Beyond which distance the bias no longer changes, if it ever stops."""

    def __init__(self, config: ModelConfig | None = None, *, causal: bool = False) -> None:
        super().__init__()

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Why this encoding cannot be used in such a model, or None."""
        return None

    @classmethod
    def limit(cls, config: ModelConfig) -> int | None:
        """How many positions there are; None where there is no end to them."""
        return None

    @property
    def biased(self) -> bool:
        """Whether the encoding has a bias that is a rule by distance."""
        return type(self).relative is not Position.relative

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """Change the token vectors before the first layer."""
        return x_bnw

    def rotate(
        self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Change queries and keys before their product."""
        return q_bhnd, k_bgmd

    def frequencies(self) -> Tensor | None:
        """The same, where it is a turn of each pair (i, i + d/2) by position · frequency [d/2]."""
        return None

    def bias(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """What to add to the scores [b or 1, h, n, m]. The query comes scaled already."""
        return None

    def score_mod(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod | None:
        """The same bias, one score at a time, for sequences too long to hold [n, m] numbers."""
        return None

    def relative(
        self, q_bhnd: Tensor | None, scale: float, q_positions: Tensor, k_positions: Tensor
    ) -> Relative | None:
        """The same bias as a rule by distance, where it is one: the fastest form on a GPU.

        The query comes as it is, with the number that is to scale it.
        """
        return None

    def values(
        self, weights_bhnm: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """What to add to each head's output [b, h, n, d]."""
        return None


class Sinusoidal(Position):
    """Vaswani et al. 2017, section 3.5: sines in the even places, cosines in the odd ones."""

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


class Learned(Position):
    """A table with one learned vector a position (Gehring et al. 2017). It has an end."""

    name = "learned"

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.offset, rows = config.position_offset, config.max_positions + config.position_offset
        self.scale = position_scale(config)
        self.table = Table(rows, config.width, std=0.5 * token_size(config) / self.scale)

    @classmethod
    def limit(cls, config: ModelConfig) -> int | None:
        """The length of the table."""
        return config.max_positions

    def embed(self, x_bnw: Tensor, positions_bn: Tensor) -> Tensor:
        """x + scale · table[position]."""
        self._check(positions_bn)
        rows = positions_bn + self.offset if self.offset else positions_bn
        return x_bnw + self.table(rows) * self.scale

    def _check(self, positions_bn: Tensor) -> None:
        # Looking waits for a GPU, which it may not while a graph is captured; and in training the
        # batches keep to the limit.
        on_cpu = positions_bn.device.type == "cpu"
        free_to_look = on_cpu or not (self.training or torch.cuda.is_current_stream_capturing())
        if torch.compiler.is_compiling() or not free_to_look or positions_bn.numel() == 0:
            return
        largest, limit = int(positions_bn.max()), self.table.num_embeddings - self.offset
        if largest >= limit:
            raise DataError(
                f"Position {largest} is beyond the learned table, which has {limit} positions.",
                where="model.max_positions",
                todo=f"Shorten the text to {limit} tokens, raise max_positions before training, "
                "or use another position encoding: only `learned` has a limit.",
            )


class Shaw(Position):
    """Shaw et al. 2018: a learned vector a clipped distance joins the key (and the value)."""

    name = "shaw"
    per_layer = True
    bias_uses_query = True

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        head_width = config.head_width or config.width // config.heads
        self.clip = self.reach = config.shaw_clip
        self.keys = Table(2 * self.clip + 1, head_width)
        self.value_vectors = Table(2 * self.clip + 1, head_width) if config.shaw_values else None
        self.needs_weights = config.shaw_values

    def _distances(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = k_positions[:, None, :] - q_positions[:, :, None]
        return distance.clamp(-self.clip, self.clip) + self.clip

    def _by_distance(self, q_bhnd: Tensor | None) -> Tensor:
        """q · a^K for each clipped distance, [b, h, n, 2·clip + 1]."""
        if q_bhnd is None:
            raise ValueError("Shaw's bias reads the query.")
        return q_bhnd @ self.keys.weight.mT.to(q_bhnd.dtype)

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """q · a^K for the distance of each cell (equation 4, without holding a vector a cell)."""
        by_distance = self._by_distance(q_bhnd)
        index = self._distances(q_positions, k_positions)[:, None]
        return by_distance.gather(3, index.expand(*by_distance.shape[:3], -1))

    def score_mod(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """The same, one cell at a time."""
        by_distance, clip = self._by_distance(q_bhnd), self.clip
        q_at, k_at = _lookup(q_positions), _lookup(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = (k_at(b, k) - q_at(b, q)).clamp(-clip, clip) + clip
            return score + by_distance[b, h, q, distance]

        return add

    def relative(
        self, q_bhnd: Tensor | None, scale: float, q_positions: Tensor, k_positions: Tensor
    ) -> Relative:
        """q · a^K by distance."""
        return Relative(
            q_positions,
            k_positions,
            vectors_cd=self.keys.weight,
            reach=self.reach,
            classes=self.keys.num_embeddings,
        )

    def values(
        self, weights_bhnm: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """Σ weight · a^V (equation 3): the weights summed by distance, then one matrix product."""
        if self.value_vectors is None:
            return None
        index = self._distances(q_positions, k_positions)[:, None].expand_as(weights_bhnm)
        by_distance = weights_bhnm.new_zeros(*weights_bhnm.shape[:3], 2 * self.clip + 1)
        by_distance = by_distance.scatter_add(3, index, weights_bhnm)
        return by_distance @ self.value_vectors.weight.to(weights_bhnm.dtype)


class T5(Position):
    """Raffel et al. 2020: a learned bias for each bucket of distances and each head."""

    name = "t5"

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Two kinds of buckets, in two directions."""
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
        self.table = Table(self.buckets, config.heads, std=0.1 / self.scale)
        self.reach = self.distance
        self.by_bucket = ByBucket(self.bucket, self.reach)

    def bias(self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """scale · table[bucket(key - query)] for each head."""
        distance = k_positions[:, None, :] - q_positions[:, :, None]
        return self.biases()[self.by_bucket(distance)].permute(0, 3, 1, 2)

    def biases(self) -> Tensor:
        """By bucket and head."""
        return self.table.weight * self.scale

    def score_mod(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """The same, one cell at a time."""
        table_hk = self.biases().mT
        q_at, k_at = _lookup(q_positions), _lookup(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + table_hk[h, self.by_bucket(k_at(b, k) - q_at(b, q))]

        return add

    def relative(
        self, q_bhnd: Tensor | None, scale: float, q_positions: Tensor, k_positions: Tensor
    ) -> Relative:
        """One table a head."""
        return self.by_bucket.relative(self.biases(), q_positions, k_positions)

    def bucket(self, distance: Tensor) -> Tensor:
        """Half the buckets hold one small distance each, the rest grow logarithmically.

        Bidirectional, the upper half of all buckets is for keys after the query; causal, such keys
        share bucket 0, for no query sees them.
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


class Alibi(Position):
    """Press et al. 2022: nearer keys score higher, each head with its own slope.

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
        distance = (k_positions[:, None, :] - q_positions[:, :, None]).abs()
        return distance[:, None] * -self.slopes.float()[:, None, None]

    def score_mod(
        self, q_bhnd: Tensor | None, q_positions: Tensor, k_positions: Tensor
    ) -> ScoreMod:
        """The same, one cell at a time."""
        slopes = self.slopes.float()
        q_at, k_at = _lookup(q_positions), _lookup(k_positions)

        def add(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score - slopes[h] * (k_at(b, k) - q_at(b, q)).abs()

        return add

    def relative(
        self, q_bhnd: Tensor | None, scale: float, q_positions: Tensor, k_positions: Tensor
    ) -> Relative:
        """The slopes themselves."""
        return Relative(q_positions, k_positions, slopes_h=self.slopes.float())


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/h), its square, … for a power of two; else also every second slope of twice as many."""
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


class Rope(Position):
    """Su et al. 2021: turn each pair of dimensions by an angle that grows with the position.

    The pairs are (i, i + d/2), as in most code, not (2i, 2i + 1) as the paper prints them: a fixed
    permutation of dimensions, the same for queries and keys, that no score can see.
    """

    name = "rope"

    @classmethod
    def complaint(cls, config: ModelConfig) -> str | None:
        """Dimensions turn in pairs."""
        head_width = config.head_width or config.width // config.heads
        if head_width % 2:
            return f"position 'rope' turns dimensions in pairs: a head cannot be {head_width} wide."
        return None

    def __init__(self, config: ModelConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        width, self.base = config.head_width or config.width // config.heads, config.rope_base
        frequencies = wavelengths(width, self.base, torch.device("cpu"))
        # Kept as integers, which stay exact when a model is cast to fewer bits.
        self.register_buffer("frequency_bits", frequencies.view(torch.int32), persistent=False)
        self.frequency_bits: Tensor

    def rotate(
        self, q_bhnd: Tensor, k_bgmd: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both turned by their own position; their product then knows only the difference."""
        frequencies = self.frequencies()
        if k_positions is q_positions:
            q_bhnd, k_bgmd = dispatch.turned([q_bhnd, k_bgmd], q_positions, frequencies)
            return q_bhnd, k_bgmd
        (q_bhnd,) = dispatch.turned([q_bhnd], q_positions, frequencies)
        (k_bgmd,) = dispatch.turned([k_bgmd], k_positions, frequencies)
        return q_bhnd, k_bgmd

    def frequencies(self) -> Tensor:
        """base^(-2i/d)."""
        return self.frequency_bits.view(torch.float32)


def _lookup(positions: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Read a position by (batch, index), where one row may stand for the whole batch."""
    if positions.shape[0] == 1:
        return lambda b, i: positions[0, i]
    return lambda b, i: positions[b, i]


for _kind in (Sinusoidal, Learned, Shaw, T5, Alibi, Rope, Position):
    POSITIONS.register(_kind)


def build_position(config: ModelConfig, *, causal: bool) -> Position:
    """The encoding a config names, for a causal or a bidirectional stack."""
    position: Position = POSITIONS[config.position](config, causal=causal)
    return position
