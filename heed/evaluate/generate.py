"""What a language model is worth: how well it foresees text, by token, word and byte."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from heed.config import Recipe
from heed.data.corpus import Record
from heed.data.corpus.text_files import escaped
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.data.tokenizers.word_cache import Wordwise
from heed.errors import HeedError
from heed.evaluate.held_out_set import Facts, Job, Settings, find_set, seen_in_train
from heed.files import write_atomic
from heed.metrics.perplexity import Counts, Judged, count, judge, told
from heed.models import LanguageModel, Model

DOCUMENTS = "documents"
SHOWN = 200
"""Characters of a text that its row in the table shows."""
COLUMNS = ("place", "tokens", "words", "bytes", "unknown", "loss", "perplexity", "bits_per_byte")


def facts(job: Job) -> list[Facts]:
    """Of each part of the set, what its tokens cost; every text's cost stays in the run folder.

    Where no set was asked for, the recipe's named sets stand beside the one that was chosen.
    """
    if not cast("LanguageModel", job.model).causal:
        return [{} for _ in job.parts]
    found = _told(job)
    if job.settings.split is None and not job.settings.test:
        found[0]["sets"] = {
            name: own
            for name in job.recipe.data.sets
            if name != job.held_out.name and (own := _named(job, name)) is not None
        }
    return found


def _told(job: Job) -> list[Facts]:
    """The set as a whole and its clean part."""
    texts, settings = [record.texts[0] for record in job.records], job.settings
    ids = Wordwise(job.tokenizer).encode_batch(texts)
    judged = _judged(job.model, job.tokenizer, job.recipe, ids, settings)
    counts = count(job.tokenizer, texts, judged)
    job.later.append(partial(_keep, job, counts))
    window = {"tokens": job.recipe.data.max_length, "stride": settings.stride}
    return [
        told([counts[i] for i in part], resamples=settings.resamples) | {"window": window}
        for part in job.parts
    ]


def _judged(
    model: Model,
    tokenizer: Tokenizer,
    recipe: Recipe,
    ids: Sequence[Sequence[int]],
    settings: Settings,
) -> list[Judged]:
    return judge(
        cast("LanguageModel", model),
        ids,
        window=recipe.data.max_length,
        stride=settings.stride,
        specials=tokenizer.specials,
    )


def _named(job: Job, name: str) -> Facts | None:
    """The same of one of the recipe's named sets; of one that cannot be read, a word."""
    try:
        held_out = find_set(job.recipe, job.train, Settings(split=name))
        records = held_out.records(Counter())
    except HeedError as error:
        job.say(f"{name}: {error}")
        return None
    seen = seen_in_train(held_out, records, job.train)
    fresh = [i for i, known in enumerate(seen or []) if not known]
    mixed = 0 < len(fresh) < len(records)
    parts = [range(len(records)), *([fresh] if mixed else [])]
    own = replace(job, held_out=held_out, records=records, seen=seen, parts=parts)
    found = [{"texts": len(part)} | facts for part, facts in zip(parts, _told(own), strict=True)]
    in_train = None if seen is None else sum(seen)
    return found[0] | {"in_train": in_train, "clean": found[-1] if fresh else None}


def _keep(job: Job, counts: Sequence[Counts]) -> None:
    """A row a text, for who wants to see which of them are hard."""
    rows: list[list[str]] = [[*COLUMNS, "in_train", "text"]]
    for i, (record, own) in enumerate(zip(job.records, counts, strict=True)):
        seen = "" if job.seen is None else "yes" if job.seen[i] else "no"
        rows.append([*_row(record, own), seen, _short(record.texts[0])])
    (job.run.folder / DOCUMENTS).mkdir(exist_ok=True)
    table = "".join("\t".join(map(escaped, row)) + "\n" for row in rows)
    write_atomic(job.run.folder / DOCUMENTS / f"{job.held_out.name}.tsv", table)


def _row(record: Record, own: Counts) -> list[str]:
    measures = own.measures()
    sizes = [own.tokens, own.words, own.bytes, own.unknown]
    costs = [measures[name] for name in COLUMNS[5:]]
    return [str(record.place), *map(str, sizes), *(f"{cost:.4f}" for cost in costs)]


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def sentences(model: Model, tokenizer: Tokenizer, recipe: Recipe, settings: Settings) -> Facts:
    """Texts of one's own, each with the loss of every token."""
    ids = tokenizer.encode_batch(settings.text)
    judged = _judged(model, tokenizer, recipe, ids, settings)
    counts = count(tokenizer, settings.text, judged)
    rows = []
    for text, one, own in zip(settings.text, judged, counts, strict=True):
        pieces = tokenizer.pieces_of(one.ids.tolist())
        tokens = [
            {"token": piece, "loss": loss, "probability": math.exp(-loss)}
            for piece, loss in zip(pieces, one.losses.tolist(), strict=True)
        ]
        rows.append({"text": text} | told([own], resamples=0) | {"by_token": tokens})
    return {"judged": rows}
