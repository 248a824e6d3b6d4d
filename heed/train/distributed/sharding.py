"""The share of each rank: its rows of a batch, and a replica or a shard of the model.

A rank's loss is the sum over its rows, and gradients are summed over ranks. Every optimizer divides
them by the target count of the whole batch, which all ranks know. So any number of ranks takes the
step of a single one.

What only sharding needs is imported where it is used: a single process should not wait for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from heed.data.batching.batch import Batch, pad_rows
from heed.nn.stack import Block
from heed.train.distributed.ranks import World

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def shard_batch(batch: Batch, world: World) -> Batch:
    """This rank's rows of a batch, with the target count of the whole batch.

    All ranks get equally many rows; empty ones, without targets, fill up.
    """
    every = slice(world.rank, None, world.size)
    tensors = {name: t[every] for name, t in batch.row_tensors().items()}
    rows_per_rank = -(-len(batch.ids) // world.size)
    return pad_rows(batch.with_tensors(tensors, rows=batch.rows[every]), rows_per_rank)


def distribute(objective: nn.Module, how: str, world: World, device: torch.device) -> nn.Module:
    """The objective replicated on each rank (ddp), or sharded over ranks (fsdp).

    Sharding replaces the parameters: an optimizer must be built after this.
    """
    if how == "ddp":
        replica = DistributedDataParallel(objective)
        replica.broadcast_buffers = False  # they never change
        replica.register_comm_hook(None, lambda _, bucket: _sum(bucket))
        return replica
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # Torch warns of in-place writes to a block's output; there are none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (world.size,))
    for module in [*(m for m in objective.modules() if isinstance(m, Block)), objective]:
        part = fully_shard(module, mesh=mesh)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return objective


def _sum(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum the gradients; DDP by itself would average them."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    added: torch.futures.Future[list[Tensor]] = work.get_future()
    return added.then(lambda done: done.value()[0])


def no_sync(objective: nn.Module) -> AbstractContextManager[None]:
    """A context in which gradients are not reduced; the next backward pass reduces all of them."""
    if isinstance(objective, DistributedDataParallel):
        return objective.no_sync()
    return _fsdp_no_sync(objective) if _is_sharded(objective) else nullcontext()


@contextmanager
def _fsdp_no_sync(objective: FSDPModule) -> Iterator[None]:
    objective.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        objective.set_requires_gradient_sync(True)


def _is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(module, "set_requires_gradient_sync")


def _is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "placements")


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a shard; a collective call."""
    return tensor.full_tensor() if _is_shard(tensor) else tensor


def gather_full(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """The full tensors of shards, gathered one after another and kept on rank 0 alone."""
    result = {}
    for name, tensor in tensors.items():
        if not _is_shard(tensor):
            result[name] = tensor
            continue
        full = full_tensor(tensor)
        if world.is_first:
            result[name] = full.cpu()
    return result


def distribute_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a tensor that every rank has, if `like` is sharded."""
    if not _is_shard(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    near = tensor.to(like.device)
    return distribute_tensor(near, like.device_mesh, like.placements, src_data_rank=None)


class UnshardedModel:
    """An unsharded copy of a sharded model, for evaluation. It has weights only in a context."""

    def __init__(self, model: nn.Module) -> None:
        """Copy a model before it is sharded."""
        self.model = deepcopy(model)
        self._free()

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The model with these weights; on ranks without weights it stays empty."""
        for name, parameter in self.model.named_parameters():
            if name in weights:
                parameter.data = weights[name].to(parameter.device)
        try:
            yield self.model
        finally:
            self._free()

    def _free(self) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
