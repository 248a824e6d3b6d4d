"""What a classifier's runs of tokens know of the training text before anything is learnt.

Shapes: b texts, n tokens, m runs, r rows of their table, c classes, v vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.nn.ngrams import NgramFeatures, log_count_ratios


def look_at(
    grams: NgramFeatures, recipe: Recipe, tokenizer: Tokenizer, train: BucketedBatches, c: int
) -> None:
    """Tell it what parts words and what each run counts for, as far as it asks; c classes."""
    if grams.between_v is not None:
        grams.between_v.copy_(parting(tokenizer))
    if grams.weight_r is not None:
        counts_cr = counted(grams, train, c)
        grams.weight_r.copy_(log_count_ratios(counts_cr, recipe.model.ngram_log_count_ratio))


def parting(tokenizer: Tokenizer) -> Tensor:
    """1 for every token that parts words: white space, and what stands around a text; [v]."""
    marks, each = tokenizer.specials, range(tokenizer.vocab_size)
    hidden = {marks.unk, marks.mask}  # a letter that is not shown
    return torch.tensor(
        [float(i not in hidden and not tokenizer.decode([i]).strip()) for i in each]
    )


def counted(grams: NgramFeatures, train: BucketedBatches, c: int) -> Tensor:
    """In how many texts of each class the runs of each row are found, [c, r]."""
    rows, plan = grams.table.num_embeddings, train.plan_in_order()
    counts = torch.zeros(c * rows)
    for number in range(len(plan)):
        batch = train.batch(plan, number)
        rows_bm, size_bm = grams.rows(batch.ids, batch.mask)
        text_bm = torch.arange(len(rows_bm))[:, None].expand_as(rows_bm)
        found = (text_bm * rows + rows_bm)[size_bm > 0].unique()  # once a text
        cells = batch.targets[found // rows] * rows + found % rows
        counts += torch.bincount(cells, minlength=len(counts))
    return counts.view(c, rows)
