"""Timing of functions, alone or alternating, and of the machine's peak matrix product."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from heed.nn.kernels.matrix_product_cpu import can_multiply, multiply

Work = Callable[[], object]
LARGE = {"cuda": 8192, "cpu": 2048}
"""Rows and columns of the matrices whose product measures peak FLOP/s."""
WALL, PROCESSOR = "wall", "processor"
CLOCKS: dict[str, Callable[[], float]] = {WALL: time.perf_counter, PROCESSOR: time.process_time}
"""Processor time of one thread does not count what else a busy machine does."""


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has finished its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def side_by_side(
    contenders: Mapping[str, Work],
    *,
    device: torch.device | str,
    rounds: int,
    warmup: int = 2,
    turn: float = 0.0,
    clock: str = WALL,
) -> dict[str, float]:
    """Median seconds per call of several functions, alternating so that noise affects all alike.

    A turn is one call, or as many as take `turn` seconds. The device is synchronized only at the
    end of a turn, as in training.
    """
    calls = {}
    for name, run in contenders.items():
        for _ in range(warmup):
            run()
        once = seconds(run, device, clock=clock)
        calls[name] = max(1, round(turn / once))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(seconds(run, device, calls=calls[name], clock=clock))
    return {name: statistics.median(each) for name, each in times.items()}


def seconds(run: Work, device: torch.device | str, *, calls: int = 1, clock: str = WALL) -> float:
    """Mean seconds per call over `calls` calls in a row, by one of `CLOCKS`."""
    now = CLOCKS[clock]
    synchronize(device)
    began = now()
    for _ in range(calls):
        run()
    synchronize(device)
    return (now() - began) / calls


@dataclass(frozen=True)
class Product:
    """A large matrix product, whose speed is the machine's practical peak."""

    run: Work
    operations: float

    @classmethod
    def on(cls, device: torch.device, dtype: torch.dtype, *, size: int | None = None) -> Product:
        """The faster of torch's product and heed's in C, where it serves.

        Float32 follows `torch.set_float32_matmul_precision`, as in training.
        """
        n = size or LARGE[device.type]
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        products: list[Work] = [lambda: torch.mm(a, b, out=out)]
        if can_multiply(a, b):
            products.append(lambda: multiply(a, b, out=out))
        fastest = min(products, key=lambda run: min(seconds(run, device) for _ in range(3)))
        return cls(fastest, 2.0 * n**3)


def matrix_peak(device: torch.device, dtype: torch.dtype, *, size: int | None = None) -> float:
    """FLOP/s of one large matrix product on this device: the peak that steps are compared with."""
    product = Product.on(device, dtype, size=size)
    rounds = 30 if device.type == "cuda" else 5
    medians = side_by_side(
        {"product": product.run}, device=device, rounds=rounds, warmup=1, turn=0.02
    )
    return product.operations / medians["product"]


def process_age() -> float:
    """Seconds since this process started, including the interpreter's start.

    Without /proc it is the processor time: imports are computation, so the two are close.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.process_time()
    # The name, in parentheses, may hold spaces; the start is the 20th field after it.
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
