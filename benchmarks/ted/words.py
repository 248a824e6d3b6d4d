"""Figures as words: how a number looks, and what a comparison says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reading import Facts

SURE = 0.05
"""Below this p systems are called different,"""
NOTHING = 0.005
"""unless they differ by less BLEU than the page can show."""
Labels = Mapping[str, str]
"""What a system is called on the page."""


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def spread(facts: Facts | None, form: str = ".2f") -> str:
    """A mean over seeds and their standard deviation."""
    if facts is None:
        return "–"
    mean, deviation = facts["mean"], facts["deviation"]
    return number(mean, form) + ("" if deviation is None else f" ± {deviation:{form}}")


def seeds(counts: Sequence[int], sentences: int) -> str:
    """`3`, or `3 and 2`; and in brackets of how many the sentences count, where that is fewer."""
    told = str(counts[0]) if len({*counts}) == 1 else " and ".join(map(str, counts))
    return told + (f" ({sentences})" if sentences < min(counts) else "")


def span(facts: Facts) -> str:
    """An interval."""
    return f"[{facts['low']:.2f}, {facts['high']:.2f}]"


def words(group: Facts) -> str:
    """`21 to 30`: the lengths of a group of sentences."""
    low, high = group["words"]
    return f"{low}" if low == high else f"{low} to {high}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def chance(p: float | None) -> str:
    """A p-value, as exact as it is worth."""
    if p is None:
        return "–"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def differs(compared: Facts) -> bool:
    """Whether all tests, corrected for how many comparisons there were, say so.

    Two models that learnt nothing may differ in a few n-grams: what rounds to nothing is nothing.
    """
    return bool(compared["p_holm"] < SURE and abs(compared["difference"]) >= NOTHING)


def verdict(compared: Facts) -> str:
    """What a comparison says of its first system."""
    if not differs(compared):
        return "no difference shown"
    return "better" if compared["difference"] > 0 else "worse"


def says(compared: Facts) -> str:
    """The same in a table, with what it is about where other seeds could not be asked about."""
    models_only = differs(compared) and compared["p_seeds"] is None
    return verdict(compared) + (" (these models)" if models_only else "")


def by_how_much(compared: Facts) -> str:
    """`+1.20, p = 0.0123`."""
    p = chance(compared["p_holm"])
    return f"{compared['difference']:+.2f}, p {p if p.startswith('<') else f'= {p}'}"


def one_seed(compared: Sequence[Facts]) -> str:
    """What has to be said where the third test could not be made."""
    if all(one["p_seeds"] is not None for one in compared):
        return ""
    return " Where there is one seed, this is about the two models and not about other seeds."


def summary(compared: Sequence[Facts], labels: Labels) -> str:
    """All comparisons of a table in a few sentences."""
    other_way = len({one["system"] for one in compared}) > len({one["against"] for one in compared})
    held, others = ("against", "system") if other_way else ("system", "against")
    found: dict[tuple[str, str], list[str]] = {}
    for one in compared:
        other = f"{labels[one[others]]} ({by_how_much(one)})"
        found.setdefault((labels[one[held]], verdict(one)), []).append(other)
    sentences = []
    for (name, said), told in found.items():
        if said == "no difference shown":
            sentences.append(f"Between {name} and {listed(told)} no difference is shown.")
        elif other_way:
            verb = "is" if len(told) == 1 else "are"
            sentences.append(f"{_capital(listed(told))} {verb} {said} than {name}.")
        else:
            sentences.append(f"{_capital(name)} is {said} than {listed(told)}.")
    return " ".join(sentences) + one_seed(compared)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def opened(head: str, findings: Sequence[str]) -> str:
    """A page's head with what was found, as one paragraph below the title."""
    title, rest = head.split("\n\n", 1)
    return "\n\n".join([title, *([" ".join(findings)] if findings else []), rest])
