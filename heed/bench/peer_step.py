"""A peer's training step at its best: eager, compiled, captured as a CUDA graph, or both.

The step is complete: forward with loss, backward, clipping, fused AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from heed.bench.peers import PeerLoss
from heed.data.batching.batch import Batch
from heed.train.execution.cuda_graphs import capture_graph

MODES = ("eager", "compiled", "captured", "compiled and captured")
"""How a peer's steps are launched; the last two need a GPU."""
WARM_UP = 3
"""Steps before a capture: kernels are chosen, the optimizer's state is allocated."""
Inputs = tuple[Tensor | None, ...]
"""Tensors of a batch as a peer takes them: ids, targets, and a translator's source and its mask."""


def peer_inputs(batch: Batch) -> Inputs:
    """The tensors of a batch; without padding there is no mask, which allows the fastest kernel."""
    if batch.source is None or batch.source_mask is None:
        return batch.ids, batch.targets
    mask = None if bool(batch.source_mask.all()) else batch.source_mask
    return batch.ids, batch.targets, batch.source, mask


def build_peer_steps(
    peer: PeerLoss, steps: Sequence[Sequence[Batch]], *, mode: str, bf16: bool, clip: float
) -> list[Callable[[], object]]:
    """Functions that train the peer, one for each step, on the device where its weights are."""
    captures = "captured" in mode
    optimizer = torch.optim.AdamW(
        peer.parameters(), lr=1e-4, weight_decay=0.0, fused=True, capturable=captures
    )
    if "compiled" in mode:
        peer.compile()
    device = next(peer.parameters()).device
    inputs = [[peer_inputs(batch) for batch in step] for step in steps]

    def train(step: list[Inputs]) -> None:
        optimizer.zero_grad(set_to_none=True)
        for tensors in step:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss = peer(*tensors) / len(step)
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(peer.parameters(), clip)
        optimizer.step()

    if captures:
        return capture_steps(train, inputs)
    return [partial(train, step) for step in inputs]


def capture_steps(
    train: Callable[[list[Inputs]], None], inputs: Sequence[list[Inputs]]
) -> list[Callable[[], object]]:
    """Capture each step, optimizer included, as one CUDA graph on its own static inputs.

    Warm-up and capture share a side stream: gradients are accumulated on the stream where they were
    first made. No two graphs run at once, so they share one memory pool.
    """
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream())
    replays: list[Callable[[], object]] = []
    with torch.cuda.stream(stream):
        for step in inputs:
            for _ in range(WARM_UP):
                train(step)
            torch.cuda.synchronize()
            replays.append(capture_graph(partial(train, step), pool).replay)
    torch.cuda.current_stream().wait_stream(stream)
    return replays
