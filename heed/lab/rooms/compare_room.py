"""The verdict on selected runs: the sentences and tables of `heed compare`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from heed.lab.lab_context import Lab
from heed.lab.run_folder import RunFolder, reading
from heed.study.compare_named import compare_named
from heed.study.comparison_tables import (
    all_notes,
    describe_scores,
    difference_rows,
    score_rows,
)
from heed.study.recipe_comparison import RecipeComparison

MOST_RUNS, MOST_NAMED = 500, 5
"""Runs of a comparison, and those that an error names."""

router = APIRouter(prefix="/api")


class CompareBody(BaseModel):
    """What to compare, with the options of `heed compare`."""

    model_config = ConfigDict(extra="forbid")

    runs: Annotated[list[str], Field(min_length=1, max_length=MOST_RUNS)]
    """Names of runs, or of one study."""
    baseline: str | None = None
    metric: str | None = None
    margin: float | None = None
    set: str | None = None


@router.post("/compare")
async def compare(lab: Lab, body: CompareBody) -> dict[str, Any]:
    """Compare runs, grouped by recipe, as `heed compare` does."""
    return await lab.queue.run(compare_runs, lab.folder, body)


def compare_runs(folder: RunFolder, body: CompareBody) -> dict[str, Any]:
    """The comparison of these runs as sentences, tables and notes."""
    paths = [str(folder.resolve_checked(name)) for name in body.runs]
    baseline = None if body.baseline is None else str(folder.resolve_checked(body.baseline))
    with reading(", ".join(body.runs[:MOST_NAMED])):
        comparison = compare_named(
            paths,
            baseline=baseline,
            metric=body.metric,
            margin=body.margin,
            set_name=body.set,
        )
        return describe_comparison(comparison)


def describe_comparison(comparison: RecipeComparison) -> dict[str, Any]:
    """What `heed compare` prints, as JSON values: each table has columns and rows of texts."""
    tables = [(describe_scores(comparison), *score_rows(comparison))]
    if comparison.whole.pairs:
        tables.append(("Differences", *difference_rows(comparison)))
    notes = all_notes(comparison)
    if comparison.signature:
        notes.append(f"{comparison.metric.name}: {comparison.signature}")
    return {
        "sentences": comparison.sentences,
        "tables": [
            {"caption": caption, "columns": columns, "rows": rows}
            for caption, columns, rows in tables
        ],
        "notes": notes,
    }
