"""Attention of a decoding step, one program per key head, equals the plain formula.

These tests run on a GPU, or without one in Triton's interpreter: `TRITON_INTERPRET=1 pytest …`. The
interpreter has no bfloat16; float16 takes its place there. With numpy 2.4 or later it has no loops
up to a number that a kernel has read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from gpu_marks import CUDA, DEVICE, INTERPRETED
from support import TOLERANCE, apart
from torch import Tensor

from heed.nn.attention import attend
from heed.nn.kernels import dispatch
from heed.nn.kernels.decode_attention import (
    MAX_QUERIES,
    ExplicitMask,
    attend_decode,
    fits_decode,
    write_kv,
)

COUNTS = np.lib.NumpyVersion(np.__version__) < "2.4.0"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (CUDA or (INTERPRETED and COUNTS)), reason="neither a CUDA device nor interpreted"
    ),
]
HALF = torch.bfloat16 if CUDA else torch.float16
B, GROUPS = 3, 2


@dataclass
class Step:
    """One decoding step: queries, cached keys and values, and the mask."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: ExplicitMask
    bias: Tensor | None
    written: int

    def fused(self) -> Tensor:
        """By the kernel."""
        kwargs = {"mask": self.mask, "bias": self.bias, "scale": 0.2}
        with torch.no_grad():
            return attend_decode(self.q, self.k, self.v, **kwargs)  # type: ignore[arg-type]

    def exact(self) -> Tensor:
        """The plain formula in float64, over the written cells."""
        k, v = (x[:, :, : self.written].double().nan_to_num() for x in (self.k, self.v))
        visible = self.mask.visible[:, None, :, : self.written]
        bias = None if self.bias is None else self.bias[..., : self.written].double()
        return attend(self.q.double(), k, v, mask=visible, bias=bias, scale=0.2)[0]


def make_step(
    n: int,
    m: int,
    *,
    written: int | None = None,
    ends: list[int] | None = None,
    share: int = 1,
    width: int = 64,
    biased: bool = False,
    alike: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Step:
    """With `written`, later cells are NaN and marked visible; with `ends`, cells beyond a
    sequence's end are NaN. `alike`: all queries share one row of the mask."""
    draw = torch.Generator().manual_seed(n * 1000 + m)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(DEVICE, dtype)

    q = random(B, n, GROUPS * share, width).transpose(1, 2)
    k, v = random(B, GROUPS, m, width), random(B, GROUPS, m, width)
    visible = (torch.rand(B, 1 if alike else n, m, generator=draw) < 0.6).to(DEVICE)
    cells = None
    if written is not None:
        cells = torch.arange(written - n, written, device=DEVICE)
        k[:, :, written:] = torch.nan
        v[:, :, written:] = torch.nan
        visible[..., written:] = True
    ends_b = None
    if ends is not None:
        ends_b = torch.tensor(ends, device=DEVICE)
        beyond = torch.arange(m, device=DEVICE) >= ends_b[:, None]
        for x in (k, v):
            x[beyond[:, None].expand(B, GROUPS, m)] = torch.nan
        visible &= ~beyond[:, None]
    mask = ExplicitMask(n, m, DEVICE, visible_bnm=visible, cells_n=cells, ends_b=ends_b)
    bias = random(1, GROUPS * share, n, m).float() if biased else None
    return Step(q, k, v, mask, bias, m if written is None else written)


def same(step: Step) -> None:
    tolerance = TOLERANCE[torch.float32 if step.q.dtype == torch.float32 else torch.bfloat16]
    found = step.fused()
    assert found.dtype == step.q.dtype
    assert apart(found.double(), step.exact()) <= tolerance


@pytest.mark.parametrize("m", [1, 31, 63, 64, 65, 150])
@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_fused_is_plain(n: int, m: int) -> None:
    """For any number of queries, and wherever the last tile of keys ends."""
    same(make_step(n, m))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["float32", "half"])
@pytest.mark.parametrize("share", [1, 4])
@pytest.mark.parametrize("n", [1, 3])
def test_heads_may_share_keys(n: int, share: int, dtype: torch.dtype) -> None:
    same(make_step(n, 70, share=share, biased=True, dtype=dtype))


@pytest.mark.parametrize("width", [8, 24, 64, 128])
def test_any_width(width: int) -> None:
    same(make_step(3, 40, width=width))


@pytest.mark.parametrize("written", [5, 64, 65, 130])
@pytest.mark.parametrize("n", [1, 5])
def test_unwritten_cells_are_not_read(n: int, written: int) -> None:
    """Those cells are NaN here, and the mask marks them as visible."""
    step = make_step(n, 130, written=written, biased=True)
    assert bool(step.fused().isfinite().all())
    same(step)


@pytest.mark.parametrize("written", [None, 70])
@pytest.mark.parametrize("n", [1, 5])
def test_cells_beyond_the_end_are_not_read(n: int, written: int | None) -> None:
    """Those cells are NaN here; a sequence of which nothing is read gives zeros."""
    step = make_step(n, 130, written=written, ends=[0, 64, 101])
    found = step.fused()
    assert bool((found[0] == 0).all())
    assert bool(found.isfinite().all())
    assert apart(found[1:].double(), step.exact()[1:]) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("n", [1, 5])
def test_queries_may_share_one_row_of_the_mask(n: int) -> None:
    same(make_step(n, 45, alike=True))


@pytest.mark.parametrize("n", [1, 5])
def test_a_query_that_sees_nothing_gets_zeros(n: int) -> None:
    step = make_step(n, 40)
    step.mask.visible[0] = False
    assert bool((step.fused()[0] == 0).all())
    same(step)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("width", [24, 64])
def test_new_keys_go_to_their_cells(n: int, width: int) -> None:
    """All other cells keep their values."""
    packed = torch.randn(B, n, 3 * GROUPS, width, device=DEVICE)
    _, k, v = (x.transpose(1, 2) for x in packed.split(GROUPS, dim=2))
    buffers = [torch.randn(B, GROUPS, 20, width, device=DEVICE) for _ in range(2)]
    cells = torch.arange(7, 7 + n, device=DEVICE)
    wanted = [x.index_copy(2, cells, new) for x, new in zip(buffers, (k, v), strict=True)]
    write_kv((k, v), buffers, cells)
    assert all(torch.equal(x, y) for x, y in zip(buffers, wanted, strict=True))


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n", [1, 5, MAX_QUERIES + 1])
def test_the_kernel_serves_where_it_fits_and_only_there(n: int, biased: bool) -> None:
    """With gradients or too many queries another kernel gives the same output."""
    step = make_step(n, 60, biased=biased)
    with torch.no_grad():
        assert fits_decode(step.q, step.k, step.v) == (n <= MAX_QUERIES)
        found = dispatch.attention(
            step.q, step.k, step.v, mask=step.mask, bias=step.bias, scale=0.2
        )
    assert apart(found.double(), step.exact()) <= TOLERANCE[torch.float32]
    fresh = replace(step.mask)
    learning = dispatch.attention(step.q, step.k, step.v, mask=fresh, bias=step.bias, scale=0.2)
    assert apart(learning.double(), step.exact()) <= TOLERANCE[torch.float32]
