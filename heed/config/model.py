"""The section `model`: the architecture."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from heed.config.base import (
    MAX_NUMBER,
    MAX_SIZE,
    Check,
    Count,
    Layers,
    NonNegative,
    Positive,
    Section,
    Share,
    Size,
    shorten,
)
from heed.config.registry import MERGES, POSITIONS
from heed.errors import nearest

ATTENTION_KINDS = ("encoder", "decoder", "cross")
"""Self-attention of an encoder and of a decoder, and a decoder's attention to the source."""
MAX_NGRAM = 20
"""Longest n-gram of a feature: every one is a table lookup for each token."""


def _check_position(m: Any) -> str | None:
    return POSITIONS.complaint(m.position)


def _check_merge(m: Any) -> str | None:
    return MERGES.complaint(m.merge)


def _check_heads(m: Any) -> str | None:
    if m.family == "lstm" or m.head_width is not None or m.width % m.heads == 0:
        return None
    return f"width {m.width} is not divisible by heads {m.heads}: change one, or set head_width."


def _check_kv_heads(m: Any) -> str | None:
    if m.kv_heads is None or m.heads % m.kv_heads == 0:
        return None
    return f"heads {m.heads} is not divisible by kv_heads {m.kv_heads}: groups must be equal."


def _check_kept_heads(m: Any) -> str | None:
    if not m.kept_heads:
        return None
    if m.family == "lstm":
        return "kept_heads belongs to family 'transformer': an LSTM attends by one head."
    for kind, layers in m.kept_heads.items():
        if kind not in ATTENTION_KINDS:
            options = ", ".join(ATTENTION_KINDS)
            hint = nearest(kind, ATTENTION_KINDS)
            return f"kept_heads has no attention {kind!r}: it is one of {options}.{hint}"
        depth = m.layers if kind == "encoder" else m.decoder_layers or m.layers
        if len(layers) != depth:
            return (
                f"kept_heads.{kind} lists the heads of {len(layers)} layers, and there are {depth}."
            )
        for layer, heads in enumerate(layers, 1):
            where = f"kept_heads.{kind}, layer {layer}: {shorten(heads)}"
            if heads != sorted({*heads} & {*range(1, m.heads + 1)}):
                return f"{where} is no rising list of heads from 1 to {m.heads}."
            size = m.heads // (m.kv_heads or m.heads)
            groups = Counter((head - 1) // size for head in heads)
            if len({*groups.values()}) > 1:
                return (
                    f"{where} keeps unequal numbers of heads of the {m.kv_heads} groups that share "
                    "keys and values: keep or remove the same number in every group, or whole ones."
                )
    return None


def _check_lstm_merge(m: Any) -> str | None:
    if m.family != "lstm" or m.merge == "concat":
        return None
    return f"merge {m.merge!r} needs heads, and family 'lstm' has none: use merge = 'concat'."


def _check_ngrams(m: Any) -> str | None:
    used = [key for key in ("ngram_log_count_ratio", "word_ngrams") if getattr(m, key)]
    if not used or m.ngrams > 1:
        return None
    return f"{used[0]} needs n-gram features, and there are none: set ngrams to 2 or more."


def _check_reweight_over(m: Any) -> str | None:
    if m.reweight_over == "token" or m.merge == "reweight":
        return None
    return f"reweight_over = {m.reweight_over!r} belongs to merge 'reweight', not to {m.merge!r}."


def _check_embedding_width(m: Any) -> str | None:
    if m.embedding_width in (None, m.width):
        return None
    if m.family != "lstm":
        return "embedding_width belongs to family 'lstm': a Transformer's embedding has its width."
    if m.tie_embeddings:
        return (
            f"embedding_width {m.embedding_width} is not width {m.width}, so input and output "
            "cannot share a table: set tie_embeddings = false."
        )
    return None


def _check_lstm_norm(m: Any) -> str | None:
    if m.family != "lstm" or not m.embedding_norm:
        return None
    return "embedding_norm belongs to family 'transformer': an LSTM has no norms."


def _check_position_offset(m: Any) -> str | None:
    if not m.position_offset or m.position == "learned":
        return None
    return f"position_offset belongs to position 'learned', not to {m.position!r}."


PRESETS: dict[str, dict[str, Any]] = {
    "marian": {"position": "sinusoidal", "norm_place": "post"},
    "t5": {"position": "t5", "norm": "rms", "bias": False, "scale": 1.0},
    "gpt2": {"position": "learned", "activation": "gelu_tanh"},
    "bert": {
        "position": "learned",
        "norm_place": "post",
        "embedding_norm": True,
        "lm_head_transform": True,
        "pooling": "first",
        "pooler": True,
    },
}
"""Keys of published architectures: a model with them fits a class of Hugging Face transformers."""
PRESET_TASKS = {
    "marian": ("translate",),
    "t5": ("translate",),
    "gpt2": ("generate",),
    "bert": ("classify", "generate"),
}


def apply_preset(values: dict[str, Any]) -> dict[str, Any]:
    """The keys with those of `preset` in its place; it stays where another key contradicts it."""
    preset = values.get("preset")
    keys = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
    contradicted = any(values.get(key, value) != value for key, value in keys.items())
    kept = (
        values if contradicted or not keys else {k: v for k, v in values.items() if k != "preset"}
    )
    return keys | kept


def _check_preset(m: Any) -> str | None:
    keys = PRESETS.get(m.preset or "", {})
    wrong = [key for key, value in keys.items() if getattr(m, key) != value]
    if not wrong:
        return None
    keys_text = " and ".join(f"{key} = {keys[key]!r}" for key in wrong)
    return f"preset {m.preset!r} has {keys_text}: leave {' and '.join(wrong)} out, or preset."


class ModelConfig(Section):
    """The architecture. One key swaps any part."""

    preset: Literal["marian", "t5", "gpt2", "bert"] | None = None
    """Take position, norms and activation of a published architecture, which `heed export --to hf`
    can write: marian or t5 (translate), gpt2 (generate), bert (classify, or masked)."""
    family: Literal["transformer", "lstm"] = "transformer"
    """The stack between the embedding and the head."""
    layers: Layers = 4
    """Layers of the stack (of encoder and decoder each, for translation)."""
    decoder_layers: Layers | None = None
    """Layers of a translator's decoder; unset, `layers`."""
    width: Size = 256
    """Model width (d_model): the size of a token's vector between layers."""
    heads: Size = 4
    """Attention heads."""
    kv_heads: Size | None = None
    """Key and value heads of grouped-query attention; unset, as many as `heads`."""
    head_width: Size | None = None
    """Size of one attention head; unset, width / heads."""
    kept_heads: dict[str, list[list[int]]] = Field(default_factory=dict)
    """Heads of a pruned model, by kind of attention (encoder, decoder, cross) and layer, counted
    from 1: { cross = [[1, 4], [2]] }. A kind that is left out has all its heads."""
    feed_forward: Size | None = None
    """Hidden size of the feed-forward; unset, four times the width."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    """Activation of the feed-forward; `swiglu` and `geglu` are gated."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    norm_place: Literal["pre", "post"] = "pre"
    """Pre-norm (before each sublayer), or post-norm (after the residual sum, as in 2017)."""
    norm_eps: Positive = 1e-5
    """Epsilon of the norms."""
    bias: bool = True
    """Whether linear layers and norms have biases."""
    qk_norm: bool = False
    """RMS-normalize each query and key head, which bounds attention scores."""
    scale: Positive | None = None
    """Factor on attention scores; unset, 1 / sqrt(head_width)."""

    position: str = Field(
        default="rope", description=f"Position encoding: {', '.join(POSITIONS.names())}."
    )
    cross_position: bool = False
    """Whether cross-attention also uses the relative part of the position encoding."""
    max_positions: Size = 1024
    """Rows of the `learned` position table; no other encoding has a limit."""
    position_offset: Annotated[int, Field(ge=0, le=MAX_SIZE)] = 0
    """Rows of the `learned` table before the first token's (RoBERTa has 2)."""
    sinusoids: Literal["paired", "halves"] = "paired"
    """Layout of `sinusoidal`: sine and cosine interleaved, or all sines first (Marian)."""
    rope_base: Annotated[float, Field(gt=1.0, le=MAX_NUMBER)] = 10000.0
    """RoPE's base (theta)."""
    shaw_clip: Size = 16
    """Distance at which `shaw` clips relative positions."""
    shaw_values: bool = False
    """Shaw's value term as well as the key term; runs on the plain attention path only."""
    t5_buckets: Size = 32
    """Relative-position buckets of `t5`."""
    t5_distance: Size = 128
    """Distance from which on `t5` uses its last bucket."""
    position_scale: Positive | None = None
    """Factor on the tables of `learned` and `t5`; unset, embedding_scale and 16."""

    merge: str = Field(default="concat", description=f"Head merge: {', '.join(MERGES.names())}.")
    merge_when: Literal["always", "training"] = "always"
    """Apply the merge always, or in training only (`concat` at inference)."""
    reweight_over: Literal["token", "sequence", "batch"] = "token"
    """What the norm of merge `reweight` is taken over."""
    leaky: bool = False
    """Allow a causal model a `reweight_over` that leaks future tokens or other sequences."""

    tie_embeddings: bool = True
    """Tie the input embedding and the output projection."""
    embedding_scale: Positive | None = None
    """Factor on token embeddings; unset, width^0.75, or sqrt(width) with `sinusoidal`."""
    embedding_norm: bool = False
    """Normalize the sum of the embeddings before the first layer, as BERT does."""
    token_types: Annotated[int, Field(ge=0, le=MAX_SIZE)] = 0
    """Token types with a learned embedding each (BERT's segment embeddings); 0 is none."""
    lm_head_transform: bool = False
    """Linear layer, activation and norm before the output projection, as in BERT's LM head."""
    lm_head_bias: bool = False
    """Whether the output projection to the vocabulary has a bias."""
    lm_head_scale: Positive | None = None
    """Factor on vectors before the output projection (T5); unset, 1."""
    dropout: Share = 0.1
    """Dropout on the embedding and on every residual branch."""
    attention_dropout: Share = 0.0
    """Dropout on attention weights."""
    feed_forward_dropout: Share = 0.0
    """Dropout inside the feed-forward, after its activation."""

    pooling: Literal["mean", "first", "max", "attention"] = "mean"
    """How a classifier pools token vectors into one."""
    pooler: bool = False
    """Linear layer and tanh after pooling, as in BERT."""
    classifier_hidden: Size | None = None
    """Hidden size of the classifier head; unset, no hidden layer."""
    classifier_activation: Literal["relu", "tanh"] = "relu"
    """Activation of that hidden layer."""
    ngrams: Annotated[int, Field(ge=1, le=MAX_NGRAM)] = 1
    """Longest n-gram, in tokens, with a hashed feature vector, added to a classifier's pooled one
    (docs/classification.md); 1 turns n-gram features off."""
    ngram_buckets: Count = 200_000
    """Hash buckets of the n-gram features."""
    ngram_dropout: Share = 0.5
    """Dropout of whole n-grams in training."""
    ngram_log_count_ratio: NonNegative = 0.0
    """Log-count-ratio weighting of n-grams by their counts in each class (Wang and Manning 2012),
    with this much added to each count; 1 is usual, 0 is off."""
    word_ngrams: Annotated[int, Field(ge=0, le=MAX_NGRAM)] = 0
    """Longest word n-gram with a feature vector, for tokens that are characters or bytes; 0 is
    none."""
    embedding_width: Size | None = None
    """Embedding size of the LSTM; unset, its width."""

    checks: ClassVar[tuple[Check, ...]] = (
        _check_preset,
        _check_position,
        _check_merge,
        _check_heads,
        _check_kv_heads,
        _check_kept_heads,
        _check_lstm_merge,
        _check_reweight_over,
        _check_embedding_width,
        _check_lstm_norm,
        _check_position_offset,
        _check_ngrams,
    )

    if not TYPE_CHECKING:  # a type checker reads the constructor off the fields

        def __init__(self, /, **values: Any) -> None:
            super().__init__(**apply_preset(values))

    @property
    def resolved_head_width(self) -> int:
        """The size of one head: `head_width`, or width / heads."""
        return self.head_width or self.width // self.heads

    @property
    def has_registered_part(self) -> bool:
        """Whether its position or its merge is a user's own, not a built-in one."""
        return self.position not in POSITIONS.declared or self.merge not in MERGES.declared

    def kept_in_layer(self, kind: str, layer: int) -> list[int] | None:
        """The heads that a layer has, all counted from 0; None where none was pruned."""
        if kind not in self.kept_heads:
            return None
        heads = self.kept_heads[kind][layer]
        return [head - 1 for head in heads] if len(heads) < self.heads else None

    def find_leak(self, task: str) -> str | None:
        """Why this model, if causal, needs `leaky = true`; None where it does not leak."""
        if task == "classify" or self.reweight_over == "token" or self.leaky:
            return None
        seen = {"sequence": "future tokens", "batch": "other sequences of the batch"}
        return (
            f"merge 'reweight' over a {self.reweight_over} lets a causal model see "
            f"{seen[self.reweight_over]}: use reweight_over = 'token', or set leaky = true to "
            "study the leak."
        )
