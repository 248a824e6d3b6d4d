"""The trace of a forward pass: logits, attention weights, hidden states.

Shapes: b batch, n tokens, m keys, h heads, w model width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from heed.nn.tokens import StackOutput


@dataclass
class Trace:
    """One forward pass with everything inside it: logits, attention weights, hidden states."""

    logits: Tensor
    encoder: list[Tensor] = field(default_factory=list)
    """Self-attention of the encoder, [b, h, n, n] per layer."""
    decoder: list[Tensor] = field(default_factory=list)
    """Self-attention of the decoder, [b, h, n, n] per layer."""
    cross: list[Tensor] = field(default_factory=list)
    """Attention of the decoder to the source, [b, h, n, m] per layer."""
    hidden: dict[str, list[Tensor]] = field(default_factory=dict)
    """Vectors [b, n, w] by stack ("encoder", "decoder"): those that enter the first layer, then
    those after each layer, so one more than there are layers."""

    @classmethod
    def of_one(cls, logits: Tensor, out: StackOutput, *, causal: bool) -> Trace:
        """The trace of a model with one stack: a decoder if it is causal, else an encoder."""
        if causal:
            return cls(logits, decoder=out.self_weights, hidden={"decoder": out.hidden})
        return cls(logits, encoder=out.self_weights, hidden={"encoder": out.hidden})
