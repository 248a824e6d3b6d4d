"""What each rank gets: its rows of a batch, a copy of the model or a part of every parameter.

A rank's loss is a sum over its rows divided by the count of the whole batch, which all ranks know;
gradients are summed over ranks. So any number of ranks takes the step that one would take.

Who trains alone should not wait for what only sharding needs: that is imported where it is used.
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


def share(batch: Batch, world: World) -> Batch:
    """This rank's rows of a batch, its count still that of the whole.

    Ranks get equally many: blank rows, in which nothing is asked, make up for those that lack.
    """
    if not world.several:
        return batch
    every = slice(world.rank, None, world.size)
    of_all = {"source_positions"} | ({"positions"} if batch.segments is None else set())
    own = {name: t if name in of_all else t[every] for name, t in batch.tensors().items()}
    most = -(-len(batch.ids) // world.size)
    return pad_rows(batch.with_tensors(own, rows=batch.rows[every]), most)


def spread(objective: nn.Module, how: str, world: World, device: torch.device) -> nn.Module:
    """The objective as ranks share it: each with a copy (ddp), or each with a part (fsdp).

    Sharded, its parameters are other ones than before: an optimizer must be built after this.
    """
    if not world.several:
        return objective
    if how == "ddp":
        replica = DistributedDataParallel(objective)
        replica.broadcast_buffers = False  # they never change
        replica.register_comm_hook(None, lambda _, bucket: _sum(bucket))
        return replica
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # Torch fears that someone writes into what a block returns; nobody does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (world.size,))
    for module in [*(m for m in objective.modules() if isinstance(m, Block)), objective]:
        part = fully_shard(module, mesh=mesh)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return objective


def _sum(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Gradients are added up, where DDP by itself would take their mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    added: torch.futures.Future[list[Tensor]] = work.get_future()
    return added.then(lambda done: done.value()[0])


def apart(objective: nn.Module) -> AbstractContextManager[None]:
    """While this lasts gradients stay with their rank; the next backward pass adds all of them."""
    if isinstance(objective, DistributedDataParallel):
        return objective.no_sync()
    return _unsynced(objective) if _is_sharded(objective) else nullcontext()


@contextmanager
def _unsynced(objective: FSDPModule) -> Iterator[None]:
    objective.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        objective.set_requires_gradient_sync(True)


def _is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    return hasattr(module, "set_requires_gradient_sync")


def _in_parts(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "placements")


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece. All ranks must ask for it together."""
    return tensor.full_tensor() if _in_parts(tensor) else tensor


def gather(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Those that are in parts made whole, one after another, and kept by the first rank alone."""
    found = {}
    for name, tensor in tensors.items():
        if not _in_parts(tensor):
            found[name] = tensor
            continue
        full = whole(tensor)
        if world.first:
            found[name] = full.cpu()
    return found


def placed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has, where `like` is in parts."""
    if not _in_parts(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    near = tensor.to(like.device)
    return distribute_tensor(near, like.device_mesh, like.placements, src_data_rank=None)


class Twin:
    """A model in one piece beside a sharded one. It has weights only while it is looked at."""

    def __init__(self, model: nn.Module) -> None:
        """Of a model that is not sharded yet."""
        self.model = deepcopy(model)
        self._let_go()

    @contextmanager
    def from_weights(self, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The model with these weights; without any where a rank was given none."""
        for name, parameter in self.model.named_parameters():
            if name in weights:
                parameter.data = weights[name].to(parameter.device)
        try:
            yield self.model
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
