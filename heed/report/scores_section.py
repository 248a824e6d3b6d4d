"""Scores of a run with their intervals: the whole set and its part that is not in train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from heed.errors import HeedError
from heed.evaluate.table_cells import (
    Result,
    format_difference,
    format_interval,
    format_paired_p,
    format_percent,
)
from heed.evaluate.tables import (
    ROWS,
    TOKEN_ACCURACY,
    format_metric,
    overlap_in_words,
    weights_in_words,
)
from heed.evaluate.tables_classification import INTERVALS
from heed.evaluate.tables_perplexity import render_caveat
from heed.evaluate.tables_translation import NLTK, SACREBLEU_NAMES
from heed.report.document import Block, Figure, Heading, Paragraph, Section, Table
from heed.report.heat_map import heat_map
from heed.report.line_charts import Series, line_chart
from heed.report.row_charts import Row, histogram, interval_plot
from heed.report.run_content import RunContent

HEADLINES = {
    "translate": ("bleu", "chrf", "ter"),
    "classify": ("accuracy", "macro_f1"),
    "generate": ("perplexity", "word_perplexity", "bits_per_byte"),
}
"""The metrics of the first sentence, by task."""
MOST_CLASSES = 40
"""Classes up to which the confusion matrix is drawn."""
NARROW_CLASSES = 5
"""Classes whose counts fit into the cells of a narrow confusion matrix; one of more scrolls."""
BINS = 20
INTERVAL_NOTES = {
    "translate": "Intervals: 95%, sacreBLEU's bootstrap over texts.",
    "classify": f"{INTERVALS[0].upper()}{INTERVALS[1:]}.",
    "generate": "Intervals: 95%, Student's t over texts, on the logarithm of perplexity.",
}
WITHOUT_BOOTSTRAP = {
    "translate": "Intervals: 95%, Wilson's for shares.",
    "classify": "Intervals: 95%; Wilson for shares, Student's t for log loss and Brier score.",
    "generate": INTERVAL_NOTES["generate"],
}
"""Notes on the intervals of an evaluation that did not resample."""
RESAMPLED = ("bleu", "chrf", "ter", "macro_f1")
"""Metrics whose intervals are from resampling."""
OTHER_SEEDS = (
    "The intervals are over texts of this set alone: another seed of the same recipe can score "
    "otherwise, which several runs and heed compare show."
)


def describe_headline(name: str, result: Result) -> str:
    """The main scores of a set in words, and how much of it is in train."""
    scores = _list_scores(result)
    sentence = f"On {name} ({result['texts']:,} texts): {scores}. {describe_overlap(result)}"
    if result["in_train"] and result["clean"] and not result["trained_on"]:
        clean = result["clean"]
        sentence += f" On the {clean['texts']:,} that are not: {_list_scores(clean)}."
    return sentence


def describe_overlap(result: Result) -> str:
    """How much of a set is also in train, in a sentence."""
    seen, texts = result["in_train"], result["texts"]
    if result["trained_on"] or seen is None or texts == 1:
        return _sentence(overlap_in_words(result))
    if seen in (0, texts):
        return f"{'All' if seen else 'None'} of them {'are' if seen else 'is'} also in train."
    return f"{seen:,} of them {'is' if seen == 1 else 'are'} also in train."


def _list_scores(result: Result) -> str:
    rows = _rows(result)
    keys = [key for key in HEADLINES[_task(result)] if key in result]
    return "; ".join(f"{rows[key][0]} {format_metric(result, key, rows[key][1])}" for key in keys)


def _task(result: Result) -> str:
    """The task of a result, or of its clean part, which does not name it."""
    if "bits_per_byte" in result:
        return "generate"
    return "classify" if "macro_f1" in result else "translate"


def _rows(result: Result) -> dict[str, tuple[str, str]]:
    """The label and format of every metric, by key."""
    if _task(result) == "classify":
        rows = {key: row for key, row in ROWS.items() if key != "perplexity"}
        # With calibration the log loss is of calibrated probabilities, the loss is not.
        label = "loss, before calibration" if "calibration" in result else "loss"
        return rows | {"loss": (label, ROWS["loss"][1])}
    return ROWS | TOKEN_ACCURACY


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def build_scores_section(content: RunContent) -> Section:
    """The section with all scores of all evaluated sets."""
    blocks: list[Block] = []
    if not content.results:
        text = (
            "This run has not been evaluated on held-out text, so it has no scores with intervals. "
            f"To evaluate it: heed evaluate {content.run.folder}"
        )
        return Section("scores", "Scores", [Paragraph(text, "note")])
    for name, result in content.results.items():
        if len(content.results) > 1:
            blocks.append(Heading(f"On {name}"))
        blocks += _render_set(content, name, result)
    return Section("scores", "Scores", blocks)


def _render_set(content: RunContent, name: str, result: Result) -> Iterator[Block]:
    anchor = set_anchor(content, name)
    columns = {name: result}
    if result["in_train"] and result["clean"]:
        columns["not in train"] = result["clean"]
    for named, one in result.get("sets", {}).items():
        columns[named] = one
        if one["in_train"] and one["clean"]:
            columns[f"{named}, not in train"] = one["clean"]
    rows = [
        [label, *(format_metric(one, key, form) for one in columns.values())]
        for key, (label, form) in _rows(result).items()
        if any(key in one for one in columns.values())
    ]
    caption = f"Scores on {name}. {_tell_intervals(columns)}".strip()
    yield Table(f"scores-{anchor}", caption, ["metric", *columns], rows, right=list(columns))
    yield Paragraph(" ".join(map(_sentence, _provenance(result))))
    if missing := [key for key in RESAMPLED if key in result and not _has_interval(result, key)]:
        yield Paragraph(_tell_missing_intervals(content, result, missing), "note")
    if any(_has_interval(result, key) for key in HEADLINES[_task(result)]):
        yield Paragraph(OTHER_SEEDS, "note")
    if signatures := result.get("signature"):
        named_rows = [[_metric_name(key), text] for key, text in signatures.items()]
        caption = "Signatures: how each score was computed."
        yield Table(f"signatures-{anchor}", caption, ["metric", "signature"], named_rows)
    if "by_source_length" in result:
        yield from _render_lengths(anchor, name, result)
    if "confusion" in result:
        yield from _render_classes(anchor, name, result)
        if result["in_train"] and result["clean"]:
            yield from _render_classes(f"{anchor}-clean", f"{name}, not in train", result["clean"])
    if "baselines" in result:
        yield from _render_baselines(anchor, result)
    if _task(result) == "generate":
        sets = [result, *result.get("sets", {}).values()]
        yield from (Paragraph(_sentence(str(note)), "note") for note in render_caveat(*sets))
        yield from _render_losses(content, anchor, name)


def _has_interval(result: Result, key: str) -> bool:
    return bool(result.get("interval", {}).get(key))


def _tell_intervals(columns: Mapping[str, Result]) -> str:
    """How the intervals in a table of scores were computed; empty where it has none."""
    keys = {key for one in columns.values() for key in one.get("interval", {}) if key in one}
    if not any(_has_interval(one, key) for one in columns.values() for key in keys):
        return ""
    task = _task(next(iter(columns.values())))
    resampled = task == "generate" or any(key in RESAMPLED for key in keys)
    return (INTERVAL_NOTES if resampled else WITHOUT_BOOTSTRAP)[task]


def _tell_missing_intervals(content: RunContent, result: Result, keys: list[str]) -> str:
    """That scores have no intervals, and what adds them."""
    rows = _rows(result)
    names = " and ".join(rows[key][0] for key in keys)
    verb = "has no interval" if len(keys) == 1 else "have no intervals"
    if content.parameters is None:
        return f"{names} {verb}: they need the weights, which are not in the run folder."
    option = "" if result["split"] == "test" else f" --split {result['split']}"
    return (
        f"{names} {verb}: the evaluation did not resample texts. heed evaluate "
        f"{content.run.folder}{option} adds them, and counts as one more evaluation."
    )


def set_anchor(content: RunContent, name: str) -> str:
    """The name of a set as a part of ids; sets are numbered, as names may hold anything."""
    return "test" if name == "test" else f"set{list(content.results).index(name) + 1}"


def _metric_name(key: str) -> str:
    return "mean sentence BLEU" if key == NLTK else SACREBLEU_NAMES[key]


def _provenance(result: Result) -> Iterator[str]:
    """Weights, overlap with train, texts left out, groups, and how often the set was used."""
    if result["checkpoint"] is not None:
        yield f"scored: {weights_in_words(result['checkpoint'])}"
    yield overlap_in_words(result)
    if result["dropped"]:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in result["dropped"].items())
        yield f"left out: {counts}"
    if result.get("groups"):
        yield f"{result['texts']:,} texts in {result['groups']:,} groups"
    looks = result.get("looks", 1)
    times = "once" if looks == 1 else f"{looks} times"
    yield f"{result['split']} was evaluated {times} in this run"


# ------------------------------------------------------------------------------------ translation


def _render_lengths(anchor: str, name: str, result: Result) -> Iterator[Block]:
    rows, bars = [], []
    has_intervals = any(part.get("interval") for part in result["by_source_length"])
    for part in result["by_source_length"]:
        low, high = part["words"]
        words = str(low) if low == high else f"{low} to {high}"
        interval = part.get("interval")
        bounds = format_interval(interval, metric="bleu") if interval else "–"
        cells = [words, f"{part['texts']:,}", f"{part['bleu']:.2f}"]
        rows.append([*cells, bounds] if has_intervals else cells)
        low, high = (interval[end] for end in ("low", "high")) if interval else (None, None)
        text = f"{part['bleu']:.2f} {bounds}" if interval else f"{part['bleu']:.2f}"
        high = None if high is None else min(100.0, high)
        bars.append(Row(f"{words} words", part["bleu"], low, high, text))
    draw = partial(interval_plot, bars, x="BLEU")
    alt = "; ".join(f"{row[0]} words: BLEU {row[2]}" for row in rows)
    caption = f"BLEU on {name} by words of the source"
    caption += ", with 95% intervals." if has_intervals else "."
    yield Figure.drawn(f"lengths-{anchor}", caption, f"BLEU by length. {alt}.", draw)
    numbers = ["texts", "BLEU", *(["95% interval"] if has_intervals else [])]
    columns = ["words of the source", *numbers]
    yield Table(f"lengths-{anchor}-table", f"BLEU on {name} by length.", columns, rows, numbers)


# --------------------------------------------------------------------------------- classification


def _render_classes(anchor: str, name: str, result: Result) -> Iterator[Block]:
    numbers = ["texts", "precision, %", "recall, %", "F1, %"]
    rows = [
        [
            label,
            f"{metrics['texts']:,}",
            *(format_percent(metrics, key) for key in ("precision", "recall", "f1")),
        ]
        for label, metrics in result["classes"].items()
    ]
    has_intervals = any(metrics.get("interval") for metrics in result["classes"].values())
    caption = f"Classes on {name}{', with 95% intervals' * has_intervals}."
    yield Table(f"classes-{anchor}", caption, ["class", *numbers], rows, right=numbers)
    names, counts = result["confusion"]["classes"], result["confusion"]["counts"]
    if len(names) > MOST_CLASSES:
        text = f"The confusion matrix of {len(names)} classes is in evaluation.json."
        yield Paragraph(text, "note")
    else:
        yield _draw_confusion(anchor, name, names, counts)
    yield from _render_reliability(anchor, name, result["reliability"])


def _draw_confusion(anchor: str, name: str, names: list[str], counts: list[list[int]]) -> Figure:
    totals = [max(1, sum(row)) for row in counts]
    shares = [[count / total for count in row] for row, total in zip(counts, totals, strict=True)]
    draw = partial(
        heat_map,
        shares,
        names,
        names,
        row_title="true class",
        column_title="predicted class",
        texts=[[f"{count:,}" for count in row] for row in counts],
    )
    right = sum(row[i] for i, row in enumerate(counts))
    pairs = [
        (counts[i][j], names[i], names[j])
        for i in range(len(names))
        for j in range(len(names))
        if i != j
    ]
    most, truth, predicted = max(pairs, default=(0, "", ""))
    alt = f"Confusion matrix: {right:,} of {sum(map(sum, counts)):,} texts are on the diagonal"
    alt += f"; most frequent error: {truth} taken for {predicted}, {most:,} texts." if most else "."
    caption = f"Confusion matrix on {name}: texts by true and predicted class; shade: share of row."
    if len(names) > NARROW_CLASSES:
        return Figure(f"confusion-{anchor}", caption, alt, draw())
    return Figure.drawn(f"confusion-{anchor}", caption, alt, draw)


def _render_reliability(anchor: str, name: str, bins: list[Any]) -> Iterator[Block]:
    if len(bins) < 2:
        return
    points = [(one["confidence"], one["accuracy"]) for one in bins]
    band = [(one["interval"]["low"], one["interval"]["high"]) for one in bins]
    ends = (min(points)[0], 1.0)
    series = [
        Series("accuracy, with 95% intervals", points, band),
        Series("perfect calibration", [(end, end) for end in ends], style=6, is_faint=True),
    ]
    draw = partial(line_chart, series, x="confidence", y="accuracy", height=200)
    alt = "; ".join(f"confidence {x:.2f}: accuracy {y:.2f}" for x, y in points)
    caption = f"Accuracy by confidence on {name}: above the line the model is too cautious."
    yield Figure.drawn(f"reliability-{anchor}", caption, f"Reliability. {alt}.", draw)


def _render_baselines(anchor: str, result: Result) -> Iterator[Block]:
    numbers = ["accuracy, %", "macro F1, %", "this run: difference", "p"]
    macro = f"{100 * result['macro_f1']:.1f}"
    rows = [["this run", format_percent(result, "accuracy"), macro, "–", "–"]]
    for one in result["baselines"]:
        difference = format_difference(one["paired"], "{:+.1f}", factor=100)
        cells = [format_percent(one, "accuracy"), f"{100 * one['macro_f1']:.1f}"]
        rows.append([one["name"], *cells, difference, format_paired_p(one["paired"])])
    caption = "Baselines trained on the same text; p is over test texts alone."
    yield Table(f"baselines-{anchor}", caption, ["system", *numbers], rows, right=numbers)


# -------------------------------------------------------------------------------- language models


def _render_losses(content: RunContent, anchor: str, name: str) -> Iterator[Block]:
    """A histogram of the loss of each text, from the table of the evaluation."""
    try:
        table = content.read_table(name)
    except HeedError as error:
        yield Paragraph(f"The table of texts cannot be read: {error}", "note")
        return
    losses = [float(row["loss"]) for row in table if row.get("loss")]
    if len(losses) < 2 or min(losses) == max(losses):
        return
    counts, edges = np.histogram(losses, bins=min(BINS, len(losses)))
    bins = (edges.tolist(), counts.tolist())
    draw = partial(histogram, *bins, x="loss per token", y="texts")
    middle = float(np.median(losses))
    alt = f"{len(losses):,} texts from {min(losses):.2f} to {max(losses):.2f}, median {middle:.2f}."
    caption = f"The loss per token of each text of {name}."
    yield Figure.drawn(f"losses-{anchor}", caption, f"Histogram of losses: {alt}", draw)
