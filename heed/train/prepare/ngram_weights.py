"""N-gram features of a classifier, initialized from the training text: word boundaries and weights.

Shapes: b examples, m n-grams, r rows of their table (hash buckets), c classes, v vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.nn.ngrams import NgramFeatures, log_count_ratios


def initialize_ngrams(
    features: NgramFeatures, recipe: Recipe, tokenizer: Tokenizer, train: BucketedBatches, c: int
) -> None:
    """Set the word boundaries and the log-count-ratio weights, where the features use them."""
    if features.between_v is not None:
        features.between_v.copy_(word_boundaries(tokenizer))
    if features.weight_r is not None:
        counts_cr = count_ngrams(features, train, c)
        features.weight_r.copy_(log_count_ratios(counts_cr, recipe.model.ngram_log_count_ratio))


def word_boundaries(tokenizer: Tokenizer) -> Tensor:
    """1 for every token between words, white space and special tokens; [v]."""
    specials, each = tokenizer.specials, range(tokenizer.vocab_size)
    letters = {specials.unk, specials.mask}  # each stands for a letter
    return torch.tensor(
        [float(i not in letters and not tokenizer.decode([i]).strip()) for i in each]
    )


def count_ngrams(features: NgramFeatures, train: BucketedBatches, c: int) -> Tensor:
    """The number of examples of each class that have an n-gram of each row, [c, r]."""
    rows, plan = features.table.num_embeddings, train.plan_in_order()
    counts = torch.zeros(c * rows)
    for number in range(len(plan)):
        batch = train.batch(plan, number)
        rows_bm, size_bm = features.rows(batch.ids, batch.mask)
        example_bm = torch.arange(len(rows_bm))[:, None].expand_as(rows_bm)
        cells = (example_bm * rows + rows_bm)[size_bm > 0].unique()  # once an example
        cells = batch.targets[cells // rows] * rows + cells % rows
        counts += torch.bincount(cells, minlength=len(counts))
    return counts.view(c, rows)
