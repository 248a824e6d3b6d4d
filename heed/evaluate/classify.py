"""Evaluation of a classifier: its predictions and probabilities, compared with baselines.

The predictions are those of `heed classify`: the same texts, read the same way.

Shapes: n texts, k classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import cast

import numpy as np

from heed import plot
from heed.arrays import Floats, Ints
from heed.data.corpus import Record
from heed.data.corpus.lines import format_tsv
from heed.data.token_store import class_index
from heed.errors import RunError
from heed.evaluate.held_out_set import HeldOutSet, find_set
from heed.evaluate.job import Job
from heed.metrics.baselines import (
    Baseline,
    LabeledTexts,
    linear_models,
    majority_class,
    require_sklearn,
)
from heed.metrics.calibration import apply_temperature, calibration_metrics, fit_temperature
from heed.metrics.classification import Predictions, classification_metrics
from heed.metrics.item_columns import classification_columns
from heed.metrics.paired_accuracy import compare_accuracy
from heed.models import Classifier
from heed.pipelines.classify import ClassificationPipeline, Text
from heed.runs.labels import Calibration, Classes
from heed.runs.results_file import PREDICTIONS, Result, save_table
from heed.runs.run import Run

UNCALIBRATED = (
    "log_loss",
    "brier",
    "calibration_error",
    "calibration_error_debiased",
    "calibration_error_if_perfect",
    "interval",
)
"""Metrics of the probabilities before calibration."""
FIGURES = ("confusion", "reliability")
"""The figures of a set: the first part of their file names."""
NOT_IN_TRAIN = "@not-in-train"
"""What is appended to the names of figures of a set's clean part."""


def evaluate_parts(job: Job) -> list[Result]:
    """The metrics of the predictions for each part of the set."""
    if job.options.baseline:
        require_sklearn()
    classes = Classes.require(job.run)
    pipeline = ClassificationPipeline(
        cast("Classifier", job.model),
        job.tokenizer,
        classes,
        max_length=job.recipe.data.max_length,
    )
    calibration = None
    if job.options.calibrate:
        calibration = _fit_calibration(job, pipeline)
    elif job.options.calibrate is None and not job.name_suffix:  # it is that of the best weights
        calibration = Calibration.read(job.run)
    uncalibrated = predict(pipeline, job.records)
    predictions = uncalibrated
    if calibration is not None:
        predictions = _calibrate(uncalibrated, calibration)
    results = [_part_metrics(job, predictions, classes, rows) for rows in job.parts]
    if calibration is not None:
        results[0]["calibration"] = asdict(calibration)
        for result, rows in zip(results, job.parts, strict=True):
            before = calibration_metrics(uncalibrated.subset(rows))
            result["uncalibrated"] = {key: before[key] for key in UNCALIBRATED}
    if job.options.baseline:
        baselines = list(_train_baselines(job, classes))
        for result, rows in zip(results, job.parts, strict=True):
            result["baselines"] = _compare_with_baselines(job, baselines, predictions, rows)
    if calibration is not None:
        job.writers.append(partial(_save_calibration, calibration=calibration))
    elif job.options.calibrate is False:
        job.writers.append(_delete_calibration)
    job.writers.append(partial(_write_predictions, classes=classes, predictions=predictions))
    job.writers.append(partial(_draw_figures, parts=results))
    temperature = 1.0 if calibration is None else calibration.temperature
    job.save_items(
        classification_columns(predictions),
        classes=classes.names,
        settings={"temperature": temperature},
    )
    return results


def predict(pipeline: ClassificationPipeline, records: Sequence[Record]) -> Predictions:
    """The model's predictions for labeled texts."""
    texts: list[Text] = [(r.texts[0], r.texts[1]) if r.texts[1:] else r.texts[0] for r in records]
    log_probs = apply_temperature(pipeline.logits(texts), 1.0)
    return Predictions.from_log_probs(label_indices(records, pipeline.classes), log_probs)


def label_indices(records: Sequence[Record], classes: Classes) -> Ints:
    """[n] the class index of each text; a label that is no class is an error."""
    indices = {name: i for i, name in enumerate(classes.names)}
    return np.array([class_index(record, indices) for record in records], np.int64)


def _calibrate(predictions: Predictions, calibration: Calibration) -> Predictions:
    """The predictions with calibrated probabilities."""
    log_probs = cast("Floats", predictions.log_probs)
    return replace(predictions, log_probs=apply_temperature(log_probs, calibration.temperature))


def _part_metrics(
    job: Job, predictions: Predictions, classes: Classes, rows: Sequence[int]
) -> Result:
    """All metrics of the predictions for some of the texts."""
    part, resamples = predictions.subset(rows), job.options.resamples
    metrics = classification_metrics(part, classes.names, resamples=resamples)
    calibration = calibration_metrics(part)
    return metrics | calibration | {"interval": metrics["interval"] | calibration["interval"]}


# --------------------------------------------------------------- dev, for calibration and baselines


def _dev_set(job: Job) -> HeldOutSet:
    return find_set(job.recipe, job.train, split="dev")


def _fit_calibration(job: Job, pipeline: ClassificationPipeline) -> Calibration:
    """The calibration with the temperature that is best on dev."""
    dev = _dev_set(job)
    records = dev.records(Counter())
    predictions = predict(pipeline, records)
    temperature = fit_temperature(predictions.labels, cast("Floats", predictions.log_probs))
    return Calibration(temperature, dev.name, len(records), dev.corpus.fingerprint())


def _train_baselines(job: Job, classes: Classes) -> Iterator[Baseline]:
    """Baselines trained on the run's training text, with hyperparameters chosen on its dev set."""
    if job.train.corpus is None:
        raise RunError(f"the baselines need the training text, and {job.train.missing}")
    dev, train_records = _dev_set(job), list(job.train.records())
    job.notify(f"Training baselines on {len(train_records):,} texts…")
    train_texts, dev_texts, test_texts = (
        LabeledTexts(["\n".join(r.texts) for r in records], label_indices(records, classes))
        for records in (train_records, dev.records(Counter()), job.records)
    )
    yield majority_class(train_texts, test_texts, len(classes.names))
    yield from linear_models(train_texts, dev_texts, test_texts, len(classes.names))


def _compare_with_baselines(
    job: Job, baselines: Sequence[Baseline], predictions: Predictions, rows: Sequence[int]
) -> list[Result]:
    """The metrics of baselines on some of the texts, and the run compared with each."""
    ours, resamples = predictions.subset(rows), job.options.resamples
    theirs = [one.predictions.subset(rows) for one in baselines]
    results = []
    for baseline, other, test in zip(
        baselines, theirs, compare_accuracy(ours, theirs), strict=True
    ):
        names = [str(i) for i in range(other.classes)]
        metrics = classification_metrics(other, names, resamples=resamples)
        results.append(
            {
                "name": baseline.name,
                "hyperparameters": baseline.hyperparameters,
                "paired": asdict(test),
            }
            | {key: metrics[key] for key in ("accuracy", "macro_f1", "interval")}
        )
    return results


# ------------------------------------------------------------------------------ files of the run


def _write_predictions(job: Job, classes: Classes, predictions: Predictions) -> None:
    """Write every prediction with its probabilities as TSV, so that later tests need no model."""
    probabilities = np.exp(cast("Floats", predictions.log_probs))
    pair = len(job.records[0].texts) == 2
    header = ["text", *(["text_2"] if pair else []), "label", "predicted", "in_train"]
    rows: list[list[str]] = [[*header, *(f"p:{name}" for name in classes.names)]]
    for i, record in enumerate(job.records):
        predicted = classes.names[predictions.predicted[i]]
        cells = [*record.texts, record.label or "", predicted, job.in_train_cell(i)]
        rows.append([*cells, *(f"{p:.6f}" for p in probabilities[i])])
    save_table(job.run.folder, PREDICTIONS, job.held_out.name, format_tsv(rows))


def _save_calibration(job: Job, calibration: Calibration) -> None:
    """Save the temperature, which the run's probabilities use from now on."""
    calibration.save(job.run)


def _delete_calibration(job: Job) -> None:
    """Delete the temperature: from now on the run's probabilities are the model's own."""
    Calibration.delete(job.run)


def _draw_figures(job: Job, parts: Sequence[Result]) -> None:
    """Draw the confusion matrix and the reliability diagram of the set and of its clean part."""
    name, sizes = job.held_out.name, [f"{len(rows):,} texts" for rows in job.parts]
    seen = 0 if job.seen is None else sum(job.seen)
    overlap = f", {seen:,} of them also in train" if seen and not job.held_out.is_train else ""
    _draw_part(job.run, name, f"{name}: {sizes[0]}{overlap}", parts[0])
    stem = f"{name}{NOT_IN_TRAIN}"
    if len(parts) > 1:
        _draw_part(job.run, stem, f"{name}, not in train: {sizes[1]}", parts[1])
    else:  # those of an earlier evaluation, which could read the training text
        for kind in FIGURES:
            for path in plot.figure_paths(job.run.figures / f"{kind}-{stem}"):
                path.unlink(missing_ok=True)


def _draw_part(run: Run, stem: str, described: str, result: Result) -> None:
    """Draw the figures of a set, or of its clean part, described in their titles."""
    confusion = result["confusion"]
    figures = (
        plot.confusion_matrix(
            confusion["counts"], confusion["classes"], title=f"Confusion matrix on {described}"
        ),
        plot.reliability_diagram(
            result["reliability"], title=f"Reliability (accuracy by confidence) on {described}"
        ),
    )
    for kind, figure in zip(FIGURES, figures, strict=True):
        plot.save(figure, run.figures / f"{kind}-{stem}")
