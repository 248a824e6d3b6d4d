"""`heed score`: read files of translations and references, check that they fit, score them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heed.errors import ConfigError, DataError, nearest
from heed.evaluate.read_outputs import SystemOutput, read_systems, shared_references
from heed.metrics.corpus_bleu import METRICS
from heed.metrics.read_lines import read_lines
from heed.metrics.systems import SystemScores, score_systems

MIN_RESAMPLES, MAX_RESAMPLES = 100, 100_000
"""Bounds of the bootstrap samples of an interval: 2.5% of fewer is not three samples."""


def score_files(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    source: Path | None,
    *,
    metrics: str | None,
    resamples: int,
    seed: int | None,
) -> SystemScores:
    """Score files of translations; without reference files, against the tables' references."""
    metric_names = parse_metrics(metrics)
    check_resamples(resamples, seed)
    source_paths = [] if source is None else [source]
    texts = {str(path): read_lines(path) for path in (*references, *source_paths)}
    reference_texts = [texts[str(path)] for path in references]
    systems = read_systems(hypotheses, reference_texts)
    _check_line_counts({system.name: system.texts for system in systems} | texts)
    sources = systems[0].sources if source is None else texts[str(source)]
    return score_systems(
        {name: system.texts for name, system in _number_duplicates(systems).items()},
        reference_texts or shared_references(systems),
        sources,
        metrics=metric_names,
        resamples=resamples,
        seed=seed,
    )


def parse_metrics(names: str | None) -> tuple[str, ...]:
    """Metric names from `bleu,chrf,ter` or fewer, in sacreBLEU's order; all by default."""
    if names is None:
        return tuple(METRICS)
    requested = [name.strip().lower() for name in names.split(",") if name.strip()]
    wrong = [name for name in requested if name not in METRICS]
    if wrong or not requested:
        known, name = list(METRICS), (wrong or [""])[0]
        raise ConfigError(
            [f"There is no metric {name!r}: choose from {', '.join(known)}.{nearest(name, known)}"]
        )
    return tuple(name for name in METRICS if name in requested)


def check_resamples(resamples: int, seed: int | None = None) -> None:
    """Raise an error for a number of bootstrap samples or a seed that sacreBLEU would misread."""
    complaints = []
    if resamples and not MIN_RESAMPLES <= resamples <= MAX_RESAMPLES:
        complaints.append(
            f"bootstrap cannot be {resamples}: it is 0 for none, or {MIN_RESAMPLES} to "
            f"{MAX_RESAMPLES:,}. Fewer samples do not show where the middle 95% of them end."
        )
    if seed is not None and seed < 1:  # sacreBLEU's paired tests take 0 for "choose one"
        complaints.append(f"seed cannot be {seed}: it is a whole number, 1 or more.")
    if complaints:
        raise ConfigError(complaints)


def _check_line_counts(texts: dict[str, list[str]]) -> None:
    (first, lines), *others = texts.items()
    for path, other_lines in others:
        if len(other_lines) != len(lines):
            raise DataError(
                f"{first} has {len(lines):,} lines, {path} {len(other_lines):,}.",
                todo="Line n of each file must be the same sentence.",
            )


def _number_duplicates(systems: Sequence[SystemOutput]) -> dict[str, SystemOutput]:
    """Systems by the names of their files; a file that is given twice gets a number."""
    named: dict[str, SystemOutput] = {}
    for system in systems:
        name, number = system.name, 1
        while name in named:
            number += 1
            name = f"{system.name} ({number})"
        named[name] = system
    return named
