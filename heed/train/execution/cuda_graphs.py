"""Updates as captured CUDA graphs: launched once, whatever the number of kernels.

Every shape a batch may have is captured once, before training; a batch is then copied into the
memory its graph reads, and the graph is replayed. Where an update is one batch, its graph goes on
to clip, move and average. Where it is several, another graph does that, and gradients have a place
of their own meanwhile. All graphs share one pool of memory, for no two run at the same time.
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
from heed.decode.cuda_graph import undisturbed
from heed.train.state import State
from heed.train.step import Limits, Step


@dataclass
class _Captured:
    """A graph, and the batch whose memory it reads."""

    batch: Batch
    graph: torch.cuda.CUDAGraph

    def replay(self, batch: Batch) -> None:
        """Do to this batch what was captured."""
        read, given = self.batch.tensors().values(), batch.tensors().values()
        torch._foreach_copy_(list(read), list(given), non_blocking=True)
        self.graph.replay()


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
        whole: bool,
    ) -> None:
        """`blanks` are batches of every shape there will be, on the device.

        `whole` says that every update is one batch.
        """
        super().__init__(objective, state, limits, bf16=bf16)
        self.whole = whole
        self._captured: dict[object, _Captured] = {}
        self._moves = torch.cuda.CUDAGraph()
        self._capture(blanks)

    def __call__(self, batches: list[Batch]) -> None:
        """One update over the mean loss of all targets in these batches."""
        captured = self._captured.get(_shapes(batches[0])) if self.whole else None
        if captured is None:
            super().__call__(batches)
            return
        self.state.begin(max(1, batches[0].count))
        captured.replay(batches[0])
        self.state.step += 1

    def learn(self, batch: Batch) -> None:
        """Add one micro-batch's share to the gradient."""
        captured = None if self.whole else self._captured.get(_shapes(batch))
        if captured is None:
            super().learn(batch)
        else:
            captured.replay(batch)

    def move(self) -> None:
        """Clip, move, average, forget."""
        if self.whole:
            super().move()
        else:
            self._moves.replay()

    def forget(self) -> None:
        """Where several graphs share it, the gradient stays in its place, and is zeros."""
        if self.whole:
            super().forget()
        else:
            torch._foreach_zero_(self.gradients())

    def _capture(self, blanks: Sequence[Batch]) -> None:
        """Run everything once, then once more to capture it; and leave the state as it was."""
        state, pool = self.state, torch.cuda.graph_pool_handle()
        random = torch.cuda.get_rng_state(state.device)
        sums, counts = state.tally.sums.clone(), state.tally.counts.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                self._run_and_capture(blanks, pool)
        except RuntimeError:  # what follows then learns in another way, from a clean state
            state.optimizer.zero_grad(set_to_none=True)
            raise
        finally:
            torch.cuda.current_stream().wait_stream(aside)
            state.tally.sums.copy_(sums)
            state.tally.counts.copy_(counts)
            torch.cuda.set_rng_state(random, state.device)

    def _run_and_capture(self, blanks: Sequence[Batch], pool: Any) -> None:
        state = self.state
        state.tally.begin(1)
        state.ema_share.zero_()
        for batch in blanks:
            Step.learn(self, batch)
        # A gradient that is not finite moves nothing, but makes all that the optimizer keeps.
        self.gradients()[0].fill_(torch.inf)
        Step.move(self)
        for batch in blanks:
            graph = _graph(partial(self._update, batch), pool)
            self._captured[_shapes(batch)] = _Captured(batch, graph)
        if not self.whole:
            self._moves = _graph(partial(Step.move, self), pool)

    def _update(self, batch: Batch) -> None:
        """What a batch's graph does."""
        Step.learn(self, batch)
        if self.whole:
            Step.move(self)


def _graph(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    told = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    with undisturbed(), torch.cuda.graph(graph, **told):
        work()
    return graph


def blank(like: Batch, shape: BatchShape) -> Batch:
    """A batch of this shape with the tensors that `like` has: one unknown word again and again."""
    texts, device = shape.batch_size, like.ids.device

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
