"""Pretraining is held against the same model from scratch, and the page says what figures say."""

from __future__ import annotations

import json
import random
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from descent.training import TABLES
from hypothesis import given
from hypothesis import strategies as st
from masked.figures import gather
from masked.overlap import RUN, described
from masked.page import Page
from masked.systems import (
    FIRST_SEED,
    FRESH_SEEDS,
    PRETRAIN,
    RATES,
    READING,
    SCRATCH,
    SHAPE,
    TRIALS,
    TUNE,
    TUNED,
    TUNING,
    WAYS,
    Trial,
    best,
    fresh,
    lasting,
    shape,
    sweep,
)
from masked.training import PRETRAINED, TASK, Job, begins, train
from pretraining import report
from reading import rounded
from rich.console import Console
from running import pack
from safetensors.numpy import load_file

from heed.config import Recipe
from heed.recipes import find
from heed.runs.run import Run
from heed.train import resolve
from heed.train import run as train_run

BEST = {TUNED: Trial(3e-4, 0.1), SCRATCH: Trial(1e-3, 0.3)}
"""Where each way is made to do best."""
SHARE = {TUNED: 0.85, SCRATCH: 0.75}
"""Of the answers that each way is made to get right."""
TEXTS = 400
TINY = ["model.layers=1", "model.width=24", "model.heads=2", "tokenizer.vocab_size=300"]


# ------------------------------------------------------------------------------------- the trials


def test_both_ways_have_the_same_trials_and_only_the_chosen_ones_are_scored() -> None:
    assert {one.trial for one in sweep(TUNED)} == {one.trial for one in sweep(SCRATCH)}
    assert len(set(TRIALS)) == len(TRIALS)
    for way, trial in BEST.items():
        assert not any(one.tested for one in sweep(way))
        assert all(one.tested and one.seed != FIRST_SEED for one in fresh(way, trial))
        names = [one.name for one in [*sweep(way), *fresh(way, trial)]]
        assert len(set(names)) == len(TRIALS) + len(FRESH_SEEDS)


@given(st.dictionaries(st.sampled_from(TRIALS), st.sampled_from([0.1, 0.2, 0.3])))
def test_the_best_trial_has_the_lowest_rate_of_those_that_none_beats(
    found: dict[Trial, float],
) -> None:
    chosen = best(found)
    if chosen is None:
        assert not found
        return
    assert chosen == min(trial for trial in found if found[trial] == max(found.values()))


@given(st.lists(st.sampled_from(["a=1", "a=2", "b=1", "b=2"]), max_size=6))
def test_of_changes_the_last_of_a_key_is_told(changes: list[str]) -> None:
    found = lasting(changes[:2], changes[2:])
    assert dict(change.split("=") for change in found) == dict(one.split("=") for one in changes)
    assert len(found) == len({change[0] for change in changes})


def test_the_recipes_can_be_told_so() -> None:
    reads = Recipe.read(find(PRETRAIN), [*SHAPE, *READING])
    assert reads.train.objective == "masked"
    for trial in TRIALS:
        read = Recipe.read(find(TUNE), ["init={}", *SHAPE, *TUNING, *trial.changes])
        assert (read.train.lr, read.model.dropout) == (trial.rate, trial.dropout)
        assert read.init.from_model is None
        assert read.model.width == reads.model.width


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Job]:
    """A little text and a little of something to classify; to be ended in so many seconds."""
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefghijkl", k=draw.randint(3, 9))) for _ in range(120)]
    (tmp_path / "text.txt").write_text("\n".join(lines[:60]) + "\n")
    for split, start in (("train", 60), ("dev", 90), ("test", 105)):
        rows = [f"{line}\t{i % 2}" for i, line in enumerate(lines[start : start + 15])]
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    runs, text = tmp_path / "runs", tmp_path / "text.txt"
    runs.mkdir()

    def made(seconds: float) -> Job:
        until = time.monotonic() + seconds
        return Job(tmp_path, runs, [], "cpu", 2, until, until, text, "A text", TINY)

    return made


def test_both_ways_are_one_model_with_one_tokenizer(job: Callable[[float], Job]) -> None:
    """By the recipes that the commands are told, with fewer updates."""
    told, quiet = job(60), Console(quiet=True)
    few = ["train.steps=2", "train.warmup=0", "train.best_metric=dev/loss"]
    more = f"tokenizer.text={json.dumps([str(told.data / 'train.tsv')])}"
    files = [str(told.text)], [str(told.data / "dev.tsv")]
    changes = [*SHAPE, *READING, *TINY, *few, more]
    recipe, _ = resolve.resolve_recipe(PRETRAIN, None, *files, changes, None)
    origin = train_run.start(recipe, told.runs / PRETRAINED, device="cpu", console=quiet)
    made: dict[str, Run] = {}
    for way in WAYS:
        changes = [*begins(told, way), *few, *TRIALS[0].changes]
        recipe, _ = resolve.resolve_recipe(TUNE, None, None, None, changes, None, told.data)
        made[way] = train_run.start(recipe, told.runs / way, device="cpu", console=quiet)
    pieces = {run.tokenizer_path.read_bytes() for run in (origin, *made.values())}
    assert len(pieces) == 1
    sizes = [
        {name: weight.shape for name, weight in load_file(run.weights_path).items()}
        for run in made.values()
    ]
    assert sizes[0] == sizes[1]
    assert made[TUNED].recipe().model == made[SCRATCH].recipe().model
    assert set(shape(changes)) >= set(TINY)


def test_nothing_is_begun_after_the_deadline(job: Callable[[float], Job]) -> None:
    packed: list[bool] = []
    late = job(-1)
    assert not train(late, lambda: packed.append(True))
    assert packed
    assert [path.name for path in late.runs.iterdir()] == ["text.json"]


words = st.lists(st.sampled_from("abc"), min_size=1, max_size=RUN + 3).map(" ".join)


@given(text=st.lists(words, max_size=6), test=st.lists(words, min_size=1, max_size=4))
def test_what_a_text_shares_with_test_is_counted(
    tmp_path_factory: pytest.TempPathFactory, text: list[str], test: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text("".join(f"{line.upper()}\n" for line in text))
    (folder / "test.tsv").write_text("".join(f"{line}\t1\n" for line in test))
    found = described(folder / "text.txt", folder / "test.tsv")
    assert found["lines"] == len(text)
    assert found["words"] == sum(len(line.split()) for line in text)
    assert found["in_the_text"] == sum(line in text for line in test)
    runs = [[line[i : i + 2 * RUN - 1] for i in range(0, len(line), 2)] for line in test]
    assert found["share_a_run"] == sum(
        any(len(run) == 2 * RUN - 1 and run in line for run in own for line in text) for own in runs
    )


# --------------------------------------------------------------------------------------- the page


def made(folder: Path, way: str, trial: Trial, seed: int, *, tested: bool) -> None:
    """A run as training leaves it."""
    run = folder / f"{way}-{trial}-{seed}"
    run.mkdir(parents=True)
    figure = SHARE[way] - (0.0 if trial == BEST[way] else 0.1)
    line = {"event": "evaluate", "step": 9, "dev": {"loss": 0.5, "accuracy": figure}}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    noted = {"ended": "finished", "seconds": {"train": 9.0}, "parameters": 7, "tokenizer": "t"}
    (run / "benchmark.json").write_text(json.dumps(noted))
    if not tested:
        return
    right = np.random.default_rng(seed).random(TEXTS) < SHARE[way]
    share = float(right.mean())
    told = {"texts": TEXTS, "in_train": 2, "hash": "0", "accuracy": share}
    splits = {split: told | {"clean": {"accuracy": share + 0.001}} for split in ("dev", "test")}
    (run / "evaluation.json").write_text(json.dumps(splits))
    (run / TABLES[TASK.name]).mkdir()
    rows = "".join(f"secret\t1\t{int(one)}\n" for one in right)
    (run / TABLES[TASK.name] / "test.tsv").write_text(f"text\tlabel\tanswer\n{rows}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All there is, with a rate that was too high for one way."""
    folder = tmp_path_factory.mktemp("runs")
    for way, trial in BEST.items():
        for one in [*sweep(way), *fresh(way, trial)]:
            made(folder, way, one.trial, one.seed, tested=one.tested)
    broken = folder / f"{SCRATCH}-{Trial(RATES[-1], 0.1)}-{FIRST_SEED}"
    (broken / "benchmark.json").write_text(json.dumps({"ended": "diverged"}))
    origin = folder / PRETRAINED
    origin.mkdir()
    noted = {"ended": "finished", "seconds": {"train": 80.0}, "parameters": 6, "tokenizer": "t"}
    (origin / "benchmark.json").write_text(json.dumps(noted))
    both = {"seen": {"loss": 3.0}, "dev": {"loss": 2.5, "accuracy": 0.5}}
    line = {"event": "evaluate", "step": 1234, "epoch": 1} | both
    (origin / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture(scope="module")
def told(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page and its numbers."""
    folder = tmp_path_factory.mktemp("told")
    report(runs, folder, folder)
    return folder


def test_the_page_says_what_the_figures_say(told: Path) -> None:
    page = (told / "pretraining.md").read_text(encoding="utf-8")
    figures = json.loads((told / "pretraining.json").read_text(encoding="utf-8"))
    for way, trial in BEST.items():
        own = figures["ways"][way]
        assert own["best"] == {"rate": trial.rate, "dropout": trial.dropout}
        assert own["seeds"] == list(FRESH_SEEDS)
        assert own["test"]["mean"] == pytest.approx(SHARE[way], abs=0.03)
    assert figures["compared"]["gain"] == pytest.approx(0.1, abs=0.05)
    ended = len(WAYS) * (len(TRIALS) + len(FRESH_SEEDS)) - 1
    assert figures["same"] == {"runs": ended, "parameters": True, "tokenizer": True}
    assert "**Pretraining makes the same model better**" in page
    assert "diverged" in page
    assert "| 1 | 1,234 | 3.000 | 2.500 | 50.0 |" in page
    assert "secret" not in page + json.dumps(figures)


@given(gain=st.floats(-0.2, 0.2), p=st.floats(0.0, 1.0))
def test_what_is_not_shown_is_not_claimed(told: Path, gain: float, p: float) -> None:
    figures = json.loads((told / "pretraining.json").read_text(encoding="utf-8"))
    figures["compared"] |= {"gain": gain, "p": p}
    page = Page(figures).text()
    assert ("No difference is shown" in page) == (p >= 0.05)
    assert ("same model better" in page) == (p < 0.05 and gain > 0)
    assert ("same model worse" in page) == (p < 0.05 and gain <= 0)


def test_another_tokenizer_is_told_of(runs: Path, told: Path) -> None:
    figures = json.loads((told / "pretraining.json").read_text(encoding="utf-8"))
    figures["same"]["tokenizer"] = False
    assert "**but not the same tokenizer**" in Page(figures).text()


def test_what_is_packed_is_enough(runs: Path, told: Path, tmp_path: Path) -> None:
    pack(runs, tmp_path / "runs.tar.gz", folders=(TABLES[TASK.name],))
    with tarfile.open(tmp_path / "runs.tar.gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    figures = json.dumps(rounded(gather(tmp_path / "unpacked")), indent=1, ensure_ascii=False)
    assert figures + "\n" == (told / "pretraining.json").read_text(encoding="utf-8")


def test_without_runs_there_is_little_to_say(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "Nothing is trained yet" in (tmp_path / "pretraining.md").read_text(encoding="utf-8")


def test_what_is_missing_takes_nothing_else_away(tmp_path: Path) -> None:
    """One trial, one seed: no test, and still a page."""
    made(tmp_path / "runs", TUNED, BEST[TUNED], FIRST_SEED, tested=False)
    made(tmp_path / "runs", TUNED, BEST[TUNED], FRESH_SEEDS[0], tested=True)
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "Too few seeds" in (tmp_path / "pretraining.md").read_text(encoding="utf-8")
