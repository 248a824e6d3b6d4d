"""Item counts of translations: sacreBLEU's sufficient statistics of every sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.arrays import Floats
from heed.metrics.corpus_bleu import METRICS, Texts
from heed.metrics.item_metrics import COUNTS


def translation_columns(
    hypotheses: Texts, references: Sequence[Texts], metrics: Sequence[str]
) -> tuple[dict[str, Floats], dict[str, str]]:
    """The counts of every sentence, and the signature of each metric."""
    columns: dict[str, Floats] = {}
    signatures = {}
    reference_lists = [list(texts) for texts in references]
    for name in metrics:
        metric = METRICS[name]()
        counts = np.array(metric._extract_corpus_statistics(list(hypotheses), reference_lists))
        columns |= {
            f"{name}.{count}": counts[:, i].astype(np.float64)
            for i, count in enumerate(COUNTS[name])
        }
        signatures[name] = str(metric.get_signature())
    return columns, signatures
