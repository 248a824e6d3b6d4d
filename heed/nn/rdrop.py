"""R-Drop (Liang et al. 2021): two passes over a sequence, which differ by dropout, should agree.

With P and Q the distributions of the two passes for one target y, the paper's loss is

    -log P(y) - log Q(y) + α/2 · [KL(P‖Q) + KL(Q‖P)].

Here it is half of that, so that a target counts once: the mean of two cross-entropies, and

    α/4 · Σ (P - Q)(log P - log Q),

because the two divergences add up to that sum. With a = logits of P, its gradient is

    ∂/∂a = α/4 · [P · (log P - log Q - KL(P‖Q)) + P - Q].

Shapes: r pairs of rows, v vocabulary.
"""

from __future__ import annotations

from torch import Tensor


def rdrop_loss_and_grad(logits_r2v: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """R-Drop's symmetric KL of each pair [r], and its gradient by the logits [r, 2, v].

    The cross-entropies are not part of it. Logits are float32 or finer.
    """
    log_probs_r2v = logits_r2v.log_softmax(dim=-1)
    probs_r2v = log_probs_r2v.exp()
    # Each pass minus the other: the second's difference is the first's with its sign changed.
    differences_r2v = log_probs_r2v - log_probs_r2v.flip(1)
    kl_r21 = (probs_r2v * differences_r2v).sum(dim=-1, keepdim=True)
    d_r2v = probs_r2v * (differences_r2v - kl_r21) + probs_r2v - probs_r2v.flip(1)
    return kl_r21.sum(dim=(1, 2)) * (alpha / 4), d_r2v * (alpha / 4)


def rdrop_loss(logits_r2v: Tensor, alpha: float) -> Tensor:
    """R-Drop's symmetric KL of each pair [r], differentiable by autograd."""
    log_probs_r2v = logits_r2v.log_softmax(dim=-1)
    first_rv, second_rv = log_probs_r2v.unbind(dim=1)
    return ((first_rv.exp() - second_rv.exp()) * (first_rv - second_rv)).sum(dim=-1) * (alpha / 4)


def repeat_rows(x: Tensor) -> Tensor:
    """Each row twice, one after the other; a copy of fixed size, as a captured graph needs it."""
    return x[:, None].expand(-1, 2, *x.shape[1:]).flatten(0, 1)


def pair_rows(x_bnw: Tensor) -> Tensor:
    """Vectors [2b, n, w] of repeated sequences as rows [2bn, w], a token's two side by side."""
    return x_bnw.unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 2)
