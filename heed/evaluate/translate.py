"""Evaluation of a translator: its translations of a set, scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from heed.decode.settings import merge_decode_config
from heed.evaluate.job import Job
from heed.metrics.corpus_bleu import METRICS
from heed.metrics.systems import SystemScores, score_systems
from heed.metrics.translation_counts import translation_columns
from heed.models import Translator
from heed.pipelines.translate import Translation, TranslationPipeline
from heed.runs.results_file import TRANSLATIONS, Result, save_table
from heed.stats.intervals import intervals_as_json, wilson_interval


def evaluate_parts(job: Job) -> list[Result]:
    """The scores of the translations of each part of the set."""
    count = len(job.records)
    job.notify(f"Translating {count:,} text{'s' * (count != 1)}…")
    decode = merge_decode_config(job.recipe.decode, job.options.decode)
    model, max_source = cast("Translator", job.model), job.recipe.data.max_length - 1
    pipeline = TranslationPipeline([model], job.tokenizer, decode, max_source=max_source)
    translations = pipeline.translate([record.texts[0] for record in job.records])
    scores = [_score_rows(job, translations, rows) for rows in job.parts]
    job.writers.append(partial(_write_sentences, scores=scores[0]))
    results = []
    for one, rows in zip(scores, job.parts, strict=True):
        result, cut = one.to_dict(), sum(translations[i].cut for i in rows)
        result["hit_limit"] = cut / len(rows)
        result["interval"] |= intervals_as_json({"hit_limit": wilson_interval(cut, len(rows))})
        results.append(result)
    results[0]["decode"] = decode.model_dump()
    columns, signatures = translation_columns(
        [one.text for one in translations],
        [[record.texts[1] for record in job.records]],
        job.options.metrics or tuple(METRICS),
    )
    job.save_items(columns, signatures=signatures, settings={"decode": results[0]["decode"]})
    return results


def _score_rows(job: Job, translations: Sequence[Translation], rows: Sequence[int]) -> SystemScores:
    """The scores of some of the translations."""
    return score_systems(
        {job.options.run_name or str(job.run.folder): [translations[i].text for i in rows]},
        [[job.records[i].texts[1] for i in rows]],
        [job.records[i].texts[0] for i in rows],
        metrics=job.options.metrics or tuple(METRICS),
        resamples=job.options.resamples,
    )


def _write_sentences(job: Job, scores: SystemScores) -> None:
    """Write every sentence with its score, so that later tests need no model."""
    table = scores.sentence_tsv()
    if job.options.sentences is not None:
        job.options.sentences.write_text(table, encoding="utf-8")
    save_table(job.run.folder, TRANSLATIONS, job.held_out.name, table)
