"""The training objective: the sum of a batch's losses, their number, and correct predictions.

Sums and counts stay separate. A mean over micro-batches, evaluation batches or ranks is
then one division, not a mean of means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.nn.kernels.fp8_cross_entropy import find_obstacle
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.kernels.padded_vocabulary import reserve_padding
from heed.nn.rdrop import pair_rows, rdrop_loss, repeat_rows
from heed.nn.tokens import Tokens


@dataclass
class Loss:
    """The sum of the losses of `count` targets, and the number of correct predictions."""

    total: Tensor
    correct: Tensor
    count: int


def loss(
    model: Model,
    batch: Batch,
    *,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
    rdrop: float = 0.0,
    fp8_output: bool = False,
) -> Loss:
    """Cross-entropy of a batch in nats, optionally with class weights.

    With `rdrop` each sequence is read twice with different dropout, and the KL divergence of the
    two predictions is added (`heed.nn.rdrop`). With `fp8_output` the output layer's matrix products
    are in 8-bit floating point, where `find_fp8_obstacle` finds no obstacle.
    """
    inputs = _repeat_rows(batch) if rdrop else batch
    if isinstance(model, Classifier):
        tokens = Tokens.of(inputs.ids, mask=inputs.mask, positions=inputs.positions)
        logits = model(inputs.ids, tokens)
        losses = F.cross_entropy(
            logits.float(),
            inputs.targets,
            ignore_index=IGNORE_INDEX,
            reduction="none",
            label_smoothing=label_smoothing,
        )
        if rdrop:
            losses = losses.unflatten(0, (-1, 2)).mean(dim=1)
            divergence = rdrop_loss(logits.float().unflatten(0, (-1, 2)), rdrop)
            losses = losses + divergence.where(batch.targets != IGNORE_INDEX, 0.0)
        if class_weights is not None:
            losses = losses * class_weights[batch.targets.clamp(min=0)]
        total = losses.sum()
        correct = (logits.detach().argmax(dim=-1) == inputs.targets).sum()
    else:
        vectors, targets = model.head.transform(_vectors(model, inputs)), batch.targets.flatten()
        total, correct = linear_cross_entropy(
            pair_rows(vectors) if rdrop else vectors.flatten(0, 1),
            model.head.weight,
            repeat_rows(targets) if rdrop else targets,
            bias_v=model.head.bias,
            ignore_index=IGNORE_INDEX,
            label_smoothing=label_smoothing,
            rdrop=rdrop,
            fp8=fp8_output,
        )
    return Loss(total, correct / 2 if rdrop else correct, batch.count)


def find_fp8_obstacle(model: nn.Module, device: torch.device, *, bf16: bool) -> str | None:
    """Why training does not compute this model's output layer in 8 bits; None where it does."""
    if not isinstance(model, Translator | LanguageModel):
        return "this model has none over a vocabulary"
    head, dtype = model.head, torch.bfloat16 if bf16 else torch.float32
    inputs_trained = any(p.requires_grad for p in model.parameters() if p is not head.weight)
    return find_obstacle(
        device,
        dtype,
        head.weight.shape[1],
        biased=head.bias is not None,
        trained=head.weight.requires_grad and inputs_trained,
    )


def _repeat_rows(batch: Batch) -> Batch:
    """The batch with every row twice, one after the other."""
    return batch.with_tensors({name: repeat_rows(t) for name, t in batch.row_tensors().items()})


def _vectors(model: Translator | LanguageModel, batch: Batch) -> Tensor:
    """A model's output vectors for a batch, before the head.

    Batches are padded on the right: under a causal mask no real token attends to padding. So the
    decoder needs no padding mask, and the fastest kernel serves.
    """
    across = model.config.reweight_over != "token"  # The norm of such a merge must skip padding.
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
    """A model and its loss as one module, which is compiled, replicated or sharded as a whole."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: Model,
        *,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        rdrop: float = 0.0,
        fp8_output: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.rdrop = model, label_smoothing, rdrop
        self.fp8_output = fp8_output
        if isinstance(model, Translator | LanguageModel):
            reserve_padding(model.head.weight)
        weights = None
        if class_weights is not None:
            weights = torch.tensor(class_weights, device=next(model.parameters()).device)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the batch's losses, and the number of correct predictions."""
        part = loss(
            self.model,
            batch,
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
            rdrop=self.rdrop,
            fp8_output=self.fp8_output,
        )
        return part.total, part.correct
