"""The report of one run: what was trained on what, how it went, how it scores, how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from heed.report.curves_section import HISTORY_DAMAGED, build_curves_section
from heed.report.document import Block, Document, Paragraph, Section
from heed.report.examples_section import build_examples_section
from heed.report.recipe_section import build_recipe_section, describe_architecture
from heed.report.reproduce_section import (
    build_reproduce_section,
    build_timing_section,
    training_minutes,
)
from heed.report.run_content import RunContent, read_run_content
from heed.report.scores_section import build_scores_section, describe_headline, set_anchor

WITH_TEXTS = ("examples", "attention")
"""Sections with texts of the corpus."""


@dataclass(frozen=True)
class ReportOptions:
    """What the author adds to a report, and which parts are left out."""

    title: str = ""
    """Default: made from the names of the runs."""
    author: str = ""
    notes: str = ""
    with_examples: bool = True
    """Whether texts of the corpus may be in the report."""


def build_run_report(folder: str | Path, options: ReportOptions | None = None) -> Document:
    """The report of a run, from its folder; what is missing is said in a sentence."""
    options = options or ReportOptions()
    content = read_run_content(Path(folder))
    sections = [
        build(content)
        for name, build in section_builders().items()
        if options.with_examples or name not in WITH_TEXTS
    ]
    title = options.title or f"Report on {content.name}"
    return Document(title, options.author, options.notes, sections, content.problems)


def section_builders() -> dict[str, Callable[[RunContent], Section]]:
    """The function that builds each section of a run's report, in order, by the section's id."""
    # They import torch, which the report of a study or a comparison does without.
    from heed.report.attention_section import build_attention_section
    from heed.report.data_section import build_data_section

    return {
        "summary": build_summary_section,
        "data": build_data_section,
        "recipe": lambda content: build_recipe_section(content.recipe),
        "training": build_curves_section,
        "scores": build_scores_section,
        "examples": build_examples_section,
        "attention": build_attention_section,
        "timing": build_timing_section,
        "reproduce": build_reproduce_section,
    }


def build_summary_section(content: RunContent) -> Section:
    """The section to read first: the model, its training, its scores."""
    blocks: list[Block] = [Paragraph(" ".join(_describe_run(content)))]
    for name, result in content.results.items():
        if name != "train":
            figure = f"scores-{set_anchor(content, name)}"
            blocks.append(Paragraph(describe_headline(name, result), "finding", figure=figure))
    if not content.results:
        text = "It has not been evaluated on held-out text yet."
        blocks.append(Paragraph(f"{text} heed evaluate {content.run.folder} does that.", "note"))
    blocks += [Paragraph(problem, "note") for problem in content.problems]
    return Section("summary", "Summary", blocks)


def _describe_run(content: RunContent) -> Iterator[str]:
    yield describe_architecture(content.recipe)
    if content.parameters is not None:
        yield f"It has {content.parameters:,} parameters."
    else:
        yield "Its weights are not in the run folder, so parameters are not counted."
    last, minutes = content.last, training_minutes(content)
    if not content.is_history_readable:
        yield HISTORY_DAMAGED
        return
    if not last:
        yield "Its training has recorded nothing yet."
        return
    length = f"{last['step']:,} steps"
    if last.get("epoch") is not None:
        length += f" ({last['epoch']:.1f} epochs, {last['tokens'] or 0:,} tokens)"
    time = "" if minutes is None else f" in {minutes} minutes"
    device = content.environment.get("gpu") or content.environment.get("device")
    yield f"It trained for {length}{time}{f' on {device}' if device else ''}."
    if content.run.has_lost_weights:
        yield f"Its final weights are missing: heed resume {content.run.folder} writes them again."
    elif not content.run.finished and content.parameters is not None:
        yield f"Its training is not finished: heed resume {content.run.folder} continues it."
    if (weights := content.weights) is not None and weights["value"] is not None:
        chosen = f"chosen by {weights['metric']} = {weights['value']:.4f}"
        yield f"Its weights are {weights['weights']}, of step {weights['step']:,}, {chosen}."
