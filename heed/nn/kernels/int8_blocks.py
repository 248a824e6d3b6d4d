"""int8 linear layers and blocks of a Transformer in C (`c/int8_blocks.c`), as Python calls them.

The structs mirror those of the C source, field by field. They hold addresses of tensors, which must
live as long as they do.

Shapes: r rows, w numbers in, f numbers out.
"""

from __future__ import annotations

import platform
import sys
import warnings
from ctypes import CDLL, POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.errors import HeedWarning
from heed.nn.kernels.c_library import CompilerError, cpu_instructions, load_library

SOURCE = Path(__file__).parent / "c" / "int8_blocks.c"
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
"""What the CPU must have, as Linux lists it."""
FLAGS = (*(f"-m{name.replace('_', '')}" for name in INSTRUCTIONS), "-mfma")
PANEL = 64
"""Outputs are padded to whole panels."""
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
"""In the order of the C source."""


class LinearStruct(Structure):
    """A linear layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("packed", "start", "scales", "bias")),
        *((name, c_int32) for name in ("w", "f")),
    )


class NormStruct(Structure):
    """A LayerNorm or an RMSNorm; without a weight, none."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("is_centered", c_int32),
    )


class AttentionStruct(Structure):
    """Self-attention or cross-attention, with its norm."""

    _fields_ = (
        ("into", LinearStruct),
        ("out", LinearStruct),
        ("norm", NormStruct),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("scale", c_float),
    )


class BlockStruct(Structure):
    """One block; an encoder's has no cross-attention."""

    _fields_ = (
        ("self", AttentionStruct),
        ("cross", AttentionStruct),
        ("up", LinearStruct),
        ("down", LinearStruct),
        ("feed_forward_norm", NormStruct),
    )


class StackStruct(Structure):
    """All blocks of a stack, and the norm after them."""

    _fields_ = (
        ("blocks", POINTER(BlockStruct)),
        ("norm", NormStruct),
        *((name, c_int32) for name in ("layers", "width", "head_width", "widest")),
        *((name, c_int32) for name in ("activation", "is_gated", "is_pre_norm", "has_cross")),
    )


class BiasStruct(Structure):
    """A position's bias of one layer, with strides."""

    _fields_ = (("start", c_void_p), *((name, c_int64) for name in "bhn"))


class LayerStateStruct(Structure):
    """Keys, values and the position's bias of one layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "values", "source_keys", "source_values")),
        ("bias", BiasStruct),
    )


class StepStruct(Structure):
    """The tensors of one decoding step."""

    _fields_ = (
        ("layers", POINTER(LayerStateStruct)),
        *((name, c_void_p) for name in ("x", "visible", "done", "next_cells", "source_ends")),
        *((name, c_void_p) for name in ("cosines", "sines", "scratch")),
        ("rotation_b", c_int64),
        *((name, c_int32) for name in ("inputs", "beams", "cells", "source_cells")),
    )


class SourcesStruct(Structure):
    """The sources of a batch, without padding."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "starts", "cosines", "sines")),
        ("biases", POINTER(BiasStruct)),
        ("scratch", c_void_p),
        *((name, c_int32) for name in ("inputs", "longest")),
    )


@cache
def int8_library() -> CDLL | None:
    """The compiled kernels; None where the CPU lacks the instructions, or nothing compiles."""
    if not _has_instructions():
        return None
    try:
        library = load_library(SOURCE, FLAGS)
    except CompilerError as error:
        todo = "Install a C compiler for about twice the speed."
        warnings.warn(f"int8 decodes without compiled kernels: {error} {todo}", HeedWarning, 2)
        return None
    library.pack.argtypes = [c_void_p, c_int32, c_int32, c_void_p, c_void_p]
    library.multiply.argtypes = [POINTER(LinearStruct), c_void_p, c_int64, c_void_p, c_void_p]
    library.multiply_scratch.argtypes = [c_int64, c_int64]
    library.multiply_scratch.restype = c_int64
    for name, inputs in ("decode", StepStruct), ("encode", SourcesStruct):
        for function in (getattr(library, name), getattr(library, f"{name}_scratch")):
            function.argtypes = [POINTER(StackStruct), POINTER(inputs)]
        getattr(library, f"{name}_scratch").restype = c_int64
    library.best_tokens.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    for name in ("pack", "multiply", "decode", "encode", "best_tokens"):
        getattr(library, name).restype = None
    return library


def _has_instructions() -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return set(INSTRUCTIONS) <= set(cpu_instructions())


class PackedLinear:
    """A linear layer with int8 weights in the order of the C kernel; call it with vectors."""

    def __init__(
        self, library: CDLL, integers_fw: Tensor, scales_f: Tensor, bias: Tensor | None
    ) -> None:
        f, w = integers_fw.shape
        outputs, inputs = -(-f // PANEL) * PANEL, -(-w // 4) * 4
        packed = torch.empty(outputs * inputs, dtype=torch.int8)
        start = torch.empty(outputs, dtype=torch.int32)
        integers_fw = integers_fw.contiguous()
        library.pack(integers_fw.data_ptr(), f, w, packed.data_ptr(), start.data_ptr())
        bias = torch.zeros(f) if bias is None else bias.detach().float()
        padding = 0, outputs - f
        self.tensors = packed, start, F.pad(scales_f, padding), F.pad(bias, padding)
        self.struct = LinearStruct(*(x.data_ptr() for x in self.tensors), w, f)
        self.library = library

    def __call__(self, x: Tensor) -> Tensor:
        """W x + b over the last dimension."""
        w, f = self.struct.w, self.struct.f
        x_rw = x.reshape(-1, w).float().contiguous()
        rows = len(x_rw)
        out_rf = torch.empty(rows, f)
        scratch = torch.empty(self.library.multiply_scratch(rows, w), dtype=torch.uint8)
        self.library.multiply(
            byref(self.struct), x_rw.data_ptr(), rows, out_rf.data_ptr(), scratch.data_ptr()
        )
        return out_rf.view(*x.shape[:-1], f)


def best_tokens(library: CDLL, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token over the last dimension, and the logarithm of its probability."""
    logits = logits.float().contiguous()
    tokens = torch.empty(logits.shape[:-1], dtype=torch.long)
    logprobs = torch.empty(logits.shape[:-1])
    library.best_tokens(
        logits.data_ptr(),
        tokens.numel(),
        logits.shape[-1],
        tokens.data_ptr(),
        logprobs.data_ptr(),
    )
    return tokens, logprobs
