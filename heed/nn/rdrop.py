"""R-Drop (Liang et al. 2021): two passes over a text, told apart by dropout alone, are to agree.

Of one target, P and Q being what the two passes say, the paper's loss is

    -log P(y) - log Q(y) + α/2 · [KL(P‖Q) + KL(Q‖P)].

Here it is half of that, so that a target counts once: the mean of two cross-entropies, and

    α/4 · Σ (P - Q)(log P - log Q),

for the two divergences add up to that sum. With a = logits of P, its gradient is

    ∂/∂a = α/4 · [P · (log P - log Q - KL(P‖Q)) + P - Q].

Shapes: r pairs of rows, v vocabulary.
"""

from __future__ import annotations

from torch import Tensor


def disagreement(logits_r2v: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Of each pair of passes the loss [r] beside its cross-entropies; and its gradient [r, 2, v].

    Logits are float32 or finer.
    """
    logs_r2v = logits_r2v.log_softmax(dim=-1)
    shares_r2v = logs_r2v.exp()
    # Each pass against the other: the second's difference is the first's with its sign turned.
    other_r2v = logs_r2v - logs_r2v.flip(1)
    apart_r21 = (shares_r2v * other_r2v).sum(dim=-1, keepdim=True)
    d_r2v = shares_r2v * (other_r2v - apart_r21) + shares_r2v - shares_r2v.flip(1)
    return apart_r21.sum(dim=(1, 2)) * (alpha / 4), d_r2v * (alpha / 4)


def agreeing(logits_r2v: Tensor, alpha: float) -> Tensor:
    """The same loss [r], to be differentiated by whoever asks."""
    logs_r2v = logits_r2v.log_softmax(dim=-1)
    first_rv, second_rv = logs_r2v.unbind(dim=1)
    return ((first_rv.exp() - second_rv.exp()) * (first_rv - second_rv)).sum(dim=-1) * (alpha / 4)


def doubled(x: Tensor) -> Tensor:
    """Each row twice, one after the other; a copy of fixed size, which a graph can hold."""
    return x[:, None].expand(-1, 2, *x.shape[1:]).flatten(0, 1)


def by_pairs(x_bnw: Tensor) -> Tensor:
    """Vectors [2b, n, w] of doubled texts as rows [2bn, w], each token's two side by side."""
    return x_bnw.unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 2)
