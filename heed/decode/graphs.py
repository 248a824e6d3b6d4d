"""A step launched as one CUDA graph, whatever the number of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], None]


def captured(step: Step, pool: Any) -> Step:
    """The same step, captured. It runs three times on the way, on whatever its tensors hold.

    Nothing in it may wait for the GPU or change a shape. Steps may share a pool for what they hold
    between kernels as long as no two of them run at once.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # what is made at first use, is made outside the graph
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        step()

    def replay(graph: torch.cuda.CUDAGraph = graph, step: Step = step) -> None:
        graph.replay()  # it reads memory that belongs to `step`, which is kept for that

    return replay
