"""Run folders and `heed runs`: the list of runs, broken runs, weights that do not fit."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_cli import heed

from heed.config import Recipe
from heed.errors import DataError, RunError
from heed.files import to_json
from heed.runs.best_weights import LOWER_IS_BETTER, chosen_evaluation
from heed.runs.index import build_runs_table, list_runs
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train import resolve
from heed.train import run as train_run

TINY = {"layers": 1, "width": 16, "heads": 2}


def begun(folder: Path, lines: list[dict[str, Any]], **train: Any) -> Run:
    """A run with these lines in `metrics.jsonl`."""
    run = Run.create(folder, Recipe.of({"task": "translate", "model": TINY, "train": train}))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run.metrics_path.write_text(text, encoding="utf-8")
    return run


def evaluation(step: int, *, event: str = "evaluate", **dev: float) -> dict[str, Any]:
    return {"event": event, "step": step, "epoch": 1, "dev": {"accuracy": 0.5} | dev}


def shown(found: list[dict[str, Any]], width: int) -> str:
    screen = Console(file=StringIO(), width=width, color_system=None)
    screen.print(build_runs_table(found))
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


score = st.one_of(st.integers(0, 9).map(float), st.sampled_from([math.inf, math.nan]))
scores = st.lists(st.tuples(score, score), min_size=1, max_size=6)


@given(scores=scores, metric=st.sampled_from(["loss", "bleu"]))
def test_the_chosen_evaluation_is_that_of_the_kept_weights(
    scores: list[tuple[float, float]], metric: str
) -> None:
    """Training keeps an evaluation's weights where it is better than all before it. A score that
    is not finite is better than nothing, and worse than all else; on disk it is null."""
    lines = [evaluation(i, loss=loss, bleu=bleu) for i, (loss, bleu) in enumerate(scores, 1)]
    best, sign = lines[0], -1 if metric in LOWER_IS_BETTER else 1
    for line in lines:
        value, before = line["dev"][metric], best["dev"][metric]
        if math.isfinite(value) and (sign * value > sign * before or not math.isfinite(before)):
            best = line
    number, lines = lines.index(best), json.loads(to_json(lines))
    best = lines[number]
    train = {"event": "train", "step": 0, "loss": 0.0}
    assert chosen_evaluation([train, *lines], f"dev/{metric}") is best
    for better in (True, False):
        mean = evaluation(9, event="average", loss=4.0, bleu=4.0) | {"kept": better}
        assert chosen_evaluation([train, *lines, mean], f"dev/{metric}") is (
            mean if better else best
        )


def test_a_run_chosen_by_bleu_lists_that_bleu(tmp_path: Path) -> None:
    lines = [evaluation(1, loss=2.125, bleu=31.5), evaluation(2, loss=1.875, bleu=7.25)]
    begun(tmp_path / "a", lines, best_metric="dev/bleu")
    found = list_runs(tmp_path)
    assert found[0]["dev"] == lines[0]["dev"]
    text = shown(found, 100)
    assert "BLEU" in text
    assert "31.5" in text
    assert "2.125" in text
    assert "7.2" not in text


def test_without_bleu_there_is_no_bleu_column(tmp_path: Path) -> None:
    begun(tmp_path / "a", [evaluation(1, loss=2.0)])
    assert "BLEU" not in shown(list_runs(tmp_path), 100)


@given(
    name=st.text(st.sampled_from("abc-[]/_"), min_size=1, max_size=60), step=st.integers(0, 10**6)
)
def test_at_eighty_columns_nothing_is_cut(name: str, step: int) -> None:
    model = "transformer 12x1024 sinusoidal"
    dev = {"loss": 2.125, "accuracy": 1.0, "bleu": 31.5}
    line = {"run": name, "task": "translate", "model": model, "step": step, "dev": dev}
    text = shown([line | {"finished": False, "broken": None}], 80)
    rows = text.splitlines()[3:]
    width = text.splitlines()[1].index("task")
    assert "".join(row[:width].strip() for row in rows) == name
    assert "…" not in text
    for word in (*model.split(), str(step), "2.125", "100.0%", "31.5", "to resume"):
        assert word in text


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("recipe.toml", "task = "),
        ("recipe.toml", 'task = "translate"\n[model]\nwidht = 3\n'),
        ("recipe.toml", "\udcff"),
        ("metrics.jsonl", "{\n"),
        ("metrics.jsonl", "3\n"),
        ("metrics.jsonl", '{"event": "evaluate", "step": 3, "dev": {}}\n'),
    ],
)
def test_one_broken_run_does_not_hide_the_others(tmp_path: Path, file: str, text: str) -> None:
    for name in ("a", "b", "c"):
        begun(tmp_path / name, [evaluation(1, loss=2.0)])
    (tmp_path / "b" / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    found = {Path(run["run"]).name: run for run in list_runs(tmp_path)}
    assert [name for name in found if found[name]["broken"]] == ["b"]
    assert found["a"]["dev"] == found["c"]["dev"] == {"accuracy": 0.5, "loss": 2.0}
    assert len({frozenset(run) for run in found.values()}) == 1
    assert "broken" in shown([*found.values()], 80)


def test_a_missing_folder_is_an_error_and_an_empty_one_a_message(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        list_runs(tmp_path / "nowhere")
    assert heed("runs", str(tmp_path / "nowhere")).returncode == 2
    answer = heed("runs", str(tmp_path))
    assert answer.returncode == 0
    assert "there are no runs here" in answer.stdout
    assert json.loads(heed("runs", str(tmp_path), "--json").stdout) == []


@pytest.mark.parametrize(("taken", "said"), [("file", "is a file"), ("folder", "not empty")])
def test_a_run_is_not_created_over_other_files(taken: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file", tmp_path / "folder" / "file"):
        path.touch()
    with pytest.raises(RunError, match=said):
        Run.create(tmp_path / taken, Recipe.of({}))


def test_a_folder_with_nothing_but_drafts_and_a_lock_counts_as_empty(tmp_path: Path) -> None:
    """What a process leaves that was killed before it had created its run."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".draft-recipe.toml-0123456789ab").write_text("task =")
    run = Run.create(folder, Recipe.of({}))
    assert [path.name for path in run.folder.iterdir() if path.name != ".lock"] == ["recipe.toml"]


def test_a_run_that_is_not_complete_yet_is_not_listed(tmp_path: Path) -> None:
    Run.create(tmp_path / ".draft-0123456789ab" / "half", Recipe.of({}))
    assert list_runs(tmp_path) == []


def test_of_two_that_create_a_run_at_one_instant_one_is_refused(tmp_path: Path) -> None:
    """Whoever is first has the folder until the end, and the recipe there is its own."""
    recipes = [Recipe.of({"seed": seed}) for seed in range(4)]

    def create(number: int, folder: Path, start: Barrier) -> int | str:
        start.wait()
        try:
            with Run.creating(folder, recipes[number]) as run:
                sleep(0.02)
                return run.recipe().seed - number  # 0: its own
        except RunError as error:
            return error.what

    with ThreadPoolExecutor(len(recipes)) as pool:
        for attempt in range(20):
            folder, start = tmp_path / f"{attempt}", Barrier(len(recipes))
            answers = [pool.submit(create, number, folder, start) for number in range(len(recipes))]
            results = [answer.result() for answer in answers]
            assert results.count(0) == 1, results
            assert "another process is training in this folder." in results


@pytest.mark.parametrize("place", ["link", "."])
def test_a_start_that_is_refused_leaves_the_folder_as_it_was(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link or the current folder: neither can be deleted as a whole."""
    (tmp_path / "train.tsv").write_text("good\ta b c\n" * 9)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target" / "link").rename(tmp_path / "link")
    monkeypatch.chdir(tmp_path / "target")
    folder = tmp_path / "link" if place == "link" else Path(place)
    files = {"train": [str(tmp_path / "train.tsv")]}
    recipe = Recipe.of({"task": "classify", "data": files, "model": TINY})
    with pytest.raises(DataError, match="two classes or more"):
        train_run.start(recipe, folder, device="cpu", console=Console(quiet=True))
    assert folder.is_dir()
    assert not [*folder.iterdir()]


# ------------------------------------------------------------ next steps


@pytest.mark.parametrize(
    ("name", "word"),
    [("demo-translate", "translate"), ("demo-classify", "classify"), ("demo-generate", "generate")],
)
def test_training_ends_with_the_next_command(name: str, word: str, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    changes = ["train.steps=2", "data.synthetic=300", "data.synthetic_test=20", "model.width=16"]
    flags = [part for change in [*changes, "model.layers=1"] for part in ("--set", change)]
    answer = heed("train", name, *flags, "--run", str(folder), "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    last = answer.stdout.splitlines()[-1]
    assert str(folder) in last
    assert f"heed {word} '{folder}'" in last


def test_a_masked_model_is_not_offered_generation() -> None:
    masked = Recipe.of({"task": "generate", "model": TINY, "train": {"objective": "masked"}})
    assert "heed generate" not in resolve.next_steps(Path("runs/x"), masked)


# ------------------------------------------------------------------- incomplete or wrong weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    text = "\n".join("a b c d e f g h"[n % 7 :] for n in range(40))
    for side in ("en", "fr"):
        (folder / f"a.{side}").write_text(text)
    tables = {
        "task": "translate",
        "data": {"train": [str(folder / "a.en"), str(folder / "a.fr")]},
        "tokenizer": {"kind": "word"},
        "model": TINY,
        "train": {"steps": 4, "batch_size": 16, "checkpoint_every": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        train_run.start(
            Recipe.of(tables), folder / "run", device="cpu", console=Console(quiet=True)
        )
    return folder / "run"


@given(share=st.floats(0.01, 0.999))
def test_truncated_weights_are_an_error(run: Path, share: float) -> None:
    whole = Run(run).weights_path.read_bytes()
    try:
        Run(run).weights_path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(
            RunError, match=r"not a complete safetensors file|its checksum"
        ) as error:
            load_run(run, device="cpu")
    finally:
        Run(run).weights_path.write_bytes(whole)
    assert error.value.where == str(Run(run).weights_path)
    assert error.value.todo


@pytest.mark.parametrize("change", ["width = 32", "layers = 2", "tie_embeddings = false"])
def test_weights_that_do_not_fit_the_recipe_are_an_error(
    run: Path, change: str, tmp_path: Path
) -> None:
    """Both when loading the run and when resuming it."""
    key = change.split(" = ")[0]
    lines = Run(run).recipe_path.read_text().splitlines()
    assert lines[-1].startswith("# checksum")
    changed = [change if line.startswith(f"{key} = ") else line for line in lines[:-1]]
    assert changed != lines[:-1]
    before = Run(run).recipe_path.read_text()
    try:
        Run(run).recipe_path.write_text("\n".join(changed))
        with pytest.raises(RunError, match=r"does not match recipe\.toml"):
            load_run(run, device="cpu")
        moved = Run(run).weights_path.rename(tmp_path / "model.safetensors")
        try:
            with pytest.raises(RunError, match=r"does not match recipe\.toml") as e:
                train_run.resume(run, device="cpu", console=Console(quiet=True))
        finally:
            moved.rename(Run(run).weights_path)
    finally:
        Run(run).recipe_path.write_text(before)
    assert len(str(e.value).splitlines()) == 1
    load_run(run, device="cpu")
