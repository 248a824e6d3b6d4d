"""Which weights of a run are loaded: the best, the last, or those of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluating import evaluate_small, sides, train_small
from test_cli import heed

import heed as package
from heed.errors import ConfigError, RunError
from heed.runs.labels import Calibration
from heed.runs.results_file import read_results
from heed.runs.run import Run

pytestmark = pytest.mark.usefixtures("own_cache")


def dev_losses(run: Path) -> dict[int, float]:
    lines = Run(run).metrics()
    return {line["step"]: line["dev"]["loss"] for line in lines if line["event"] == "evaluate"}


def test_the_weights_of_a_step_have_its_score(run: Path) -> None:
    best = evaluate_small(run, split="dev", metrics=("bleu",), resamples=0)
    steps, losses = sorted(Run(run).weight_files.by_step()), dev_losses(run)
    assert {*steps} <= {*losses}
    assert len(steps) > 1
    for step in steps:
        result = evaluate_small(run, split="dev", metrics=("bleu",), resamples=0, weights=str(step))
        assert result["loss"] == pytest.approx(losses[step], rel=1e-5)
        assert result["checkpoint"]["step"] == step
        assert result["checkpoint"]["value"] == losses[step]
        assert read_results(run)[f"dev@step-{step}"] == result
        assert (run / "translations" / f"dev@step-{step}.tsv").exists()
    last = evaluate_small(run, split="dev", metrics=("bleu",), resamples=0, weights="last")
    assert last["split"] == f"dev@step-{steps[-1]}"
    stored = read_results(run)["dev"]  # the result of the best weights is as it was
    assert (stored["checkpoint"], stored["bleu"]) == (best["checkpoint"], best["bleu"])


def test_weights_that_a_run_does_not_have_are_named(run: Path) -> None:
    steps = sorted(Run(run).weight_files.by_step())
    answer = heed("translate", str(run), "The cat.", "--weights", "7", "--device", "cpu")
    assert (answer.returncode, answer.stdout) == (2, "")
    said = " ".join(answer.stderr.split())
    assert f"{run}: this run has no weights '7'." in said
    assert f"It has best, last, {', '.join(map(str, steps))}." in said
    for weights in ("first", "-1", "", "٣"):
        with pytest.raises(RunError, match="this run has no weights"):
            package.Translator.load(run, device="cpu", weights=weights)


def test_translations_of_the_last_weights(run: Path) -> None:
    step = max(Run(run).weight_files.by_step())
    texts = ["The cat sees the woman.", "I like the cat."]
    last, by_step = (
        package.Translator.load(run, device="cpu", weights=weights)
        for weights in ("last", str(step))
    )
    assert last.translate(texts) == by_step.translate(texts)


def test_the_moving_average_is_what_was_evaluated(text: Path) -> None:
    """A checkpoint has both; the weights of a step are those whose score was recorded."""
    settings = {"steps": 20, "ema": 0.9, "evaluate_every": 10}
    run = train_small(text, "classify", "run-ema", train=settings)
    Calibration(2.0, "dev", 5, "hash").save(Run(run))
    result = evaluate_small(run, split="dev", weights="last")
    assert result["loss"] == pytest.approx(dev_losses(run)[20], rel=1e-5)
    assert "calibration" not in result  # it was fitted for the best weights
    assert "calibration" in evaluate_small(run, split="dev")
    with pytest.raises(ConfigError, match="--calibrate is for a run's best weights"):
        evaluate_small(run, weights="last", calibrate=True)
    classifier = package.Classifier.load(run, device="cpu", weights="last")
    assert classifier.pipeline.temperature == 1


def test_adapters_are_not_merged_in_checkpoints(run: Path, text: Path) -> None:
    init = {"from": str(run), "lora": 2}
    adapted = train_small(text, "translate", "run-lora", init=init, train={"steps": 2})
    with pytest.raises(RunError, match="hold its adapters apart"):
        package.Translator.load(adapted, device="cpu", weights="last")
    package.Translator.load(adapted, device="cpu")


def test_a_test_file_is_scored_after_training(text: Path) -> None:
    """`heed train --test`, once and at the end; a wrong name is an error before training."""
    flags = [word for file in sides(text, "train") for word in ("--train", file)]
    for setting in ("model.layers=1", "model.width=32", "model.heads=2", "train.steps=2"):
        flags += ["--set", setting]
    command = ["train", "--task", "translate", *flags, "--device", "cpu"]
    wrong = heed(*command, "--run", str(text / "no"), "--test", "no.en", "--test", "no.fr")
    assert wrong.returncode == 2
    assert "no.en: there is no such file" in wrong.stderr
    assert not (text / "no").exists()
    test = [word for file in sides(text, "test") for word in ("--test", file)]
    answer = heed(*command, "--run", str(text / "tested"), *test)
    assert answer.returncode == 0, answer.stderr
    assert "BLEU" in answer.stdout
    assert read_results(text / "tested").keys() == {"test"}
    generated = heed("train", "demo-translate", *test, "--run", str(text / "generated"))
    assert generated.returncode == 2
    assert "the test set of this recipe is generated" in " ".join(generated.stderr.split())
