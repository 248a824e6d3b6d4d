"""How good a model is on a split, by the same path for train, dev and test."""

from __future__ import annotations

import math

import torch

from heed.data.batching.bucketed import BucketedBatches
from heed.models import Model
from heed.models.inference import evaluating
from heed.train.objective import loss


def evaluate(
    model: Model,
    batches: BucketedBatches,
    *,
    device: torch.device,
    bf16: bool = False,
    at_most: int | None = None,
) -> dict[str, float]:
    """Mean loss by token (or text), its perplexity, and the share answered right.

    Reads the split in the order of its file, at most `at_most` batches of it.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    count, plan = 0, batches.plan_in_order()
    with evaluating(model):
        for i in range(len(plan) if at_most is None else min(at_most, len(plan))):
            batch = batches.batch(plan, i).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                part = loss(model, batch)
            total += part.total
            right += part.right
            count += part.count
    mean = float(total) / max(1, count)
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return {"loss": mean, "perplexity": perplexity, "accuracy": int(right) / max(1, count)}
