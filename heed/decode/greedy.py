"""Greedy decoding: the likeliest token, again and again, many sentences side by side.

Sentences are sorted by length so that a batch wastes little, decoded with a cache, dropped from the
batch as they finish, and returned in the order they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from heed.data.batches import padded
from heed.data.tokenizer import BOS, EOS, PAD
from heed.models import Translator
from heed.nn.cache import Cache


def translate(
    model: Translator,
    sources: Sequence[Sequence[int]],
    *,
    max_ratio: float = 2.0,
    max_extra: int = 10,
    batch_size: int = 128,
) -> list[list[int]]:
    """The likeliest next token until the end mark, for each source (ids without an end mark).

    An output has at most max_ratio times the source's tokens plus max_extra.
    """
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    out: list[list[int]] = [[] for _ in sources]
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            limits = [int(max_ratio * len(sources[i])) + max_extra for i in chosen]
            written = _batch(model, [[*sources[i], EOS] for i in chosen], limits)
            for i, ids in zip(chosen, written, strict=True):
                out[i] = ids
    model.train(was_training)
    return out


def _batch(model: Translator, sources: list[list[int]], limits: list[int]) -> list[list[int]]:
    device = model.embedding.table.weight.device
    texts = [np.array(ids) for ids in sources]
    source, mask = (x.to(device) for x in padded(texts, max(map(len, texts)), PAD))
    out: list[list[int]] = [[] for _ in sources]
    cache, active = Cache(), list(range(len(sources)))
    last = torch.full((len(sources), 1), BOS, device=device)
    while active:
        logits = model(source, last, mask=mask, cache=cache)[:, -1]
        chosen = logits.argmax(dim=-1)
        keep = []
        for place, (row, token) in enumerate(zip(active, chosen.tolist(), strict=True)):
            if token != EOS:
                out[row].append(token)
            if token != EOS and len(out[row]) < limits[row]:
                keep.append(place)
        last = chosen[:, None]
        if len(keep) < len(active):
            rows = torch.tensor(keep, dtype=torch.long, device=device)
            cache.select(rows)
            last, active = last.index_select(0, rows), [active[place] for place in keep]
    return out
