"""All scores of one translation system, or of several compared with the first.

Each system is one list of outputs, so a comparison is over test items alone: it says whether these
outputs differ by more than other sentences would make, and nothing of another seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heed.arrays import Floats
from heed.metrics import sentence_bleu as sentence_level
from heed.metrics.corpus_bleu import (
    METRICS,
    Score,
    Texts,
    corpus_scores,
    current_seed,
    length_ratio,
    sacrebleu_seed,
)
from heed.metrics.item_metrics import translation_metric
from heed.metrics.sentence_bleu import (
    LengthGroup,
    length_groups,
    mean_nltk_bleu,
    sentence_bleu,
    word_counts,
)
from heed.metrics.translation_counts import translation_columns
from heed.stats.bootstrap import RESAMPLES
from heed.stats.comparison import ALPHA, Comparison, Pair, compare_systems
from heed.stats.permutation import TRIALS
from heed.stats.variance import System

SHOWN = 3
"""Number of best, and of worst, sentences to show."""
NLTK_SIGNATURE = f"mean:sentences|tok:whitespace|order:{sentence_level.ORDER}|smooth:none|scale:0-1"

ItemColumns = Mapping[str, Mapping[str, Floats]]
"""The counts of every sentence by column, by system."""


@dataclass(frozen=True)
class LengthScores:
    """Scores of all systems on the sentences of one range of source lengths."""

    group: LengthGroup
    scores: dict[str, Score]
    comparison: Comparison | None


@dataclass(frozen=True)
class SystemScores:
    """Scores of one or more systems on the same sentences."""

    systems: dict[str, Texts]
    references: Sequence[Texts]
    sources: Texts | None
    scores: dict[str, dict[str, Score]]
    """By system, then by metric."""
    comparisons: dict[str, Comparison]
    """Every system compared with the first, by metric; none of a single system."""
    by_length: list[LengthScores]
    sentences: dict[str, list[float]]
    """Sentence BLEU of every sentence, by system."""
    seed: int | None
    """Of the bootstrap and of the randomization test."""

    def sentence_tsv(self) -> str:
        """Every sentence with its score, as TSV."""
        columns = [(texts, self.sentences[name]) for name, texts in self.systems.items()]
        return sentence_level.sentence_tsv(self.sources, self.references, columns)

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON values: of one system, or a list of systems and their tests."""
        results = {name: self._system_result(name) for name in self.systems}
        if len(results) == 1:
            return next(iter(results.values()))
        return {
            "texts": len(self.references[0]),
            "baseline": next(iter(results)),
            "systems": list(results.values()),
            "test": {"name": "approximate randomization", "trials": TRIALS, "seed": self.seed},
        }

    def _system_result(self, name: str) -> dict[str, Any]:
        scores, texts = self.scores[name], self.systems[name]
        result: dict[str, Any] = {
            "system": name,
            "texts": len(texts),
            **{metric: score.score for metric, score in scores.items()},
            "signature": {metric: score.signature for metric, score in scores.items()}
            | {"nltk_mean_sentence_bleu": NLTK_SIGNATURE},
            "interval": {m: asdict(s.interval) for m, s in scores.items() if s.interval},
            "length_ratio": length_ratio(texts, self.references),
            "nltk_mean_sentence_bleu": mean_nltk_bleu(texts, self.references),
        }
        paired = {
            metric: _paired_result(pair)
            for metric, comparison in self.comparisons.items()
            for pair in comparison.pairs
            if pair.a == name
        }
        if paired:
            result["paired"] = paired
        if self.by_length:
            tests = len(self.by_length)
            result["by_source_length"] = [
                _length_result(one, name, tests) for one in self.by_length
            ]
        best, worst = sentence_level.best_and_worst(self.sentences[name], SHOWN)
        result["best"] = [self._sentence(name, i) for i in best]
        result["worst"] = [self._sentence(name, i) for i in worst]
        return result

    def _sentence(self, name: str, i: int) -> dict[str, Any]:
        source = {} if self.sources is None else {"source": self.sources[i]}
        return {
            "line": i + 1,
            "score": self.sentences[name][i],
            **source,
            "hypothesis": self.systems[name][i],
            "reference": self.references[0][i],
        }


def _length_result(part: LengthScores, name: str, tests: int) -> dict[str, Any]:
    score = part.scores[name]
    result: dict[str, Any] = {
        "words": [part.group.shortest, part.group.longest],
        "texts": len(part.group.rows),
        "bleu": score.score,
    }
    if score.interval:
        result["interval"] = asdict(score.interval)
    for pair in part.comparison.pairs if part.comparison else ():
        if pair.a == name:
            result["paired"] = _paired_result(pair, tests)
    return result


def _paired_result(pair: Pair, tests: int = 1) -> dict[str, Any]:
    """A pair as JSON values; `tests` families share the level (Bonferroni)."""
    return {
        "difference": pair.difference,
        "interval": asdict(pair.interval),
        "p": pair.p,
        "p_corrected": min(1.0, tests * pair.corrected_p),
        "p_is_bound": pair.item_exchange is not None and pair.item_exchange.is_bound,
    }


def score_systems(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    sources: Texts | None = None,
    *,
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
    seed: int | None = None,
) -> SystemScores:
    """Score systems on the same sentences; with sources, also by source length."""
    groups = [] if sources is None else length_groups(word_counts(sources))
    with sacrebleu_seed(seed):
        items = {}
        if len(systems) > 1:
            names = tuple(dict.fromkeys([*metrics, "bleu"] if groups else metrics))
            items = {
                name: translation_columns(texts, references, names)[0]
                for name, texts in systems.items()
            }
        return SystemScores(
            systems=dict(systems),
            references=references,
            sources=sources,
            scores=_corpus_scores(systems, references, metrics, resamples),
            comparisons={metric: _compare(items, metric) for metric in metrics if items},
            by_length=[
                _score_length(systems, references, items, group, len(groups), resamples)
                for group in groups
            ],
            sentences={name: sentence_bleu(texts, references) for name, texts in systems.items()},
            seed=current_seed(),
        )


def _score_length(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    items: ItemColumns,
    group: LengthGroup,
    groups: int,
    resamples: int,
) -> LengthScores:
    """BLEU on the sentences of one range of lengths; intervals hold for all ranges together."""
    chosen = {name: [texts[i] for i in group.rows] for name, texts in systems.items()}
    chosen_references = [[texts[i] for i in group.rows] for texts in references]
    scores = _corpus_scores(chosen, chosen_references, ("bleu",), resamples)
    rows = {
        name: {key: values[list(group.rows)] for key, values in columns.items()}
        for name, columns in items.items()
    }
    comparison = _compare(rows, "bleu", alpha=ALPHA / groups) if items else None
    return LengthScores(group, {name: one["bleu"] for name, one in scores.items()}, comparison)


def _corpus_scores(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    metrics: Sequence[str],
    resamples: int,
) -> dict[str, dict[str, Score]]:
    return {
        name: corpus_scores(texts, references, metrics=metrics, resamples=resamples)
        for name, texts in systems.items()
    }


def _compare(items: ItemColumns, name: str, alpha: float = ALPHA) -> Comparison:
    """Every system compared with the first, on the same items."""
    metrics = {system: translation_metric(name, columns) for system, columns in items.items()}
    first = next(iter(metrics))
    return compare_systems(
        [System(system, one.counts_nc[None]) for system, one in metrics.items()],
        metrics[first].metric,
        baseline=first,
        alpha=alpha,
        seed=current_seed(),
    )
