"""`heed evaluate`: score a run's model on held-out text.

The whole set is scored, and also its clean part: the texts that do not occur in the training text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from heed.config import Recipe
from heed.data.batching.bucketed import BucketedBatches
from heed.data.token_store import open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError, RunError
from heed.evaluate import classify, generate, translate
from heed.evaluate.held_out_set import (
    HeldOutSet,
    find_parts,
    find_set,
    find_training_text,
    reserved_names,
    seen_in_train,
)
from heed.evaluate.item_groups import find_groups
from heed.evaluate.job import Job, Options
from heed.models import LanguageModel
from heed.runs import results_file
from heed.runs.best_weights import describe_weights
from heed.runs.labels import Classes
from heed.runs.load import load_run
from heed.runs.results_file import Result
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS
from heed.terminal import Say
from heed.train.prepare.setup import build_batches
from heed.train.validate import validate

WHOLE_SET_ONLY = ("best", "worst", "decode", "calibration", "sets")
"""Keys that are reported for the whole set, not for its clean part."""
EVALUATORS = {
    "translate": translate.evaluate_parts,
    "classify": classify.evaluate_parts,
    "generate": generate.evaluate_parts,
}
"""For each task, what computes the metrics of every part of a set, beside loss and accuracy."""


def evaluate_run(
    folder: Path,
    options: Options,
    *,
    device: str,
    notify: Say,
    on_result: Callable[[Result], None] | None = None,
) -> Result:
    """Score a run on a set, save the result in the run folder, then pass it to `on_result`.

    It is saved first, because printing may fail: `| head -1` closes the pipe. A result that cannot
    be saved is passed on all the same, before the error.
    """
    result, save = _evaluate(folder, options, device=device, notify=notify)
    show = on_result or (lambda _: None)
    try:
        save()
    except RunError:
        show(result)
        raise
    show(result)
    return result


def score_texts(folders: Sequence[Path], options: Options, *, device: str) -> Result:
    """The loss of every token of the given texts under each of several language models."""
    if not options.text:
        raise ConfigError(
            ["several runs are scored together on given texts only: add --text, or name one run."]
        )
    results = []
    for folder in folders:
        result, _ = _evaluate(folder, options, device=device, notify=lambda _: None)
        results.append(result)
    return {"runs": results}


def _evaluate(
    folder: Path, options: Options, *, device: str, notify: Say
) -> tuple[Result, Callable[[], None]]:
    """The result, and the function that saves it."""
    run = Run.open(folder)
    options = parse_split(options)
    _check_options(folder, run.recipe().task, options)
    model, tokenizer, recipe = load_run(folder, device=device, weights=options.weights)
    weights, suffix = describe_weights(run, recipe, options.weights), ""
    if options.window not in (None, recipe.data.max_length):
        suffix = f"{results_file.OTHER_WINDOW}{options.window}"
    if weights is not None and options.weights != BEST_WEIGHTS:
        suffix += f"{results_file.OTHER_WEIGHTS}{weights['step']}"
    if options.text:
        head = {"run": str(folder), "task": recipe.task, "checkpoint": weights}
        return head | generate.score_texts(model, tokenizer, recipe, options), lambda: None
    train = find_training_text(run, recipe)
    stored = results_file.read_results(folder)
    held_out = find_set(
        recipe, train, split=options.split, test=options.test, header=options.header
    )
    held_out = _with_unique_name(held_out, stored, reserved_names(recipe, options.test), notify)
    held_out = replace(held_out, name=held_out.name + suffix)
    if options.sample is not None:
        held_out = held_out.choose_evenly(options.sample)
    dropped: Counter[str] = Counter()
    records = held_out.records(dropped)
    if not records:
        raise DataError("there is nothing to evaluate on.", where=", ".join(held_out.corpus.paths))
    seen = seen_in_train(held_out, records, train)
    clean, parts = find_parts(seen, len(records))
    job = Job(
        run=run,
        model=model,
        tokenizer=tokenizer,
        recipe=recipe,
        train=train,
        held_out=held_out,
        records=records,
        seen=seen,
        parts=parts,
        batches=_batches(run, recipe, held_out, tokenizer),
        options=options,
        notify=notify,
        groups=find_groups(recipe, options.groups, held_out.corpus, records),
        name_suffix=suffix,
        checkpoint=weights,
    )
    part_results = [a | b for a, b in zip(_losses(job), EVALUATORS[recipe.task](job), strict=True)]
    whole, clean_part = part_results[0], part_results[-1]
    result = {
        "run": options.run_name or str(folder),
        "task": recipe.task,
        "split": held_out.name,
        "files": list(held_out.corpus.paths),
        "is_part": held_out.is_part,
        "trained_on": held_out.is_train,
        "hash": held_out.corpus.fingerprint(),
        "dropped": dict(dropped),
        "checkpoint": weights,
        "resamples": options.resamples,
        **whole,
        "in_train": None if seen is None else sum(seen),
        **({} if job.groups is None else {"groups": len(set(job.groups))}),
        "clean": {k: v for k, v in clean_part.items() if k not in WHOLE_SET_ONLY}
        if clean
        else None,
    } | ({"overlap_unknown": train.missing} if seen is None else {})
    return result, partial(_save, job, result)


def _save(job: Job, result: Result) -> None:
    """Save the tables and the result in the run folder, under a name that no other text has.

    Another evaluation may have ended meanwhile: the name is chosen again, while others wait.
    """
    folder = job.run.folder
    with results_file.saving_results(folder):
        job.run.delete_drafts()
        stored = results_file.read_results(folder)
        reserved = reserved_names(job.recipe, job.options.test)
        held_out = _with_unique_name(job.held_out, stored, reserved, job.notify)
        result["split"] = held_out.name
        result["looks"] = results_file.count_looks(stored, held_out.name) + 1
        for write in job.writers:
            write(replace(job, held_out=held_out))
        results_file.save_result(folder, held_out.name, result)


def parse_split(options: Options) -> Options:
    """The options with the window that the name of the split gives: `dev@window-256`."""
    name, mark, tokens = (options.split or "").partition(results_file.OTHER_WINDOW)
    if not mark:
        return options
    if not tokens.isdecimal():
        what = f"{options.split!r} names no window: write the set and its tokens, dev@window-256."
        raise ConfigError([what])
    return replace(options, split=name, window=int(tokens))


def _check_options(folder: Path, task: str, options: Options) -> None:
    """Raise an error for options of another task."""
    if task != "translate" and (options.sentences or options.decode or options.metrics):
        flags = "--sentences, --beam and --metric"
        raise ConfigError([f"{flags} are for translations; {folder} is not a translator."])
    if task != "classify" and (options.baseline or options.calibrate is not None):
        flags = "--baseline, --calibrate and --uncalibrate"
        raise ConfigError([f"{flags} are for classifiers; {folder} is not a classifier."])
    if options.calibrate is not None and options.weights != BEST_WEIGHTS:
        flag = "--calibrate" if options.calibrate else "--uncalibrate"
        raise ConfigError([f"{flag} is for a run's best weights: leave --weights out."])
    if task != "generate" and (options.text or options.stride or options.window):
        flags = "--text, --window and --stride"
        raise ConfigError([f"{flags} are for language models; {folder} is not one."])


def _with_unique_name(
    held_out: HeldOutSet, stored: dict[str, Result], reserved: set[str], notify: Say
) -> HeldOutSet:
    """The set under a name that no other text has in this run."""
    name, files = held_out.name, held_out.corpus.paths
    content_hash = held_out.corpus.fingerprint()
    unique = results_file.unique_set_name(name, files, content_hash, stored, reserved)
    if unique != name:
        notify(f"{name!r} is the name of another text here: this one is saved as {unique!r}.")
    return replace(held_out, name=unique)


def _batches(
    run: Run, recipe: Recipe, held_out: HeldOutSet, tokenizer: Tokenizer
) -> BucketedBatches:
    """The set as batches, built as in training."""
    classes: tuple[str, ...] = ()
    if recipe.task == "classify":
        classes = Classes.require(run).names
    store = open_store(held_out.corpus, tokenizer, classes=classes)
    return build_batches(recipe, store, held_out.rows)


def _losses(job: Job) -> list[Result]:
    """The number of texts, loss, perplexity and accuracy of each part."""
    if isinstance(job.model, LanguageModel) and job.model.causal:  # scored token by token instead
        return [{"texts": len(part)} for part in job.parts]
    device = next(job.model.parameters()).device
    rows = np.arange(len(job.batches.store)) if job.held_out.rows is None else job.held_out.rows
    return [
        {"texts": len(part)}
        | validate(job.model, job.batches.subset(rows[np.array(part)]), device=device)
        for part in job.parts
    ]
