"""Examples of a study: test texts on which its systems differ widely, from run folders that exist.

Records hold no text, so the examples are missing where the runs were deleted. They show what a
difference looks like, and support no claim.
"""

from __future__ import annotations

from pathlib import Path

from heed.errors import HeedError
from heed.report.document import Paragraph, Section, Table
from heed.report.run_content import read_table
from heed.report.wording import join_names
from heed.runs.results_file import PREDICTIONS, TRANSLATIONS
from heed.study.study_results import StudyResults

EXAMPLES = 4
MAX_SYSTEMS = 5
"""Systems whose answers are shown: the baseline, and the first others."""
LONGEST = 300
"""Characters of a text that are shown."""
Texts = list[dict[str, str]]


def describe_examples(results: StudyResults) -> Section | None:
    """The section with examples; None where fewer than two systems have texts."""
    texts = _read_texts(results)
    if len(texts) < 2:
        return None
    first = next(iter(texts.values()))
    if "hypothesis" in first[0]:
        table = _translations(texts, results.set_name)
    elif "predicted" in first[0]:
        table = _predictions(texts, results.set_name)
    else:
        return None
    if not table.rows:
        return None
    note = (
        "One run of each system, the one chosen on dev. Examples show what a difference looks "
        "like; they support no claim."
    )
    if left := [system.name for system in results.systems if system.name not in texts]:
        note += f" Left out: {join_names(left)}."
    return Section("examples", "Examples", [Paragraph(note, "note"), table])


def _read_texts(results: StudyResults) -> dict[str, Texts]:
    """The test texts with the answers of each system, as far as they exist, of the same texts."""
    names = [system.name for system in results.systems]
    if results.config.baseline in names:
        names.insert(0, names.pop(names.index(str(results.config.baseline))))
    texts: dict[str, Texts] = {}
    for name in names:
        state = results.best_trial(name)
        if state is None or state.run is None or len(texts) == MAX_SYSTEMS:
            continue
        rows = _read_answers(results.folder / state.run, results.set_name)
        if rows and (not texts or _sources(rows) == _sources(next(iter(texts.values())))):
            texts[name] = rows
    return texts


def _read_answers(folder: Path, set_name: str) -> Texts:
    """The texts of a set with a run's answers; empty where they are missing or damaged."""
    try:
        return read_table(folder, TRANSLATIONS, set_name) or read_table(
            folder, PREDICTIONS, set_name
        )
    except HeedError:  # the note names the system as left out
        return []


def _sources(rows: Texts) -> list[str]:
    return [row.get("source", row.get("text", "")) for row in rows]


def _translations(texts: dict[str, Texts], set_name: str) -> Table:
    """The sentences whose translations differ the widest in sentence BLEU."""
    scores = [[float(rows[i]["score"]) for rows in texts.values()] for i in range(_count(texts))]
    widest = sorted(range(len(scores)), key=lambda i: min(scores[i]) - max(scores[i]))[:EXAMPLES]
    first = next(iter(texts.values()))
    table = []
    for number, i in enumerate(widest, 1):
        table.append([str(number), "source", _shorten(first[i]["source"]), ""])
        table.append(["", "reference", _shorten(first[i].get("reference", "–")), ""])
        table += [
            ["", name, _shorten(rows[i]["hypothesis"]), f"{float(rows[i]['score']):.1f}"]
            for name, rows in texts.items()
        ]
    caption = f"Sentences of {set_name} on which the systems differ widely, with sentence BLEU."
    return Table("example-texts", caption, ["", "from", "text", "BLEU"], table, ["BLEU"])


def _predictions(texts: dict[str, Texts], set_name: str) -> Table:
    """Texts that some of the systems classify correctly and others do not."""
    first = next(iter(texts.values()))
    rows = []
    for i in range(_count(texts)):
        answers = [one[i]["predicted"] for one in texts.values()]
        hits = [answer == first[i]["label"] for answer in answers]
        if any(hits) and not all(hits):
            rows.append([_shorten(first[i]["text"]), first[i]["label"], *answers])
    caption = f"Texts of {set_name} that not all systems classify correctly."
    return Table("example-texts", caption, ["text", "true class", *texts], rows[: 2 * EXAMPLES])


def _count(texts: dict[str, Texts]) -> int:
    return min(len(rows) for rows in texts.values())


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[:LONGEST].rstrip()}…"
