"""What `heed score` does first: read files as sacreBLEU does, and see that they fit together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from heed.errors import ConfigError, DataError, nearest
from heed.evaluate.read_outputs import System, read_system, shared_references
from heed.metrics.corpus_bleu import METRICS
from heed.metrics.read_lines import read_lines
from heed.metrics.systems import Assessment, assess


def score(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    source: Path | None,
    *,
    metrics: str | None,
    resamples: int,
    seed: int | None,
) -> Assessment:
    """Translations against references, line by line; where none are named, those of the tables."""
    chosen = parse_metrics(metrics)
    check_resamples(resamples, seed)
    texts = {str(path): read_lines(path) for path in (*references, *_some(source))}
    against = [texts[str(path)] for path in references]
    systems = [read_system(path, against) for path in hypotheses]
    _same_length({system.name: system.texts for system in systems} | texts)
    sources = systems[0].sources if source is None else texts[str(source)]
    return assess(
        {name: system.texts for name, system in _named(systems).items()},
        against or shared_references(systems),
        sources,
        metrics=chosen,
        resamples=resamples,
        seed=seed,
    )


def parse_metrics(names: str | None) -> tuple[str, ...]:
    """`bleu,chrf,ter`, or fewer, in sacreBLEU's order; all where none are named."""
    if names is None:
        return tuple(METRICS)
    asked = [name.strip().lower() for name in names.split(",") if name.strip()]
    wrong = [name for name in asked if name not in METRICS]
    if wrong or not asked:
        known, name = list(METRICS), (wrong or [""])[0]
        raise ConfigError(
            [f"There is no metric {name!r}: choose from {', '.join(known)}.{nearest(name, known)}"]
        )
    return tuple(name for name in METRICS if name in asked)


def check_resamples(resamples: int, seed: int | None = None) -> None:
    """Refuse what would not be what it seems."""
    complaints = []
    if resamples < 0 or resamples == 1:
        complaints.append(
            f"bootstrap cannot be {resamples}: it is 0 for no intervals, or 2 and more."
        )
    if seed is not None and seed < 1:  # sacreBLEU's paired tests take 0 for "draw me one"
        complaints.append(f"seed cannot be {seed}: it is a whole number, 1 or more.")
    if complaints:
        raise ConfigError(complaints)


def check_folder(path: Path | None) -> None:
    """See that a file can be written there, before anything slow begins."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise DataError("there is no such folder.", where=str(path.parent), todo="Make it first.")
    if path.is_dir():
        raise DataError("this is a folder.", where=str(path), todo="Name a file to write.")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise DataError("this cannot be written.", where=str(target), todo="Name another file.")


def _same_length(texts: dict[str, list[str]]) -> None:
    (first, lines), *others = texts.items()
    for path, found in others:
        if len(found) != len(lines):
            raise DataError(
                f"{first} has {len(lines):,} lines, {path} {len(found):,}.",
                todo="Line n of each must be about the same sentence.",
            )


def _named(systems: Sequence[System]) -> dict[str, System]:
    """Systems by the names of their files, one that is given again with a number."""
    named: dict[str, System] = {}
    for system in systems:
        name, number = system.name, 1
        while name in named:
            number += 1
            name = f"{system.name} ({number})"
        named[name] = system
    return named


def _some(path: Path | None) -> list[Path]:
    return [] if path is None else [path]
