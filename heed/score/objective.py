"""What training minimises: for a batch, the sum of its losses, their number, how many are right.

Sums and counts are kept apart to the end, so that a mean over micro-batches, evaluation batches or
machines is one division, not a mean of means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from heed.data.batches import IGNORED, Batch
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.nn.losses import linear_cross_entropy


@dataclass
class Loss:
    """Sums over `count` targets: of losses, and of those answered right. Tensors stay put."""

    total: Tensor
    right: Tensor
    count: int


def loss(model: Model, batch: Batch, *, label_smoothing: float = 0.0) -> Loss:
    """Cross-entropy of what the model says against what it should say, in natural logarithms."""
    if isinstance(model, Classifier):
        logits = model(batch.ids, mask=batch.mask, positions=batch.positions)
        total = F.cross_entropy(
            logits.float(),
            batch.targets,
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        right = (logits.detach().argmax(dim=-1) == batch.targets).sum()
    else:
        total, right = linear_cross_entropy(
            _vectors(model, batch).flatten(0, 1),
            model.head.weight,
            batch.targets.flatten(),
            ignored=IGNORED,
            label_smoothing=label_smoothing,
        )
    return Loss(total, right, batch.count)


def _vectors(model: Translator | LanguageModel, batch: Batch) -> Tensor:
    """A model's vectors for a batch, from which the head would make logits.

    Batches are padded on the right: under a causal mask no real token sees padding, so the
    decoder's own mask need not name it, and the fastest kernel serves.
    """
    if isinstance(model, Translator):
        return model.states(
            batch.source,
            batch.ids,
            mask=batch.source_mask,
            positions=batch.source_positions,
            target_positions=batch.positions,
        ).x_bnw
    mask = None if model.causal else batch.mask
    return model.states(
        batch.ids, mask=mask, positions=batch.positions, segments=batch.segments
    ).x_bnw


class Objective(nn.Module):
    """A model and its loss as one module: what is compiled, replicated or sharded as a whole."""

    def __init__(self, model: Model, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the batch's losses, and how many answers were right."""
        part = loss(self.model, batch, label_smoothing=self.label_smoothing)
        return part.total, part.right
