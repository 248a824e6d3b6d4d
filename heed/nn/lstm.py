"""The recurrent baseline, behind the stack's interface.

An encoder is a bidirectional LSTM, a decoder a forward one; with a source it attends to it by one
head after the recurrence (Luong et al. 2015). Padding on either side and packed segments change
nothing: tokens are first gathered into one dense row per sequence, and scattered back after.

Shapes: b batch, n tokens, m keys, r sequences, t longest sequence, w width, e embedding width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heed.config import ModelConfig
from heed.nn.attention import AttentionContext, HeadEdit, attend
from heed.nn.cache import Cache
from heed.nn.kernels import dispatch
from heed.nn.kernels.linear import match_matmul_precision
from heed.nn.masks import Mask
from heed.nn.tokens import StackOutput, Tokens

State = tuple[Tensor, Tensor]


class LSTMStack(nn.Module):
    """LSTM layers in a row, with dropout between them, and attention to a source after the last."""

    head_edit: HeadEdit | None = None
    """Set by `heed.probe.patch.edit_attention` for as long as its context lasts."""

    def __init__(self, config: ModelConfig, *, layers: int, causal: bool, cross: bool) -> None:
        super().__init__()
        self.causal, self.width = causal, config.width
        inputs = [config.embedding_width or config.width] + [config.width] * (layers - 1)
        self.layers = nn.ModuleList(
            nn.LSTM(size, config.width, batch_first=True, bidirectional=not causal)
            for size in inputs
        )
        if not causal:  # both directions back to one width
            self.joins = nn.ModuleList(nn.Linear(2 * config.width, config.width) for _ in inputs)
        if cross:
            self.starts = nn.ModuleList(nn.Linear(config.width, config.width) for _ in inputs)
            self.query = nn.Linear(config.width, config.width, bias=False)
            self.combine = nn.Linear(2 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x_bnw: Tensor,
        tokens: Tokens,
        *,
        memory: Tensor | None = None,
        memory_tokens: Tokens | None = None,
        cache: Cache | None = None,
        weights: bool = False,
    ) -> StackOutput:
        """Vectors for `x_bnw`, whose tokens are `tokens`; `memory` is the encoded source."""
        if cache is not None:
            cache.extend(tokens)
            if tokens.segments_bn is not None:
                raise ValueError("An LSTM's cache holds one state per row: it takes no segments.")
        rows = _Rows(x_bnw.shape[:2], tokens, x_bnw.device)
        x_bnw = self.dropout(x_bnw)
        out = StackOutput(x_bnw, hidden=[x_bnw] if weights else [])
        for i, layer in enumerate(self.layers):
            state = cache.states.get(str(i)) if cache is not None else None
            if state is None and memory is not None and memory_tokens is not None:
                state = self._first_state(i, memory, memory_tokens, rows)
            x_rte, last = _run(cast(nn.LSTM, layer), rows.gather(out.x_bnw), rows.lengths, state)
            if cache is not None:
                cache.states[str(i)] = last
            if not self.causal:
                x_rte = torch.tanh(self.joins[i](x_rte))
            out.x_bnw = self.dropout(rows.scatter(x_rte))
            if weights:
                out.hidden.append(out.x_bnw)
        if memory is not None and memory_tokens is not None:
            self._attend_to_source(out, tokens, memory, memory_tokens, weights=weights)
        return out

    def _first_state(self, i: int, memory: Tensor, memory_tokens: Tokens, rows: _Rows) -> State:
        """The first state, from the mean of the source (of each packed sequence, its own)."""
        real_bm = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        if memory_tokens.real_bn is not None:
            real_bm = memory_tokens.real_bn
        real_rm = real_bm[rows.batch_row]
        if rows.segment is not None and memory_tokens.segments_bn is not None:
            same = memory_tokens.segments_bn[rows.batch_row] == rows.segment[:, None]
            real_rm = real_rm & same
        total = (memory[rows.batch_row] * real_rm[..., None]).sum(dim=1)
        mean_rw = total / real_rm.sum(dim=1, keepdim=True).clamp(min=1)
        h = torch.tanh(self.starts[i](mean_rw))[None]
        return h, torch.zeros_like(h)

    def _attend_to_source(
        self, out: StackOutput, tokens: Tokens, memory: Tensor, source: Tokens, *, weights: bool
    ) -> None:
        """tanh(W [context; x]) with the context attended to in the source by one head."""
        n, m = out.x_bnw.shape[1], memory.shape[1]
        segments = tokens.segments_bn, source.segments_bn
        mask = Mask(n, m, memory.device, False, source.real_bn, *segments)
        q, kv = self.query(out.x_bnw)[:, None], memory[:, None]
        if weights or self.head_edit is not None:
            attended, weights_b1nm = attend(q, kv, kv, mask=mask.dense())
            if self.head_edit is not None:
                positions = tokens.positions_bn, source.positions_bn
                context = AttentionContext(*positions, mask, tokens.real_bn)
                weights_b1nm = self.head_edit.edit_weights(weights_b1nm, context)
                attended = self.head_edit.edit_outputs(weights_b1nm @ kv, context)
            out.cross_weights += [weights_b1nm] if weights else []
        else:
            attended = dispatch.attention(q, kv, kv, mask=mask)
        out.x_bnw = torch.tanh(self.combine(torch.cat([attended[:, 0], out.x_bnw], dim=-1)))


class _Rows:
    """Where each sequence's tokens are, so that recurrence never runs over padding."""

    def __init__(self, shape: torch.Size, tokens: Tokens, device: torch.device) -> None:
        self.shape = shape
        self.lengths: Tensor | None = None
        self.segment: Tensor | None = None
        b, n = shape
        self.batch_row = torch.arange(b, device=device)
        if tokens.real_bn is None and tokens.segments_bn is None:
            return
        self.real_bn = torch.ones(shape, dtype=torch.bool, device=device)
        if tokens.real_bn is not None:
            self.real_bn = tokens.real_bn
        row_bn = self.batch_row[:, None].expand(b, n)
        if tokens.segments_bn is not None:
            pairs = torch.stack([row_bn, tokens.segments_bn], dim=-1)
            sequences, row_bn = torch.unique(pairs.flatten(0, 1), dim=0, return_inverse=True)
            self.batch_row, self.segment = sequences.unbind(dim=1)
            row_bn = row_bn.view(b, n)
        self.row = row_bn[self.real_bn]
        self.lengths = torch.bincount(self.row, minlength=len(self.batch_row))
        starts = self.lengths.cumsum(0) - self.lengths
        order = self.row.argsort(stable=True)
        self.column = torch.empty_like(self.row)
        self.column[order] = torch.arange(len(order), device=device) - starts[self.row[order]]

    def gather(self, x_bnw: Tensor) -> Tensor:
        """[b, n, w] to one row per sequence [r, t, w]."""
        if self.lengths is None:
            return x_bnw
        longest = max(1, int(self.lengths.max()))
        x_rtw = x_bnw.new_zeros(len(self.batch_row), longest, x_bnw.shape[-1])
        return x_rtw.index_put((self.row, self.column), x_bnw[self.real_bn])

    def scatter(self, x_rtw: Tensor) -> Tensor:
        """[r, t, w] back to [b, n, w]; zeros at padding."""
        if self.lengths is None:
            return x_rtw
        x_bnw = x_rtw.new_zeros(*self.shape, x_rtw.shape[-1])
        return x_bnw.index_put((self.real_bn,), x_rtw[self.row, self.column])


def _run(
    lstm: nn.LSTM, x_rtw: Tensor, lengths: Tensor | None, state: State | None
) -> tuple[Tensor, State]:
    """One layer over sequences of different length, and its state after each one's last token."""
    if lengths is None:
        with match_matmul_precision():
            out, last = lstm(x_rtw, state)
        return out, last
    # Packing refuses empty sequences: they take one step, and their state is restored below.
    packed = pack_padded_sequence(
        x_rtw, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
    )
    with match_matmul_precision():
        out, (h, c) = lstm(packed, state)
    x_rtw, _ = pad_packed_sequence(out, batch_first=True, total_length=x_rtw.shape[1])
    if state is None:
        state = torch.zeros_like(h), torch.zeros_like(c)
    empty = (lengths == 0)[None, :, None]
    return x_rtw, (torch.where(empty, state[0], h), torch.where(empty, state[1], c))
