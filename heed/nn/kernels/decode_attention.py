"""Attention of a decoding step on a GPU: few queries, many keys, an explicit mask.

The kernel is in `heed.nn.kernels.triton.decode_attention`. SDPA's kernels are made for many
queries: with one query they take several times as long as reading the keys, and they also read
cells of the cache that are not written yet.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heed.nn.kernels.qkv_layout import empty_heads
from heed.nn.masks import Mask

MAX_QUERIES, MAX_HEAD_WIDTH = 32, 128
"""Queries per key head, and the head width, that fit into one program."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(eq=False)
class ExplicitMask(Mask):
    """A mask given as a tensor: which keys each query may see."""

    visible_bnm: Tensor | None = None
    """[b, n or 1, m]."""
    cells_n: Tensor | None = None
    """Cells of the new keys in the cache, if any: nothing is written beyond the last one."""
    ends_b: Tensor | None = None
    """Keys to read of each sequence: 0 where its output is not used."""

    @property
    def sees_all(self) -> bool:
        """False: an explicit mask always hides something."""
        return self.visible_bnm is None

    @property
    def visible(self) -> Tensor:
        """Which keys each query may see [b, n or 1, m]."""
        if self.visible_bnm is None:
            raise ValueError("An ExplicitMask needs visible_bnm.")
        return self.visible_bnm

    def _build(self) -> Tensor:
        return self.visible[:, None]


def fits_decode(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether the kernel can serve these. It has no gradients."""
    rows = q_bhnd.shape[2] * q_bhnd.shape[1] // k_bgmd.shape[1]
    supported = q_bhnd.dtype in DTYPES and q_bhnd.dtype == k_bgmd.dtype == v_bgmd.dtype
    small = rows <= MAX_QUERIES and q_bhnd.shape[3] <= MAX_HEAD_WIDTH
    return supported and small and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def write_kv(new: Sequence[Tensor], buffers: Sequence[Tensor], cells_n: Tensor) -> None:
    """Write keys and values [b, g, n, d] into their cells of two buffers [b, g, m, d]."""
    from heed.nn.kernels.triton import decode_attention

    decode_attention.write_kv(new, buffers, cells_n)


def attend_decode(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: ExplicitMask,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v over the visible keys."""
    from heed.nn.kernels.triton import decode_attention

    (b, h, n, d), m = q_bhnd.shape, k_bgmd.shape[2]
    out = empty_heads(q_bhnd)
    decode_attention.attend(
        decode_attention.Call(
            q_bhnd,
            k_bgmd,
            v_bgmd,
            mask.visible.expand(b, n, m),
            None if bias is None else bias.expand(b, h, n, m),
            mask.cells_n,
            mask.ends_b,
            d**-0.5 if scale is None else scale,
        ),
        out,
    )
    return out
