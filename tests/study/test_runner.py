"""The runner: a study that is killed or stopped anywhere ends as one that was not."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from studying import ForkExecutor, ForkHandle, fork, on_cpu, outcome_of, tiny_study

import heed
from heed import checksums
from heed.errors import HeedError, RunError, StoppedError
from heed.runs.index import build_runs_table, list_runs
from heed.runs.run import Run
from heed.study.kept_weights import choose_kept, delete_weights
from heed.study.run_records import open_scored_runs
from heed.study.run_study import locate_study
from heed.study.runner import RunOptions, carry_out_study
from heed.study.status_table import find_spent_budget
from heed.study.study_config import BudgetConfig
from heed.study.study_file import StudyConfig, StudyFlags, declare_study
from heed.study.study_folder import create_study_folder, extend_study, read_study_folder
from heed.study.study_lock import is_running, stop_study, study_lock
from heed.study.trial_records import record_path, restore_state
from heed.study.trials import Trial, TrialState, read_state, read_trials
from heed.train import checkpoint

Study = tuple[Path, list[TrialState]]
TRIALS = ["layer-seed0", "rms-seed0"]
RECORD = "records/layer-seed0.record.json"
WEIGHTS = ("runs/layer-seed0/model.safetensors", "runs/layer-seed0/checkpoints")


def carry_out(
    folder: Path,
    config: StudyConfig | None = None,
    options: RunOptions | None = None,
    executor: ForkExecutor | None = None,
) -> list[TrialState]:
    """Carry out a study, or go on with the one in the folder."""
    with study_lock(folder):
        if config is not None and not (folder / "study.toml").exists():
            create_study_folder(folder, config)
        study = read_study_folder(folder)
        return carry_out_study(folder, study, executor or ForkExecutor(), options or on_cpu())


@pytest.fixture(scope="module", autouse=True)
def _quick_trials(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One cache for all studies; no figures, which take longer than the training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HEED_COMMIT", "the commit that trained")
        patch.setattr("heed.train.run.draw_curves", lambda run: None)
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, _quick_trials: None) -> Study:
    """A study that was carried out without a break."""
    folder = tmp_path_factory.mktemp("unbroken")
    return folder / "out", carry_out(folder / "out", tiny_study(folder, keep_weights="all"))


def outcome(study: Study) -> dict[str, Any]:
    """What a study came to; the place of its recipe is another in each test."""
    return {
        name: (replace(trial, recipe=""), *rest)
        for name, (trial, *rest) in outcome_of(*study).items()
    }


def test_every_trial_is_trained_scored_and_recorded(unbroken: Study) -> None:
    folder, states = unbroken
    assert [state.trial.name for state in states] == TRIALS
    assert read_trials(folder) == states
    for state in states:
        assert (state.status, state.steps) == ("finished", 12)
        assert state.scores.keys() == {"dev", "test"}
        assert state.dev == state.scores["dev"]["bits_per_byte"]
        assert (state.parameters or 0) > 1000
        assert (state.peak_memory or 0) > 2**20
    runs = {run.name: run for run in open_scored_runs([folder / "records"])}
    assert list(runs) == TRIALS
    assert {*runs["rms-seed0"].evaluations} == {"dev", "test"}
    assert runs["rms-seed0"].looks == {"dev": 1, "test": 1}
    record = checksums.read_json(folder / "records/rms-seed0.record.json", todo="")
    assert record["history"][-1]["step"] == 12
    assert record["environment"]["data"] == runs["rms-seed0"].data
    assert record["parameters"] == states[1].parameters
    assert record["environment"]["commit"] == "the commit that trained"


# ---------------------------------------------------------------------------------- broken studies


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    except OSError:
        return []
    return [int(one) for one in text.split()]


def is_over(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def kill_at_random(folder: Path, draw: random.Random, seconds: float) -> None:
    """Kill the runner or one of its trials with signal 9 at a random moment, if it is not over."""
    runner = fork(lambda: len(carry_out(folder)) and 0)
    moment, victim = time.monotonic() + draw.uniform(0, seconds), draw.choice(["runner", "trial"])
    while time.monotonic() < moment:
        if is_over(runner):
            return
        time.sleep(0.01)
    if victim == "trial":
        for child in children_of(runner)[:1]:
            os.kill(child, signal.SIGKILL)
    time.sleep(draw.uniform(0, 0.3))
    if not is_over(runner):
        os.kill(runner, signal.SIGKILL)
        os.waitpid(runner, 0)


def check_killed(tmp_path: Path, unbroken: Study, *, kills: int, seed: int) -> None:
    draw, folder = random.Random(seed), tmp_path / "out"
    create_study_folder(folder, tiny_study(tmp_path, keep_weights="all"))
    longest = max(60 * (state.minutes or 0) for state in unbroken[1])
    for _ in range(kills):
        kill_at_random(folder, draw, longest)
    states = carry_out(folder)
    assert outcome((folder, states)) == outcome(unbroken)
    assert choose_kept(read_study_folder(folder), states) == choose_kept(
        read_study_folder(unbroken[0]), unbroken[1]
    )
    looks = {run.name: run.looks for run in open_scored_runs([folder / "records"])}
    assert looks == {name: {"dev": 1, "test": 1} for name in TRIALS}


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds trials there")


@needs_proc
def test_a_study_killed_at_random_ends_as_an_unbroken_one(tmp_path: Path, unbroken: Study) -> None:
    check_killed(tmp_path, unbroken, kills=2, seed=1)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_study_killed_often_ends_as_an_unbroken_one(
    seed: int, tmp_path: Path, unbroken: Study
) -> None:
    check_killed(tmp_path, unbroken, kills=6, seed=seed)


def test_a_stopped_study_saves_checkpoints_and_goes_on(tmp_path: Path, unbroken: Study) -> None:
    folder = tmp_path / "out"
    create_study_folder(folder, tiny_study(tmp_path, keep_weights="all"))

    def run() -> int:
        try:
            carry_out(folder)
        except StoppedError as stopped:
            (tmp_path / "message").write_text(str(stopped), encoding="utf-8")
            return stopped.code
        return 0

    runner = fork(run)
    while not [*folder.glob("runs/*/checkpoints/step-*")]:
        time.sleep(0.01)
    assert is_running(folder)
    assert stop_study(folder)
    _, status = os.waitpid(runner, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    message = (tmp_path / "message").read_text(encoding="utf-8")
    assert "nothing is lost: the same command goes on" in message
    assert not stop_study(folder)
    assert "running" not in {state.status for state in read_trials(folder)}
    assert outcome((folder, carry_out(folder))) == outcome(unbroken)


def test_a_second_runner_is_refused(tmp_path: Path) -> None:
    with study_lock(tmp_path):
        assert is_running(tmp_path)
        with (
            pytest.raises(RunError, match="another process is running this study"),
            study_lock(tmp_path),
        ):
            pass
    assert not is_running(tmp_path)


# --------------------------------------------------------------------------------- lost files


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param((), id="state"),
        pytest.param((RECORD,), marks=pytest.mark.slow, id="record"),
        pytest.param((RECORD, *WEIGHTS), marks=pytest.mark.slow, id="weights"),
        pytest.param((RECORD, "runs/layer-seed0"), id="run"),
    ],
)
def test_a_lost_state_is_made_again_under_the_same_name_and_number(
    lost: tuple[str, ...], tmp_path: Path, unbroken: Study
) -> None:
    """It is taken up from the record, else from the run, else the trial is trained again."""
    folder = tmp_path / "out"
    shutil.copytree(unbroken[0], folder)
    for name in ("trials/layer-seed0.json", *lost):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    executor = ForkExecutor()
    states = carry_out(folder, options=on_cpu(jobs=1), executor=executor)
    assert outcome((folder, states)) == outcome(unbroken)
    if lost:
        assert [name for name, _ in executor.launched] == ["layer-seed0"]
    else:
        assert not executor.launched
        assert states == unbroken[1]
    runs = {run.name: run for run in open_scored_runs([folder / "records"])}
    assert runs["layer-seed0"].looks == {"dev": 1, "test": 1}


@pytest.mark.parametrize("loss", ["missing", "cut off"])
def test_a_lost_record_is_an_error_before_anything_is_trained(
    loss: str, tmp_path: Path, unbroken: Study
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(unbroken[0], folder)
    path = folder / RECORD
    path.unlink() if loss == "missing" else path.write_bytes(path.read_bytes()[:-100])
    executor = ForkExecutor()
    with pytest.raises(RunError, match=RECORD) as error:
        carry_out(folder, executor=executor)
    advice = "delete " if loss == "missing" else "delete it and "
    state = folder / "trials/layer-seed0.json"
    assert f"Restore it from a copy; or {advice}{state}, and `heed study`" in str(error.value)
    assert not executor.launched


def test_a_record_of_another_trial_is_not_taken(tmp_path: Path, unbroken: Study) -> None:
    trial = unbroken[1][0].trial
    shutil.copytree(unbroken[0] / "records", tmp_path / "records")
    assert restore_state(tmp_path, trial) == unbroken[1][0]
    assert restore_state(tmp_path, replace(trial, number=7)) == unbroken[1][0]
    assert restore_state(tmp_path, replace(trial, seed=1)) is None
    record_path(tmp_path, trial.name).write_bytes(b"{}")
    assert restore_state(tmp_path, trial) is None


def test_weights_that_a_study_did_not_keep_are_told_and_not_missed(
    tmp_path: Path, unbroken: Study
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(unbroken[0], folder)
    config = read_study_folder(folder).model_copy(update={"keep_weights": "none"})
    delete_weights(folder, config, read_trials(folder))
    runs = list_runs(folder)
    assert [(run["finished"], run["weights_deleted"]) for run in runs] == [(True, True)] * 2
    console = Console(width=80, file=io.StringIO())
    console.print(build_runs_table(runs, width=80))
    assert isinstance(console.file, io.StringIO)
    table = console.file.getvalue()
    assert "to resume" not in table
    assert "no weights: finished, and its study did not keep them (keep_weights)." in table
    run = folder / "runs/rms-seed0"
    assert repr(Run(run)).endswith("finished, weights not kept)")
    for weights in ("best", "last", "8"):
        with pytest.raises(RunError, match=r"its study did not keep its weights\. Train it again"):
            heed.load(run, device="cpu", weights=weights)


# -------------------------------------------------------------------------------------- failures


def test_a_failed_trial_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    flags = StudyFlags(["train.lr=0.01,1e25"], "1", ["train.max_skipped_steps=1"])
    config = declare_study(tiny_study_recipe(tmp_path), flags)
    good, bad = carry_out(tmp_path / "out", config)
    assert (good.status, bad.status) == ("finished", "failed")
    assert (bad.reason or "").startswith("runs/lr1e+25-seed0: the loss was not finite")
    assert bad.has_ended
    assert carry_out(tmp_path / "out")[1] == bad  # it is not tried again
    assert not (tmp_path / "out/records/lr1e+25-seed0.record.json").exists()


def tiny_study_recipe(folder: Path) -> Path:
    tiny_study(folder)
    return folder / "tiny.toml"


class KillingExecutor(ForkExecutor):
    """Kills every process of one trial."""

    def submit(self, command: list[str], name: str) -> ForkHandle:
        handle = super().submit(command, name)
        if name == "layer-seed0":
            os.kill(handle.pid, signal.SIGKILL)
        return handle


@pytest.mark.slow
def test_a_trial_that_is_always_killed_fails(tmp_path: Path) -> None:
    executor = KillingExecutor()
    killed, finished = carry_out(tmp_path / "out", tiny_study(tmp_path), executor=executor)
    assert [name for name, _ in executor.launched].count("layer-seed0") == 3
    assert "killed by signal 9, 3 times" in (killed.reason or "")
    assert finished.status == "finished"


@pytest.mark.parametrize("is_state_lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_full_disk_fails_the_trial_and_the_same_command_goes_on(
    is_state_lost: bool, tmp_path: Path, unbroken: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, runner = tmp_path / "out", os.getpid()
    with monkeypatch.context() as patch:

        def full(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def fill(folder: Path, step: int, *rest: Any) -> Path:
            if "rms" in str(folder) and step == 8:
                if is_state_lost:
                    patch.setattr("heed.study.trial_process.write_state", full)
                raise checkpoint.disk_error(OSError(errno.ENOSPC, "No space left"), folder)
            return save(folder, step, *rest)

        save = checkpoint.save
        patch.setattr(checkpoint, "save", fill)
        with pytest.raises(HeedError, match=r"Trial rms-seed0 failed: .*the disk is full"):
            carry_out(folder, tiny_study(tmp_path, keep_weights="all"), on_cpu(jobs=1))
    assert os.getpid() == runner
    state = read_state(folder, "rms-seed0")
    assert (state.status, state.can_retry, state.has_ended) == ("failed", True, False)
    assert read_state(folder, "layer-seed0").status == "finished"
    assert outcome((folder, carry_out(folder))) == outcome(unbroken)


# ------------------------------------------------------------------- budget, additions, reuse


def test_added_seeds_are_marked_and_only_they_are_trained(tmp_path: Path, unbroken: Study) -> None:
    folder = tmp_path / "out"
    carry_out(folder, tiny_study(tmp_path), on_cpu(reuse=[unbroken[0]]))
    extended = extend_study(folder, declare_study(folder, StudyFlags(seeds="2")))
    assert extended.seeds == [0, 1]
    executor = ForkExecutor()
    states = carry_out(folder, executor=executor)
    assert [state.trial.added for state in states] == [False, False, True, True]
    assert {name for name, _ in executor.launched} == {"layer-seed1", "rms-seed1"}
    kept = [path.parent.name for path in folder.glob("runs/*/model.safetensors")]
    assert {*kept} == choose_kept(extended, states)
    assert len(kept) == 2
    assert not [*folder.glob("runs/*/checkpoints")]


def test_finished_runs_of_the_same_recipe_and_text_are_reused(
    tmp_path: Path, unbroken: Study
) -> None:
    study = tiny_study(tmp_path, keep_weights="all")
    states = carry_out(tmp_path / "out", study, on_cpu(reuse=[unbroken[0]]))
    assert [state.reused for state in states] == [
        str(unbroken[0] / "runs" / name) for name in TRIALS
    ]
    assert outcome((tmp_path / "out", states)) == outcome(unbroken)
    other = declare_study(tmp_path / "tiny.toml", StudyFlags([], "1", ["data.world_seed=9"]))
    [state] = carry_out(tmp_path / "other", other, on_cpu(reuse=[unbroken[0]]))
    assert state.reused is None


def test_nothing_new_begins_once_a_budget_is_spent(tmp_path: Path, unbroken: Study) -> None:
    config = tiny_study(tmp_path, seeds="3", budget=BudgetConfig(trials=1))
    states = carry_out(tmp_path / "out", config)
    assert [state.status for state in states] == ["finished", *["waiting"] * 5]
    spent = find_spent_budget(config, states)
    assert spent == "the budget of 1 trials is spent"
    tokens = sum(state.tokens or 0 for state in unbroken[1])
    for budget, is_spent in (
        (BudgetConfig(tokens=float(tokens)), True),
        (BudgetConfig(tokens=float(tokens + 1)), False),
        (BudgetConfig(minutes=1e-6), True),
        (BudgetConfig(minutes=1e6), False),
    ):
        changed = config.model_copy(update={"budget": budget})
        assert (find_spent_budget(changed, unbroken[1]) is not None) == is_spent


def test_the_best_seed_on_dev_is_kept(tmp_path: Path) -> None:
    config = tiny_study(tmp_path)
    states = [
        TrialState(Trial(f"a-{i}", i, "a", {}, "", i), status="finished", dev=dev)
        for i, dev in enumerate([2.0, 1.5, 1.5, 3.0])
    ]
    assert choose_kept(config, states) == {"a-1"}  # bits per byte: less is better
    assert choose_kept(config.model_copy(update={"metric": "accuracy"}), states) == {"a-3"}
    assert choose_kept(config.model_copy(update={"keep_weights": "none"}), states) == set()


def test_minutes_stop_a_command_and_not_the_study(tmp_path: Path) -> None:
    states = carry_out(tmp_path / "out", tiny_study(tmp_path), on_cpu(minutes=0.0))
    assert {state.status for state in states} == {"waiting"}


def test_a_command_killed_before_the_study_was_declared_is_no_hindrance(tmp_path: Path) -> None:
    """What it leaves is taken over, and its copy of a recipe is made anew."""
    config = tiny_study(tmp_path)
    with study_lock(tmp_path / "out"):
        create_study_folder(tmp_path / "out", config)
    (copy,) = (tmp_path / "out" / "recipes").glob("*.toml")
    (tmp_path / "out" / "study.toml").rename(tmp_path / "out" / ".draft-study.toml-0")
    copy.write_text("seed = 7\n", encoding="utf-8")
    folder, config = locate_study(
        tmp_path / "tiny.toml", StudyFlags(["model.norm=layer,rms"], "1"), tmp_path / "out"
    )
    with study_lock(folder):
        create_study_folder(folder, config)
    assert copy.read_text(encoding="utf-8") == (tmp_path / "tiny.toml").read_text(encoding="utf-8")
    assert {path.name for path in folder.iterdir()} == {
        *("study.toml", "study.lock", "runner.json", "recipes")
    }
