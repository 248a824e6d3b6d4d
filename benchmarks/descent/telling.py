"""Figures of a task as words: how a number looks, and what there is to say of them."""

from __future__ import annotations

from collections.abc import Iterator

from reading import Facts
from ted.words import SURE, chance, listed

from descent.systems import BEYOND, HEAVY, LABELS, PLAIN, REFERENCE, RULES, Task

SAME, BETTER, WORSE = "no difference shown", "better", "worse"
SHOWN = (REFERENCE, PLAIN, HEAVY)
"""Whom the course report's conclusion is about."""


class Telling:
    """One task's figures. Accuracies are told in percent, losses in natural logarithms."""

    def __init__(self, task: Task, own: Facts) -> None:
        self.task, self.own = task, own
        self.scale, self.form = (100.0, ".1f") if task.rises else (1.0, ".3f")
        self.of = "points" if task.rises else "a token"

    def figure(self, value: float | str | None) -> str:
        """`78.1`, or in words what became of it."""
        if isinstance(value, float):
            told = self.scale * value
            return format(told, self.form if told <= 100 else ",.0f")  # a loss far beyond guessing
        return value or "–"

    def amount(self, value: float) -> str:
        """`1.2 points`: how far apart two figures are."""
        return f"{self.scale * abs(value):{self.form}} {self.of}"

    def gain(self, value: float | None) -> str:
        """`+1.2`, where above 0 is better."""
        return "" if value is None else format(self.scale * value, f"+z{self.form}")

    def spread(self, facts: Facts | None) -> str:
        """A mean over seeds and their standard deviation."""
        if facts is None:
            return "–"
        more = "" if facts["deviation"] is None else f" ± {self.figure(facts['deviation'])}"
        return self.figure(facts["mean"]) + more

    def span(self, facts: Facts, *, signed: bool = False) -> str:
        """An interval."""
        low, high = (
            self.gain(facts[end]) if signed else self.figure(facts[end]) for end in ("low", "high")
        )
        return f"[{low}, {high}]"

    def verdict(self, rule: str) -> str:
        """What the test set says of a rule beside the reference."""
        test = self.own["on_test"][rule]
        if not _sure(test):
            return SAME
        return BETTER if test["gain"] > 0 else WORSE

    # ------------------------------------------------------------------------------ sentences

    def finding(self) -> str:
        """What the task's figures say, in a few sentences."""
        parts = [self._at("shared"), self._at("own"), self._share(), self._moral()]
        parts += [self.on_test(), self._who_wins()]
        said = " ".join(part for part in parts if part)
        return f"**{self.task.title}.** {said}"

    def _at(self, which: str) -> str:
        """What the reference and SGD reach on dev, at one rate for all or each at its own."""
        told = {name: self.own["rules"].get(name, {}).get(which) for name in SHOWN}
        tests = self.own["at_one_rate" if which == "shared" else "at_own_rate"]
        names = [name for name in SHOWN if told[name] and (name in tests or name == REFERENCE)]
        if len(names) < 2:
            return ""
        words = []
        for name in names:
            rate = f" ({told[name]['rate']:g})" if which == "own" else ""
            dev = self.spread(told[name]["dev"]) + ("%" if self.task.rises else "")
            beside = f" ({self.with_p(tests[name])})" if name in tests else ""
            words.append(f"{LABELS[name]}{rate} {dev}{beside}")
        shared = f"All at {self.own['shared_rate']:g}"
        begin = shared if which == "shared" else "Each at its own rate"
        return f"{begin}, dev {self.task.unit} is {listed(words)}."

    def with_p(self, test: Facts) -> str:
        """`+1.2, p = 0.0123`; of one seed there is no p."""
        if "p_holm" not in test:
            return self.gain(test["gain"])
        p = chance(test["p_holm"])
        return f"{self.gain(test['gain'])}, p {p if p.startswith('<') else f'= {p}'}"

    def _share(self) -> str:
        """How much of the distance at one rate is gone with rates of their own."""
        words = []
        for name in SHOWN:
            one, own = (self.own[way].get(name) for way in ("at_one_rate", "at_own_rate"))
            if one and own and one["gain"] < 0:
                gone = min(1.0, 1 - own["gain"] / one["gain"])
                words.append(f"{max(0.0, gone):.0%} for {LABELS[name]}")
        if not words:
            return ""
        return f"Of the distance to {LABELS[REFERENCE]} the rate made {listed(words)}."

    def _moral(self) -> str:
        """Whether "SGD fails", where one rate says it, is true of SGD or of the rate.

        A difference that is large but not shown is no sign that there is none.
        """
        one, test = self.own["at_one_rate"], self.own["on_test"]
        failed = [n for n in SHOWN if n in one and one[n]["gain"] < 0 and _sure(one[n])]
        known = [name for name in failed if name in test]
        if not known:
            return ""
        behind = [name for name in known if test[name]["gain"] < -self.task.near]
        if not behind:
            names = listed([LABELS[name] for name in known])
            near = self.amount(self.task.near)
            return (
                f'"SGD fails" is true of that rate: at its own, {names} come within {near} on test.'
            )
        left = []
        for name in behind:
            sure = "" if self.verdict(name) == WORSE else " (not confirmed)"
            left.append(f"{LABELS[name]} is {self.amount(test[name]['gain'])} behind{sure}")
        return f'Of "SGD fails" this is left at its own rate, on test: {listed(left)}.'

    def on_test(self) -> str:
        """All rules beside the reference, each at its own rate."""
        found: dict[str, list[str]] = {}
        for name, test in self.own["on_test"].items():
            told = f"{LABELS[name]} ({self.with_p(test)})"
            found.setdefault(self.verdict(name), []).append(told)
        said = []
        for verdict in (BETTER, WORSE):
            if names := found.get(verdict):
                be = "is" if len(names) == 1 else "are"
                said.append(f"{listed(names)} {be} {verdict} than {LABELS[REFERENCE]} on test.")
        if names := found.get(SAME):
            beside = f"Between {LABELS[REFERENCE]} and {listed(names)}"
            said.append(f"{beside} no difference is shown on test.")
        return " ".join(said)

    def _who_wins(self) -> str:
        """Who would be first, by the one rate that all were held to."""
        first: dict[str, list[str]] = {}
        for rate, ends in self.own["wins"].items():
            first.setdefault(ends["first"], []).append(rate)
        if not first:
            return ""
        told = [f"{LABELS[name]} at {listed(rates)}" for name, rates in first.items()]
        return f"Who is first at one rate for all hangs on that rate (one seed): {'; '.join(told)}."

    def test_set(self) -> str:
        """What was tested on."""
        for told in self.own["rules"].values():
            if known := told.get("own", {}).get("test_set"):
                seen = known["in_train"]
                also = "" if seen is None else f"; {seen} of them are in the training text as well"
                return f"The test set has {known['texts']:,} texts{also} (*clean* is without them)."
        return ""

    def remarks(self) -> Iterator[str]:
        """What a reader should know of the rates: edges, missing trials, runs that broke off."""
        rules, rates = self.own["rules"], len(self.own["rates"])
        yield (
            f"Dev {self.task.unit}{', %' if self.task.rises else ''}, seed 0; bold, the rate "
            "chosen. *First* and *last*: who would be, were this the one rate for all."
        )
        if edges := [told["label"] for told in rules.values() if told["at_edge"]]:
            yield (
                f"At an edge after {BEYOND} more rates or before they were tried: {listed(edges)}. "
                "It might do better beyond."
            )
        tried = {rule.label: rules.get(rule.name, {}).get("tried", 0) for rule in RULES}
        if fewer := [f"{label} ({count})" for label, count in tried.items() if count < rates]:
            yield f"Not all {rates} rates have been tried yet by: {listed(fewer)}."
        lost = [
            f"{told['label']} at {told[which]['rate']:g} ({told[which]['diverged']})"
            for told in rules.values()
            for which in ("shared", "own")
            if told.get(which, {}).get("diverged")
        ]
        if lost:
            yield f"Fresh seeds that ended in numbers that are none are left out: {listed(lost)}."


def _sure(test: Facts) -> bool:
    """Whether a difference is shown."""
    return bool(test.get("p_holm", 1.0) < SURE)
