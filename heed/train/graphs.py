"""Updates as captured CUDA graphs: launched once, whatever the number of kernels.

Every shape a batch may have is captured once, before training; a batch is then copied into the
memory its graph reads, and the graph is replayed. Another graph clips, moves and averages. All of
them write their temporaries into one pool of memory, for they never run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.data.shapes import Shape
from heed.data.tokenizer import UNK
from heed.train.kindle import kindle_shapes
from heed.train.state import State
from heed.train.step import Limits, Step


@dataclass
class _Captured:
    """A graph, and the batch whose memory it reads."""

    batch: Batch
    graph: torch.cuda.CUDAGraph


class GraphStep(Step):
    """Replays what `Step` would launch. A batch of a shape that was not captured goes its way."""

    def __init__(
        self,
        objective: nn.Module,
        state: State,
        limits: Limits,
        *,
        bf16: bool,
        blanks: Sequence[Batch],
    ) -> None:
        """`blanks` are batches of every shape there will be, on the device."""
        super().__init__(objective, state, limits, bf16=bf16)
        self._captured: dict[object, _Captured] = {}
        self._moves = torch.cuda.CUDAGraph()
        self._capture(blanks)

    def learn(self, batch: Batch) -> None:
        """Add one micro-batch's share to the gradient."""
        captured = self._captured.get(_shapes(batch))
        if captured is None:
            super().learn(batch)
            return
        read, given = captured.batch.tensors().values(), batch.tensors().values()
        torch._foreach_copy_(list(read), list(given), non_blocking=True)
        captured.graph.replay()

    def move(self) -> None:
        """Clip, move, average, forget."""
        self._moves.replay()

    def forget(self) -> None:
        """Zeros, in the place where the graphs add the next gradient up."""
        torch._foreach_zero_(self.gradients())

    def _capture(self, blanks: Sequence[Batch]) -> None:
        """Run everything once, then once more to capture it; and leave the state as it was."""
        state, pool = self.state, torch.cuda.graph_pool_handle()
        random = torch.cuda.get_rng_state(state.device)
        sums, counts = state.tally.sums.clone(), state.tally.counts.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            state.tally.begin(1)
            state.ema_share.zero_()
            kindle_shapes(self.objective, blanks, bf16=self.bf16)
            for batch in blanks:
                Step.learn(self, batch)
            # A gradient that is not finite moves nothing, but makes all that the optimizer keeps.
            self.gradients()[0].fill_(torch.inf)
            Step.move(self)
            for batch in blanks:
                graph = _graph(partial(Step.learn, self, batch), pool)
                self._captured[_shapes(batch)] = _Captured(batch, graph)
            self._moves = _graph(partial(Step.move, self), pool)
        torch.cuda.current_stream().wait_stream(aside)
        self.forget()
        state.tally.sums.copy_(sums)
        state.tally.counts.copy_(counts)
        torch.cuda.set_rng_state(random, state.device)


def _graph(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


def blank(like: Batch, shape: Shape) -> Batch:
    """A batch of this shape with the tensors that `like` has: one unknown word again and again."""
    texts, device = shape.texts, like.ids.device

    def made(name: str, value: Tensor) -> Tensor:
        length = (shape.source_length or 0) if name.startswith("source") else shape.length
        if name.endswith("positions"):
            rows = 1 if len(value) == 1 else texts
            return torch.arange(length, device=device).repeat(rows, 1)
        size = (texts,) if value.ndim == 1 else (texts, length)
        fill = 0 if name == "segments" or value.ndim == 1 else UNK
        return torch.full(size, fill, dtype=value.dtype, device=device)

    tensors = {name: made(name, value) for name, value in like.tensors().items()}
    return like.with_tensors(tensors, count=texts, rows=())


def _shapes(batch: Batch) -> object:
    return tuple(tensor.shape for tensor in batch.tensors().values())
