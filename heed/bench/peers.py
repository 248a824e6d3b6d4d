"""Peers: models of the same shape in other libraries, to compare training speed with.

| library | translator | causal language model |
|---|---|---|
| `transformers` | MarianMTModel | GPT2LMHeadModel |
| `nn.Transformer` | torch's nn.Transformer with embeddings, sinusoids and an output layer | – |
| `plain` | – | a GPT of nanoGPT's shape, written here on torch alone |

Each is a module from a batch's tensors to its mean cross-entropy, so that `torch.compile` sees the
loss too, as in nanoGPT. Shapes: b batch, n tokens, h heads, d head width, w model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.config import ModelConfig, Recipe
from heed.data.batching.batch import IGNORE_INDEX
from heed.data.tokenizers.special_tokens import BOS, EOS, PAD
from heed.errors import ConfigError, HeedError, install_hint, nearest

PEERS = {
    "transformers": {"translate": "Marian", "generate": "GPT-2 of transformers"},
    "nn.Transformer": {"translate": "nn.Transformer"},
    "plain": {"generate": "plain GPT"},
}
"""The libraries that heed is compared with, and the name of their model by task."""
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (F.relu, "relu"),
    "gelu": (F.gelu, "gelu"),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu_pytorch_tanh"),
    "silu": (F.silu, "silu"),
}
"""Activations that peers have, each with its name in transformers."""


def require_peer(library: str, task: str | None = None) -> None:
    """Refuse a library that is unknown, not installed, or without a model for a task."""
    if library not in PEERS:
        options = ", ".join(PEERS)
        hint = nearest(library, (*PEERS,))
        raise ConfigError([f"--against cannot be {library!r}: it is one of {options}.{hint}"])
    if library == "transformers" and find_spec("transformers") is None:
        raise HeedError(
            "transformers is not installed, so there is no peer to compare with.",
            todo=f"{install_hint('hf')} Or use --against plain (language models) or --against "
            "nn.Transformer (translators), which need torch alone.",
        )
    if task is not None and task not in PEERS[library]:
        others = " or ".join(name for name, tasks in PEERS.items() if task in tasks)
        todo = f"use --against {others}" if others else "only translate and generate are compared"
        raise ConfigError([f"--against {library} has no model for task {task!r}: {todo}."])


def refuse_unlike(recipe: Recipe) -> None:
    """Refuse a recipe whose model no peer has."""
    model, complaints = recipe.model, []
    if model.family != "transformer":
        complaints.append("--against compares Transformers, and this model is an LSTM.")
    if recipe.task == "generate" and recipe.train.objective != "causal":
        complaints.append("--against compares causal language models, and this one is masked.")
    if recipe.init.from_model is not None:
        complaints.append("--against compares training from scratch: leave [init] from out.")
    if model.activation not in ACTIVATIONS:
        complaints.append(
            f"--against: no peer has activation {model.activation!r}: "
            "add --set model.activation=gelu"
        )
    if complaints:
        raise ConfigError(complaints)


class PeerLoss(nn.Module):
    """A peer with its loss: the mean cross-entropy of its logits."""

    def __init__(self, network: nn.Module, label_smoothing: float) -> None:
        super().__init__()
        self.network, self.label_smoothing = network, label_smoothing

    def forward(self, ids_bn: Tensor, targets_bn: Tensor, *source: Tensor | None) -> Tensor:
        """The loss of a batch; `source` is a translator's source ids, and their mask or None."""
        logits = self.network(ids_bn, *source)
        return F.cross_entropy(
            logits.flatten(0, 1),
            targets_bn.flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=self.label_smoothing,
        )


def build_peer(
    library: str, recipe: Recipe, *, vocab: int, source_vocab: int | None, length: int
) -> PeerLoss:
    """The peer of a recipe's model for sequences of up to `length` tokens."""
    require_peer(library, recipe.task)
    refuse_unlike(recipe)
    torch.manual_seed(recipe.seed)
    config, network = recipe.model, nn.Module()
    if library == "nn.Transformer":
        network = TorchTranslator(config, vocab, source_vocab, length)
    elif library == "plain":
        network = PlainGPT(config, vocab, length)
    else:
        translates = recipe.task == "translate"
        model = _marian(config, vocab, source_vocab, length) if translates else None
        network = TransformersLogits(model or _gpt2(config, vocab, length))
    return PeerLoss(network.train(), recipe.train.label_smoothing)


class TransformersLogits(nn.Module):
    """A model of transformers, from tensors to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids_bn: Tensor, source_bm: Tensor | None = None, mask_bm: Tensor | None = None
    ) -> Tensor:
        """Logits [b, n, vocab]."""
        if source_bm is None:
            # Padding is on the right, invisible to a causal model: no mask, so the fastest kernel.
            return self.model(input_ids=ids_bn, use_cache=False).logits
        return self.model(
            input_ids=source_bm, attention_mask=mask_bm, decoder_input_ids=ids_bn, use_cache=False
        ).logits


def _marian(config: ModelConfig, vocab: int, source_vocab: int | None, length: int) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    hidden = config.feed_forward or 4 * config.width
    shape = MarianConfig(
        vocab_size=source_vocab or vocab,
        decoder_vocab_size=vocab,
        share_encoder_decoder_embeddings=source_vocab is None,
        d_model=config.width,
        encoder_layers=config.layers,
        decoder_layers=config.decoder_layers or config.layers,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        encoder_ffn_dim=hidden,
        decoder_ffn_dim=hidden,
        activation_function=ACTIVATIONS[config.activation][1],
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        max_position_embeddings=length,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
    )
    return MarianMTModel(shape)


def _gpt2(config: ModelConfig, vocab: int, length: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=vocab,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        n_inner=config.feed_forward or 4 * config.width,
        n_positions=length,
        activation_function=ACTIVATIONS[config.activation][1],
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.attention_dropout,
        bos_token_id=BOS,
        eos_token_id=EOS,
        use_cache=False,
    )
    kind: Any = GPT2LMHeadModel  # its constructor has no types
    return kind(shape)


class TorchTranslator(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and an output layer, as in its tutorials."""

    table: Tensor

    def __init__(
        self, config: ModelConfig, vocab: int, source_vocab: int | None, length: int
    ) -> None:
        super().__init__()
        width = config.width
        self.source = nn.Embedding(source_vocab or vocab, width)
        self.target = self.source if source_vocab is None else nn.Embedding(vocab, width)
        shape: dict[str, Any] = {
            "d_model": width,
            "nhead": config.heads,
            "dim_feedforward": config.feed_forward or 4 * width,
            "dropout": config.dropout,
            "activation": ACTIVATIONS[config.activation][0],
            "batch_first": True,
            "norm_first": config.norm_place == "pre",
        }
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape),
            config.layers,
            nn.LayerNorm(width),
            enable_nested_tensor=False,  # for inference only, and it would warn
        )
        self.core = nn.Transformer(
            **shape,
            num_decoder_layers=config.decoder_layers or config.layers,
            custom_encoder=encoder,
        )
        self.head = nn.Linear(width, vocab)
        if source_vocab is None and config.tie_embeddings:
            self.head.weight = self.target.weight
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("table", sinusoids(length, width))

    def forward(self, ids_bn: Tensor, source_bm: Tensor, mask_bm: Tensor | None = None) -> Tensor:
        """Logits [b, n, vocab] for the target so far."""
        causal_mask = nn.Transformer.generate_square_subsequent_mask(
            ids_bn.shape[1], device=ids_bn.device
        )
        padding = None
        if mask_bm is not None:  # of the causal mask's type, or torch converts it at every layer
            padding = torch.zeros(mask_bm.shape, device=mask_bm.device)
            padding = padding.masked_fill(~mask_bm, -torch.inf)
        out = self.core(
            self._embedded(self.source, source_bm),
            self._embedded(self.target, ids_bn),
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
    """A pre-norm block: attention by torch's fused kernel, and a feed-forward layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, hidden, bias = config.width, config.feed_forward or 4 * config.width, config.bias
        self.heads, self.attention_dropout = config.heads, config.attention_dropout
        self.norm = nn.LayerNorm(width, bias=bias)
        self.second_norm = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)
        self.activation, _ = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_bnw: Tensor) -> Tensor:
        """The vectors after this block."""
        q, k, v = self.qkv(self.norm(x_bnw)).chunk(3, dim=-1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        rate = self.attention_dropout if self.training else 0.0
        y_bhnd = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x_bnw = x_bnw + self.dropout(self.out(y_bhnd.transpose(1, 2).flatten(2)))
        hidden = self.activation(self.up(self.second_norm(x_bnw)))
        return x_bnw + self.dropout(self.down(hidden))


class PlainGPT(nn.Module):
    """A GPT of nanoGPT's shape: learned positions, pre-norm blocks, a tied output layer."""

    def __init__(self, config: ModelConfig, vocab: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, config.width)
        self.positions = nn.Embedding(length, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(PlainBlock(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)
        for parameter in self.parameters():
            if parameter.ndim == 2:  # GPT-2's scale: with torch's, tied logits would be huge
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_bn: Tensor) -> Tensor:
        """Logits [b, n, vocab]."""
        positions = torch.arange(ids_bn.shape[1], device=ids_bn.device)
        x_bnw = self.dropout(self.tokens(ids_bn) + self.positions(positions))
        return F.linear(self.norm(self.blocks(x_bnw)), self.tokens.weight)
