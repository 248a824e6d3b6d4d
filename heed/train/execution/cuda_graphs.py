"""Training steps as captured CUDA graphs: one launch, whatever the number of kernels.

Every batch shape is captured once, before training. A batch is then copied into the memory its
graph reads, and the graph is replayed. Where a step is one batch, its graph also clips the
gradient, steps the optimizer and averages the weights. Where a step accumulates several batches,
another graph does that, and gradients stay allocated in between. All graphs share one memory pool,
because no two run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heed.data.batching.batch import Batch
from heed.data.batching.length_buckets import BatchShape
from heed.data.tokenizers.special_tokens import UNK
from heed.decode.cuda_graph import no_garbage_collection
from heed.nn.kernels.parameter_gradients import ParameterStream
from heed.train.state import State
from heed.train.step import Limits, Step

MAX_TOKENS = 16_384
"""Targets of a batch up to which gradients of parameters have a stream of their own. It gains 13%
of a step of 512 targets, 2% of one of 16,384, and nothing beyond: a product then fills a GPU."""


@dataclass
class CapturedBatch:
    """A graph, and the batch whose memory it reads."""

    batch: Batch
    graph: torch.cuda.CUDAGraph

    def replay(self, batch: Batch) -> None:
        """Run the graph on this batch."""
        static, new = self.batch.tensors(), batch.tensors()
        # Tensors of one dtype are copied by one launch, of several dtypes by one each.
        for dtype in dict.fromkeys(tensor.dtype for tensor in static.values()):
            names = [name for name, tensor in static.items() if tensor.dtype == dtype]
            torch._foreach_copy_([static[n] for n in names], [new[n] for n in names])
        self.graph.replay()


class GraphStep(Step):
    """Replays what `Step` would launch. Batches of other shapes are launched eagerly."""

    def __init__(
        self,
        objective: nn.Module,
        state: State,
        limits: Limits,
        *,
        bf16: bool,
        blanks: Sequence[Batch],
        whole_step: bool,
        copy_weights: bool = True,
    ) -> None:
        """Capture batches of every shape (`blanks`), which are on the device.

        `whole_step`: every step is one batch, so that its graph includes the optimizer.
        """
        super().__init__(objective, state, limits, bf16=bf16, copy_weights=copy_weights)
        self.whole_step = whole_step
        self._captured: dict[object, CapturedBatch] = {}
        self._parameter_stream = ParameterStream(state.device)
        self._optimizer_graph = torch.cuda.CUDAGraph()
        self._capture(blanks)

    def __call__(self, batches: list[Batch]) -> None:
        """One step on the mean loss over all targets in these batches."""
        captured = self._captured.get(_shapes(batches[0])) if self.whole_step else None
        if captured is None:
            super().__call__(batches)
            return
        self.state.start_step(max(1, batches[0].count))
        captured.replay(batches[0])
        self.state.step += 1

    def backward(self, batch: Batch) -> None:
        """Add the gradient of one micro-batch."""
        captured = None if self.whole_step else self._captured.get(_shapes(batch))
        if captured is None:
            super().backward(batch)
        else:
            captured.replay(batch)

    def parameter_stream(self, batch: Batch) -> ParameterStream | None:
        """A stream for the gradients of parameters, if a batch leaves room for it on the GPU."""
        return self._parameter_stream if batch.ids.numel() <= MAX_TOKENS else None

    def optimizer_step(self) -> None:
        """Clip the gradient, step the optimizer, average the weights, clear the gradient."""
        if self.whole_step:
            super().optimizer_step()
        else:
            self._optimizer_graph.replay()

    def zero_grad(self) -> None:
        """Clear the gradient; where several graphs share it, it stays allocated as zeros."""
        if self.whole_step:
            super().zero_grad()
        else:
            torch._foreach_zero_(self.gradients())

    def _capture(self, blanks: Sequence[Batch]) -> None:
        """Run everything once to warm up, then capture it; the state is left as it was.

        Both happen on one stream: parameters' AccumulateGrad nodes keep the stream they were made
        on, and a capture must not depend on another stream.
        """
        state, pool = self.state, torch.cuda.graph_pool_handle()
        rng_state = torch.cuda.get_rng_state(state.device)
        sums, counts = state.counters.sums.clone(), state.counters.counts.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                self._run_and_capture(blanks, pool)
            torch.cuda.synchronize(state.device)  # tables of addresses are copied beside a capture
        except RuntimeError:  # Training goes on eagerly, from a clean state.
            state.optimizer.zero_grad(set_to_none=True)
            raise
        finally:
            torch.cuda.current_stream().wait_stream(stream)
            state.counters.sums.copy_(sums)
            state.counters.counts.copy_(counts)
            torch.cuda.set_rng_state(rng_state, state.device)

    def _run_and_capture(self, blanks: Sequence[Batch], pool: Any) -> None:
        state = self.state
        state.counters.start_step(1)
        state.ema_rate.zero_()
        for batch in blanks:
            Step.backward(self, batch)
        # A gradient that is not finite changes no weight, but allocates the optimizer's state.
        self.gradients()[0].fill_(torch.inf)
        Step.optimizer_step(self)
        for batch in blanks:
            graph = capture_graph(partial(self._captured_step, batch), pool)
            self._captured[_shapes(batch)] = CapturedBatch(batch, graph)
        if not self.whole_step:
            self._optimizer_graph = capture_graph(partial(Step.optimizer_step, self), pool)

    def _captured_step(self, batch: Batch) -> None:
        """The work of one batch's graph."""
        Step.backward(self, batch)
        if self.whole_step:
            Step.optimizer_step(self)


def capture_graph(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture work on the current stream, which must not be the default one."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    options = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    with no_garbage_collection(), torch.cuda.graph(graph, **options):
        work()
    return graph


def blank_batch(like: Batch, shape: BatchShape) -> Batch:
    """A batch of this shape with the tensors of `like`, filled with the unknown token."""
    texts, device, row_tensors = shape.batch_size, like.ids.device, like.row_tensors()

    def fill(name: str, value: Tensor) -> Tensor:
        length = (shape.source_length or 0) if name.startswith("source") else shape.length
        if name.endswith("positions"):
            rows = texts if name in row_tensors else 1
            return torch.arange(length, device=device).repeat(rows, 1)
        size = (texts,) if value.ndim == 1 else (texts, length)
        value_id = 0 if name == "segments" or value.ndim == 1 else UNK
        return torch.full(size, value_id, dtype=value.dtype, device=device)

    tensors = {name: fill(name, value) for name, value in like.tensors().items()}
    return like.with_tensors(tensors, count=texts, rows=())


def _shapes(batch: Batch) -> object:
    return tuple(tensor.shape for tensor in batch.tensors().values())
