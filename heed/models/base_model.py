"""What all models share: the base class, the token embedding and the stack of their family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from heed.config import ModelConfig
from heed.nn.embedding import TokenEmbedding
from heed.nn.initialization import token_power
from heed.nn.lstm import LSTMStack
from heed.nn.stack import Stack


class BaseModel(nn.Module):
    """The base class of all models."""

    source_files: Mapping[str, Any] = {}
    """For weights from another library: the contents of the files beside them, by name."""


def build_stack(
    config: ModelConfig,
    *,
    layers: int | None = None,
    causal: bool,
    cross: bool = False,
    for_linear: bool = False,
) -> Stack | LSTMStack:
    """An encoder, a decoder, or a decoder with a source, of the family that the config names.

    `for_linear`: linear layers alone read its output.
    """
    layers = layers or config.layers
    if config.family == "lstm":
        return LSTMStack(config, layers=layers, causal=causal, cross=cross)
    return Stack(config, layers=layers, causal=causal, cross=cross, for_linear=for_linear)


def build_embedding(config: ModelConfig, vocab: int) -> TokenEmbedding:
    """Vectors for tokens, and for their types where there are any."""
    return TokenEmbedding(
        vocab,
        config.embedding_width or config.width,
        power=token_power(config),
        scale=config.embedding_scale,
        types=config.token_types,
    )
