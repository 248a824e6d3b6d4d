"""Muon's step on a GPU: each launch is for all matrices of one shape, with few passes over memory.

It equals the plain step of `heed.train.optimizers.custom.Muon`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heed.nn.kernels.availability import on_gpu
from heed.train.optimizers.newton_schulz import StackShape, orthogonalize_stacks, product_dtype

ALIGNMENT = 16
"""Bytes. Triton would compile its kernels anew for tensors at other addresses."""


def can_fuse_matrices(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels take these matrices: no shards, contiguous, float32, on a GPU."""
    return all(map(_is_plain, tensors))


def _is_plain(tensor: Tensor) -> bool:
    if type(tensor) not in (Tensor, nn.Parameter) or not on_gpu(tensor):
        return False
    dense = tensor.layout == torch.strided and tensor.is_contiguous() and tensor.numel() > 0
    return dense and tensor.dtype == torch.float32 and tensor.data_ptr() % ALIGNMENT == 0


def fused_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    group: dict[str, Any],
    *,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """Update the parameters and momenta of a group.

    A shape and its transpose share a stack: fewer and larger products.
    """
    from heed.nn.kernels.triton import muon

    lr, device = group["lr"], params[0].device
    if not isinstance(lr, Tensor):
        lr = torch.full((), lr, dtype=torch.float32, device=device)
    divisor = torch.ones((), device=device) if grad_scale is None else grad_scale
    skipped = torch.zeros((), device=device) if found_inf is None else found_inf

    same_shape: defaultdict[torch.Size, list[int]] = defaultdict(list)
    for index, parameter in enumerate(params):
        same_shape[parameter.shape].append(index)
    places, sizes = _places_in_stacks(same_shape)
    dtype = product_dtype(params[0])
    stacks = {
        shape: torch.empty(count, *shape, dtype=dtype, device=device)
        for shape, count in sizes.items()
    }
    squares = {shape: muon.empty_squares(stack) for shape, stack in stacks.items()}
    for shape, indices in same_shape.items():
        stack_shape, place = places[shape]
        muon.update_momenta(
            [grads[i] for i in indices],
            [momenta[i] for i in indices],
            stacks[stack_shape][place],
            squares[stack_shape][place],
            divisor=divisor,
            found_inf=skipped,
            mu=group["momentum"],
        )
    for stack_shape, stack in stacks.items():
        muon.normalize(stack, squares[stack_shape])
    stacks = orthogonalize_stacks(stacks)
    for shape, indices in same_shape.items():
        stack_shape, place = places[shape]
        muon.update_weights(
            [params[i] for i in indices],
            stacks[stack_shape][place],
            lr=lr,
            found_inf=skipped,
            decay=group["weight_decay"],
            factor=0.2 * math.sqrt(max(shape)),
        )


def _places_in_stacks(
    same_shape: dict[torch.Size, list[int]],
) -> tuple[dict[torch.Size, tuple[StackShape, slice]], dict[StackShape, int]]:
    """For each shape of matrices, its stack and its place there; the sizes of all stacks."""
    places: dict[torch.Size, tuple[StackShape, slice]] = {}
    sizes: defaultdict[StackShape, int] = defaultdict(int)
    for shape, indices in same_shape.items():
        stack_shape = (min(shape), max(shape))
        first = sizes[stack_shape]
        sizes[stack_shape] += len(indices)
        places[shape] = stack_shape, slice(first, sizes[stack_shape])
    return places, sizes
