"""What `heed score` does first: read files as sacreBLEU does, and see that they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heed.data.corpus.files import chunks, printable
from heed.errors import ConfigError, DataError, nearest
from heed.score.assess import Assessment, assess
from heed.score.translation import METRICS


def score(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    source: Path | None,
    *,
    metrics: str,
    resamples: int,
    seed: int | None,
) -> Assessment:
    """Files of translations against files of references, line by line."""
    chosen = parse_metrics(metrics)
    check_resamples(resamples, seed)
    texts = {path: read_lines(path) for path in (*hypotheses, *references, *_some(source))}
    _same_length(texts)
    return assess(
        {name: texts[path] for name, path in _named(hypotheses).items()},
        [texts[path] for path in references],
        None if source is None else texts[source],
        metrics=chosen,
        resamples=resamples,
        seed=seed,
    )


def parse_metrics(names: str) -> tuple[str, ...]:
    """`bleu,chrf,ter`, or fewer, in sacreBLEU's order."""
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
    if path is not None and not path.parent.is_dir():
        raise DataError("there is no such folder.", where=str(path.parent), todo="Make it first.")


def read_lines(path: Path) -> list[str]:
    """The lines of a file, compressed or not, as sacreBLEU reads them, so that scores agree.

    They are cut at line feeds alone, and white space at their ends is dropped.
    """
    lines = b"".join(chunks(str(path))).split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError("this file is empty.", where=str(path), todo="There is nothing to score.")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(line.decode("utf-8").rstrip())
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} of this line is not UTF-8.",
                where=f"{printable(str(path))}:{number}",
                todo="Save the file as UTF-8.",
            ) from None
    return found


def _same_length(texts: dict[Path, list[str]]) -> None:
    (first, lines), *others = texts.items()
    for path, found in others:
        if len(found) != len(lines):
            raise DataError(
                f"{first} has {len(lines):,} lines, {path} {len(found):,}.",
                todo="Line n of each must be about the same sentence.",
            )


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Systems by the names of their files, one that is given again with a number."""
    named: dict[str, Path] = {}
    for path in paths:
        name, number = str(path), 1
        while name in named:
            number += 1
            name = f"{path} ({number})"
        named[name] = path
    return named


def _some(path: Path | None) -> list[Path]:
    return [] if path is None else [path]
