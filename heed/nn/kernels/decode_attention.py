"""Attention of few queries over keys of which each may see its own: a step of decoding.

The kernel itself is in `heed.nn.kernels.triton.decode_attention`. SDPA's kernels are made for many
queries: for one of them
they take several times as long as reading the keys does, and they read those, too, that are not
written yet.

Shapes: b batch, n queries, m keys, h query heads, g key and value heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heed.nn.kernels.distance_attention import empty_heads
from heed.nn.masks import Mask

MOST, WIDEST = 32, 128
"""Queries that read one key head, and numbers of a head, that fit into one program."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(eq=False)
class ExplicitMask(Mask):
    """What each query may see, told key by key."""

    visible_bnm: Tensor | None = None
    """[b, n or 1, m]."""
    cells_n: Tensor | None = None
    """Where the newest keys stand, if any are new: beyond the last one nothing was written."""
    ends_b: Tensor | None = None
    """How many keys of a text need to be looked through: none where nobody asks for the answer."""

    @property
    def sees_all(self) -> bool:
        """It was made to hide."""
        return self.visible_bnm is None

    def told(self) -> Tensor:
        """The table [b, n or 1, m]."""
        if self.visible_bnm is None:
            raise ValueError("Nobody told what may be seen.")
        return self.visible_bnm

    def _build(self) -> Tensor:
        return self.told()[:, None]


def fits(q_bhnd: Tensor, k_bgmd: Tensor, v_bgmd: Tensor) -> bool:
    """Whether the kernel can take them. It knows no gradients."""
    rows = q_bhnd.shape[2] * q_bhnd.shape[1] // k_bgmd.shape[1]
    known = q_bhnd.dtype in DTYPES and q_bhnd.dtype == k_bgmd.dtype == v_bgmd.dtype
    small = rows <= MOST and q_bhnd.shape[3] <= WIDEST
    return known and small and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def put(new: Sequence[Tensor], buffers: Sequence[Tensor], cells_n: Tensor) -> None:
    """Write keys and values [b, g, n, d] into their cells of two tensors [b, g, m, d]."""
    from heed.nn.kernels.triton import decode_attention

    decode_attention.put(new, buffers, cells_n)


def attend_few(
    q_bhnd: Tensor,
    k_bgmd: Tensor,
    v_bgmd: Tensor,
    *,
    mask: ExplicitMask,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v over what is seen."""
    from heed.nn.kernels.triton import decode_attention

    (b, h, n, d), m = q_bhnd.shape, k_bgmd.shape[2]
    out = empty_heads(q_bhnd)
    decode_attention.attend(
        decode_attention.Call(
            q_bhnd,
            k_bgmd,
            v_bgmd,
            mask.told().expand(b, n, m),
            None if bias is None else bias.expand(b, h, n, m),
            mask.cells_n,
            mask.ends_b,
            d**-0.5 if scale is None else scale,
        ),
        out,
    )
    return out
