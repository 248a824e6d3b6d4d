"""Evaluation of a language model: perplexity per token and per word, bits per byte."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from heed.config import Recipe
from heed.data.corpus import Record
from heed.data.corpus.lines import format_tsv
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import WordCache
from heed.errors import HeedError
from heed.evaluate.held_out_set import find_parts, find_set, seen_in_train
from heed.evaluate.item_groups import find_groups
from heed.evaluate.job import Job, Options
from heed.metrics.item_columns import MIN_TEXTS, block_columns, loss_columns
from heed.metrics.perplexity import (
    LossCounts,
    TokenLosses,
    count_losses,
    exponential,
    perplexity_metrics,
    token_losses,
)
from heed.models import LanguageModel, Model
from heed.runs.results_file import DOCUMENTS, Result, save_table

SHOWN = 200
"""Characters of each text in the table."""
COLUMNS = ("place", "tokens", "words", "bytes", "unknown", "loss", "perplexity", "bits_per_byte")


def evaluate_parts(job: Job) -> list[Result]:
    """Loss and perplexity of each part of the set.

    Unless a set was named, the result also has those of the recipe's named sets.
    """
    if not cast("LanguageModel", job.model).causal:
        return [{} for _ in job.parts]
    results = _part_results(job)
    if job.options.split is None and not job.options.test:
        results[0]["sets"] = {
            name: result
            for name in job.recipe.data.sets
            if name + job.name_suffix != job.held_out.name
            and (result := _named_set(job, name)) is not None
        }
    return results


def _part_results(job: Job) -> list[Result]:
    """The metrics of the whole set and of its clean part."""
    texts, options = [record.texts[0] for record in job.records], job.options
    ids = WordCache(job.tokenizer).encode_batch(texts)
    scored = _score_ids(job.model, job.tokenizer, job.recipe, ids, options)
    counts = count_losses(job.tokenizer, texts, scored)
    job.writers.append(partial(_write_documents, counts=counts))
    window = {"tokens": _window(job.recipe, options), "stride": options.stride}
    settings = {"window": window, "tokenizer": job.tokenizer.fingerprint()}
    if len(texts) >= MIN_TEXTS:
        job.save_items(loss_columns(counts), settings=settings)
    else:
        columns, text_of_block = block_columns(job.tokenizer, scored, counts)
        job.save_items(columns, settings=settings, text_of_block=text_of_block)
    return [
        perplexity_metrics([counts[i] for i in part]) | {"window": window} for part in job.parts
    ]


def _score_ids(
    model: Model,
    tokenizer: Tokenizer,
    recipe: Recipe,
    ids: Sequence[Sequence[int]],
    options: Options,
) -> list[TokenLosses]:
    return token_losses(
        cast("LanguageModel", model),
        ids,
        window=_window(recipe, options),
        stride=options.stride,
        specials=tokenizer.specials,
    )


def _window(recipe: Recipe, options: Options) -> int:
    return recipe.data.max_length if options.window is None else options.window


def _named_set(job: Job, name: str) -> Result | None:
    """The metrics of one of the recipe's named sets; None, and a message, if it is unreadable."""
    try:
        held_out = find_set(job.recipe, job.train, split=name)
        held_out = replace(held_out, name=name + job.name_suffix)
        records = held_out.records(Counter())
    except HeedError as error:
        job.notify(f"{name}: {error}")
        return None
    seen = seen_in_train(held_out, records, job.train)
    clean, parts = find_parts(seen, len(records))
    set_job = replace(
        job,
        held_out=held_out,
        records=records,
        seen=seen,
        parts=parts,
        groups=find_groups(job.recipe, None, held_out.corpus, records),
        writers=[],
    )
    results = [
        {"texts": len(part)} | metrics
        for part, metrics in zip(parts, _part_results(set_job), strict=True)
    ]
    job.writers.append(partial(_write_named_set, set_job=set_job))
    in_train = None if seen is None else sum(seen)
    return results[0] | {"in_train": in_train, "clean": results[-1] if clean else None}


def _write_named_set(job: Job, set_job: Job) -> None:
    """Write what belongs to a named set: under its own name, whatever that of the main set is."""
    for write in set_job.writers:
        write(set_job)


def _write_documents(job: Job, counts: Sequence[LossCounts]) -> None:
    """Write a table with one row per text, to see which texts are hard."""
    rows: list[list[str]] = [[*COLUMNS, "in_train", "text"]]
    for i, (record, text_counts) in enumerate(zip(job.records, counts, strict=True)):
        rows.append([*_row(record, text_counts), job.in_train_cell(i), _shorten(record.texts[0])])
    save_table(job.run.folder, DOCUMENTS, job.held_out.name, format_tsv(rows))


def _row(record: Record, counts: LossCounts) -> list[str]:
    metrics = counts.metrics()
    sizes = [counts.tokens, counts.words, counts.bytes, counts.unknown]
    values = [metrics[name] for name in COLUMNS[5:]]
    return [str(record.place), *map(str, sizes), *(f"{value:.4f}" for value in values)]


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def score_texts(model: Model, tokenizer: Tokenizer, recipe: Recipe, options: Options) -> Result:
    """The loss of every token of the texts in the options."""
    ids = tokenizer.encode_batch(options.text)
    scored = _score_ids(model, tokenizer, recipe, ids, options)
    counts = count_losses(tokenizer, options.text, scored)
    rows = []
    for text, one, text_counts in zip(options.text, scored, counts, strict=True):
        tokens = [
            {"token": token, "loss": loss, "probability": math.exp(-loss)}
            for token, loss in zip(
                tokenizer.ids_to_tokens(one.ids.tolist()), one.losses.tolist(), strict=True
            )
        ]
        metrics = perplexity_metrics([text_counts]) | {"without_end": _without_end(one)}
        rows.append({"text": text} | metrics | {"by_token": tokens})
    return {"tokenizer": tokenizer.fingerprint(), "scored_texts": rows}


def _without_end(scored: TokenLosses) -> Result | None:
    """Loss and perplexity of a text's own tokens, without the end token; None if it has none."""
    losses = scored.losses[:-1]
    if not len(losses):
        return None
    loss = float(losses.mean())
    return {"tokens": len(losses), "loss": loss, "perplexity": exponential(loss)}
