"""Pre-norm blocks that train on a CPU in float32, as one function of autograd (`c/block.c`).

In a small model the steps between kernels take as long as the kernels: functions of autograd, views
and small tensors, whose code and objects the kernels' numbers displace from the CPU's caches. Here
the forward pass of all blocks is one call of C, and their backward pass another. They call the
kernels of the blocks' parts, and matrix products of `matrix_product_cpu` or of MKL, where torch's
come from.

The structs mirror those of the C source, field by field.

Shapes: b batch, n tokens, w model width, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import (
    CDLL,
    POINTER,
    Array,
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
from itertools import chain
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
MAX_KEPT = 2**24
"""Numbers that several blocks may keep for their backward pass. They are freed together, later than
those of single blocks; with more of them, the time between blocks does not count."""


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


def run_blocks(
    x_bnw: Tensor,
    branch_bnw: Tensor | None,
    layers: Sequence[BlockLayers],
    mask: Mask | None,
    table_bn2d: Tensor | None,
    dropped: float,
) -> tuple[Tensor, Tensor] | None:
    """The stream and the branch that blocks leave; None where C does not serve.

    `table_bn2d` has cosines and sines that rotate queries and keys, [b or 1, n, 2, d/2].
    """
    if dropped >= 1.0 or torch.is_autocast_enabled("cpu"):
        return None
    if branch_bnw is not None and (branch_bnw.shape != x_bnw.shape or not _is_plain(branch_bnw)):
        return None
    parameters, fills_registers = [], True
    for block in layers:
        own, shapes = block.parameters(), block.shapes()
        if not (_has_norms(block) and block.kind in activation.KINDS and _are_plain(own, shapes)):
            return None
        if not _fits(x_bnw, block, mask, table_bn2d):
            return None
        parameters.append(own)
        fills_registers &= not any(size % LANES for shape in shapes for size in shape)
    kernels = load_kernels(fills_registers)
    if kernels is None:
        return None
    run: Any = _Blocks.apply
    stream, branch = x_bnw, branch_bnw
    count = _blocks_at_once(x_bnw, layers)
    for i in range(0, len(layers), count):
        some = slice(i, i + count)
        settings = kernels, layers[some], mask, table_bn2d, dropped
        stream, branch = run(*settings, stream, branch, *chain(*parameters[some]))
    return None if branch is None else (stream, branch)


def _blocks_at_once(x_bnw: Tensor, layers: Sequence[BlockLayers]) -> int:
    """How many blocks may keep what their backward pass reads until all of them have run it."""
    b, n, w = x_bnw.shape
    widest = max(
        5 * w + block.heads * n + block.qkv.out_features + 3 * block.up.out_features
        for block in layers
    )
    return max(1, MAX_KEPT // (b * n * widest))


def _are_plain(parameters: Sequence[Tensor | None], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether C can read these parameters; biases alone may be missing."""
    for i, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if parameter is None:
            if i % 2 == 0:
                return False
        elif not (_is_plain(parameter) and parameter.shape == shape):
            return False
    return True


def _has_norms(layers: BlockLayers) -> bool:
    norms = layers.norm, layers.last_norm
    known = (nn.LayerNorm, nn.RMSNorm)
    return all(type(norm) in known and norm.eps is not None for norm in norms)


def _fits(x_bnw: Tensor, block: BlockLayers, mask: Mask | None, table: Tensor | None) -> bool:
    """Whether kernels hold sequences and heads of these sizes, and read this mask and table."""
    (b, n, w), head_width = x_bnw.shape, block.head_width
    if w != block.qkv.in_features or block.heads % block.kv_heads:
        return False  # the parts have words for it
    small = 1 < n <= attention.MAX_TOKENS and head_width <= attention.MAX_WIDTH
    if not small or w > residual_norm.MAX_WIDTH or x_bnw.numel() == 0 or not _is_plain(x_bnw):
        return False
    if table is not None:
        rows, *others = table.shape
        has_angles = rows in (1, b) and others == [n, 2, head_width // 2] and head_width % 2 == 0
        if not has_angles or not _is_plain(table):
            return False
    if mask is None:
        return True
    is_own = type(mask) is Mask and mask.queries == mask.keys == n
    return is_own and mask.q_segments_bn is mask.k_segments_bm


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
    blocks, gradients = POINTER(BlockStruct), POINTER(GradientsStruct)
    library.run_blocks.argtypes = [blocks, c_int64]
    library.run_blocks_backward.argtypes = [blocks, gradients, c_int64]
    library.run_blocks.restype = library.run_blocks_backward.restype = None
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


class _Blocks(torch.autograd.Function):
    """The calls of C as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        layers: Sequence[BlockLayers],
        mask: Mask | None,
        table: Tensor | None,
        dropped: float,
        x: Tensor,
        branch: Tensor | None,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        (b, n, w), threads = x.shape, torch.get_num_threads()
        real, segments, _ = mask_rows(mask, b, n, n)
        per_token = PerTokenStruct.of(real), PerTokenStruct.of(segments)
        table_row = 0 if table is None or len(table) == 1 else table.stride(0)
        is_causal = mask is not None and mask.causal
        # All blocks write their branch to the same memory: each has read the one before it.
        last_stream, last_branch = torch.empty_like(x), torch.empty_like(x)
        blocks, sizes, own_branch = (BlockStruct * len(layers))(), [], branch
        for i, layer in enumerate(layers):
            drops = dropped > 0 and own_branch is not None
            seed = residual_norm.draw_seed() if drops else 0
            last_seed = residual_norm.draw_seed() if dropped else 0
            own = parameters[i * PARAMETERS : (i + 1) * PARAMETERS]
            blocks[i] = BlockStruct(
                kernels.table,
                (c_void_p * PARAMETERS)(*map(_start, own)),
                *(None, _start(own_branch), None, last_branch.data_ptr(), None),
                *(_start(table), table_row, *per_token),
                *(b, n, w, layer.heads, layer.kv_heads, layer.head_width),
                *(layer.down.in_features, activation.KINDS.index(layer.kind), layer.gated),
                *(is_causal, threads, seed, last_seed, dropped if drops else 0.0, dropped),
                *(layer.scale, layer.norm.eps, layer.last_norm.eps),
                *(type(norm) is nn.LayerNorm for norm in (layer.norm, layer.last_norm)),
            )
            sizes.append(kernels.library.count_kept(byref(blocks[i])))
            own_branch = last_branch
        kept = [x.new_empty(size) for size in sizes]
        streams = [*(torch.empty_like(x) for _ in layers[1:]), last_stream]
        _place(blocks, x, streams, kept)
        kernels.library.run_blocks(blocks, len(layers))
        # Without a branch the first stream that is normalized is x; else it is among what is kept.
        first = x if branch is None else None
        ctx.save_for_backward(first, table, real, segments, *streams, *kept, *parameters)
        ctx.kernels, ctx.blocks, ctx.has_branch = kernels, blocks, branch is not None
        ctx.set_materialize_grads(False)
        return last_stream, last_branch

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_last_stream: Tensor | None, d_last_branch: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        first, table, real, segments, *others = ctx.saved_tensors
        library, needed = ctx.kernels.library, ctx.needs_input_grad[5:]
        # Another pass over the same graph may run meanwhile, in another thread.
        blocks = type(ctx.blocks).from_buffer_copy(ctx.blocks)
        begin, count = 0, len(blocks)
        streams, kept, parameters = others[:count], others[count : 2 * count], others[2 * count :]
        last_stream = streams[-1]
        if d_last_branch is None:
            d_last_branch = torch.zeros_like(last_stream)
        d_last_branch = d_last_branch.contiguous()
        d_last_stream = None if d_last_stream is None else d_last_stream.contiguous()
        gradients = [
            torch.empty_like(parameter) if is_needed else None
            for parameter, is_needed in zip(parameters, needed[2:], strict=True)
        ]
        # What was saved may lie elsewhere now, if hooks packed and unpacked it.
        _place(blocks, first, streams, kept)
        table_start, threads = _start(table), torch.get_num_threads()
        per_token = PerTokenStruct.of(real), PerTokenStruct.of(segments)
        if not any(needed[:2]):  # the first blocks may learn nothing
            begin = next(i for i, is_needed in enumerate(needed[2:]) if is_needed) // PARAMETERS
        scratch = last_stream.new_empty(
            max(library.count_scratch(byref(block)) for block in blocks)
        )
        # Gradients between blocks: each block reads two of them and writes the other two.
        between = last_stream.new_empty(2, 2, last_stream.numel() if count > 1 else 0)
        dx = torch.empty_like(last_stream)
        d_branch = torch.empty_like(dx) if ctx.has_branch and blocks[0].dropped else None
        to, d_stream, d_added = (GradientsStruct * count)(), d_last_stream, d_last_branch
        for i in reversed(range(begin, count)):
            block, own = blocks[i], slice(i * PARAMETERS, (i + 1) * PARAMETERS)
            block.parameters[:] = [_start(parameter) for parameter in parameters[own]]
            block.rotation, block.threads = table_start, threads
            block.real, block.segments = per_token
            d_in, d_in_branch = (between[i % 2, 0], between[i % 2, 1]) if i else (dx, d_branch)
            if not block.dropped:
                d_in_branch = None
            to[i] = GradientsStruct(
                (c_void_p * PARAMETERS)(*map(_start, gradients[own])),
                *map(_start, (d_stream, d_added, d_in, d_in_branch, scratch)),
            )
            d_stream, d_added = d_in, d_in if d_in_branch is None else d_in_branch
        library.run_blocks_backward(byref(blocks[begin]), byref(to[begin]), count - begin)
        if begin:
            return *[None] * 7, *gradients
        if ctx.has_branch and d_branch is None:
            d_branch = dx
        return *[None] * 5, dx, d_branch, *gradients


def _place(
    blocks: Array[BlockStruct],
    first: Tensor | None,
    streams: Sequence[Tensor],
    kept: Sequence[Tensor],
) -> None:
    """Where each block reads and writes its stream, and keeps what its backward pass reads."""
    for block, before, stream, own in zip(blocks, (first, *streams), streams, kept, strict=False):
        block.x, block.last_stream, block.kept = map(_start, (before, stream, own))


def _start(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
