"""A pre-norm block that trains on a CPU in float32, as one function of autograd (`c/block.c`).

In a small model the steps between kernels take as long as the kernels: functions of autograd, views
and small tensors. Here the forward pass of a block is one call of C, and its backward pass another.
They call the kernels of the block's parts, and matrix products of `matrix_product_cpu` or of MKL,
where torch's come from.

The structs mirror those of the C source, field by field.

Shapes: b batch, n tokens, w model width, d head width.
"""

from __future__ import annotations

from ctypes import (
    CDLL,
    POINTER,
    Structure,
    byref,
    c_double,
    c_int64,
    c_uint64,
    c_void_p,
    cast,
    pointer,
)
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heed.nn.kernels import bias_activation_cpu as activation
from heed.nn.kernels import matrix_product_cpu as matrix_product
from heed.nn.kernels import residual_norm_cpu as residual_norm
from heed.nn.kernels import short_attention_cpu as attention
from heed.nn.kernels.attention_structs import PerTokenStruct, mask_rows
from heed.nn.kernels.availability import on_cpu
from heed.nn.kernels.block import BlockLayers
from heed.nn.kernels.cpu_library import cpu_library
from heed.nn.kernels.custom_op import once_differentiable
from heed.nn.kernels.matrix_product_cpu import LANES
from heed.nn.masks import Mask

PARAMETERS = 12


class KernelsStruct(Structure):
    """Addresses of the kernels that C calls; of the two products one is missing."""

    _fields_ = (
        *((name, c_void_p) for name in ("add_norm", "add_norm_backward")),
        *((name, c_void_p) for name in ("attend", "attend_backward")),
        *((name, c_void_p) for name in ("activate", "activate_backward", "block_count")),
        *((name, c_void_p) for name in ("multiply", "sgemm")),
    )


class BlockStruct(Structure):
    """A block with its inputs, its outputs and what is kept for its backward pass."""

    _fields_ = (
        ("run", POINTER(KernelsStruct)),
        ("parameters", c_void_p * PARAMETERS),
        *((name, c_void_p) for name in ("x", "branch", "last_stream", "last_branch", "kept")),
        *(("rotation", c_void_p), ("rotation_b", c_int64)),
        *((name, PerTokenStruct) for name in ("real", "segments")),
        *((name, c_int64) for name in ("sequences", "tokens", "width", "heads", "kv_heads")),
        *((name, c_int64) for name in ("head_width", "hidden")),
        *((name, c_int64) for name in ("kind", "is_gated", "is_causal", "threads")),
        *((name, c_uint64) for name in ("seed", "last_seed")),
        *((name, c_double) for name in ("dropped", "last_dropped", "scale", "eps", "last_eps")),
        *((name, c_int64) for name in ("is_centered", "last_is_centered")),
    )


class GradientsStruct(Structure):
    """Gradients of the outputs, and where the backward pass writes those of the inputs."""

    _fields_ = (
        ("parameters", c_void_p * PARAMETERS),
        *((name, c_void_p) for name in ("d_last_stream", "d_last_branch")),
        *((name, c_void_p) for name in ("dx", "d_branch", "scratch")),
    )


def run_block(
    x_bnw: Tensor,
    branch_bnw: Tensor | None,
    layers: BlockLayers,
    mask: Mask | None,
    table_bn2d: Tensor | None,
    dropped: float,
) -> tuple[Tensor, Tensor] | None:
    """The stream and the branch that a block leaves; None where C does not serve.

    `table_bn2d` has cosines and sines that rotate queries and keys, [b or 1, n, 2, d/2].
    """
    parameters, shapes = layers.parameters(), layers.shapes()
    served = dropped < 1.0 and layers.kind in activation.KINDS and _has_norms(layers)
    if not served or torch.is_autocast_enabled("cpu") or not _fits(x_bnw, layers.head_width, mask):
        return None
    if branch_bnw is not None and (branch_bnw.shape != x_bnw.shape or not _is_plain(branch_bnw)):
        return None
    if table_bn2d is not None and not _has_angles(table_bn2d, x_bnw, layers.head_width):
        return None
    for parameter, shape in zip(parameters, shapes, strict=True):
        if parameter is None:
            if len(shape) == 2:
                return None
        elif parameter.shape != shape or not _is_plain(parameter):
            return None
    kernels = load_kernels(all(size % LANES == 0 for shape in shapes for size in shape))
    if kernels is None or parameters[0] is None or parameters[6] is None:
        return None
    run: Any = _Block.apply
    after: tuple[Tensor, Tensor] = run(
        kernels, layers, mask, table_bn2d, dropped, x_bnw, branch_bnw, *parameters
    )
    return after


def _has_norms(layers: BlockLayers) -> bool:
    norms = layers.norm, layers.last_norm
    known = (nn.LayerNorm, nn.RMSNorm)
    return all(type(norm) in known and norm.eps is not None for norm in norms)


def _fits(x_bnw: Tensor, head_width: int, mask: Mask | None) -> bool:
    """Whether kernels hold sequences and heads of these sizes, and read this mask."""
    n, w = x_bnw.shape[1:]
    small = 1 < n <= attention.MAX_TOKENS and head_width <= attention.MAX_WIDTH
    if not small or w > residual_norm.MAX_WIDTH or x_bnw.numel() == 0 or not _is_plain(x_bnw):
        return False
    if mask is None:
        return True
    is_own = type(mask) is Mask and mask.queries == mask.keys == n
    return is_own and mask.q_segments_bn is mask.k_segments_bm


def _has_angles(table_bn2d: Tensor, x_bnw: Tensor, head_width: int) -> bool:
    """Whether a table has an angle for each token and each pair of numbers."""
    (b, n, _), (rows, *others) = x_bnw.shape, table_bn2d.shape
    known = rows in (1, b) and others == [n, 2, head_width // 2] and head_width % 2 == 0
    return known and _is_plain(table_bn2d)


def _is_plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and on_cpu(x) and x.is_contiguous()


# ---------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class Kernels:
    """The library of blocks, and the kernels that it calls."""

    library: CDLL
    table: Any
    """A pointer to their addresses."""


@cache
def load_kernels(fills_registers: bool) -> Kernels | None:
    """The kernels; None where some are missing.

    `fills_registers`: all sizes are multiples of LANES, which `matrix_product_cpu` needs.
    """
    library, norms = cpu_library("block"), cpu_library("residual_norm")
    heads, activations = cpu_library("short_attention"), cpu_library("bias_activation")
    own = matrix_product.load_kernel() if fills_registers else None
    multiply = None if own is None else _address(own.multiply)
    sgemm = _find_sgemm() if own is None else None
    if library is None or norms is None or heads is None or activations is None:
        return None
    if multiply is None and sgemm is None:
        return None
    for name in ("count_kept", "count_scratch"):
        function = getattr(library, name)
        function.argtypes, function.restype = [POINTER(BlockStruct)], c_int64
    library.run.argtypes, library.run.restype = [POINTER(BlockStruct)], None
    both = POINTER(BlockStruct), POINTER(GradientsStruct)
    library.run_backward.argtypes, library.run_backward.restype = both, None
    table = KernelsStruct(
        *(_address(norms.add_norm), _address(norms.add_norm_backward)),
        *(_address(heads.attend), _address(heads.differentiate)),
        *(_address(activations.activate), _address(activations.differentiate)),
        *(_address(activations.block_count), multiply, sgemm),
    )
    return Kernels(library, pointer(table))


def _find_sgemm() -> int | None:
    """The address of MKL's product in torch's own library, so that torch sets its threads."""
    if not torch.backends.mkl.is_available():
        return None
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return _address(CDLL(str(path)).sgemm_)
    except (OSError, AttributeError):  # another build of torch
        return None


def _address(function: Any) -> int | None:
    return cast(function, c_void_p).value


# --------------------------------------------------------------------------------- autograd


class _Block(torch.autograd.Function):
    """The calls of C as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        layers: BlockLayers,
        mask: Mask | None,
        table: Tensor | None,
        dropped: float,
        x: Tensor,
        branch: Tensor | None,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        b, n, w = x.shape
        real, segments, _ = mask_rows(mask, b, n, n)
        last_stream, last_branch = torch.empty_like(x), torch.empty_like(x)
        drops = dropped > 0 and branch is not None
        seed = residual_norm.draw_seed() if drops else 0
        last_seed = residual_norm.draw_seed() if dropped else 0
        block = BlockStruct(
            kernels.table,
            (c_void_p * PARAMETERS)(*map(_start, parameters)),
            *map(_start, (x, branch, last_stream, last_branch)),
            None,
            *(_start(table), 0 if table is None or len(table) == 1 else table.stride(0)),
            *map(PerTokenStruct.of, (real, segments)),
            *(b, n, w, layers.heads, layers.kv_heads, layers.head_width),
            *(layers.down.in_features, activation.KINDS.index(layers.kind), layers.gated),
            *(mask is not None and mask.causal, torch.get_num_threads()),
            *(seed, last_seed, dropped if drops else 0.0, dropped),
            *(layers.scale, layers.norm.eps, layers.last_norm.eps),
            *(type(norm) is nn.LayerNorm for norm in (layers.norm, layers.last_norm)),
        )
        kept = x.new_empty(kernels.library.count_kept(byref(block)))
        block.kept = kept.data_ptr()
        kernels.library.run(byref(block))
        # Without a branch the stream that is normalized is x; else it is among what is kept.
        stream = x if branch is None else None
        ctx.save_for_backward(stream, last_stream, kept, table, real, segments, *parameters)
        ctx.kernels, ctx.block, ctx.has_branch = kernels, block, branch is not None
        ctx.set_materialize_grads(False)
        return last_stream, last_branch

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_last_stream: Tensor | None, d_last_branch: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        stream, last_stream, kept, table, real, segments, *parameters = ctx.saved_tensors
        library, block = ctx.kernels.library, ctx.block
        if d_last_branch is None:
            d_last_branch = torch.zeros_like(last_stream)
        d_last_branch = d_last_branch.contiguous()
        d_last_stream = None if d_last_stream is None else d_last_stream.contiguous()
        # What was saved may lie elsewhere now, if hooks packed and unpacked it.
        block.parameters[:] = [_start(parameter) for parameter in parameters]
        block.x, block.last_stream, block.kept = map(_start, (stream, last_stream, kept))
        block.rotation = _start(table)
        block.real, block.segments = map(PerTokenStruct.of, (real, segments))
        block.threads = torch.get_num_threads()
        dx = torch.empty_like(last_stream)
        d_branch = torch.empty_like(dx) if ctx.has_branch and block.dropped else None
        needed = ctx.needs_input_grad[-PARAMETERS:]
        gradients = [
            torch.empty_like(parameter) if is_needed else None
            for parameter, is_needed in zip(parameters, needed, strict=True)
        ]
        scratch = dx.new_empty(library.count_scratch(byref(block)))
        to = GradientsStruct(
            (c_void_p * PARAMETERS)(*map(_start, gradients)),
            *map(_start, (d_last_stream, d_last_branch, dx, d_branch, scratch)),
        )
        library.run_backward(byref(block), byref(to))
        if ctx.has_branch and d_branch is None:
            d_branch = dx
        return None, None, None, None, None, dx, d_branch, *gradients


def _start(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
