"""What a translator is worth: its translations, scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from heed.api import Translator
from heed.decode.texts import Translation
from heed.evaluate.sets import Facts, Job
from heed.models import Translator as Model
from heed.runs import write_whole
from heed.score.assess import Assessment, assess

TRANSLATIONS = "translations"


def facts(job: Job) -> list[Facts]:
    """Of each part of the set, how good the translations are; they are kept in the run folder."""
    job.say(f"Translating {len(job.records):,} texts…")
    translator = Translator(cast("Model", job.model), job.tokenizer, job.recipe)
    sources = [record.texts[0] for record in job.records]
    written = translator.translations(sources, **job.settings.decode)
    found = [_assess(job, written, rows) for rows in job.parts]
    _keep(job.run.folder, job.held_out.name, found[0], job.settings.sentences)
    told = [
        part.facts() | {"hit_limit": sum(written[i].cut for i in rows) / len(rows)}
        for part, rows in zip(found, job.parts, strict=True)
    ]
    told[0]["decode"] = job.recipe.decode.model_dump() | dict(job.settings.decode)
    return told


def _assess(job: Job, written: Sequence[Translation], rows: Sequence[int]) -> Assessment:
    """The translations of some of the texts."""
    return assess(
        {str(job.run.folder): [written[i].text for i in rows]},
        [[job.records[i].texts[1] for i in rows]],
        [job.records[i].texts[0] for i in rows],
        metrics=job.settings.metrics,
        resamples=job.settings.resamples,
    )


def _keep(folder: Path, name: str, found: Assessment, also: Path | None) -> None:
    """Every sentence with its score stays with the run: a later test needs no model."""
    table = found.table()
    (folder / TRANSLATIONS).mkdir(exist_ok=True)
    write_whole(folder / TRANSLATIONS / f"{name}.tsv", table)
    if also is not None:
        also.write_text(table, encoding="utf-8")
