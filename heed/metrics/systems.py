"""All scores of one translation system, or of several compared with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heed.metrics import sentence_bleu as sentence_level
from heed.metrics.corpus_bleu import METRICS, Texts, corpus_scores, length_ratio
from heed.metrics.sentence_bleu import (
    LengthGroup,
    length_groups,
    mean_nltk_bleu,
    sentence_bleu,
    word_counts,
)
from heed.metrics.significance import (
    ComparedSystem,
    Comparison,
    compare_systems,
    correct_family,
)
from heed.stats.bootstrap import RESAMPLES

SHOWN = 3
"""Number of best, and of worst, sentences to show."""
NLTK_SIGNATURE = f"mean:sentences|tok:whitespace|order:{sentence_level.ORDER}|smooth:none|scale:0-1"


@dataclass(frozen=True)
class SystemScores:
    """Scores of one or more systems on the same sentences."""

    systems: dict[str, Texts]
    references: Sequence[Texts]
    sources: Texts | None
    corpus: Comparison
    by_length: list[tuple[LengthGroup, Comparison]]
    sentences: dict[str, list[float]]
    """Sentence BLEU of every sentence, by system."""

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
            "tests": self.corpus.signatures,
        }

    def _system_result(self, name: str) -> dict[str, Any]:
        system, texts = self.corpus.systems[name], self.systems[name]
        scores = {metric: score.score for metric, score in system.scores.items()}
        result: dict[str, Any] = {
            "system": name,
            "texts": len(texts),
            **scores,
            "signature": {metric: score.signature for metric, score in system.scores.items()}
            | {"nltk_mean_sentence_bleu": NLTK_SIGNATURE},
            "interval": {m: asdict(s.interval) for m, s in system.scores.items() if s.interval},
            "length_ratio": length_ratio(texts, self.references),
            "nltk_mean_sentence_bleu": mean_nltk_bleu(texts, self.references),
        }
        if system.paired:
            result["paired"] = {metric: asdict(p) for metric, p in system.paired.items()}
        if self.by_length:
            result["by_source_length"] = [
                _group_result(group, comparison.systems[name])
                for group, comparison in self.by_length
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


def _group_result(group: LengthGroup, system: ComparedSystem) -> dict[str, Any]:
    score = system.scores["bleu"]
    result: dict[str, Any] = {
        "words": [group.shortest, group.longest],
        "texts": len(group.rows),
        "bleu": score.score,
    }
    if score.interval:
        result["interval"] = asdict(score.interval)
    if system.paired:
        result["paired"] = asdict(system.paired["bleu"])
    return result


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

    def score_rows(rows: Sequence[int] | None, metrics: Sequence[str]) -> Comparison:
        hypotheses = {name: _select(texts, rows) for name, texts in systems.items()}
        selected = [_select(texts, rows) for texts in references]
        options: dict[str, Any] = {"metrics": metrics, "resamples": resamples, "seed": seed}
        if len(systems) > 1 and resamples > 1:
            return compare_systems(hypotheses, selected, **options)
        scores = {
            name: corpus_scores(texts, selected, **options) for name, texts in hypotheses.items()
        }
        return Comparison({name: ComparedSystem(one, {}) for name, one in scores.items()}, {})

    groups = [] if sources is None else length_groups(word_counts(sources))
    by_length = correct_family([score_rows(group.rows, ("bleu",)) for group in groups])
    return SystemScores(
        systems=dict(systems),
        references=references,
        sources=sources,
        corpus=score_rows(None, metrics),
        by_length=list(zip(groups, by_length, strict=True)),
        sentences={name: sentence_bleu(texts, references) for name, texts in systems.items()},
    )


def _select(texts: Texts, rows: Sequence[int] | None) -> Texts:
    return texts if rows is None else [texts[i] for i in rows]
