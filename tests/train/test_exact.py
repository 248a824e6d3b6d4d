"""Training is exact: the same recipe gives the same bits, and so does a run killed and resumed."""

from __future__ import annotations

import json
import math
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import Killed, asked_at, dies_at, outcome
from rich.console import Console

from heed import checksums
from heed.config import MERGES, Recipe
from heed.config.train import OPTIMIZERS
from heed.errors import RunError, StoppedError
from heed.runs.best_weights import chosen_evaluation
from heed.runs.index import build_runs_table, list_runs
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train import run as train_run
from heed.train.curves import draw_curves
from heed.train.recorder import Recorder

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language pair whose second side is the first one backwards."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(120)]
    (folder / "a.en").write_text("\n".join(lines))
    (folder / "a.fr").write_text("\n".join(" ".join(reversed(line.split())) for line in lines))
    return folder


def make_recipe(corpus: Path, merge: str = "shuffle", /, **train: Any) -> Recipe:
    settings = {"steps": 9, "batch_size": 16, "warmup": 2, "log_every": 2} | train
    return Recipe.of(
        {
            "task": "translate",
            "data": {"train": [str(corpus / "a.en"), str(corpus / "a.fr")]},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.2, "merge": merge},
            "train": {"evaluate_every": 4, "checkpoint_every": 3} | settings,
        }
    )


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


def test_the_same_recipe_gives_the_same_bits(corpus: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_run.start(make_recipe(corpus), tmp_path / name, device="cpu", console=QUIET)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_equals_unbroken_for_every_optimizer(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    recipe = make_recipe(corpus, optimizer=name, lr=1e-3, ema=0.9, accumulate=2)
    train_run.start(recipe, tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(5):
        train_run.start(recipe, tmp_path / "broken", device="cpu", console=QUIET)
    train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "broken")


@pytest.mark.parametrize("step", range(9))
def test_resumed_equals_unbroken_from_every_step(corpus: Path, tmp_path: Path, step: int) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(step):
        train_run.start(make_recipe(corpus), tmp_path / "broken", device="cpu", console=QUIET)
    train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "broken")


@pytest.mark.parametrize("merge", MERGES)
def test_evaluating_more_often_changes_no_bit(corpus: Path, tmp_path: Path, merge: str) -> None:
    """Of the weights, the optimizer and the generators."""
    ends = []
    for every in (2, 9):
        recipe = make_recipe(corpus, merge, evaluate_every=every, evaluate_bleu=True)
        run = train_run.start(recipe, tmp_path / str(every), device="cpu", console=QUIET)
        tensors, _ = checkpoint.load_newest(run.checkpoints, print)
        ends.append({k: t for k, t in tensors.items() if not k.startswith("counters.")})
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_damaged_checkpoint_falls_back_to_the_one_before(corpus: Path, tmp_path: Path) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(8):
        train_run.start(make_recipe(corpus), tmp_path / "broken", device="cpu", console=QUIET)
    newest = sorted((tmp_path / "broken" / "checkpoints").glob("step-*"))[-1]
    weights = newest / "tensors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    said: list[str] = []
    _, progress = checkpoint.load_newest(newest.parent, said.append)
    assert progress["step"] == 3
    assert newest.name in said[0]
    train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "broken")


def test_a_damaged_checkpoint_does_not_outlive_whole_ones(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between writing a checkpoint and removing the one before; then stopped on the way."""
    recipe = make_recipe(corpus, keep_checkpoints=1)
    train_run.start(recipe, tmp_path / "whole", device="cpu", console=QUIET)
    with monkeypatch.context() as patch, dies_at(8):
        patch.setattr(checkpoint, "prune", lambda *_, **__: None)
        train_run.start(recipe, tmp_path / "broken", device="cpu", console=QUIET)
    run = Run(tmp_path / "broken")
    (run.checkpoints / "step-000000006" / "tensors.safetensors").write_bytes(b"")
    with asked_at(4, signal.SIGINT), pytest.raises(StoppedError):
        train_run.resume(run.folder, device="cpu", console=QUIET)
    assert checkpoint.load_newest(run.checkpoints, print)[1]["step"] == 5
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(run)


def test_without_a_whole_checkpoint_a_run_does_not_begin_anew_unasked(
    corpus: Path, tmp_path: Path
) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(8):
        train_run.start(make_recipe(corpus), tmp_path / "broken", device="cpu", console=QUIET)
    run = Run(tmp_path / "broken")
    for tensors in run.checkpoints.rglob("tensors.safetensors"):
        tensors.write_bytes(b"")
    before = outcome_so_far(run.folder)
    for _ in range(2):
        with pytest.raises(RunError, match="all of its checkpoints are damaged"):
            train_run.resume(run.folder, device="cpu", console=QUIET)
        assert outcome_so_far(run.folder) == before
    shutil.rmtree(run.checkpoints)  # as it says
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(run)


def test_a_run_that_stopped_early_makes_no_update_more(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when its last checkpoint was written, and its chosen weights were not."""
    every = {"evaluate_every": 1, "checkpoint_every": 1, "log_every": 1}
    recipe = make_recipe(corpus, steps=60, lr=1.0, patience=2, **every)
    whole = train_run.start(recipe, tmp_path / "whole", device="cpu", console=QUIET)
    assert whole.metrics()[-1]["step"] < 60

    def dies(self: Recorder, view: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "choose_weights", dies)
        with pytest.raises(Killed):
            train_run.start(recipe, tmp_path / "broken", device="cpu", console=QUIET)
    broken = train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(whole) == outcome(broken)


def scoring(patch: pytest.MonkeyPatch, *losses: float) -> None:
    """Evaluations say this, one after another, as on a machine that does not repeat itself."""
    left = iter(losses)

    def scores(self: Recorder, *_: object) -> dict[str, dict[str, float]]:
        return {"dev": {"loss": next(left), "accuracy": 0.0}}

    patch.setattr(train_run, "draw_curves", lambda run: None)
    patch.setattr(Recorder, "_evaluate_sets", scores)


def test_the_best_weights_are_of_an_evaluation_that_the_metrics_know(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best came after the last checkpoint, and when the run goes on it does not come again."""
    scoring(monkeypatch, 1.0)
    with dies_at(5):
        train_run.start(make_recipe(corpus), tmp_path / "fourth", device="cpu", console=QUIET)
    scoring(monkeypatch, 1.0, 0.5)
    with dies_at(8):
        train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    scoring(monkeypatch, 2.0, 3.0)
    run = train_run.resume(tmp_path / "run", device="cpu", console=QUIET)
    best = chosen_evaluation(run.metrics(), "dev/loss")
    assert best is not None
    assert (best["step"], best["dev"]["loss"]) == (4, 1.0)
    fourth = Run(tmp_path / "fourth").weight_files.best_path
    assert fourth is not None
    assert run.weights_path.read_bytes() == fourth.read_bytes()


def test_so_are_the_last_weights(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluated at 4 and 5, and killed, a run goes on from 3, and stops at 4: it keeps the mean of
    3 and 4, as one that never came further."""
    every = {"evaluate_every": 1, "checkpoint_every": 3, "log_every": 9}
    recipe = make_recipe(corpus, average_checkpoints=2, patience=1, **every)
    scoring(monkeypatch, 0.9, 0.8, 0.7, 5.0, 0.0)
    whole = train_run.start(recipe, tmp_path / "whole", device="cpu", console=QUIET)
    scoring(monkeypatch, 0.9, 0.8, 0.7, 0.6, 0.5)
    with dies_at(5):
        train_run.start(recipe, tmp_path / "broken", device="cpu", console=QUIET)
    scoring(monkeypatch, 5.0, 0.0)
    broken = train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert broken.metrics()[-1]["kept"]
    assert outcome(whole) == outcome(broken)


def test_metrics_with_fewer_lines_than_a_checkpoint_counts(corpus: Path, tmp_path: Path) -> None:
    """An earlier checkpoint that counts no more of them is used; without one, nothing is done."""
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    with dies_at(8):
        train_run.start(make_recipe(corpus), tmp_path / "broken", device="cpu", console=QUIET)
    run = Run(tmp_path / "broken")
    metrics = run.metrics_path.read_bytes()
    for length in (0, 1, 30):
        run.metrics_path.write_bytes(metrics[:length])
        before = outcome_so_far(run.folder)
        with pytest.raises(RunError, match="all of its checkpoints are damaged"):
            train_run.resume(run.folder, device="cpu", console=QUIET)
        assert outcome_so_far(run.folder) == before
    counted = json.loads((run.checkpoints / "step-000000006" / "state.json").read_text())["lines"]
    lines = metrics.splitlines(keepends=True)
    run.metrics_path.write_bytes(b"".join(lines[: counted - 1]))
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert (run.checkpoints / "damaged-000000006").is_dir()
    assert outcome(tmp_path / "whole") == outcome(run)


def test_a_run_goes_on_from_whatever_folder_one_stands_in(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    with dies_at(5):
        train_run.start(make_recipe(Path()), tmp_path / "run", device="cpu", console=QUIET)
    monkeypatch.chdir(tmp_path)
    train_run.resume(Path("run"), device="cpu", console=QUIET)
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "run")


def test_a_run_does_not_go_on_over_other_text(corpus: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(corpus, own)
    with dies_at(5):
        train_run.start(make_recipe(own), tmp_path / "run", device="cpu", console=QUIET)
    before = outcome_so_far(tmp_path / "run")
    whole = (own / "a.en").read_text(encoding="utf-8")
    (own / "a.en").write_text(whole.replace("a", "b"), encoding="utf-8")
    with pytest.raises(RunError, match="train is not what this run started with"):
        train_run.resume(tmp_path / "run", device="cpu", console=QUIET)
    assert outcome_so_far(tmp_path / "run") == before
    (own / "a.en").write_text(whole, encoding="utf-8")
    train_run.resume(tmp_path / "run", device="cpu", console=QUIET)


def outcome_so_far(folder: Path) -> dict[str, bytes]:
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in kept if path.name != ".lock"}


def test_a_write_cut_short_leaves_the_last_checkpoint_whole(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    real = checksums.dump_json

    def dies(content: Mapping[str, Any]) -> str:
        if content.get("step") == 6:
            raise Killed
        return real(content)

    with monkeypatch.context() as patch:
        patch.setattr(checksums, "dump_json", dies)
        with pytest.raises(Killed):
            train_run.start(make_recipe(corpus), tmp_path / "broken", device="cpu", console=QUIET)
    train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "broken")


def test_a_finished_run_says_so_and_stays_as_it_is(corpus: Path, tmp_path: Path) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    before = outcome(tmp_path / "run")
    console = Console(record=True, quiet=False, file=(tmp_path / "out").open("w"))
    train_run.resume(tmp_path / "run", device="cpu", console=console)
    assert "finished" in console.export_text()
    assert outcome(tmp_path / "run") == before
    console.file.close()


def test_figures_that_a_kill_left_out_are_drawn_by_resume(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(run: Run) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "draw_curves", dies)
        with pytest.raises(Killed):
            train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    run = Run(tmp_path / "run")
    before = outcome(run)
    assert run.finished
    assert not run.figures.exists()
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert {path.name for path in run.figures.iterdir()} == {"loss.png", "loss.svg"}
    assert outcome(run) == before


def test_an_empty_file_of_weights_is_not_a_finished_run(corpus: Path, tmp_path: Path) -> None:
    run = train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    before = outcome(run)
    run.weights_path.write_bytes(b"")
    assert not run.finished
    train_run.resume(run.folder, device="cpu", console=QUIET)
    assert outcome(run) == before


def test_metrics_are_strict_json_whatever_was_measured(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what reads them knows that a number which is not finite is null."""
    scoring(monkeypatch, math.nan, math.inf, 1.0, math.nan)
    recipe = make_recipe(corpus, steps=4, evaluate_every=1, log_every=1)
    run = train_run.start(recipe, tmp_path / "run", device="cpu", console=QUIET)
    lines = [
        json.loads(line, parse_constant=pytest.fail)
        for line in run.metrics_path.read_text().splitlines()
    ]
    evaluated = [line["dev"]["loss"] for line in lines if line["event"] == "evaluate"]
    assert evaluated == [None, None, 1.0, None]
    best = chosen_evaluation(run.metrics(), "dev/loss")
    assert best is not None
    assert best["step"] == 3
    assert run.weight_files.best_path is not None
    assert run.weight_files.best_path.name == "best-000000003.safetensors"
    draw_curves(run)
    (entry,) = list_runs(tmp_path)
    assert entry["broken"] is None
    assert build_runs_table([entry | {"dev": {"loss": None}}]).renderables


def test_a_folder_with_a_run_in_it_is_refused(corpus: Path, tmp_path: Path) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    before = outcome(tmp_path / "run")
    with pytest.raises(RunError, match="a run here already"):
        train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    assert outcome(tmp_path / "run") == before


def test_a_second_process_is_refused(corpus: Path, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", make_recipe(corpus))
    with run.locked(), pytest.raises(RunError, match="another process"):
        train_run.resume(tmp_path / "run", device="cpu", console=QUIET)


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "heed", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # two wait for each other on a busy machine
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=600)
    return process.returncode


@pytest.mark.slow  # seven starts of the command; tests/robustness kills at every file operation
def test_killed_for_real_at_random_moments(corpus: Path, tmp_path: Path) -> None:
    """`kill -9` on the real command, then `heed resume`, again and again to the end."""
    recipe = make_recipe(corpus, steps=60, checkpoint_every=2, evaluate_every=10)
    (tmp_path / "recipe.toml").write_text(recipe.toml())
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    train = ("train", str(tmp_path / "recipe.toml"), "--device", "cpu", "--run")
    assert finished(command(*train, whole)) == 0
    draw, kills = random.Random(1), 0
    action: tuple[str, ...] = (*train, broken)
    for _ in range(5):
        process = command(*action)
        metrics = Path(broken) / "metrics.jsonl"
        seen, wait = metrics.stat().st_size if metrics.exists() else 0, draw.uniform(0.0, 0.15)
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > seen):
            time.sleep(0.005)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        action = ("resume", broken, "--device", "cpu")
        if finished(process) == 0:
            break
    else:
        assert finished(command(*action)) == 0
    assert kills >= 3
    assert outcome(Path(whole)) == outcome(Path(broken))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_and_is_the_exit_code(
    corpus: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    recipe = make_recipe(corpus, steps=100_000, checkpoint_every=100_000, evaluate_every=100_000)
    (tmp_path / "recipe.toml").write_text(recipe.toml())
    process = command(
        "train", str(tmp_path / "recipe.toml"), "--device", "cpu", "--run", str(tmp_path / "run")
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not metrics.exists():
        time.sleep(0.02)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    assert "nothing is lost" in out
    assert f"heed resume {tmp_path / 'run'}" in out
    _, progress = checkpoint.load_newest(tmp_path / "run" / "checkpoints", print)
    assert progress["step"] > 0


def test_a_closed_terminal_saves(corpus: Path, tmp_path: Path) -> None:
    """The terminal is gone while the run trains: SIGHUP comes, and every output is an error."""
    recipe = make_recipe(corpus, steps=100_000, checkpoint_every=100_000, evaluate_every=100_000)
    (tmp_path / "recipe.toml").write_text(recipe.toml())
    run = Run(tmp_path / "run")
    words = ["-m", "heed", "train", str(tmp_path / "recipe.toml"), "--run", str(run.folder)]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        arguments = [sys.executable, *words, "--device", "cpu"]
        os.execv(sys.executable, arguments)  # noqa: S606  # the child of `pty.fork`
    reader = threading.Thread(target=_read_until, args=(terminal, run.metrics_path))
    reader.start()
    reader.join(timeout=120)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert checkpoint.load_newest(run.checkpoints, print)[1]["step"] > 0


def _read_until(terminal: int, path: Path) -> None:
    """Read what is shown until there is such a file: an unread terminal would block."""
    while not path.exists():
        os.read(terminal, 1 << 16)


def test_hangups_that_are_ignored_stay_so(corpus: Path, tmp_path: Path) -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with asked_at(4, signal.SIGHUP):
            run = train_run.start(
                make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET
            )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run.finished


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_continues_to_the_same_bits(
    corpus: Path, tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    train_run.start(make_recipe(corpus), tmp_path / "whole", device="cpu", console=QUIET)
    with asked_at(4, number), pytest.raises(StoppedError):
        train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    assert signal.getsignal(number) is before
    train_run.resume(tmp_path / "run", device="cpu", console=QUIET)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_environment_lists_what_the_bits_depend_on(corpus: Path, tmp_path: Path) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "run", device="cpu", console=QUIET)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    for key in ("format", "python", "platform", "packages", "cpu_threads", "data", "device"):
        assert environment[key], key


def test_a_run_can_be_moved(corpus: Path, tmp_path: Path) -> None:
    train_run.start(make_recipe(corpus), tmp_path / "here", device="cpu", console=QUIET)
    shutil.move(tmp_path / "here", tmp_path / "there")
    model, tokenizer, _ = load_run(tmp_path / "there", device="cpu")
    assert tokenizer.encode("a b")
    assert not model.training


def test_a_run_goes_on_with_as_many_threads_as_before(corpus: Path, tmp_path: Path) -> None:
    """Threads decide in which order sums are added, and so the bits."""
    threads = 3 if torch.get_num_threads() != 3 else 2
    recipe = make_recipe(corpus, steps=2)
    (tmp_path / "recipe.toml").write_text(recipe.toml(), encoding="utf-8")

    def run(*arguments: str) -> Any:
        subprocess.run(
            [sys.executable, "-m", "heed", *arguments, "--device", "cpu"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        return Run(tmp_path / "run").environment()["cpu_threads"]

    assert run("train", "recipe.toml", "--run", "run", "--threads", str(threads)) == threads
    assert run("resume", "run", "--set", "train.steps=4") == threads
    assert run("resume", "run", "--set", "train.steps=6", "--threads", "1") == 1
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("resume", "run", "--threads", "0")
    assert error.value.returncode == 2
    assert b"threads cannot be 0" in error.value.stderr
