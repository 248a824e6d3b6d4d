"""Matrix products by cuBLASLt: the fastest of its algorithms, and GELU within the product.

Torch takes the algorithm that cuBLASLt expects to be the fastest. Often another one is faster by
several percent. Here the first product of every shape times them all. Only algorithms compete that
give the very bits of the expected one, so results do not depend on the timing.

Torch has no product that applies GELU and keeps its input, or that multiplies by GELU's derivative.
cuBLASLt has both ("epilogues"), which saves passes over memory. Its GELU is the tanh form.

Torch has loaded the library already; it is called by `ctypes`. Products that it refuses, as of
another GPU or version, torch computes. Shapes: n rows, k inner dimension, m columns of the result.
cuBLASLt counts by columns: to it, a tensor is its transpose.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from threading import Lock
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 8
"""Algorithms that compete."""
REPEATS, WAIT = 8, 2_000_000
"""Products by which an algorithm is timed, and the GPU's cycles before the first: a millisecond."""
WORKSPACES = 0, 2**25
"""Bytes of memory that algorithms may use; the second, where none does without. With memory of a
product's own each launch first zeroes a counter in it, which takes 2 to 9 µs."""
MIN_OPERATIONS = 2**33
"""A smaller product is left to torch: its time is that of a launch, and the search costs more."""
ALIGNMENT = 8
"""Dimensions must be multiples of this many numbers of 16 bits, for reads of 16 bytes."""

# Constants of cublasLt.h and library_types.h.
COMPUTE_32F, REAL_32F, REAL_16BF = 68, 0, 14
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_STRIDE = 3, 4, 7, 8, 11, 12
NO_EPILOGUE, BIAS, GELU_AUX, GELU_AUX_BIAS, D_GELU = 1, 4, 160, 164, 192
WORKSPACE_BYTES = 1


class Heuristic(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`: an algorithm and the workspace that it needs."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLtError(RuntimeError):
    """A call of cuBLASLt failed."""


def serves(x_nk: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether a product of these factors is worth a search, and can be computed here.

    `dtype` is the one that they are narrowed to before the product, if any.
    """
    dtypes = {x_nk.dtype, weight.dtype} if dtype is None else {dtype}
    if dtypes != {torch.bfloat16} or not x_nk.is_cuda:
        return False
    # The compile process has fake tensors, which have no address, and no GPU.
    if not torch.cuda.is_initialized():
        return False
    n = x_nk.numel() // max(1, x_nk.shape[-1])
    if 2 * n * weight.numel() < MIN_OPERATIONS:
        return False
    if any(size % ALIGNMENT for size in (n, *weight.shape)):
        return False
    if dtype is None and not (_is_readable(x_nk) and _is_readable(weight)):
        return False
    return _library() is not None


def _is_readable(x: Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % (2 * ALIGNMENT) == 0


def _readable(x: Tensor) -> Tensor:
    return x if _is_readable(x) else x.clone(memory_format=torch.contiguous_format)


def linear(x_nk: Tensor, weight_mk: Tensor, bias_m: Tensor | None = None) -> Tensor:
    """x Wᵀ + b [n, m]."""
    kind = NO_EPILOGUE if bias_m is None else BIAS
    out = _multiply(x_nk, weight_mk, True, kind, bias=bias_m)
    return F.linear(x_nk, weight_mk, bias_m) if out is None else out


def linear_gelu(
    x_nk: Tensor, weight_mk: Tensor, bias_m: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """GELU of x Wᵀ + b in its tanh form, and x Wᵀ + b itself, both [n, m]."""
    hidden_nm = x_nk.new_empty(*x_nk.shape[:-1], len(weight_mk))
    kind = GELU_AUX if bias_m is None else GELU_AUX_BIAS
    activated = _multiply(x_nk, weight_mk, True, kind, bias=bias_m, aux=hidden_nm)
    if activated is None:
        hidden_nm = F.linear(x_nk, weight_mk, bias_m)
        activated = F.gelu(hidden_nm, approximate="tanh")
    return activated, hidden_nm


def product(x_nk: Tensor, weight_km: Tensor) -> Tensor:
    """x W [n, m]."""
    out = _multiply(x_nk, weight_km, False, NO_EPILOGUE)
    return x_nk @ weight_km if out is None else out


def product_gelu_backward(d_nk: Tensor, weight_km: Tensor, hidden_nm: Tensor) -> Tensor:
    """d W, times the derivative of GELU's tanh form at `hidden_nm` [n, m]."""
    out = _multiply(d_nk, weight_km, False, D_GELU, aux=hidden_nm)
    if out is not None:
        return out
    d_nm = d_nk @ weight_km
    return torch.ops.aten.gelu_backward(d_nm, hidden_nm.view(d_nm.shape), approximate="tanh")


class Shape(NamedTuple):
    """What a plan depends on."""

    n: int
    k: int
    m: int
    transposed: bool
    """Whether the second factor is a linear layer's weight [m, k], or a matrix [k, m]."""
    epilogue: int
    device: torch.device


class Plan:
    """The product of one shape: descriptors, and the algorithm once it is chosen."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.lock = shape, Lock()
        self._library, self._handle = _require_library(), _handle(shape.device)
        n, k, m, transposed, epilogue, _ = shape
        self._description = c_void_p()
        self._call("MatmulDescCreate", byref(self._description), COMPUTE_32F, REAL_32F)
        self._set(TRANSPOSE_A, c_int(transposed))
        self._set(TRANSPOSE_B, c_int(False))
        self._set(EPILOGUE, c_int(epilogue))
        if epilogue in (GELU_AUX, GELU_AUX_BIAS, D_GELU):
            self._set(AUX_STRIDE, c_int64(m))
        self._weight = self._layout(m, k) if transposed else self._layout(k, m)
        self._x, self._out = self._layout(n, k), self._layout(n, m)
        self._chosen: Heuristic | None = None

    def run(
        self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, aux: Tensor | None
    ) -> None:
        """Write the product of these tensors on the current stream."""
        with self.lock:
            if bias is not None:
                self._set(BIAS_POINTER, c_uint64(bias.data_ptr()))
            if aux is not None:
                self._set(AUX_POINTER, c_uint64(aux.data_ptr()))
            if self._chosen is None:
                self._chosen = self._choose(x, weight, out, aux)
            self._launch(self._chosen, x, weight, out)

    def _choose(self, x: Tensor, weight: Tensor, out: Tensor, aux: Tensor | None) -> Heuristic:
        """The fastest of the algorithms that agree with the first to the last bit.

        A capture cannot wait for the GPU, so there the first is taken. So it is where memory for
        another result is not left.
        """
        found = self._candidates()
        if len(found) == 1 or torch.cuda.is_current_stream_capturing():
            return found[0]
        try:
            return self._fastest(found, x, weight, out, aux)
        except torch.OutOfMemoryError:
            return found[0]

    def _fastest(
        self,
        found: Sequence[Heuristic],
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        aux: Tensor | None,
    ) -> Heuristic:
        # Real inputs may be blank, as at the start of a run: then any algorithms would agree.
        generator = torch.Generator(x.device).manual_seed(0)
        x, weight = (torch.empty_like(part).normal_(generator=generator) for part in (x, weight))
        written = [out] if aux is None or self.shape.epilogue == D_GELU else [out, aux]
        best, best_time, expected = found[0], float("inf"), list[Tensor]()
        for candidate in found:
            try:
                self._launch(candidate, x, weight, out)
            except CublasLtError:
                continue
            if not expected:
                expected = [part.clone() for part in written]
            elif not all(map(torch.equal, written, expected)):
                continue
            time = self._time(candidate, x, weight, out)
            if time < best_time:
                best, best_time = candidate, time
        return best

    def _time(self, candidate: Heuristic, x: Tensor, weight: Tensor, out: Tensor) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The GPU waits until all products are queued: else short ones take as long as a launch.
        torch.cuda._sleep(WAIT)
        begin.record()
        for _ in range(REPEATS):
            self._launch(candidate, x, weight, out)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def _candidates(self) -> Sequence[Heuristic]:
        """Algorithms for this shape, the one that should be the fastest first."""
        for limit in WORKSPACES:
            found = self._ask(limit)
            if found:
                return found
        raise CublasLtError("cuBLASLt has no algorithm for this product.")

    def _ask(self, workspace: int) -> Sequence[Heuristic]:
        """Algorithms with at most so many bytes of memory of their own."""
        preference, limit = c_void_p(), c_uint64(workspace)
        self._call("MatmulPreferenceCreate", byref(preference))
        setting = WORKSPACE_BYTES, byref(limit), c_size_t(ctypes.sizeof(limit))
        self._call("MatmulPreferenceSetAttribute", preference, *setting)
        results, count = (Heuristic * CANDIDATES)(), c_int()
        layouts = self._weight, self._x, self._out, self._out
        try:
            # A status other than 0 says that there is none.
            self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle,
                self._description,
                *layouts,
                preference,
                CANDIDATES,
                results,
                byref(count),
            )
        finally:
            self._call("MatmulPreferenceDestroy", preference)
        return [result for result in results[: count.value] if result.state == 0]

    def _launch(self, algorithm: Heuristic, x: Tensor, weight: Tensor, out: Tensor) -> None:
        workspace = None
        if algorithm.workspace:
            workspace = x.new_empty(algorithm.workspace, dtype=torch.uint8)
        one, zero, out_pointer = c_float(1.0), c_float(0.0), c_void_p(out.data_ptr())
        self._call(
            "Matmul",
            self._handle,
            self._description,
            byref(one),
            c_void_p(weight.data_ptr()),
            self._weight,
            c_void_p(x.data_ptr()),
            self._x,
            byref(zero),
            out_pointer,
            self._out,
            out_pointer,
            self._out,
            byref(algorithm.algorithm),
            c_void_p(None if workspace is None else workspace.data_ptr()),
            c_size_t(algorithm.workspace),
            c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )

    def _layout(self, rows: int, columns: int) -> c_void_p:
        """The layout of a contiguous tensor."""
        layout = c_void_p()
        sizes = c_uint64(columns), c_uint64(rows), c_int64(columns)
        self._call("MatrixLayoutCreate", byref(layout), REAL_16BF, *sizes)
        return layout

    def _set(self, attribute: int, value: c_int | c_int64 | c_uint64) -> None:
        size = c_size_t(ctypes.sizeof(value))
        self._call("MatmulDescSetAttribute", self._description, attribute, byref(value), size)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise CublasLtError(f"cublasLt{name} failed with status {status}.")


@cache
def _plan(shape: Shape) -> Plan:
    return Plan(shape)


_refused: set[Shape] = set()
"""Products that cuBLASLt did not compute; torch does."""


def _multiply(
    x: Tensor,
    weight: Tensor,
    transposed: bool,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    aux: Tensor | None = None,
) -> Tensor | None:
    """The product; None where cuBLASLt refuses it."""
    k = x.shape[-1]
    m = weight.shape[0 if transposed else 1]
    shape = Shape(x.numel() // k, k, m, transposed, epilogue, x.device)
    if shape in _refused:
        return None
    x, weight, bias = _readable(x), _readable(weight), None if bias is None else _readable(bias)
    out = x.new_empty(*x.shape[:-1], m)
    try:
        with torch.cuda.device(x.device):
            _plan(shape).run(x, weight, out, bias, aux)
    except CublasLtError:
        _refused.add(shape)
        return None
    return out


@cache
def _library() -> ctypes.CDLL | None:
    """The cuBLASLt that torch has loaded; None where torch was built without it."""
    version = torch.version.cuda
    if version is None:
        return None
    try:
        return ctypes.CDLL(f"libcublasLt.so.{version.split('.')[0]}")
    except OSError:
        return None


def _require_library() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise CublasLtError("cuBLASLt is not there.")
    return library


@cache
def _handle(device: torch.device) -> c_void_p:
    """This process's handle for a device."""
    handle = c_void_p()
    status = _require_library().cublasLtCreate(byref(handle))
    if status:
        raise CublasLtError(f"cublasLtCreate failed with status {status}.")
    return handle
