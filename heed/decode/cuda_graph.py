"""Capture a step as a CUDA graph: one launch, whatever the number of its kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Step = Callable[[], None]


def capture_step(step: Step, pool: Any) -> Step:
    """Capture a step; returns a function that replays it.

    The step first runs twice, on whatever its tensors hold. It must not wait for the GPU or change
    a shape, and the tensors it reads must outlive the result. Steps may share a pool of temporary
    memory as long as no two of them run at once.
    """
    here, warm_up = torch.cuda.current_stream(), torch.cuda.Stream()
    warm_up.wait_stream(here)
    try:
        with torch.cuda.stream(warm_up):
            for _ in range(2):  # Allocations at first use must not get into the graph.
                step()
    finally:  # A step that failed half-way may still write to tensors of its caller.
        here.wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    # A failed capture leaves torch on the capture's stream; the stream context leads back.
    recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    with no_garbage_collection(), torch.cuda.stream(here), recording:
        step()
    replay: Step = graph.replay
    return replay


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: destroying a graph during the capture of another spoils it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
