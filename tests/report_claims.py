"""Read the claims of a report's sentences back, and hold them against the comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from heed.report.claims import Question
from heed.report.document import Table
from heed.stats.comparison import Pair
from heed.stats.intervals import Interval
from heed.stats.verdicts import Judgement, Verdict

CLAIM = re.compile(
    r"\b(better|worse|worst|as good|most|best|wins?|winners?|harder|hardest|easier|easiest"
    r"|superior|inferior|outperform\w*|beats?|improve\w*|stronger|weaker)\b",
    re.IGNORECASE,
)
NO_CLAIM = re.compile(
    r"(higher|lower) is better|at most|[Ee]xpected best|^may be best$|Which (systems )?may be best"
    r"|comparison with the best"
    r"|> the row is better, < worse(, = as good within the margin)?|minus the best of the others"
    r"|As good is judged by (the \d+% interval|a narrower interval)"
    r"|winner (falls|rises) by [^.]*\.\d+|each winner when it was chosen"
    r"|are some groups of texts harder"
)
"""Phrases that name a direction, a bound, a method or a quantity, and claim nothing.

That one system may be best is Hsu's set, which a pattern below reads with its intervals.
"""
NUMBER = r"[+-]\d+(?:\.\d+)?(?:e[+-]?\d+)?"
SPAN = rf"(?P<low>{NUMBER}) to (?P<high>{NUMBER})"
LEVEL = r"(?:corrected )?(?P<level>[\d.]+)% intervals?(?: within)?"
RELATION = re.compile(
    rf"(?P<firsts>[^:;()]+?|[^:()]+?) (?:is|are) (?P<word>better|worse) than (?P<seconds>[^:()]+?)"
    rf"(?: by at least (?P<margin>[\d.e+-]+)[^:]*)?: (?P<from>{NUMBER})(?: to (?P<to>{NUMBER}))? "
    rf"[^(]*\({LEVEL} {SPAN}(?P<rest>[^)]*)\)"
)
EQUIVALENCE = re.compile(
    rf"(?P<firsts>[^()]+?) (?:is|are) as good as (?P<seconds>[^()]+?), within "
    rf"(?P<margin>[\d.e+-]+) [^(:]*[(:] ?{LEVEL} {SPAN}"
)
PAIRS_EQUIVALENT = re.compile(
    rf"in (?P<count>\d+) of \d+ pairs one is as good as the other, within (?P<margin>[\d.e+-]+) "
    rf"[^(]*\({LEVEL} {SPAN}"
)
BEST = re.compile(
    rf"[Cc]hoose(?: among| between)? (?P<names>.+?)"
    rf"(?: by cost: best, or not distinguishable from the best|"
    rf", the only one(?: of those with a score)? that may be best) "
    rf"\(Hsu's (?P<level>[\d.]+)% intervals? of [^()]*? {SPAN}\)"
)


def split_names(text: str, known: Iterable[str]) -> list[str]:
    """The systems that a list of names holds, the longest names first."""
    names = []
    for name in sorted(known, key=len, reverse=True):
        if re.search(rf"(?<![\w=]){re.escape(name)}(?![\w=])", text):
            names.append(name)
            text = text.replace(name, " ", 1)
    return names


def check_sentence(text: str, question: Question) -> None:
    """Fail where a claim of the text has no interval, or another one than the comparison's."""
    rest = text
    for pattern, check in PATTERNS:
        for match in pattern.finditer(rest):
            check(match, question)
        rest = pattern.sub("", rest)
    rest = NO_CLAIM.sub("", rest)
    assert not CLAIM.search(rest), f"a claim without its interval: {rest!r} in {text!r}"


def shown_pairs(question: Question) -> Iterator[tuple[Pair, Judgement]]:
    """The pairs that are shown to differ."""
    for pair, judgement in question.pairs:
        if judgement.verdict not in (Verdict.AS_GOOD, Verdict.UNDECIDED, Verdict.TWO_MODELS):
            yield pair, judgement


def check_relation(match: re.Match[str], question: Question) -> None:
    systems = list(question.comparison.systems)
    firsts = split_names(match["firsts"].rpartition(": ")[2], systems)
    if re.search(r"\d+ systems", match["firsts"]):
        firsts = []  # a count: only the span can be checked
    seconds = split_names(match["seconds"], systems)
    if re.fullmatch(r"all \d+ others", match["seconds"].strip()):
        seconds = [name for name in systems if name not in firsts]
    low, high = float(match["low"]), float(match["high"])
    gain = 1 if (match["word"] == "better") == question.metric.higher_is_better else -1
    assert min(low * gain, high * gain) > 0, f"the interval contradicts: {match[0]}"
    assert low <= float(match["from"]) <= float(match["to"] or match["from"]) <= high
    for a in firsts:
        for b in seconds:
            pair = find_pair(question, a, b)
            inside(pair.interval, low, high)
            assert pair.compares_recipes
            if match["margin"]:
                assert float(match["margin"]) == question.margin
                assert min(abs(pair.interval.low), abs(pair.interval.high)) >= question.margin
            if "too small to matter" in match["rest"]:
                assert question.margin is not None
                ends = pair.equivalence_interval
                assert max(abs(ends.low), abs(ends.high)) < question.margin
    if len(firsts) == len(seconds) == 1:
        tight(find_pair(question, firsts[0], seconds[0]).interval, low, high)
    check_level(match, question)


def check_equivalence(match: re.Match[str], question: Question) -> None:
    systems = list(question.comparison.systems)
    margin, low, high = float(match["margin"]), float(match["low"]), float(match["high"])
    assert margin == question.margin
    assert -margin <= low <= high <= margin
    for a in split_names(match["firsts"].rpartition(";")[2], systems):
        for b in split_names(match["seconds"], systems):
            pair = find_pair(question, a, b)
            assert pair.compares_recipes
            inside(pair.equivalence_interval, low, high)


def check_equivalent_pairs(match: re.Match[str], question: Question) -> None:
    margin = float(match["margin"])
    assert margin == question.margin
    assert -margin <= float(match["low"]) <= float(match["high"]) <= margin
    verdicts = [judgement.verdict for _, judgement in question.pairs]
    assert verdicts.count(Verdict.AS_GOOD) == int(match["count"])


def check_best(match: re.Match[str], question: Question) -> None:
    best = question.comparison.best
    assert best is not None
    if not re.fullmatch(r"\d+ systems", match["names"]):
        assert set(split_names(match["names"], question.comparison.systems)) == set(best)
    for gap in question.comparison.best_gaps.values():
        inside(gap, float(match["low"]), float(match["high"]))
    check_level(match, question)


def check_level(match: re.Match[str], question: Question) -> None:
    assert abs(float(match["level"]) - 100 * (1 - question.comparison.alpha)) < 0.06


def find_pair(question: Question, a: str, b: str) -> Pair:
    """The pair with a first, turned if the comparison has it the other way round."""
    for pair in question.comparison.pairs:
        if (pair.a, pair.b) == (a, b):
            return pair
        if (pair.a, pair.b) == (b, a):
            return replace(
                pair,
                a=a,
                b=b,
                difference=-pair.difference,
                interval=mirror(pair.interval),
                equivalence_interval=mirror(pair.equivalence_interval),
            )
    raise AssertionError(f"{a} and {b} were not compared")


def mirror(interval: Interval) -> Interval:
    return Interval(-interval.high, -interval.low)


def inside(interval: Interval, low: float, high: float) -> None:
    slack = 0.006 * max(1.0, abs(low), abs(high))
    assert low - slack <= interval.low <= interval.high <= high + slack


def tight(interval: Interval, low: float, high: float) -> None:
    slack = 0.006 * max(1.0, abs(low), abs(high))
    assert abs(interval.low - low) <= slack
    assert abs(interval.high - high) <= slack


PATTERNS = (
    (PAIRS_EQUIVALENT, check_equivalent_pairs),
    (BEST, check_best),
    (EQUIVALENCE, check_equivalence),
    (RELATION, check_relation),
)


VERDICTS = {"better": 1, "worse": -1}


def check_table(table: Table, question: Question) -> None:
    """Fail where a verdict of a row contradicts the interval beside it."""
    spans = [number for number, name in enumerate(table.columns) if name.endswith("% interval")]
    if "verdict" not in table.columns or not spans:
        return
    sign = 1 if question.metric.higher_is_better else -1
    for row in table.rows:
        verdict = row[table.columns.index("verdict")].replace("\u00a0", " ")
        match = re.fullmatch(rf"(?:\d+%: )?{SPAN}", row[spans[0]])
        if match is None:
            assert verdict in ("baseline", "–")
            continue
        low, high = sorted((sign * float(match["low"]), sign * float(match["high"])))
        word = verdict.partition(" ")[0].rstrip(",")
        if word in VERDICTS:
            assert min(low * VERDICTS[word], high * VERDICTS[word]) > 0, row
        elif word == "can't":
            assert low <= 0 <= high, row
        if word == "as":
            assert question.margin is not None
            assert max(-low, high) <= question.margin
            assert row[spans[0]].startswith(f"{100 * (1 - 2 * question.comparison.alpha):.3g}%: ")
        if "at least" in verdict:
            assert question.margin is not None
            assert min(abs(low), abs(high)) >= question.margin - 0.006
