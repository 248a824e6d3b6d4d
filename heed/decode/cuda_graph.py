"""A step launched as one CUDA graph, whatever the number of its kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Step = Callable[[], None]


def captured(step: Step, pool: Any) -> Step:
    """The same step, captured. It runs twice on the way, on whatever its tensors hold.

    Nothing in it may wait for the GPU or change a shape, and whoever keeps the result keeps the
    tensors that the step reads. Steps may share a pool for what they hold between kernels as long
    as no two of them run at once.
    """
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    try:
        with torch.cuda.stream(aside):
            for _ in range(2):  # what is made at first use, is made outside the graph
                step()
    finally:  # a step that failed half-way may still write where its caller goes on
        here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # A capture that fails leaves torch on a stream of its own; the stream around it leads back.
    recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    with undisturbed(), torch.cuda.stream(here), recording:
        step()
    replay: Step = graph.replay
    return replay


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage is collected: a graph that is destroyed while another is captured spoils it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
