"""BLEU of a set while training: greedy, with the weights of the moment."""

from __future__ import annotations

from collections.abc import Sequence

from heed.config import DecodeConfig
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import Corpus
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.metrics.corpus_bleu import bleu
from heed.models import Translator
from heed.pipelines.translate import TranslationPipeline

Pair = tuple[str, str]


def pairs_of(corpus: Corpus, batches: BucketedBatches) -> list[Pair]:
    """Source and reference of each row of a set that is some or all of this corpus, read once."""
    rows = [int(row) for row in batches.rows]
    wanted = set(rows)
    held = {i: record.texts for i, record in enumerate(corpus.usable_records()) if i in wanted}
    return [(held[row][0], held[row][1]) for row in rows]


def greedy(settings: DecodeConfig) -> DecodeConfig:
    """How a set is translated while training: as quickly as can be."""
    return settings.model_copy(update={"beam": 1, "sample": False})


def dev_bleu(
    model: Translator,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    settings: DecodeConfig,
    *,
    max_length: int,
) -> float:
    """Corpus BLEU of these pairs, for `metrics.jsonl` and its curves."""
    scribe = TranslationPipeline([model], tokenizer, greedy(settings), max_source=max_length - 1)
    written = scribe.translate([source for source, _ in pairs])
    return bleu([one.text for one in written], [reference for _, reference in pairs]).score
