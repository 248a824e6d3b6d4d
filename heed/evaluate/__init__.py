"""`heed evaluate`: what a run's model is worth on text that it did not learn from.

The whole set is scored, and beside it the part that is not also in the training text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from heed.config import Recipe
from heed.data.batching.bucketed import Batches
from heed.data.token_store import open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError
from heed.evaluate import classify, generate, translate
from heed.evaluate.held_out_set import (
    Facts,
    HeldOut,
    Job,
    Say,
    Settings,
    Train,
    find_set,
    others,
    seen_in_train,
    training_text,
)
from heed.models import LanguageModel
from heed.runs import results_file
from heed.runs.best_weights import describe_weights
from heed.runs.run import Run
from heed.train.prepare.class_weights import classes_in
from heed.train.prepare.setup import batches_of
from heed.train.run import load
from heed.train.validate import evaluate as mean_loss

__all__ = ["Settings", "evaluate"]

WHOLE = ("best", "worst", "decode", "calibration", "sets")
"""What is told of the whole set alone."""
TASKS = {"translate": translate.facts, "classify": classify.facts, "generate": generate.facts}
"""What each task tells of every part of a set, beside loss and accuracy."""


def evaluate(
    folder: Path,
    settings: Settings,
    *,
    device: str,
    say: Say,
    tell: Callable[[Facts], None] | None = None,
) -> Facts:
    """Score a run on a set, tell the result, and then keep it in the run folder."""
    facts, later = _found(folder, settings, device=device, say=say)
    if tell is not None:
        tell(facts)
    results_file.write_outputs(folder, later)
    return facts


def _found(
    folder: Path, settings: Settings, *, device: str, say: Say
) -> tuple[Facts, list[Callable[[], None]]]:
    """The result, and what is to be written of it."""
    run = Run.open(folder)
    task = run.recipe().task
    if task != "translate" and (settings.sentences or settings.decode or settings.metrics):
        flags = "--sentences, --beam and --metric"
        raise ConfigError([f"{flags} are for translations; {folder} makes none."])
    if task != "classify" and (settings.baseline or settings.calibrate):
        raise ConfigError([f"--baseline and --calibrate are for classifiers; {folder} is none."])
    if task != "generate" and (settings.text or settings.stride):
        raise ConfigError([f"--text and --stride are for language models; {folder} is none."])
    model, tokenizer, recipe = load(folder, device=device)
    if settings.text:
        head = {
            "run": str(folder),
            "task": recipe.task,
            "checkpoint": describe_weights(run, recipe),
        }
        return head | generate.sentences(model, tokenizer, recipe, settings), []
    train = training_text(run, recipe)
    before = results_file.read_results(folder)
    held_out = _named(find_set(recipe, train, settings), before, others(recipe, settings), say)
    dropped: Counter[str] = Counter()
    records = held_out.records(dropped)
    if not records:
        raise DataError("there is nothing to evaluate on.", where=", ".join(held_out.corpus.paths))
    seen = seen_in_train(held_out, records, train)
    clean = [] if seen is None else [i for i, known in enumerate(seen) if not known]
    parts: list[Sequence[int]] = [range(len(records))]
    if 0 < len(clean) < len(records):
        parts.append(clean)
    batches = _batches(run, recipe, held_out, tokenizer, train)
    job = Job(
        run, model, tokenizer, recipe, train, held_out, records, seen, parts, batches, settings, say
    )
    found = [a | b for a, b in zip(_losses(job), TASKS[recipe.task](job), strict=True)]
    result = {
        "run": str(folder),
        "task": recipe.task,
        "split": held_out.name,
        "files": list(held_out.corpus.paths),
        "set_aside": held_out.set_aside,
        "hash": held_out.corpus.fingerprint(),
        "dropped": dict(dropped),
        "checkpoint": describe_weights(run, recipe),
        "resamples": settings.resamples,
        **found[0],
        "in_train": None if seen is None else sum(seen),
        "clean": {k: v for k, v in found[-1].items() if k not in WHOLE} if clean else None,
    } | ({"unknown": train.missing} if seen is None else {})
    return result, [*job.later, partial(results_file.save_result, folder, held_out.name, result)]


def _named(held_out: HeldOut, before: dict[str, Facts], taken: set[str], say: Say) -> HeldOut:
    """The same set under a name that no other text has."""
    name, files = held_out.name, held_out.corpus.paths
    own = results_file.unique_set_name(name, files, held_out.corpus.fingerprint(), before, taken)
    if own != name:
        say(f"{name!r} is the name of another text here: this one is kept as {own!r}.")
    return replace(held_out, name=own)


def _batches(
    run: Run, recipe: Recipe, held_out: HeldOut, tokenizer: Tokenizer, train: Train
) -> Batches:
    """The set as the model reads it, made as training makes it."""
    classes: tuple[str, ...] = ()
    if recipe.task == "classify":
        classes = classes_in(run, train.corpus, train.missing).names
    store = open_store(held_out.corpus, tokenizer, classes=classes)
    return batches_of(recipe, store, held_out.rows)


def _losses(job: Job) -> list[Facts]:
    """Of each part: how many texts, and what the model makes of them."""
    if isinstance(job.model, LanguageModel) and job.model.causal:  # it tells of every token
        return [{"texts": len(part)} for part in job.parts]
    device = next(job.model.parameters()).device
    rows = np.arange(len(job.batches.store)) if job.held_out.rows is None else job.held_out.rows
    return [
        {"texts": len(part)}
        | mean_loss(job.model, job.batches.only(rows[np.array(part)]), device=device)
        for part in job.parts
    ]
