"""`--dry-run`: the evaluations that are counted are those that training makes, and are timed."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heed.config import DecodeConfig, Recipe
from heed.data.corpus import open_corpus
from heed.errors import HeedWarning
from heed.evaluate import evaluation_time
from heed.evaluate.after_training import estimate_test
from heed.evaluate.held_out_set import HeldOutSet, TrainingText, find_set
from heed.evaluate.job import Options
from heed.train import estimate
from heed.train import run as train_run

QUIET = Console(quiet=True)


def make_recipe(**train: Any) -> Recipe:
    return Recipe.of(
        {
            "task": "translate",
            "data": {"synthetic": 60, "synthetic_test": 20, "max_length": 32},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 16, "heads": 2, "feed_forward": 16},
            "train": {"steps": 10, "batch_size": 8, "evaluate_every": 4, **train},
        }
    )


@pytest.mark.parametrize("average", [1, 2])
def test_as_many_evaluations_are_counted_as_training_makes(tmp_path: Path, average: int) -> None:
    recipe = make_recipe(average_checkpoints=average)
    run = train_run.start(recipe, tmp_path / "run", device="cpu", console=QUIET)
    made = [line for line in run.metrics() if line["event"] in ("evaluate", "average")]
    measured = estimate.measure_recipe(recipe, device="cpu", say=lambda text: None)
    assert measured.evaluations == len(made) == 3 + (average > 1)


def test_bleu_takes_its_part_and_translations_are_as_long_as_references(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[tuple[int, DecodeConfig]] = []

    def note(_model: object, _tokenizer: object, pairs: list[Any], decode: Any, **_: int) -> float:
        decoded.append((len(pairs), decode))
        return 0.0

    monkeypatch.setattr(estimate, "greedy_bleu", note)
    recipe = make_recipe(evaluate_bleu=True)
    measured = estimate.measure_recipe(recipe, device="cpu", say=lambda text: None)
    ((pairs, decode),) = decoded
    assert pairs == len(measured.setup.pairs["dev"])
    assert 0.8 < decode.max_ratio < 1.6
    assert decode.max_extra == 1
    assert measured.seconds > measured.seconds_per_step * 10 > 0


def test_the_time_of_a_dry_run_has_its_evaluations_and_test(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), record=True, width=200)
    recipe = make_recipe(evaluate_bleu=True, evaluate_test=True)
    final = partial(estimate_test, device="cpu")
    estimate.dry_run(recipe, device="cpu", console=console, final_evaluation=final)
    (line,) = [one for one in console.export_text().splitlines() if one.startswith("time")]
    assert "for 3 evaluations (" in line
    assert line.endswith(" for test")


def test_an_evaluation_is_what_it_takes_once_and_for_each_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only the texts of an evaluation move: 5 s once and 2 s a text."""
    run = train_run.start(make_recipe(), tmp_path / "run", device="cpu", console=QUIET)
    clock = [0.0]

    def evaluate(_folder: Path, options: Options, **_: object) -> None:
        assert options.sample is not None
        clock[0] += 5 + 2 * options.sample

    monkeypatch.setattr(evaluation_time, "evaluate_run", evaluate)
    monkeypatch.setattr(evaluation_time, "count_timed_texts", lambda device: 10)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    decode = run.recipe().decode
    test = find_set(run.recipe(), TrainingText(None), split="test")
    texts = len(test.records(Counter()))
    seconds = evaluation_time.estimate_evaluations(run, [Options("test")], decode, device="cpu")
    assert seconds == pytest.approx(5 + 2 * texts)


def test_texts_are_chosen_evenly(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"text {i}\n" for i in range(100)), encoding="utf-8")
    whole = HeldOutSet("a", open_corpus([str(path)], task="generate"))
    for count in (1, 7, 100, 1000):
        chosen = whole.choose_evenly(count).rows
        assert chosen is not None
        rows = chosen.tolist()
        assert len(rows) == min(count, 100)
        gaps = {b - a for a, b in itertools.pairwise(rows)}
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("end", [{"steps": 4}, {"steps": None, "epochs": 1}])
def test_training_and_its_estimate_warn_where_the_warmup_does_not_end(
    tmp_path: Path, end: dict[str, int | None]
) -> None:
    recipe = make_recipe(warmup=50, **end)
    key = "steps" if end["steps"] else "epochs"
    message = f"warmup 50 is not below the run's . steps, .* or raise train.{key}"
    with pytest.warns(HeedWarning, match=message):
        estimate.measure_recipe(recipe, device="cpu", say=lambda text: None)
    with pytest.warns(HeedWarning, match=message):
        train_run.start(recipe, tmp_path / "run", device="cpu", console=QUIET)
