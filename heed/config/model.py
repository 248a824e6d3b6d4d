"""The shape of a model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from heed.config.base import Count, Rule, Section, Share
from heed.config.registry import MERGES, POSITIONS


def _known_position(m: Any) -> str | None:
    return POSITIONS.complaint(m.position)


def _known_merge(m: Any) -> str | None:
    return MERGES.complaint(m.merge)


def _heads_divide_width(m: Any) -> str | None:
    if m.family == "lstm" or m.head_width is not None or m.width % m.heads == 0:
        return None
    return f"width {m.width} does not divide by heads {m.heads}: change one, or set head_width."


def _groups_divide_heads(m: Any) -> str | None:
    if m.kv_heads is None or m.heads % m.kv_heads == 0:
        return None
    return f"heads {m.heads} does not divide by kv_heads {m.kv_heads}: query heads share in groups."


def _recurrent_merge(m: Any) -> str | None:
    if m.family != "lstm" or m.merge == "concat":
        return None
    return f"merge {m.merge!r} needs heads, and family 'lstm' has none: use merge = 'concat'."


def _runs_at_all(m: Any) -> str | None:
    asked = [key for key in ("ngram_contrast", "word_ngrams") if getattr(m, key)]
    if not asked or m.ngrams > 1:
        return None
    return f"{asked[0]} is for runs of tokens, and there are none: set ngrams to 2 or more."


def _over_what(m: Any) -> str | None:
    if m.over == "token" or m.merge == "reweight":
        return None
    return f"over = {m.over!r} belongs to merge 'reweight', not to {m.merge!r}."


def _embedding_width(m: Any) -> str | None:
    if m.embedding_width in (None, m.width):
        return None
    if m.family != "lstm":
        return "embedding_width belongs to family 'lstm': a Transformer's is its width."
    if m.tie_embeddings:
        return (
            f"embedding_width {m.embedding_width} is not width {m.width}, so input and output "
            "cannot share a table: set tie_embeddings = false."
        )
    return None


def _recurrent_norm(m: Any) -> str | None:
    if m.family != "lstm" or not m.embedding_norm:
        return None
    return "embedding_norm belongs to family 'transformer': an LSTM has no norms."


def _learned_offset(m: Any) -> str | None:
    if not m.position_offset or m.position == "learned":
        return None
    return f"position_offset belongs to position 'learned', not to {m.position!r}."


class ModelConfig(Section):
    """The shape of a model. One key swaps any part."""

    family: Literal["transformer", "lstm"] = "transformer"
    """What stands between the embedding and the head."""
    layers: Count = 4
    """Blocks in the stack (in each stack, for translation)."""
    decoder_layers: Count | None = None
    """Blocks in a translator's decoder, where it is not `layers`."""
    width: Count = 256
    """Size of a token's vector between blocks."""
    heads: Count = 4
    """Query heads."""
    kv_heads: Count | None = None
    """Key and value heads, shared by groups of query heads (grouped-query attention)."""
    head_width: Count | None = None
    """Size of one head; unset, width / heads."""
    feed_forward: Count | None = None
    """Hidden size of a feed-forward; unset, four times the width."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "gelu"
    """What the feed-forward does between its matrices; `swiglu` and `geglu` add a gate."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    norm_place: Literal["pre", "post"] = "pre"
    """Normalise before each sublayer, or after its residual sum as the 2017 paper does."""
    norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5
    """Added to the variance under the root."""
    bias: bool = True
    """Whether linear maps and norms have biases."""
    qk_norm: bool = False
    """RMS-normalise each query and key head, so that their product cannot blow up."""
    scale: Annotated[float, Field(gt=0.0)] | None = None
    """What multiplies the scores; unset, 1 / sqrt(head_width)."""

    position: str = Field(
        default="rope", description=f"Position encoding: {', '.join(POSITIONS.names())}."
    )
    cross_position: bool = False
    """Whether cross-attention, too, uses the relative part of the position encoding."""
    max_positions: Count = 1024
    """How many positions `learned` has; no other encoding has a limit."""
    position_offset: Annotated[int, Field(ge=0)] = 0
    """Rows of the `learned` table before that of the first token (RoBERTa has 2)."""
    sinusoids: Literal["paired", "halves"] = "paired"
    """Where `sinusoidal` puts each cosine: after its sine, or all after all sines (Marian)."""
    rope_base: Annotated[float, Field(gt=1.0)] = 10000.0
    """Base of the rotation wavelengths."""
    shaw_clip: Count = 16
    """Distance beyond which `shaw` no longer tells positions apart."""
    shaw_values: bool = False
    """Shaw's value term as well as its key term; runs on the plain path only."""
    t5_buckets: Count = 32
    """How many distances `t5` tells apart."""
    t5_distance: Count = 128
    """Distance beyond which all share the last bucket."""
    position_scale: Annotated[float, Field(gt=0.0)] | None = None
    """What multiplies the tables of `learned` and `t5`; unset, what multiplies tokens, and 16."""

    merge: str = Field(default="concat", description=f"Head merge: {', '.join(MERGES.names())}.")
    merge_when: Literal["always", "training"] = "always"
    """Whether the merge acts always, or in training only (then `concat` otherwise)."""
    over: Literal["token", "sequence", "batch"] = "token"
    """What the norm of `reweight` runs over."""
    leaky: bool = False
    """Let a causal model use an `over` that lets it see the future or its neighbours."""

    tie_embeddings: bool = True
    """One table for tokens in and tokens out."""
    embedding_scale: Annotated[float, Field(gt=0.0)] | None = None
    """What multiplies a token's vector; unset, width^0.75, or √width beside sinusoids."""
    embedding_norm: bool = False
    """Normalise what enters the first block, order included, as BERT does."""
    token_types: Annotated[int, Field(ge=0)] = 0
    """Kinds of tokens (BERT tells two sentences apart), each with a learned vector; 0 is none."""
    head_map: bool = False
    """A map, the activation and a norm before the map to the vocabulary, as BERT has."""
    head_bias: bool = False
    """Whether the map to the vocabulary has a bias."""
    head_scale: Annotated[float, Field(gt=0.0)] | None = None
    """What multiplies vectors before they are mapped to the vocabulary (T5); unset, nothing."""
    dropout: Share = 0.1
    """On the embedding and on every residual branch."""
    attention_dropout: Share = 0.0
    """On attention weights."""
    feed_forward_dropout: Share = 0.0
    """Inside the feed-forward, after its activation."""

    pooling: Literal["mean", "first", "max", "attention"] = "mean"
    """How a classifier makes one vector of a sentence."""
    pooler: bool = False
    """A map and a tanh after pooling, as BERT has."""
    classifier_hidden: Count | None = None
    """Hidden size between pooling and classes; unset, none."""
    classifier_activation: Literal["relu", "tanh"] = "relu"
    """What follows the map to that hidden size."""
    ngrams: Count = 1
    """Up to how many tokens side by side a classifier has a vector for, beside what its stack says
    (docs/classification.md); 1 is no such vectors."""
    ngram_buckets: Count = 200_000
    """How many vectors those runs of tokens share."""
    ngram_dropout: Share = 0.5
    """Share of a text's runs that are left out in training, others every time."""
    ngram_contrast: Annotated[float, Field(ge=0.0)] = 0.0
    """Weigh each run by how unlike its counts are in the classes of the training text, this much
    added to each (Wang and Manning 2012); 1 is usual, 0 weighs all alike."""
    word_ngrams: Annotated[int, Field(ge=0)] = 0
    """Beside runs of tokens that are characters or bytes: up to how many words side by side have a
    vector, too; 0 is none."""
    embedding_width: Count | None = None
    """Size of the LSTM's token vectors; unset, its width."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _known_position,
        _known_merge,
        _heads_divide_width,
        _groups_divide_heads,
        _recurrent_merge,
        _over_what,
        _embedding_width,
        _recurrent_norm,
        _learned_offset,
        _runs_at_all,
    )

    def leak(self, task: str) -> str | None:
        """Why this model, as a causal one, must be told `leaky = true`; None where it need not."""
        if task == "classify" or self.over == "token" or self.leaky:
            return None
        seen = {"sequence": "its own future", "batch": "its neighbours in the batch"}[self.over]
        return (
            f"merge 'reweight' over a {self.over} lets a causal model see {seen}: "
            "use over = 'token', or set leaky = true to study the leak."
        )
