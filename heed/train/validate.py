"""Validation while training: loss, perplexity and accuracy of a set, and its greedy BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from heed.config import DecodeConfig
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import Corpus
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.metrics.corpus_bleu import bleu
from heed.models import Model, Translator
from heed.models.inference import evaluating
from heed.pipelines.translate import TranslationPipeline
from heed.train.objective import loss

SentencePair = tuple[str, str]
"""A source sentence and its reference translation."""
OnBatch = Callable[[int, int], None]
"""Receives the number of batches done and their total."""


def validate(
    model: Model,
    batches: BucketedBatches,
    *,
    device: torch.device,
    bf16: bool = False,
    max_batches: int | None = None,
    on_batch: OnBatch = lambda done, total: None,
) -> dict[str, float]:
    """Mean loss by token (or example), its perplexity, and accuracy.

    Batches are read in the order of the file, at most `max_batches` of them. `on_batch` is called
    before each with the number of batches done and their total.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    count, plan = 0, batches.plan_in_order()
    batch_count = len(plan) if max_batches is None else min(max_batches, len(plan))
    with evaluating(model):
        for i in range(batch_count):
            on_batch(i, batch_count)
            batch = batches.batch(plan, i).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                part = loss(model, batch)
            total += part.total
            correct += part.correct
            count += part.count
    mean = float(total) / max(1, count)
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return {"loss": mean, "perplexity": perplexity, "accuracy": int(correct) / max(1, count)}


def sentence_pairs(corpus: Corpus, batches: BucketedBatches) -> list[SentencePair]:
    """Source and reference of each row of a set, which is all or some of this corpus."""
    rows = [int(row) for row in batches.rows]
    wanted = set(rows)
    texts = {i: record.texts for i, record in enumerate(corpus.usable_records()) if i in wanted}
    return [(texts[row][0], texts[row][1]) for row in rows]


def greedy_config(decode: DecodeConfig) -> DecodeConfig:
    """The decoding of validation: greedy, which is fastest."""
    return decode.model_copy(update={"beam": 1, "sample": False})


def greedy_bleu(
    model: Translator,
    tokenizer: Tokenizer,
    pairs: Sequence[SentencePair],
    decode: DecodeConfig,
    *,
    max_length: int,
) -> float:
    """Corpus BLEU of greedy translations of these pairs."""
    pipeline = TranslationPipeline(
        [model], tokenizer, greedy_config(decode), max_source=max_length - 1
    )
    translations = pipeline.translate([source for source, _ in pairs])
    references = [reference for _, reference in pairs]
    return bleu([translation.text for translation in translations], references).score
