"""What a comparison shows, as sentences: which systems are better, worse, or as good as others.

A word such as "better", "worse" or "as good" stands beside the interval that it follows from: both
come from the same numbers, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heed.report.wording import (
    MAX_NAMES,
    count_of,
    format_interval,
    hull,
    join_names,
    name_level,
)
from heed.stats.comparison import Comparison, Pair, SumMetric
from heed.stats.intervals import Interval
from heed.stats.verdicts import Judgement, Verdict, format_differences, format_level, format_p
from heed.study.finding import quote_name

MAX_PHRASES = 4
"""Relations in one sentence; of more, the count is told and the table has them."""
GAINS = (Verdict.BETTER, Verdict.BETTER_BY_MARGIN)
LOSSES = (Verdict.WORSE, Verdict.WORSE_BY_MARGIN)


@dataclass(frozen=True)
class Question:
    """What a study asked, and its comparison: everything that the answer is made from."""

    comparison: Comparison
    judgements: Sequence[Judgement]
    """The verdict on every pair of the comparison."""
    set_name: str
    margin: float | None = None
    minutes_per_run: float | None = None
    is_declared: bool = True
    """Whether the question, the systems and the seeds were fixed before training."""
    without_runs: Sequence[str] = ()
    """Systems of the study that no finished run stands for."""
    next_look: int | None = None
    """The seeds of the next declared look at the results, if one is left."""

    @property
    def metric(self) -> SumMetric:
        """The metric and how it is shown."""
        return self.comparison.metric

    @property
    def pairs(self) -> list[tuple[Pair, Judgement]]:
        """Every pair with its verdict."""
        return list(zip(self.comparison.pairs, self.judgements, strict=True))

    @property
    def baseline(self) -> str | None:
        """The system that all others were compared with; None for all pairs."""
        names = {pair.b for pair in self.comparison.pairs}
        complete = len(self.comparison.pairs) == len(self.comparison.systems) - 1
        return names.pop() if len(names) == 1 and complete else None


def format_pair_p(pair: Pair) -> str:
    is_bound = pair.item_exchange is not None and pair.item_exchange.is_bound
    return format_p(pair.corrected_p, below_resolution=is_bound)


@dataclass(frozen=True)
class Relation:
    """A shown difference, from the system that it is told of: a is better or worse than b."""

    a: str
    b: str
    word: str
    difference: float
    interval: Interval
    by_margin: bool
    within_margin: bool


def shown_relations(question: Question) -> list[Relation]:
    """Every difference that is shown; of all pairs, each from the better system."""
    relations = []
    for pair, judgement in question.pairs:
        if judgement.verdict not in (*GAINS, *LOSSES):
            continue
        relation = Relation(
            pair.a,
            pair.b,
            "better" if judgement.verdict in GAINS else "worse",
            pair.difference,
            pair.interval,
            judgement.verdict in (Verdict.BETTER_BY_MARGIN, Verdict.WORSE_BY_MARGIN),
            judgement.within_margin,
        )
        is_turned = question.baseline is None and relation.word == "worse"
        relations.append(_turn(relation) if is_turned else relation)
    return relations


def _turn(relation: Relation) -> Relation:
    """The same difference, told of the other system."""
    return replace(
        relation,
        a=relation.b,
        b=relation.a,
        word="better" if relation.word == "worse" else "worse",
        difference=-relation.difference,
        interval=Interval(-relation.interval.high, -relation.interval.low),
    )


def relation_phrases(question: Question) -> list[str]:
    """`t5 and rope are better than none: +1.20 to +3.10 BLEU (intervals …)`, by relation."""
    phrases: list[str] = []
    by_kind: dict[tuple[str, bool, bool], list[Relation]] = {}
    for relation in shown_relations(question):
        kind = (relation.word, relation.by_margin, relation.within_margin)
        by_kind.setdefault(kind, []).append(relation)
    for relations in by_kind.values():
        if question.baseline is None and len(question.comparison.systems) > MAX_NAMES:
            phrases.append(_count_relations(question, relations))
            continue
        by_winner = _group_relations(relations)
        by_loser = _group_relations([_turn(relation) for relation in relations])
        is_turned = question.baseline is None and len(by_loser) < len(by_winner)
        groups = by_loser if is_turned else by_winner
        phrases += [_tell_relations(question, group) for group in groups]
    phrases += _equivalence_phrases(question)
    if len(phrases) > MAX_PHRASES:
        left = len(phrases) - MAX_PHRASES
        phrases[MAX_PHRASES:] = [f"{count_of(left, 'further relation')} in the table of pairs"]
    return phrases


def _group_relations(relations: Sequence[Relation]) -> list[list[Relation]]:
    """Relations of the systems that were shown to differ from the same others, largest first."""
    others: dict[str, list[str]] = {}
    for relation in relations:
        others.setdefault(relation.a, []).append(relation.b)
    groups: dict[tuple[str, ...], list[Relation]] = {}
    for relation in relations:
        groups.setdefault(tuple(sorted(others[relation.a])), []).append(relation)
    return sorted(groups.values(), key=len, reverse=True)


def _tell_relations(question: Question, relations: Sequence[Relation]) -> str:
    """One phrase for relations of one kind between two groups of systems."""
    metric, first = question.metric, relations[0]
    firsts = list(dict.fromkeys(relation.a for relation in relations))
    seconds = list(dict.fromkeys(relation.b for relation in relations))
    others = len(question.comparison.systems) - len(firsts)
    than = join_names(seconds)
    if len(seconds) == others and others > 2:
        than = f"all {others} others"
    ends = sorted({relation.difference for relation in relations})
    shown = " to ".join(dict.fromkeys(format_differences([ends[0], ends[-1]], metric)))
    span = format_interval(hull(relation.interval for relation in relations), metric)
    level = name_level(question.comparison)
    intervals = f"intervals within {span}" if len(relations) > 1 else f"interval {span}"
    margin, small = _tell_margin(question, first)
    verb = "is" if len(firsts) == 1 else "are"
    return (
        f"{join_names(firsts)} {verb} {first.word} than {than}{margin}: {shown} "
        f"{metric.difference_unit} ({level} {intervals}{small})"
    )


def _tell_margin(question: Question, relation: Relation) -> tuple[str, str]:
    """What the margin adds to a relation: `by at least 2 BLEU`, or that it is too small."""
    if question.margin is None:
        return "", ""
    delta = f"{question.margin:g} {question.metric.difference_unit}"
    by_margin = f" by at least {delta}" if relation.by_margin else ""
    return by_margin, f", within {delta}: too small to matter" if relation.within_margin else ""


def _count_relations(question: Question, relations: Sequence[Relation]) -> str:
    """`in 31 of 780 pairs one is better than the other: +1.20 to +3.10 BLEU (intervals …)`."""
    metric, first = question.metric, relations[0]
    ends = sorted(relation.difference for relation in relations)
    shown = " to ".join(dict.fromkeys(format_differences([ends[0], ends[-1]], metric)))
    span = format_interval(hull(relation.interval for relation in relations), metric)
    intervals = f"intervals within {span}" if len(relations) > 1 else f"interval {span}"
    margin, small = _tell_margin(question, first)
    return (
        f"in {len(relations)} of {len(question.pairs)} pairs one is better than the other{margin}: "
        f"{shown} {metric.difference_unit} ({name_level(question.comparison)} {intervals}{small})"
    )


def _equivalence_phrases(question: Question) -> list[str]:
    """`rope is as good as t5, within 0.5 BLEU (90% interval …)`."""
    pairs = [pair for pair, judgement in question.pairs if judgement.verdict is Verdict.AS_GOOD]
    if not pairs:
        return []
    span = format_interval(hull(pair.equivalence_interval for pair in pairs), question.metric)
    delta = f"within {question.margin:g} {question.metric.difference_unit}"
    level = format_level(2 * question.comparison.alpha)
    span += ", of each pair alone" if len(question.pairs) > 1 else ""
    if len(pairs) == 1:
        [pair] = pairs
        a, b = quote_name(pair.a), quote_name(pair.b)
        return [f"{a} is as good as {b}, {delta} ({level} interval {span})"]
    if question.baseline is not None:
        names = join_names(pair.a for pair in pairs)
        base = quote_name(question.baseline)
        return [f"{names} are as good as {base}, {delta} ({level} intervals within {span})"]
    return [
        f"in {len(pairs)} of {len(question.pairs)} pairs one is as good as the other, {delta} "
        f"({level} intervals within {span})"
    ]
