"""The tables of the page, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from reading import Facts

from ted.words import Labels, chance, number, says, seeds, span, spread, words

NUMBER = re.compile(r"(\*\*)?[\d+\-–\[<]|$")
"""How a cell begins that is a figure, or is empty."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of figures to the right, others to the left."""
    kept = [list(row) for row in rows]
    figures = [all(NUMBER.match(row[i]) for row in kept) for i in range(len(columns))]
    rule = ["---:" if right else "---" for right in figures]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, rule, *kept])


def scores(systems: Mapping[str, Facts], labels: Labels) -> str:
    """How good each system is, by the figures that any of them has."""
    more = {"clean_bleu": "clean", "chrf": "chrF", "ter": "TER", "dev_bleu": "dev BLEU"}
    known = [key for key in more if any(key in own for own in systems.values())]
    rows = [
        [
            labels[name],
            seeds([len(own["seeds"])], own["bleu"]["sentences"]),
            spread(own["bleu"]),
            span(own["bleu"]),
            *(spread(own.get(key)) for key in known),
        ]
        for name, own in systems.items()
    ]
    return table(["system", "seeds", "BLEU", "95%", *(more[key] for key in known)], rows)


def costs(systems: Mapping[str, Facts], labels: Labels) -> str:
    """What each system is and took."""
    columns = ["system", "parameters", "updates", "epochs", "best epoch", "minutes"]
    columns += ["tokens/s", "beam", "told beyond its recipe"]
    rows = []
    for name, own in systems.items():
        told = ", ".join(f"`{change}`".replace("|", "\\|") for change in own["changes"])
        rows.append(
            [
                labels[name],
                *(number(own[key], ",.0f") for key in ("parameters", "updates")),
                *(number(own[key], ".0f") for key in ("epochs", "best_epoch")),
                number(own["minutes"], ".1f"),
                number(own["tokens_per_second"], ",.0f"),
                str(own["beam"]),
                told or "nothing",
            ]
        )
    return table(columns, rows)


TESTED = ["seeds", "Δ BLEU", "95%", "p, bootstrap", "p, randomisation", "p, seeds"]
TESTED += ["p, corrected", "it says"]


def _tested(one: Facts) -> list[str]:
    """The cells of a test, under `TESTED`."""
    keys = ("p_bootstrap", "p_randomisation", "p_seeds", "p_holm")
    return [
        seeds(one["seeds"], one["sentences"]),
        f"{one['difference']:+.2f}",
        span(one),
        *(chance(one[key]) for key in keys),
        says(one),
    ]


def comparisons(compared: Sequence[Facts], labels: Labels) -> str:
    """All tests of a question, a row each."""
    rows = [[labels[one["system"]], labels[one["against"]], *_tested(one)] for one in compared]
    return table(["system", "against", *TESTED], rows)


def effects(found: Sequence[Facts]) -> str:
    """What each change does to the systems that have it."""
    return table(["change", *TESTED], [[one["change"], *_tested(one)] for one in found])


def by_length(groups: Sequence[Facts], labels: Labels) -> str:
    """Each system on sentences of like length."""
    rows = [
        [words(group), f"{group['texts']:,}"]
        + [f"{own['bleu']:.2f} {span(own)}" for own in group["systems"].values()]
        for group in groups
    ]
    return table(["words", "sentences", *(labels[name] for name in groups[0]["systems"])], rows)


def kept(part: Facts, name: str) -> float | None:
    """What a system that learnt from short pairs has of its like that learnt from all lengths."""
    own, whole = (part["systems"].get(n) for n in (name, name.replace("length-", "position-")))
    return own["bleu"] / whole["bleu"] if own and whole else None


def seen_and_longer(parts: Sequence[Facts], names: Sequence[str], labels: Labels) -> str:
    """Systems that learnt from short pairs: on such sentences, and on longer ones.

    Beside each score its share of what the same encoding has when it learns from all lengths.
    """
    columns, rows = ["position"], []
    for part in parts:
        columns += [f"{words(part)} words ({part['texts']:,})", "kept", "length"]
    for name in names:
        row = [labels[name]]
        for part in parts:
            own, share = part["systems"][name], number(kept(part, name), ".0%")
            row += [f"{own['bleu']:.2f} {span(own)}", share, f"{own['length_ratio']:.2f}"]
        rows.append(row)
    return table(columns, rows)


def mended(systems: Mapping[str, Facts], curves: Facts, labels: Labels) -> str:
    """How far each got, by the curve of its first seed."""
    columns = ["", "train accuracy, last", "dev loss, best", "dev loss, last"]
    columns += ["dev accuracy, best", "dev BLEU, best", "test BLEU"]
    rows = [
        [
            labels[name],
            number(curve[-1]["train_accuracy"], ".1%"),
            f"{min(point['dev_loss'] for point in curve):.3f}",
            f"{curve[-1]['dev_loss']:.3f}",
            f"{max(point['dev_accuracy'] for point in curve):.1%}",
            f"{max(point['dev_bleu'] or 0 for point in curve):.1f}",
            spread(own["bleu"]),
        ]
        for name, own in systems.items()
        for curve in [curves[name]]
    ]
    return table(columns, rows)


def beside_the_report(rows: Iterable[tuple[str, float, Facts | None, Facts | None]]) -> str:
    """What the course report says, and the same sort of figure of our own systems."""
    cells = [
        [name, f"{said:.4f}", *(spread(own and own["plain"], ".4f") for own in pair)]
        for name, said, *pair in rows
    ]
    return table(["", "the report", "as reported, here", "trained well, here"], cells)
