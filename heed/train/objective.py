"""What training minimises: for a batch, the sum of its losses, their number, how many are right.

Sums and counts are kept apart to the end, so that a mean over micro-batches, evaluation batches or
machines is one division, not a mean of means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.rdrop import pair_rows, rdrop_loss, repeat_rows
from heed.nn.tokens import Tokens


@dataclass
class Loss:
    """Sums over `count` targets: of losses, and of those answered right. Tensors stay put."""

    total: Tensor
    right: Tensor
    count: int


def loss(
    model: Model,
    batch: Batch,
    *,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    rdrop: float = 0.0,
) -> Loss:
    """Cross-entropy of what the model says against what it should say, in natural logarithms.

    `class_weights` say what a text of each class counts for. With `rdrop` each text is read twice,
    dropout drawn anew, and what is said is to agree (`heed.nn.rdrop`).
    """
    read = _repeat_rows(batch) if rdrop else batch
    if isinstance(model, Classifier):
        tokens = Tokens.of(read.ids, mask=read.mask, positions=read.positions)
        logits = model(read.ids, tokens)
        losses = F.cross_entropy(
            logits.float(),
            read.targets,
            ignore_index=IGNORE_INDEX,
            reduction="none",
            label_smoothing=label_smoothing,
        )
        if rdrop:
            losses = losses.unflatten(0, (-1, 2)).mean(dim=1)
            parted = rdrop_loss(logits.float().unflatten(0, (-1, 2)), rdrop)
            losses = losses + parted.where(batch.targets != IGNORE_INDEX, 0.0)
        if class_weights is not None:
            losses = losses * class_weights[batch.targets.clamp(min=0)]
        total = losses.sum()
        right = (logits.detach().argmax(dim=-1) == read.targets).sum()
    else:
        vectors, targets = model.head.transform(_vectors(model, read)), batch.targets.flatten()
        total, right = linear_cross_entropy(
            pair_rows(vectors) if rdrop else vectors.flatten(0, 1),
            model.head.weight,
            repeat_rows(targets) if rdrop else targets,
            bias_v=model.head.bias,
            ignore_index=IGNORE_INDEX,
            label_smoothing=label_smoothing,
            rdrop=rdrop,
        )
    return Loss(total, right / 2 if rdrop else right, batch.count)


def _repeat_rows(batch: Batch) -> Batch:
    """Each text twice, one after the other."""
    texts = len(batch.ids)
    own = {name: repeat_rows(t) for name, t in batch.tensors().items() if len(t) == texts}
    return batch.with_tensors(own)


def _vectors(model: Translator | LanguageModel, batch: Batch) -> Tensor:
    """A model's vectors for a batch, from which the head would make logits.

    Batches are padded on the right: under a causal mask no real token sees padding, so the
    decoder's own mask need not name it, and the fastest kernel serves.
    """
    across = model.config.reweight_over != "token"  # Then a merge has to be told what is padding.
    if isinstance(model, Translator):
        if batch.source is None:
            raise ValueError("A translator's batch needs a source.")
        source_tokens = Tokens.of(
            batch.source, mask=batch.source_mask, positions=batch.source_positions
        )
        target_mask = batch.mask if across else None
        target_tokens = Tokens.of(batch.ids, mask=target_mask, positions=batch.positions)
        return model.states(batch.source, batch.ids, source_tokens, target_tokens).x_bnw
    mask = None if model.causal and not across else batch.mask
    tokens = Tokens.of(batch.ids, mask=mask, positions=batch.positions, segments=batch.segments)
    return model.states(batch.ids, tokens).x_bnw


class Objective(nn.Module):
    """A model and its loss as one module: what is compiled, replicated or sharded as a whole."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: Model,
        *,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        rdrop: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.rdrop = model, label_smoothing, rdrop
        weights = None
        if class_weights is not None:
            weights = torch.tensor(class_weights, device=next(model.parameters()).device)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the batch's losses, and how many answers were right."""
        part = loss(
            self.model,
            batch,
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
            rdrop=self.rdrop,
        )
        return part.total, part.right
