"""Examples of a run in its report: best and worst texts, and the most confidently wrong ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from heed.errors import HeedError
from heed.report.document import Block, Paragraph, Section, Table
from heed.report.run_content import RunContent
from heed.report.scores_section import set_anchor

SHOWN = 6
"""Examples of each kind."""
LONGEST = 400
"""Characters of a text that are shown."""
Texts = Sequence[dict[str, str]]


def build_examples_section(content: RunContent) -> Section:
    """The section with examples of the first evaluated set."""
    if not content.results:
        text = (
            f"There are no examples before the run is evaluated: heed evaluate {content.run.folder}"
        )
        return Section("examples", "Examples", [Paragraph(text, "note")])
    name = next(iter(content.results))
    try:
        table = content.read_table(name)
    except HeedError as error:
        table, problem = [], f"The table of texts cannot be read: {error}"
    else:
        problem = f"The table of the texts of {name} is missing: evaluate the run again."
    if not table:
        return Section("examples", "Examples", [Paragraph(problem, "note")])
    anchor = set_anchor(content, name)
    match content.recipe.task:
        case "translate":
            blocks = list(_render_translations(anchor, name, content.results[name]))
        case "classify":
            blocks = list(_render_predictions(anchor, name, table))
        case _:
            blocks = list(_render_texts(anchor, name, table))
    return Section("examples", "Examples", blocks)


def _render_translations(anchor: str, name: str, result: dict[str, Any]) -> Iterator[Block]:
    for kind in ("worst", "best"):
        sentences = result.get(kind, [])[:SHOWN]
        columns = ["line", "BLEU", "source", "translation", "reference"]
        rows = [
            [
                f"{one['line']:,}",
                f"{one['score']:.1f}",
                *(_shorten(one.get(key, "–")) for key in ("source", "hypothesis", "reference")),
            ]
            for one in sentences
        ]
        if rows:
            caption = f"The {kind} translations of {name}, by sentence BLEU."
            yield Table(f"{kind}-{anchor}", caption, columns, rows, right=["line", "BLEU"])


def _render_predictions(anchor: str, name: str, table: Texts) -> Iterator[Block]:
    """The most confidently wrong texts, and the most confidently right one of each class."""
    wrong = [row for row in table if row["label"] != row["predicted"]]
    right = [row for row in table if row["label"] == row["predicted"]]
    if not wrong:
        yield Paragraph(f"Every text of {name} was classified correctly.")
    else:
        wrong.sort(key=confidence, reverse=True)
        caption = f"The most confidently wrong texts of {name}: {len(wrong):,} are wrong in all."
        yield _build_prediction_table(f"wrong-{anchor}", caption, wrong[:SHOWN])
    best: dict[str, dict[str, str]] = {}
    for row in sorted(right, key=confidence, reverse=True):
        best.setdefault(row["label"], row)
    if best:
        caption = f"The most confidently right text of each class of {name}."
        yield _build_prediction_table(f"right-{anchor}", caption, list(best.values())[:SHOWN])


def confidence(row: dict[str, str]) -> float:
    """The probability of the class that was predicted."""
    return _probability(row, "predicted")


def _probability(row: dict[str, str], which: str) -> float:
    """The probability of the true class (`label`) or of the predicted one."""
    return float(row[f"p:{row[which]}"])


def _build_prediction_table(anchor: str, caption: str, rows: Texts) -> Table:
    columns = ["text", "true class", "predicted", "probability", "of the true class"]
    cells = [
        [
            _shorten(example_text(row)),
            row["label"],
            row["predicted"],
            f"{_probability(row, 'predicted'):.4f}",
            f"{_probability(row, 'label'):.4f}",
        ]
        for row in rows
    ]
    return Table(anchor, caption, columns, cells, right=columns[3:])


def _render_texts(anchor: str, name: str, table: Texts) -> Iterator[Block]:
    ordered = sorted(table, key=lambda row: float(row["perplexity"]))
    for kind, rows in (("hardest", ordered[::-1]), ("easiest", ordered)):
        cells = [
            [f"{float(row['perplexity']):.2f}", row["tokens"], _shorten(example_text(row))]
            for row in rows[:SHOWN]
        ]
        caption = f"The {kind} texts of {name}, by perplexity; long texts are cut off."
        columns = ["perplexity", "tokens", "text"]
        yield Table(f"{kind}-{anchor}", caption, columns, cells, right=columns[:2])


def example_text(row: dict[str, str]) -> str:
    """The text of a row, or both texts of a pair."""
    return f"{row['text']} ⇥ {row['text_2']}" if "text_2" in row else row["text"]


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[:LONGEST].rstrip()}…"
