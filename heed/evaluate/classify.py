"""What a classifier is worth: its answers and its probabilities, beside baselines.

What is scored is what `heed classify` writes: the same texts, read the same way.

Shapes: n texts, k classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

import numpy as np

from heed import plot
from heed.data.corpus import Record
from heed.data.corpus.text_files import escaped
from heed.data.held_out import set_aside
from heed.data.token_store import class_number
from heed.errors import RunError
from heed.evaluate.held_out_set import Facts, HeldOut, Job, Settings, find_set
from heed.files import write_atomic
from heed.metrics import baselines, classification
from heed.metrics import calibration as calibration_metrics
from heed.metrics.baselines import Baseline, Labelled
from heed.metrics.classification import Answers
from heed.models import Classifier
from heed.pipelines.classify import ClassificationPipeline, Text
from heed.runs.labels import Calibration, Classes
from heed.stats.bootstrap import Real, Whole
from heed.train.prepare.class_weights import classes_in

PREDICTIONS = "predictions"
UNCALIBRATED = ("log_loss", "brier", "calibration_error", "interval")
"""What is told of the probabilities as they were; the last only where it was asked for."""


def facts(job: Job) -> list[Facts]:
    """Of each part of the set, how good the answers are; they are kept in the run folder."""
    if job.settings.baseline:
        baselines.require()
    classes = classes_in(job.run, job.train.corpus, job.train.missing)
    longest = job.recipe.data.max_length
    labeller = ClassificationPipeline(
        cast("Classifier", job.model), job.tokenizer, classes, max_length=longest
    )
    calibration = _fitted(job, labeller) if job.settings.calibrate else Calibration.read(job.run)
    raw = answers_to(labeller, job.records)
    answers = raw if calibration is None else _cooled(raw, calibration)
    told = [_describe(job, answers, classes, rows) for rows in job.parts]
    if calibration is not None:
        told[0]["calibration"] = asdict(calibration)
        for part, rows in zip(told, job.parts, strict=True):
            before = calibration_metrics.describe(raw.only(rows), resamples=job.settings.resamples)
            part["uncalibrated"] = {key: before[key] for key in UNCALIBRATED if key in before}
    if job.settings.baseline:
        found = list(_baselines(job, classes))
        for part, rows in zip(told, job.parts, strict=True):
            part["baselines"] = [_against(job, one, answers, rows) for one in found]
    if calibration is not None:
        job.later.append(partial(calibration.save, job.run))
    job.later.append(partial(_keep, job, classes, answers))
    job.later.append(partial(_draw, job, told[0]))
    return told


def answers_to(labeller: ClassificationPipeline, records: Sequence[Record]) -> Answers:
    """What the model says of labelled texts."""
    texts: list[Text] = [(r.texts[0], r.texts[1]) if r.texts[1:] else r.texts[0] for r in records]
    log_p = calibration_metrics.cooled(labeller.logits(texts), 1.0)
    return Answers.likeliest(numbers(records, labeller.classes), log_p)


def numbers(records: Sequence[Record], classes: Classes) -> Whole:
    """[n] the class of each text; a label that no class has is refused."""
    places = {name: i for i, name in enumerate(classes.names)}
    return np.array([class_number(record, places) for record in records], np.int64)


def _cooled(answers: Answers, calibration: Calibration) -> Answers:
    log_p = cast("Real", answers.log_p)
    return replace(answers, log_p=calibration_metrics.cooled(log_p, calibration.temperature))


def _describe(job: Job, answers: Answers, classes: Classes, rows: Sequence[int]) -> Facts:
    """Everything about the answers to some of the texts."""
    some, resamples = answers.only(rows), job.settings.resamples
    found = classification.describe(some, classes.names, resamples=resamples)
    more = calibration_metrics.describe(some, resamples=resamples)
    spans = found.pop("interval", {}) | more.pop("interval", {})
    return found | more | ({"interval": spans} if spans else {})


# ----------------------------------------------------------------------- dev, to fit and choose by


def _dev(job: Job) -> HeldOut:
    """The run's own dev set."""
    return find_set(job.recipe, job.train, Settings(split="dev"))


def _fitted(job: Job, labeller: ClassificationPipeline) -> Calibration:
    """The temperature that suits dev best."""
    dev = _dev(job)
    records = dev.records(Counter())
    answers = answers_to(labeller, records)
    temperature = calibration_metrics.fit_temperature(answers.truth, cast("Real", answers.log_p))
    return Calibration(temperature, dev.name, len(records), dev.corpus.fingerprint())


def _baselines(job: Job, classes: Classes) -> Iterator[Baseline]:
    """Baselines that learn from the run's own training text and choose by its dev set."""
    if job.train.corpus is None:
        raise RunError(f"the baselines learn from the training text, and {job.train.missing}")
    dev, learnt = _dev(job), list(job.train.corpus.kept())
    if dev.rows is not None:  # a part of the same files
        _, kept = set_aside(len(learnt), job.recipe.data.dev_seed)
        learnt = [learnt[i] for i in kept.tolist()]
    job.say(f"Baselines learn from {len(learnt):,} texts…")
    train, chosen_by, test = (
        Labelled(["\n".join(record.texts) for record in records], numbers(records, classes))
        for records in (learnt, dev.records(Counter()), job.records)
    )
    yield baselines.majority(train, test, len(classes.names))
    yield from baselines.linear(train, chosen_by, test, len(classes.names))


def _against(job: Job, one: Baseline, ours: Answers, rows: Sequence[int]) -> Facts:
    """A baseline on some of the texts, and the run held against it."""
    theirs, resamples = one.answers.only(rows), job.settings.resamples
    names = [str(i) for i in range(theirs.classes)]
    found = classification.describe(theirs, names, resamples=resamples)
    test = classification.paired(ours.only(rows), theirs, resamples=resamples)
    told = {"name": one.name, "chosen": one.chosen, "paired": asdict(test)}
    kept: list[str] = ["accuracy", "macro_f1", *(["interval"] if resamples else [])]
    return told | {key: found[key] for key in kept}


# -------------------------------------------------------------------------- what stays with the run


def _keep(job: Job, classes: Classes, answers: Answers) -> None:
    """Every answer with its probabilities, as a TSV: a later test needs no model."""
    chances = np.exp(cast("Real", answers.log_p))
    pair = len(job.records[0].texts) == 2
    head = ["text", *(["text_2"] if pair else []), "label", "answer", "in_train"]
    rows: list[list[str]] = [[*head, *(f"p:{name}" for name in classes.names)]]
    for i, record in enumerate(job.records):
        seen = "" if job.seen is None else "yes" if job.seen[i] else "no"
        own = [*record.texts, record.label or "", classes.names[answers.said[i]], seen]
        rows.append([*own, *(f"{p:.6f}" for p in chances[i])])
    (job.run.folder / PREDICTIONS).mkdir(exist_ok=True)
    table = "".join("\t".join(map(escaped, row)) + "\n" for row in rows)
    write_atomic(job.run.folder / PREDICTIONS / f"{job.held_out.name}.tsv", table)


def _draw(job: Job, told: dict[str, Any]) -> None:
    """The confusion matrix and the reliability curve as figures."""
    name, counts = job.held_out.name, np.array(told["confusion"]["counts"])
    share = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    names = told["confusion"]["classes"]
    figure = plot.attention_map(
        share,
        names,
        names,
        title=f"Classes of {name}, and what they were called",
        row_label="is",
        column_label="was called",
        numbers=counts.tolist(),
    )
    plot.save(figure, job.run.figures / f"confusion-{name}")
    bins = told["reliability"]
    points = [(one["confidence"], one["accuracy"]) for one in bins]
    spans = [(one["interval"]["low"], one["interval"]["high"]) for one in bins if "interval" in one]
    figure = plot.curves(
        {"answers": points, "as sure as right": [(0.0, 0.0), (1.0, 1.0)]},
        title=f"How often answers are right, by how sure they are ({name})",
        x="confidence",
        y="accuracy",
        bands={"answers": spans} if spans else None,
    )
    plot.save(figure, job.run.figures / f"reliability-{name}")
