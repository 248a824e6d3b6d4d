"""Everything there is to say about translations: of one system, or of several against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heed.metrics import sentence_bleu as sentence_scores
from heed.metrics.corpus_bleu import METRICS, Texts, corpus_scores, length_ratio
from heed.metrics.sentence_bleu import (
    Group,
    length_groups,
    mean_plain_bleu,
    sentence_bleu,
    words_in,
)
from heed.stats.bootstrap import RESAMPLES
from heed.stats.significance import Compared, Comparison, compare

SHOWN = 3
"""Best, and worst, sentences to show."""
PLAIN_SIGNATURE = (
    f"mean:sentences|tok:whitespace|order:{sentence_scores.ORDER}|smooth:none|scale:0-1"
)


@dataclass(frozen=True)
class Assessment:
    """Translations of one set by one system or more, scored."""

    systems: dict[str, Texts]
    references: Sequence[Texts]
    sources: Texts | None
    whole: Comparison
    by_length: list[tuple[Group, Comparison]]
    each: dict[str, list[float]]
    """BLEU of every sentence, by system."""

    def table(self) -> str:
        """Every sentence with its score, as a TSV."""
        pairs = [(texts, self.each[name]) for name, texts in self.systems.items()]
        return sentence_scores.table(self.sources, self.references, pairs)

    def facts(self) -> dict[str, Any]:
        """The same as plain values: of one system, its own; of several, a list and the tests."""
        described = {name: self._of(name) for name in self.systems}
        if len(described) == 1:
            return next(iter(described.values()))
        return {
            "texts": len(self.references[0]),
            "baseline": next(iter(described)),
            "systems": list(described.values()),
            "tests": self.whole.signatures,
        }

    def _of(self, name: str) -> dict[str, Any]:
        system, texts = self.whole.systems[name], self.systems[name]
        found = {metric: score.score for metric, score in system.scores.items()}
        facts: dict[str, Any] = {
            "system": name,
            "texts": len(texts),
            **found,
            "signature": {metric: score.signature for metric, score in system.scores.items()}
            | {"nltk_mean_sentence_bleu": PLAIN_SIGNATURE},
            "interval": {m: asdict(s.interval) for m, s in system.scores.items() if s.interval},
            "length_ratio": length_ratio(texts, self.references),
            "nltk_mean_sentence_bleu": mean_plain_bleu(texts, self.references),
        }
        if system.paired:
            facts["paired"] = {metric: asdict(p) for metric, p in system.paired.items()}
        if self.by_length:
            facts["by_source_length"] = [_group(g, c.systems[name]) for g, c in self.by_length]
        best, worst = sentence_scores.extremes(self.each[name], SHOWN)
        facts["best"] = [self._sentence(name, i) for i in best]
        facts["worst"] = [self._sentence(name, i) for i in worst]
        return facts

    def _sentence(self, name: str, i: int) -> dict[str, Any]:
        source = {} if self.sources is None else {"source": self.sources[i]}
        return {
            "line": i + 1,
            "score": self.each[name][i],
            **source,
            "hypothesis": self.systems[name][i],
            "reference": self.references[0][i],
        }


def _group(group: Group, system: Compared) -> dict[str, Any]:
    score = system.scores["bleu"]
    facts: dict[str, Any] = {
        "words": [group.shortest, group.longest],
        "texts": len(group.rows),
        "bleu": score.score,
    }
    if score.interval:
        facts["interval"] = asdict(score.interval)
    if system.paired:
        facts["paired"] = asdict(system.paired["bleu"])
    return facts


def assess(
    systems: Mapping[str, Texts],
    references: Sequence[Texts],
    sources: Texts | None = None,
    *,
    metrics: Sequence[str] = tuple(METRICS),
    resamples: int = RESAMPLES,
    seed: int | None = None,
) -> Assessment:
    """Score systems on the same sentences; with sources, by their length as well."""

    def scored(rows: Sequence[int] | None, metrics: Sequence[str]) -> Comparison:
        chosen = {name: _chosen(texts, rows) for name, texts in systems.items()}
        against = [_chosen(texts, rows) for texts in references]
        if len(systems) > 1 and resamples > 1:
            return compare(chosen, against, metrics=metrics, resamples=resamples, seed=seed)
        alone = {
            name: corpus_scores(texts, against, metrics=metrics, resamples=resamples, seed=seed)
            for name, texts in chosen.items()
        }
        return Comparison({name: Compared(scores, {}) for name, scores in alone.items()}, {})

    groups = [] if sources is None else length_groups(words_in(sources))
    return Assessment(
        systems=dict(systems),
        references=references,
        sources=sources,
        whole=scored(None, metrics),
        by_length=[(group, scored(group.rows, ("bleu",))) for group in groups],
        each={name: sentence_bleu(texts, references) for name, texts in systems.items()},
    )


def _chosen(texts: Texts, rows: Sequence[int] | None) -> Texts:
    return texts if rows is None else [texts[i] for i in rows]
