"""Run folders and `heed runs`: the list of runs, broken runs, weights that do not fit."""

from __future__ import annotations

import json
import math
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from killing import asked_at
from lab_runs import write_run
from rich.console import Console
from test_cli import heed

from heed.config import ModelConfig, Recipe
from heed.config.task_metrics import LOWER_IS_BETTER
from heed.errors import ConfigError, DataError, HeedWarning, RunError, StoppedError
from heed.files import locked_inodes, to_json
from heed.runs.best_weights import chosen_evaluation
from heed.runs.index import build_runs_table, describe_model, list_runs
from heed.runs.load import load_run
from heed.runs.results_file import save_result
from heed.runs.run import Run
from heed.runs.weight_files import BEST, list_weights
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


def shown(found: list[dict[str, Any]], width: int, columns: list[str] | None = None) -> str:
    screen = Console(file=StringIO(), width=width, color_system=None)
    screen.print(build_runs_table(found, columns, width=width))
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


def test_a_run_that_trains_is_not_to_be_resumed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert not run.is_locked
    assert "to resume" in shown(list_runs(tmp_path), 80)
    with run.locked():
        assert run.is_locked == (locked_inodes() is not None)  # not every system lists locks
        entries = list_runs(tmp_path)
        assert ("training" if run.is_locked else "to resume") in shown(entries, 80)
    assert not run.is_locked


settings_of_a_run = st.fixed_dictionaries(
    {
        "model.position": st.sampled_from(["rope", "sinusoidal"]),
        "model.feed_forward_dropout": st.floats(0, 0.5),
        "train.lr": st.floats(1e-5, 1.0),
        "train.best_metric": st.sampled_from(["dev/loss", "dev/accuracy"]),
        "seed": st.integers(0, 2**63),
    }
)


@given(
    name=st.text(st.sampled_from("abc-[]/_"), min_size=1, max_size=60),
    steps=st.integers(0, 10**6),
    settings=st.lists(settings_of_a_run, min_size=1, max_size=3),
)
def test_at_eighty_columns_nothing_is_cut(
    name: str, steps: int, settings: list[dict[str, Any]]
) -> None:
    line: dict[str, Any] = {"run": name, "task": "translate", "model": "transformer 12x1024 rope"}
    line |= {
        "finished": False,
        "training": False,
        "weights_deleted": False,
        "pruned": False,
        "broken": None,
        "needs": None,
        "steps": steps,
        "best": steps,
        "parameters": 10**9,
    }
    line |= {"dev": {"loss": 2.125, "accuracy": 1.0, "bleu": 31.5}, "test": {"bleu": 30.25}}
    line["sets"] = {"newstest": {"bleu": 28.5}}
    text = shown([line | {"settings": one} for one in settings], 80)
    rows = text.splitlines()
    rule = next(i for i, row in enumerate(rows) if row.startswith("─"))
    assert max(map(len, rows)) <= 80
    assert "…" not in text
    assert name in "".join(row.split("  ")[0].strip() for row in rows[rule + 1 :])
    for word in (f"{steps:,}", "2.125", "31.5", "to resume", "30.2"):
        assert word in text
    for key in settings[0]:
        differs = len({repr(one[key]) for one in settings}) > 1
        in_header = key.rpartition(".")[2].split("_")[0] in " ".join(rows[:rule])
        assert not differs or in_header or key in text.replace("\n", " ")


def test_the_table_shows_what_differs(tmp_path: Path) -> None:
    for name, heads, lr in (("a", 2, 0.5), ("b", 4, 0.5), ("c", 4, 0.25)):
        model = TINY | {"heads": heads}
        tables = {"task": "translate", "model": model, "train": {"lr": lr}}
        Run.create(tmp_path / name, Recipe.of(tables))
    header = shown(list_runs(tmp_path), 80).split("─")[0].split()
    assert {"heads", "lr"} <= {*header}
    assert not {"width", "position", "task", "model", "dropout"} & {*header}
    same = shown(list_runs(tmp_path)[:1], 80)
    assert "transformer 1x16 rope" in same


@pytest.mark.parametrize("name", ["none-finalist1-1", "position-alibi-warmup-finalist12-1"])
def test_a_part_of_a_name_is_never_broken(tmp_path: Path, name: str) -> None:
    for number, heads in enumerate((2, 4)):
        train = {"lr": 0.5 / (1 + number), "best_metric": ("dev/loss", "dev/bleu")[number]}
        model = TINY | {"heads": heads, "dropout": 0.1 * number}
        tables = {"task": "translate", "seed": number, "model": model, "train": train}
        Run.create(tmp_path / "st" / "runs" / f"{name}{number}", Recipe.of(tables))
    listed = [run | {"run": f"st/runs/{Path(run['run']).name}"} for run in list_runs(tmp_path)]
    for columns in (None, ["run", "heads", "steps"]):
        text = shown(listed, 80, columns)
        assert max(map(len, text.splitlines())) <= 80
        for number in range(2):
            assert f"{name}{number}" in text


def test_columns_are_chosen(tmp_path: Path) -> None:
    begun(tmp_path / "a", [evaluation(7, loss=2.0)], lr=0.125)
    names = ["run", "heads", "dropout", "train.lr", "parameters", "steps", "dev/loss", "test/bleu"]
    text = shown(list_runs(tmp_path), 100, names)
    for word in ("heads", "dropout", "0.125", "2.000", "0.1"):
        assert word in text
    assert "status" not in text
    with pytest.raises(ConfigError, match="Did you mean 'heads'"):
        shown(list_runs(tmp_path), 100, ["hedas"])
    answer = heed("runs", str(tmp_path), "--columns", "run, heads")
    assert answer.stdout.split()[:2] == ["run", "heads"]


def test_scores_of_other_sets_are_shown(tmp_path: Path) -> None:
    run = begun(tmp_path / "a", [evaluation(7, loss=2.0)]).folder
    save_result(run, "newstest", {"bleu": 31.25, "split": "newstest"})
    save_result(run, "newstest@step-5", {"bleu": 12.5, "split": "newstest"})
    runs = list_runs(tmp_path)
    assert "newstest" in shown(runs, 100)
    assert "31.2" in shown(runs, 100)
    assert "12.5" not in shown(runs, 100)
    assert "31.2" in shown(runs, 100, ["run", "newstest/bleu"])
    with pytest.raises(ConfigError, match="newstest/METRIC"):
        shown(runs, 100, ["newtest/bleu"])


def test_scores_stand_beside_their_step(tmp_path: Path) -> None:
    lines = [evaluation(40, loss=2.0), evaluation(80, loss=3.0)]
    begun(tmp_path / "a", lines)
    (entry,) = list_runs(tmp_path)
    assert (entry["best"], entry["steps"], entry["dev"]["loss"]) == (40, 80, 2.0)


def test_a_model_is_described_by_what_it_has() -> None:
    assert describe_model(ModelConfig(family="lstm", layers=2, width=50)) == "lstm 2x50"
    model = ModelConfig(layers=2, decoder_layers=1, width=16, merge="shift")
    assert describe_model(model) == "transformer 2+1x16 rope shift"


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
    """The first process has the folder until the end, and the recipe there is its own."""
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
        recipe, console = Recipe.of(tables), Console(quiet=True)
        train_run.start(recipe, folder / "run", device="cpu", console=console)
        with asked_at(1, signal.SIGINT), pytest.raises(StoppedError):
            train_run.start(recipe, folder / "stopped", device="cpu", console=console)
    return folder / "run"


def test_a_stopped_run_has_the_step_of_its_checkpoint(run: Path) -> None:
    """It was stopped before the first line of metrics."""
    stopped = Run(run.with_name("stopped"))
    assert not stopped.metrics()
    (entry,) = list_runs(stopped.folder)
    assert (entry["broken"], entry["steps"], entry["best"]) == (None, 2, None)


def test_a_finished_run_lists_its_parameters_and_its_test_score(run: Path) -> None:
    model, _, _ = load_run(run, device="cpu")
    (entry,) = list_runs(run)
    assert entry["parameters"] == sum(p.numel() for p in model.parameters())
    assert (entry["steps"], entry["test"]) == (4, None)
    save_result(run, "test", {"bleu": 31.25, "split": "test"})
    try:
        assert list_runs(run)[0]["test"] == {"bleu": 31.25}
        assert "31.2" in shown(list_runs(run), 80)
    finally:
        (run / "evaluation.json").unlink()


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
    assert lines[0].startswith("# checksum")
    changed = [change if line.startswith(f"{key} = ") else line for line in lines[1:]]
    assert changed != lines[1:]
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


# ------------------------------------------------------------------- links and damaged files


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "recipe.toml", "figures", "a/b"])
def test_a_link_out_of_a_run_is_not_followed(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    folder = begun(tmp_path / "run", []).folder
    link = folder / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    target = outside if name == "figures" else outside / "file"
    link.symlink_to(target, target_is_directory=target.is_dir())
    with pytest.raises(RunError, match="this link leads out of the run folder"):
        train_run.resume(folder, device="cpu", console=Console(quiet=True))
    assert [path.read_text() for path in outside.iterdir()] == ["precious"]
    (run,) = list_runs(tmp_path)
    assert "leads out" in run["broken"]


def test_a_link_within_a_run_or_to_a_run_is_followed(run: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    best = copy.weight_files.best_path
    assert best is not None
    copy.weights_path.unlink()
    copy.weights_path.symlink_to(best.relative_to(copy.folder))
    (tmp_path / "link").symlink_to(copy.folder, target_is_directory=True)
    load_run(tmp_path / "link", device="cpu")


def test_a_recipe_changed_by_hand_is_refused_until_its_checksum_is_deleted(
    run: Path, tmp_path: Path
) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    first, *lines = copy.recipe_path.read_text().replace("beam = 1", "beam = 2").splitlines()
    copy.recipe_path.write_text("\n".join([first, *lines]))
    with pytest.raises(RunError, match=r"recipe\.toml: .* changed: .* delete its first line"):
        copy.recipe()
    copy.recipe_path.write_text("\n".join(lines))
    assert copy.recipe().decode.beam == 2
    copy.recipe_path.write_text("")
    with pytest.raises(RunError, match=r"recipe\.toml: .* damaged"):
        copy.recipe()


def test_a_deleted_model_is_written_again(run: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    whole = copy.weights_path.read_bytes()
    copy.weights_path.write_bytes(whole[:-4] + b"1234")
    with pytest.raises(RunError, match=r"delete it, and `heed resume .*` writes it again"):
        load_run(copy.folder, device="cpu")
    with pytest.raises(RunError, match=r"delete it, and `heed resume .*` writes it again"):
        train_run.resume(copy.folder, device="cpu", console=Console(quiet=True))
    copy.weights_path.unlink()
    with pytest.warns(HeedWarning, match=r"model\.safetensors: .* missing.*heed resume .* writes"):
        load_run(copy.folder, device="cpu")
    with pytest.raises(RunError, match=r"model\.safetensors: .* missing.*heed resume .* writes"):
        copy.require_weights()
    train_run.resume(copy.folder, device="cpu", console=Console(quiet=True))
    assert copy.weights_path.read_bytes() == whole


@pytest.mark.filterwarnings("ignore:.*the weights of this finished run are missing")
def test_older_weights_serve_where_the_best_are_damaged(run: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    copy.weights_path.unlink()
    newest = list_weights(copy.checkpoints, BEST)[-1]
    (copy.checkpoints / f"{BEST}000000001.safetensors").write_bytes(newest.read_bytes())
    newest.write_bytes(newest.read_bytes()[:-4] + b"1234")
    with pytest.warns(HeedWarning, match=f"{newest.name}.*Older ones are used"):
        load_run(copy.folder, device="cpu")
    newest.unlink()
    with pytest.warns(HeedWarning, match=f"{newest.name}: the best weights are missing"):
        load_run(copy.folder, device="cpu")


@pytest.mark.parametrize("name", ["tokenizer.json", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("kept", [0.0, 0.5, None])
def test_a_damaged_file_is_named(run: Path, tmp_path: Path, name: str, kept: float | None) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    path = copy.folder / name
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])

    def read() -> object:
        return copy.metrics() if name == "metrics.jsonl" else load_run(copy.folder, device="cpu")

    with pytest.raises(RunError, match=f"{name}: .*Restore it from a copy"):
        read()
