"""What a translator is worth: its translations, scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from heed import models
from heed.api import Translator
from heed.decode.settings import merge_decode_config
from heed.evaluate.held_out_set import Facts, Job
from heed.evaluate.read_outputs import TABLES
from heed.files import write_atomic
from heed.metrics.corpus_bleu import METRICS
from heed.metrics.systems import Assessment, assess
from heed.pipelines.translate import Translation


def facts(job: Job) -> list[Facts]:
    """Of each part of the set, how good the translations are; they are kept in the run folder."""
    job.say(f"Translating {len(job.records):,} texts…")
    translator = Translator(cast("models.Translator", job.model), job.tokenizer, job.recipe)
    sources = [record.texts[0] for record in job.records]
    written = translator.translations(sources, **job.settings.decode)
    found = [_assess(job, written, rows) for rows in job.parts]
    job.later.append(partial(_keep, job, found[0]))
    told = [
        part.facts() | {"hit_limit": sum(written[i].cut for i in rows) / len(rows)}
        for part, rows in zip(found, job.parts, strict=True)
    ]
    told[0]["decode"] = merge_decode_config(job.recipe.decode, job.settings.decode).model_dump()
    return told


def _assess(job: Job, written: Sequence[Translation], rows: Sequence[int]) -> Assessment:
    """The translations of some of the texts."""
    return assess(
        {str(job.run.folder): [written[i].text for i in rows]},
        [[job.records[i].texts[1] for i in rows]],
        [job.records[i].texts[0] for i in rows],
        metrics=job.settings.metrics or tuple(METRICS),
        resamples=job.settings.resamples,
    )


def _keep(job: Job, found: Assessment) -> None:
    """Every sentence with its score stays with the run: a later test needs no model."""
    table = found.table()
    if job.settings.sentences is not None:
        job.settings.sentences.write_text(table, encoding="utf-8")
    (job.run.folder / TABLES).mkdir(exist_ok=True)
    write_atomic(job.run.folder / TABLES / f"{job.held_out.name}.tsv", table)
