"""Attention of few queries, one program a key head, says what the plain formula says.

These tests run on a GPU, or without one in Triton's interpreter: `TRITON_INTERPRET=1 pytest …`. The
interpreter knows no bfloat16, so there the other 16 bits stand in for it; and from numpy 2.4 on it
cannot count up to a number that a kernel has read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
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

CUDA = torch.cuda.is_available()
COUNTS = np.lib.NumpyVersion(np.__version__) < "2.4.0"
INTERPRETED = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (CUDA or (INTERPRETED and COUNTS)), reason="neither a CUDA device nor interpreted"
    ),
]
DEVICE = torch.device("cuda" if CUDA else "cpu")
HALF = torch.bfloat16 if CUDA else torch.float16
B, GROUPS = 3, 2


@dataclass
class Step:
    """One step of decoding: queries, a board's keys and values, and who may see which."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: ExplicitMask
    bias: Tensor | None
    written: int

    def few(self) -> Tensor:
        """By the kernel."""
        told = {"mask": self.mask, "bias": self.bias, "scale": 0.2}
        with torch.no_grad():
            return attend_decode(self.q, self.k, self.v, **told)  # type: ignore[arg-type]

    def exact(self) -> Tensor:
        """By the plain formula in float64, over what is written."""
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
    """With `written`, the rest of a board is NaN, and all may see it; with `ends`, the rest of a
    text is. `alike`: one row for all."""
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
    found = step.few()
    assert found.dtype == step.q.dtype
    assert apart(found.double(), step.exact()) <= tolerance


@pytest.mark.parametrize("m", [1, 31, 63, 64, 65, 150])
@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_few_is_plain(n: int, m: int) -> None:
    """However many queries there are, and wherever the last tile of keys ends."""
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
def test_what_is_not_written_is_not_read(n: int, written: int) -> None:
    """It is NaN here, and the table says that all of it may be seen."""
    step = make_step(n, 130, written=written, biased=True)
    assert bool(step.few().isfinite().all())
    same(step)


@pytest.mark.parametrize("written", [None, 70])
@pytest.mark.parametrize("n", [1, 5])
def test_what_lies_beyond_a_text_is_not_read(n: int, written: int | None) -> None:
    """It is NaN here; of a text that is not to be read at all, zeros come out."""
    step = make_step(n, 130, written=written, ends=[0, 64, 101])
    found = step.few()
    assert bool((found[0] == 0).all())
    assert bool(found.isfinite().all())
    assert apart(found[1:].double(), step.exact()[1:]) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("n", [1, 5])
def test_a_source_is_seen_alike_by_all(n: int) -> None:
    same(make_step(n, 45, alike=True))


@pytest.mark.parametrize("n", [1, 5])
def test_a_query_that_sees_nothing_gets_zeros(n: int) -> None:
    step = make_step(n, 40)
    step.mask.visible[0] = False
    assert bool((step.few()[0] == 0).all())
    same(step)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("width", [24, 64])
def test_new_keys_go_to_their_cells(n: int, width: int) -> None:
    """And all else stays as it was."""
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
def test_it_is_taken_where_it_fits_and_only_there(n: int, biased: bool) -> None:
    """With gradients or with too many queries the answer is the same, from another kernel."""
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
