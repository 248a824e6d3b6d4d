"""Training curves of a run: loss, accuracy, BLEU or perplexity by step and epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from heed.config import Recipe
from heed.report.document import Block, Figure, Paragraph, Section, Table
from heed.report.line_charts import Series, line_chart
from heed.report.run_content import RunContent
from heed.runs.history import TRAIN_SET

METRICS = {"loss": "loss", "perplexity": "perplexity", "accuracy": "accuracy", "bleu": "BLEU"}
"""Metrics that have a figure, and their labels."""
BEFORE = {"train": "train, while training", TRAIN_SET: "train, evaluated"}
HISTORY_DAMAGED = "What its training recorded cannot be read: metrics.jsonl is damaged."
MOST_ROWS = 40
"""Evaluations in the table; of more, evenly spaced ones are."""


def build_curves_section(content: RunContent) -> Section:
    """The section with the curves, and a table of every evaluation."""
    blocks: list[Block] = []
    if not content.is_history_readable:
        return Section("training", "Training curves", [Paragraph(HISTORY_DAMAGED, "note")])
    if not content.history:
        every = content.recipe.train.log_every
        text = f"No metrics are recorded: the first come at step {every:,} (train.log_every)."
        return Section("training", "Training curves", [Paragraph(text, "note")])
    shown = [metric for metric in METRICS if metric in _drawn_metrics(content)]
    for metric in shown:
        blocks += _render_metric(content, metric)
    if len(rates := _points(content.history, "train/lr")) > 1:
        series = [Series("learning rate", rates)]
        draw = partial(line_chart, series, x="step", y="learning rate", height=120)
        high = max(rate for _, rate in rates)
        alt = f"Learning rate by step: at most {high:.3g}, at the end {rates[-1][1]:.3g}."
        blocks.append(Figure.drawn("rate", "The learning rate by step.", alt, draw))
    blocks += _render_evaluations(content)
    if not any(f"{TRAIN_SET}/loss" in row for row in content.evaluations):
        text = (
            "The training text was not evaluated, so there is no training curve on the terms of "
            "dev: train.evaluate_train = true records one."
        )
        blocks.append(Paragraph(text, "note"))
    return Section("training", "Training curves", blocks)


def _drawn_metrics(content: RunContent) -> list[str]:
    """The metrics to draw. Perplexity is that of language models; others' is their loss again."""
    keys = {key for row in content.history for key in row if "/" in key}
    metrics = {key.rpartition("/")[2] for key in keys if not key.startswith(("time/", "average/"))}
    if content.recipe.task != "generate":
        metrics.discard("perplexity")
    return sorted(metrics)


def _render_metric(content: RunContent, metric: str) -> Iterator[Block]:
    series = list(_build_series(content, metric))
    if not series:
        return
    name = METRICS[metric]
    best = content.weights
    mark = None
    if best is not None and best["weights"] == "the best weights":
        mark = (float(best["step"]), f"chosen, step {best['step']:,}")
    steps = content.environment.get("steps_per_epoch")
    values = [value for one in series for _, value in one.points]
    is_log = metric == "perplexity" and min(values) > 0 and max(values) > 5 * min(values)
    draw = partial(
        line_chart,
        series,
        x="step",
        y=name,
        log_y=is_log,
        second_x=("epoch", float(steps)) if steps else None,
        mark=mark,
    )
    ends = "; ".join(f"{one.label}: {one.points[-1][1]:.4g} at the end" for one in series)
    caption = f"{name[0].upper()}{name[1:]} by step{' and epoch' if steps else ''}"
    caption += f" ({'logarithmic scale' if is_log else 'linear scale'})."
    if any(one.is_faint for one in series):
        caption += f" {describe_training_terms(content.recipe, metric)}"
    yield Figure.drawn(f"curve-{metric}", caption, f"{name} by step. {ends}.", draw)


def _build_series(content: RunContent, metric: str) -> Iterator[Series]:
    """One curve for each evaluated set, and a faint one for values while training."""
    keys = [key for row in content.evaluations for key in row]
    sets = dict.fromkeys(key.rpartition("/")[0] for key in keys if key.endswith(f"/{metric}"))
    for name in sorted(sets, key=lambda name: name != "dev"):
        if name != "seen" and (points := _points(content.evaluations, f"{name}/{metric}")):
            yield Series(BEFORE.get(name, f"{name}, evaluated"), points)
    if points := _points(content.history, f"train/{metric}"):
        yield Series(BEFORE["train"], points, is_faint=True)


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(row["step"], row[key]) for row in rows if key in row and math.isfinite(row[key])]


def describe_training_terms(recipe: Recipe, metric: str) -> str:
    """What is in the values while training and not in those of evaluations, in one sentence."""
    terms = []
    dropouts = (recipe.model.dropout, recipe.model.attention_dropout)
    if any(dropouts) or recipe.model.feed_forward_dropout:
        terms.append("dropout")
    if metric == "loss" and recipe.train.label_smoothing:
        terms.append(f"label smoothing {recipe.train.label_smoothing:g}")
    noises = (recipe.train.token_dropout, recipe.train.source_token_dropout, recipe.data.denoise)
    if any(noises):
        terms.append("noise in the input")
    if metric == "loss" and recipe.train.rdrop:
        terms.append("the loss of R-Drop")
    means = "means since the line before, while the weights change"
    if not terms:
        return f"Values while training are {means}."
    listed = " and ".join(filter(None, [", ".join(terms[:-1]), terms[-1]]))
    return (
        f"Values while training include {listed} and are {means}. Evaluations have none of this, "
        "so the two kinds do not compare as they are."
    )


def _render_evaluations(content: RunContent) -> Iterator[Block]:
    """A table of the evaluations with every metric."""
    rows = content.evaluations
    if not rows:
        yield Paragraph("The run was not evaluated while it trained.", "note")
        return
    keys = list(dict.fromkeys(key for row in rows for key in row if _is_shown(key)))
    stride = math.ceil(len(rows) / MOST_ROWS)
    chosen = rows[(len(rows) - 1) % stride :: stride]
    table = [
        [
            f"{row['step']:,}",
            "–" if row["epoch"] is None else f"{row['epoch']:.2f}",
            "–" if row["seconds"] is None else f"{row['seconds'] / 60:.1f}",
            *(f"{row[key]:.4f}" if key in row else "–" for key in keys),
        ]
        for row in chosen
    ]
    columns = ["step", "epoch", "minutes", *keys]
    left_out = f" Every {stride}th is shown." if stride > 1 else ""
    seen = any(key.startswith("seen/") for key in keys)
    note = " seen/: while training, since the evaluation before." if seen else ""
    caption = f"Evaluations while training.{note}{left_out}"
    yield Table("evaluations", caption, columns, table, right=columns)


def _is_shown(key: str) -> bool:
    return "/" in key and not key.startswith("time/")
