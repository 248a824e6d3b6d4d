"""A finding: what one test showed, in numbers and in a plain sentence, and its correction.

Questions of an analysis are asked after training, so they are exploratory: all of one study are one
family, corrected by Benjamini and Hochberg's method. What it selects is worth a declared study. It
is never called shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heed.stats.comparison import SumMetric
from heed.stats.false_discovery import benjamini_hochberg
from heed.stats.intervals import Interval
from heed.stats.verdicts import format_differences, format_p

RATE = 0.05
"""The false discovery rate at which exploratory findings are selected."""
QUOTED = {"none", "all", "any", "no", "one", "other", "others", "each", "both", "nothing"}
"""Names that would read as words of the sentence: the position encoding `none`, say."""


@dataclass(frozen=True)
class Finding:
    """What one test showed."""

    kind: str
    """The question: length, overfit, cost, class, group, hardness, importance or search."""
    text: str
    """A plain sentence with the estimate, its interval and p."""
    figure: str
    """The id of the figure or table that shows it."""
    numbers: dict[str, Any] = field(default_factory=dict)
    interval: Interval | None = None
    """The 95% interval of this estimate alone."""
    p: float | None = None
    """Of this question alone; None where nothing was tested."""
    exploratory: bool = True
    """Whether the question was asked after training."""
    q: float | None = None
    """The p-value corrected for all exploratory questions of the study."""

    @property
    def is_selected(self) -> bool:
        """Whether it stands out after the correction."""
        level = self.p if not self.exploratory else self.q
        return level is not None and level <= RATE


def correct_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with corrected p-values, and what they amount to at the end of their texts."""
    tested = [one for one in findings if one.exploratory and one.p is not None]
    corrected = benjamini_hochberg([one.p for one in tested if one.p is not None])
    by_id = {id(one): float(q) for one, q in zip(tested, corrected, strict=True)}
    return [
        _with_q(one, by_id[id(one)], len(tested)) if id(one) in by_id else one for one in findings
    ]


def _with_q(finding: Finding, q: float, questions: int) -> Finding:
    family = f"exploratory, q {format_p(q)}"
    family += f" over {questions} questions" if questions > 1 else ""
    words = f"({family})" if q <= RATE else f"Not distinguishable from chance ({family})."
    text = finding.text
    text = f"{text.removesuffix('.')} {words}." if q <= RATE else f"{text} {words}"
    return replace(finding, q=q, text=text)


def quote_name(name: str) -> str:
    """A system's name in a sentence, in quotation marks where it would read as a word of it."""
    return f"“{name}”" if name.lower() in QUOTED else name


def describe_estimate(
    value: float, interval: Interval | None, p: float | None, metric: SumMetric
) -> str:
    """`+1.20 BLEU (95% interval +0.40 to +2.00, p = 0.004)`."""
    [shown] = format_differences([value], metric)
    inside = []
    if interval is not None:
        low, high = format_differences([interval.low, interval.high], metric)
        inside.append(f"95% interval {low} to {high}")
    if p is not None:
        inside.append(f"p {format_p(p)}")
    return f"{shown} {metric.difference_unit}" + (f" ({', '.join(inside)})" if inside else "")
