"""Scores for a person to read, from the same plain values that `--json` gives a program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heed.metrics import tables_classification, tables_perplexity
from heed.metrics.tables_classification import headed

Facts = Mapping[str, Any]
NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}
PLAIN = "nltk_mean_sentence_bleu"
PLAIN_LABEL = "mean sentence BLEU, 0 to 1, as course reports compute it (NLTK)"
ROWS = {
    "texts": ("texts", "{:,}"),
    "loss": ("loss", "{:.4f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    **tables_perplexity.ROWS,
    "accuracy": ("accuracy", "{:.2%}"),
    "macro_f1": ("macro F1", "{:.2%}"),
    "log_loss": ("log loss", "{:.4f}"),
    "brier": ("Brier score", "{:.4f}"),
    "calibration_error": ("expected calibration error", "{:.4f}"),
    "bleu": ("BLEU", "{:.2f}"),
    "chrf": ("chrF", "{:.2f}"),
    "ter": ("TER, lower is better", "{:.2f}"),
    "length_ratio": ("length, against the reference", "{:.3f}"),
    "hit_limit": ("cut off at the length limit", "{:.2%}"),
    PLAIN: (PLAIN_LABEL, "{:.4f}"),
}
"""What may be told about a set, in this order: its key, its name, its form."""
BY_TOKEN = {"accuracy": ("token accuracy", "{:.2%}")}
TESTS = ("p_bootstrap", "p_randomisation")
DOUBTFUL = "?"
"""Beside a p that is below what so few texts can show."""
OTHERS = ("length_ratio", PLAIN)
"""What no paired test is made of."""


def scores(facts: Facts) -> Group:
    """What `heed score` found: one system, or several against the first."""
    if "systems" in facts:
        return Group(*_comparison(facts))
    return Group(measures({facts["system"]: facts}), *_details(facts))


def evaluation(facts: Facts) -> Group:
    """What `heed evaluate` found: the whole set, and beside it what train does not have."""
    if "judged" in facts:
        return tables_perplexity.judged(facts)
    columns = {facts["split"]: facts}
    if facts["in_train"] and facts["clean"]:
        columns["not in train"] = facts["clean"]
    rows = ROWS | BY_TOKEN
    if facts["task"] == "classify":
        rows = {key: row for key, row in ROWS.items() if key != "perplexity"}
    table = measures(columns, rows)
    return Group(*_provenance(facts), table, *_details(facts))


def measures(columns: Mapping[str, Facts], rows: Mapping[str, tuple[str, str]] = ROWS) -> Table:
    """A row a figure, a column a set."""
    table = headed("", *columns)
    for key, (name, form) in rows.items():
        if any(key in facts for facts in columns.values()):
            table.add_row(name, *(_cell(facts, key, form) for facts in columns.values()))
    return table


def _cell(facts: Facts, key: str, form: str) -> str:
    if key not in facts:
        return "–"
    interval = facts.get("interval", {}).get(key)
    return form.format(facts[key]) + (f"  {_span(interval, form, key)}" if interval else "")


def _span(interval: Facts, form: str = "{:.2f}", key: str = "bleu") -> str:
    """An interval. sacreBLEU's lie around a mean, and may pass what a score can be."""
    low, high = interval["low"], interval["high"]
    if key in NAMES:
        low, high = max(0.0, low), high if key == "ter" else min(100.0, high)
    return f"[{form.format(low)}, {form.format(high)}]"


def _provenance(facts: Facts) -> Iterator[RenderableType]:
    """Which weights, which text, and how much of it was no test."""
    chosen = facts["checkpoint"]
    if chosen is not None:
        yield _plain(
            f"{chosen['weights']} at step {chosen['step']:,} (epoch {chosen['epoch']}), chosen by "
            f"{chosen['metric']} = {chosen['value']:.4f}"
        )
    whence = "set aside from " if facts["set_aside"] else ""
    yield _plain(f"{facts['split']}: {whence}{', '.join(facts['files'])}")
    if facts["dropped"]:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in facts["dropped"].items())
        yield _plain(f"left out: {counts}")
    if facts["in_train"] is None:
        yield _plain(f"whether train has some of it too is not known: {facts['unknown']}")
    else:
        yield _plain(f"{facts['in_train'] or 'none'} of {facts['texts']:,} texts also in train")


def _details(facts: Facts) -> Iterator[RenderableType]:
    if "bits_compare" in facts:
        if named := tables_perplexity.columns(facts):
            yield measures(named, ROWS | BY_TOKEN)
        yield from tables_perplexity.caveat(facts, *facts.get("sets", {}).values())
    if "confusion" in facts:
        yield from tables_classification.details(facts)
    if "by_source_length" in facts:
        yield _by_length({"BLEU": facts})
    if "best" in facts:
        yield _examples("best", facts["best"])
        yield _examples("worst", facts["worst"])
    if "signature" in facts:
        yield _signatures(facts["signature"])


def _by_length(systems: Mapping[str, Facts]) -> Table:
    """BLEU of the sentences of like length; of several systems, with tests against the first."""
    tested = len(systems) > 1
    table = headed("words in the source", "texts", *systems, title="BLEU by source length")
    for i, group in enumerate(next(iter(systems.values()))["by_source_length"]):
        cells = []
        for facts in systems.values():
            part = facts["by_source_length"][i]
            figure = f"{part['bleu']:.2f}"
            if tested and "paired" in part:
                _, *chances = _tested(part["paired"])
                figure += f"  p {' / '.join(chances)}"
            elif "interval" in part:
                figure += f"  {_span(part['interval'])}"
            cells.append(figure)
        low, high = group["words"]
        words = f"{low}" if low == high else f"{low} to {high}"
        table.add_row(words, f"{group['texts']:,}", *cells)
    return table


def _examples(name: str, found: Sequence[Facts]) -> Table:
    keys = [key for key in ("source", "hypothesis", "reference") if found and key in found[0]]
    table = headed("line", "BLEU", *keys, title=f"{name} sentences")
    for item in found:
        texts = [Text(item[key]) for key in keys]
        table.add_row(f"{item['line']:,}", f"{item['score']:.1f}", *texts)
    return table


def _comparison(facts: Facts) -> Iterator[RenderableType]:
    systems = {system["system"]: system for system in facts["systems"]}
    baseline = systems[facts["baseline"]]
    table = headed("", "system", "score", "95% interval", "Δ", "p, boot", "p, rand")
    for key, name in NAMES.items():
        for system, own in systems.items():
            if key in own:
                span, paired = (own.get(k, {}).get(key) for k in ("interval", "paired"))
                if paired is None and own is not baseline:  # no samples, so no tests
                    paired = {"difference": own[key] - baseline[key]}
                interval = _span(span, key=key) if span else ""
                table.add_row(name, Text(system), f"{own[key]:.2f}", interval, *_tested(paired))
        if key in baseline:
            table.add_section()
    yield _plain(f"{facts['texts']:,} texts; each system is held against {facts['baseline']}")
    yield table
    yield measures({name: {k: own[k] for k in OTHERS} for name, own in systems.items()})
    if "by_source_length" in baseline:
        yield _by_length(systems)
    yield _signatures(baseline["signature"])
    if facts["tests"]:
        yield _plain(
            "p, boot: paired bootstrap, as above; p, rand: paired approximate randomisation"
        )
        if doubtful := _doubtful(systems.values()):
            yield _plain(doubtful)
        yield _signatures(facts["tests"]["randomisation"])


def _tested(paired: Facts | None) -> Iterator[str]:
    if paired is not None:
        yield f"{paired['difference']:+.2f}"
        for p in (paired[test] for test in TESTS if test in paired):
            yield f"{p:.4f}" + (DOUBTFUL if p < paired["least_p"] else "")


def _doubtful(systems: Collection[Facts]) -> str:
    """What the mark beside a p means, where there is one."""
    tests = [test for own in systems for test in own.get("paired", {}).values()]
    parts = [part for own in systems for part in own.get("by_source_length", [])]
    tests += [part["paired"] for part in parts if "paired" in part]
    if not any(test[p] < test["least_p"] for test in tests for p in TESTS):
        return ""
    return (
        f"{DOUBTFUL}: this is sacreBLEU's p, but too few texts differ to show so much: "
        "chance alone turns n texts to one side with p = 2^(1-n)"
    )


def _signatures(signatures: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for key, signature in signatures.items():
        name = "mean sentence BLEU" if key == PLAIN else NAMES[key]
        table.add_row(Text(name, "dim"), Text(signature, "dim", overflow="fold"))
    return table


def _plain(text: str) -> Text:
    return Text(text, style="dim")
