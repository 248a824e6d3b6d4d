"""Data-parallel training on paper: a step's time from its computation and its all-reduce.

Every rank holds the whole model. After the backward pass the ranks sum their gradients by a ring
all-reduce: 2(N − 1) messages of 1/N of the gradient each, so 2(N − 1)/N of it cross each link.
Parts of it can hide behind the backward pass, at most `overlap` of the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

GRADIENT_BYTES = 4
"""Bytes of one gradient value: heed keeps weights and gradients in float32."""
BACKWARD = 2 / 3
"""Share of a step's computation that is the backward pass, which needs twice the products of the
forward pass. DDP can hide at most so much communication."""


@dataclass(frozen=True)
class Link:
    """What connects a rank to the next one."""

    name: str
    bytes_per_second: float
    """In one direction."""
    latency: float
    """Seconds of a message of no bytes; assumed, not measured."""


NVLINK = Link("NVLink, 450 GB/s", 450e9, 5e-6)
"""900 GB/s per GPU in both directions together, by NVIDIA's datasheets of the H100 and the H200."""
INFINIBAND = Link("InfiniBand NDR, 400 Gb/s", 400e9 / 8, 10e-6)
"""One port per machine, by NVIDIA's ConnectX-7 datasheet."""


def all_reduce_bytes(gradient: float, ranks: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of so many bytes."""
    return 2 * (ranks - 1) / ranks * gradient


def all_reduce_seconds(gradient: float, ranks: int, link: Link) -> float:
    """The time of a ring all-reduce: bytes over bandwidth, and the latency of every message."""
    transfer = all_reduce_bytes(gradient, ranks) / link.bytes_per_second
    return transfer + 2 * (ranks - 1) * link.latency


def step_seconds(
    compute: float, gradient: float, ranks: int, link: Link, *, overlap: float = BACKWARD
) -> float:
    """The time of a step whose computation takes `compute` seconds on each rank.

    `overlap` is the share of the computation behind which communication hides: 0 is none.
    """
    exposed = all_reduce_seconds(gradient, ranks, link) - overlap * compute
    return compute + max(0.0, exposed)


@dataclass(frozen=True)
class Scaling:
    """Computed, not measured: several ranks compared with one."""

    ranks: int
    link: str
    all_reduce: float
    """Seconds of communication in a step."""
    seconds: tuple[float, float]
    """Seconds of a step: all communication that can be hidden is, and none is."""
    speedup: tuple[float, float]
    """Tokens per second over those of one rank, in both cases."""


def compute_scaling(
    single: float, compute: float, gradient: float, ranks: int, link: Link, *, batches: float = 1.0
) -> Scaling:
    """What `ranks` ranks give, from measured steps of one device.

    `single` is the step of one rank on its whole batch, `compute` a rank's step on its share.
    `batches` is how many times the single rank's batch all ranks together process.
    """
    hidden, open_ = (
        step_seconds(compute, gradient, ranks, link, overlap=overlap) for overlap in (BACKWARD, 0.0)
    )
    return Scaling(
        ranks,
        link.name,
        all_reduce_seconds(gradient, ranks, link),
        (hidden, open_),
        (batches * single / hidden, batches * single / open_),
    )
