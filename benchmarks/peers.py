"""Models to compare with: a translator on torch.nn.Transformer and a plain GPT.

Shapes: b batch, n tokens, h heads, d head width, w model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.bench.peers import Update, plain_step
from heed.bench.standard_shapes import Setting
from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import PAD


class TorchTranslator(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and an output layer, as in its tutorials."""

    table: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width, source_vocab = setting.width, setting.source_vocab or setting.vocab
        self.source = nn.Embedding(source_vocab, width)
        self.target = nn.Embedding(setting.vocab, width)
        self.core = nn.Transformer(
            width,
            setting.heads,
            setting.layers,
            setting.layers,
            4 * width,
            dropout=setting.dropout,
            batch_first=True,
        )
        self.head = nn.Linear(width, setting.vocab)
        self.dropout = nn.Dropout(setting.dropout)
        self.register_buffer("table", sinusoids(setting.length, width))

    def forward(self, source_bn: Tensor, target_bn: Tensor) -> Tensor:
        """Logits [b, n, vocab] for the target so far."""
        causal_mask = nn.Transformer.generate_square_subsequent_mask(
            target_bn.shape[1], device=target_bn.device
        )
        padding = source_bn == PAD
        out = self.core(
            self._embedded(self.source, source_bn),
            self._embedded(self.target, target_bn),
            tgt_mask=causal_mask,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.head(out)

    def _embedded(self, embedding: nn.Embedding, ids_bn: Tensor) -> Tensor:
        scale = math.sqrt(embedding.embedding_dim)
        return self.dropout(embedding(ids_bn) * scale + self.table[: ids_bn.shape[1]])


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines by position [n, w] (Vaswani et al. 2017)."""
    position = torch.arange(length)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.empty(length, width)
    table[:, 0::2], table[:, 1::2] = (
        torch.sin(position * frequency),
        torch.cos(position * frequency),
    )
    return table


class PlainBlock(nn.Module):
    """A pre-norm block: attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_bnw: Tensor) -> Tensor:
        """The vectors after this block."""
        q, k, v = self.qkv(self.norm(x_bnw)).chunk(3, dim=-1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y_bhnd = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_bnw = x_bnw + self.out(y_bhnd.transpose(1, 2).flatten(2))
        return x_bnw + self.down(F.gelu(self.up(self.second_norm(x_bnw))))


class PlainGPT(nn.Module):
    """A decoder with learned positions and a tied output layer."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(setting.vocab, setting.width)
        self.positions = nn.Embedding(setting.length, setting.width)
        blocks = (PlainBlock(setting.width, setting.heads) for _ in range(setting.layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(setting.width)

    def forward(self, ids_bn: Tensor) -> Tensor:
        """Logits [b, n, vocab]."""
        positions = torch.arange(ids_bn.shape[1], device=ids_bn.device)
        x_bnw = self.blocks(self.tokens(ids_bn) + self.positions(positions))
        return F.linear(self.norm(x_bnw), self.tokens.weight)


def torch_translator_step(setting: Setting, device: torch.device) -> Update:
    """A full step of the model on nn.Transformer, with Adam, in float32."""
    model = TorchTranslator(setting).to(device).train()

    def loss(batch: Batch) -> Tensor:
        logits = model(batch.source, batch.ids)
        return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    return plain_step(model, loss, bf16=False, optimizer_class=torch.optim.Adam)


def plain_gpt_step(setting: Setting, device: torch.device) -> Update:
    """A full step of the plain GPT, eager, with AdamW."""
    model = PlainGPT(setting).to(device).train()

    def loss(batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.ids).flatten(0, 1), batch.targets.flatten())

    return plain_step(model, loss, bf16=False)
