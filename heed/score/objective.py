"""What training minimises: for a batch, the sum of its losses, their number, how many are right.

Sums and counts are kept apart to the end, so that a mean over micro-batches, evaluation batches or
machines is one division, not a mean of means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heed.data.batches import IGNORED, Batch
from heed.models import Classifier, LanguageModel, Model, Translator


@dataclass
class Loss:
    """Sums over `count` targets: of losses, and of those answered right. Tensors stay put."""

    total: Tensor
    right: Tensor
    count: int


def loss(model: Model, batch: Batch, *, label_smoothing: float = 0.0) -> Loss:
    """Cross-entropy of what the model says against what it should say, in natural logarithms."""
    logits = answer(model, batch).float().flatten(0, -2)
    targets = batch.targets.flatten()
    total = F.cross_entropy(
        logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    with torch.no_grad():
        right = (logits.argmax(dim=-1) == targets).sum()
    return Loss(total, right, batch.count)


def answer(model: Model, batch: Batch) -> Tensor:
    """A model's logits for a batch.

    Batches are padded on the right: under a causal mask no real token sees padding, so the
    decoder's own mask need not name it, and the fastest kernel serves.
    """
    if isinstance(model, Translator):
        return model(
            batch.source,
            batch.ids,
            mask=batch.source_mask,
            positions=batch.source_positions,
            target_positions=batch.positions,
        )
    if isinstance(model, LanguageModel):
        mask = None if model.causal else batch.mask
        return model(batch.ids, mask=mask, positions=batch.positions, segments=batch.segments)
    if isinstance(model, Classifier):
        return model(batch.ids, mask=batch.mask, positions=batch.positions)
    raise TypeError(f"no objective for {type(model).__name__}")
