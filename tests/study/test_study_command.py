"""`heed study`: bad input in one sentence, the table in 80 columns, status, estimate and CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from evaluating import invoke_command
from hypothesis import given
from hypothesis import strategies as st
from killing import FOUND
from rich.console import Console
from study_folders import write_study
from studying import outcome_of, tiny_study, write_recipe

from heed.config import Recipe
from heed.errors import RunError
from heed.report.build_report import build_report
from heed.report.markdown import render_markdown
from heed.report.study_report import build_study_report
from heed.runs.index import build_runs_table, list_runs
from heed.runs.run import Run
from heed.study.compare_named import compare_named
from heed.study.plan import plan_trials
from heed.study.run_study import describe_lone_system, write_csv
from heed.study.status_table import StatusView, describe_end, read_progress, render_status
from heed.study.study_estimate import StudyEstimate, render_estimate
from heed.study.study_file import read_study
from heed.study.study_folder import create_study_folder
from heed.study.study_lock import study_lock
from heed.study.study_results import StudyResults
from heed.study.trials import Status, Trial, TrialState, read_trials, write_state


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path).name


def ended_study(folder: Path, systems: int = 2, seeds: int = 1) -> list[TrialState]:
    """A study whose trials have ended, as its folder has them; nothing was trained."""
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    states = [
        TrialState(
            Trial(f"s{i}-seed{seed}", seed * systems + i, f"s{i}", {"train.lr": i}, "tiny", seed),
            status="finished",
            started=1.0,
            minutes=0.5,
            dev=1 + i / 7 + seed / 100,
            scores={"dev": {"bits_per_byte": 1 + i / 7}},
            parameters=1000,
        )
        for seed in range(seeds)
        for i in range(systems)
    ]
    for state in states:
        write_state(folder, state)
    return states


VARY = ("--vary", "model.norm=layer,rms")
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "a key that no recipe has": (("--vary", "model.norn=layer,rms"), "Did you mean 'model.norm'?"),
    "a key without section": (("--vary", "norm=layer,rms"), "Did you mean 'model.norm'?"),
    "an empty grid": (("--vary", "model.norm="), "has no values"),
    "an empty value": (("--vary", "model.norm=layer,,rms"), "has an empty value: 'layer,,rms'"),
    "an empty last value": (("--vary", "model.norm=layer,rms,"), "has an empty value"),
    "an empty seed": ((*VARY, "--seeds", "1,,2"), "seeds"),
    "no values": (("--vary", "model.norm"), "write section.key=value"),
    "a value that the key has not": (("--vary", "model.norm=layer,rns"), "norm cannot be 'rns'"),
    "a fixed key that varies": ((*VARY, "--set", "model.norm=rms"), "not both"),
    "seeds": ((*VARY, "--seeds", "none"), "seeds"),
    "data for generated text": ((*VARY, "--data", "."), "--data is for the files"),
    "a conflict of keys": ((*VARY, "--set", "train.mask_share=0.5"), "is for objective 'masked'"),
    "quick": ((*VARY, "--quick"), "--quick is for study files"),
    "no job at a time": ((*VARY, "--jobs", "0"), "--jobs cannot be 0: it is at least 1"),
    "jobs below 0": ((*VARY, "--dry-run", "--jobs", "-2"), "--jobs cannot be -2"),
    "no minutes": ((*VARY, "--minutes", "0"), "--minutes cannot be 0: it is more than 0"),
    "minutes below 0": ((*VARY, "--minutes", "-1"), "--minutes cannot be -1"),
    "minutes that are no number": ((*VARY, "--minutes", "nan"), "--minutes cannot be nan"),
    "nothing to reuse": ((*VARY, "--reuse", "nosuch"), "--reuse nosuch: there is no such folder"),
    "one value": (("--vary", "model.norm=rms"), "there is one system and nothing to compare"),
    "nothing varies": ((), "is a recipe. A study of it says what varies"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(case: str, recipe: str) -> None:
    arguments, message = BAD[case]
    code, output = invoke_command("study", recipe, *arguments)
    assert (code, message in output) == (2, True), output
    assert not Path("runs/tiny-study/study.toml").exists()


def test_a_study_of_one_system_says_that_nothing_is_compared(recipe: str, tmp_path: Path) -> None:
    words = "tiny is the only system: the study measures how its seeds differ"
    code, output = invoke_command("study", recipe, "--seeds", "2", "--dry-run")
    assert (code, words in output) == (0, True), output
    assert describe_lone_system(tiny_study(tmp_path)) is None


def test_a_metric_that_the_task_does_not_produce_is_refused(recipe: str) -> None:
    Path("a.toml").write_text(f'recipe = "{recipe}"\nmetric = "bleu"\n', encoding="utf-8")
    code, output = invoke_command("study", "a.toml")
    assert code == 2
    assert "metric cannot be 'bleu': task 'generate' is scored by bits_per_byte" in output


def test_a_folder_with_another_study_or_with_anything_else_is_refused(
    recipe: str, tmp_path: Path
) -> None:
    create_study_folder(Path("runs/tiny-study"), tiny_study(tmp_path))
    code, output = invoke_command("study", recipe, *VARY, "--set", "train.steps=3", "--seeds", "1")
    assert code == 2
    assert "another study has begun in this folder: its recipe is" in output
    Path("full").mkdir()
    Path("full/file").touch()
    code, output = invoke_command("study", recipe, *VARY, "--out", "full")
    assert (code, "this folder is not empty" in output) == (2, True)
    lost = tmp_path / "lost"  # the study of a folder is gone, its trials are not
    (lost / "trials").mkdir(parents=True)
    (lost / "study.lock").touch()
    code, output = invoke_command("study", recipe, *VARY, "--out", str(lost))
    assert (code, "its study.toml is missing" in output) == (2, True)


def test_the_folder_of_a_study_whose_file_is_missing_is_no_folder_of_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "lost", {"a": 0.4, "b": 0.6})
    (folder / "study.toml").unlink()
    message = r"lost: this study has trials, but its study\.toml is missing\. Restore it"
    for name in (folder, folder / "records"):
        with pytest.raises(RunError, match=message):
            compare_named([name])
    for read in (read_study, StudyResults.read, lambda name: build_report([name])):
        with pytest.raises(RunError, match=message):
            read(folder)
    records = [str(path) for path in sorted((folder / "records").iterdir())]
    assert len(compare_named(records).groups) == 2  # as records, they need no study


def test_a_second_command_for_the_same_study_is_refused(recipe: str, tmp_path: Path) -> None:
    create_study_folder(tmp_path / "out", tiny_study(tmp_path))
    with study_lock(tmp_path / "out"):
        code, output = invoke_command("study", str(tmp_path / "out"))
    assert (code, "another process is running this study" in output) == (2, True)


def test_without_arguments_the_shipped_studies_are_listed() -> None:
    from typer.testing import CliRunner

    from heed.cli.main import app

    output = CliRunner().invoke(app, ["study"]).output
    assert "positions" in output


@pytest.mark.parametrize("flag", ["--stop", "--status", "--dry-run"])
def test_what_is_about_one_study_needs_its_name(flag: str) -> None:
    code, output = invoke_command("study", flag)
    assert (code, f"{flag} is about one study" in output) == (2, True)


def test_status_estimate_and_csv_of_a_study_that_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    create_study_folder(folder, tiny_study(tmp_path))
    states = ended_study(folder)
    code, output = invoke_command("study", str(folder), "--status", "--csv", str(tmp_path / "a"))
    assert (code, "2 trials: 2 finished" in output) == (0, True)
    rows = [*csv.DictReader(io.StringIO((tmp_path / "a").read_text(encoding="utf-8")))]
    assert [float(row["dev/bits_per_byte"]) for row in rows] == [
        state.scores["dev"]["bits_per_byte"] for state in states
    ]
    _, output = invoke_command("study", str(folder), "--status", "--json")
    assert [row["trial"] for row in json.loads(output)["trials"]] == ["s0-seed0", "s1-seed0"]
    code, output = invoke_command("study", str(folder), "--dry-run", "--jobs", "1")
    assert code == 0
    assert "runs     2, 0 of them left" in output
    _, output = invoke_command("study", str(folder), "--stop")
    assert "no process runs this study" in output


def test_a_study_in_which_every_trial_failed_ends_with_an_error(recipe: str) -> None:
    folder = Path("runs/tiny-study")
    config = tiny_study(Path())
    create_study_folder(folder, config)
    (folder / "trials").mkdir()
    for trial in plan_trials(config):
        write_state(folder, TrialState(trial, "failed", "the loss was not finite."))
    code, output = invoke_command("study", str(folder))
    assert code == 2
    assert "every trial failed. The first: the loss was not finite." in output
    with pytest.raises(RunError, match="no final trial has finished, and a comparison needs two"):
        compare_named([folder])
    text = render_markdown(build_study_report(folder), Path("figures"))
    assert "a trial that failed is tried again once its file in trials/ is deleted" in text
    code, output = invoke_command("study", str(folder), "--dry-run", "--jobs", "1")
    assert (code, "minutes  none: every trial has ended" in output) == (0, True)


def test_an_estimate_of_a_study_that_has_begun_is_of_what_the_command_adds(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out"
    create_study_folder(folder, tiny_study(tmp_path, seeds="0,1,2"))
    ended_study(folder, seeds=3)
    before = (folder / "study.toml").read_bytes()
    for flags, runs in (
        (("--seeds", "4,5"), "runs     10, 4 of them left"),
        (("--seeds", "2"), "runs     6, 0 of them left"),
        (("--seeds", "0,1,2,7"), "runs     8, 2 of them left"),
    ):
        code, output = invoke_command("study", str(folder), *flags, "--dry-run", "--jobs", "1")
        assert (code, runs in output) == (0, True), output
    code, output = invoke_command("study", str(folder), "--set", "train.steps=3", "--dry-run")
    assert (code, "another study has begun in this folder" in output) == (2, True)
    assert (folder / "study.toml").read_bytes() == before
    assert not (folder / "additions.jsonl").exists()


def test_an_estimate_has_every_evaluation_and_leaves_nothing(recipe: str) -> None:
    code, output = invoke_command("study", recipe, *VARY, "--dry-run", "--jobs", "1")
    assert code == 0, output
    for system in ("layer: ", "rms: "):
        (line,) = [one for one in output.splitlines() if one.startswith(system)]
        assert all(part in line for part in ("ms a step", "s an evaluation", "s to score the run"))
    assert ", from some steps and evaluations" in output
    assert "6 runs of 0." in output
    assert not Path("runs").exists()


def test_the_minutes_of_an_estimate_add_up() -> None:
    estimate = StudyEstimate(6, 6, 0.45, 1.35, 10, "some steps and evaluations")
    line = render_estimate(estimate, 2).splitlines()[1]
    assert line == (
        "minutes  about 1.4 min: 6 runs of 0.45 min, 2 at a time, from some steps and evaluations"
    )
    pretrained = replace(estimate, minutes=3.35)
    assert ", after 2.0 min of pretraining," in render_estimate(pretrained, 2)


def test_the_folder_is_told_first_and_no_path_is_wrapped(recipe: str) -> None:
    out = f"runs/{'long-' * 20}study"
    code, output = invoke_command(
        "study", recipe, *VARY, "--seeds", "1", "--set", "train.steps=2", "--out", out
    )
    assert code == 0, output
    assert output.splitlines()[0].endswith(f"folder is {out}")
    assert output.splitlines()[-1].endswith(f"Next: heed report {out}")


def test_two_hundred_trials_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    states = ended_study(tmp_path, systems=50, seeds=4)
    failed = replace(states[60], status="failed", reason="the loss was not finite, " * 9)
    states[60] = replace(failed, trial=replace(failed.trial, system="a very long name " * 4))
    states[70] = replace(states[70], status="waiting", dev=None)
    config = tiny_study(tmp_path)
    began = time.process_time()
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with StatusView(console, tmp_path, config, jobs=2) as view:
        view.update(states, [states[70].trial.name])
        view.update(states, [states[70].trial.name], "one has ended")
    console = Console(width=80, file=io.StringIO())
    console.print(render_status(config, states, running=[states[70].trial.name]))
    assert time.process_time() - began < 2
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 40
    assert "200 trials: 198 finished, 1 running, 1 failed" in lines[0]
    assert any("more systems" in line for line in lines)


def test_what_to_do_next_is_told(tmp_path: Path) -> None:
    config, states = tiny_study(tmp_path), ended_study(tmp_path)
    assert describe_end(Path("out"), config, states) == "out: 2 finished. Next: heed report out"
    waiting = [states[0], replace(states[1], status="waiting")]
    assert "1 are left. The same command goes on" in describe_end(Path("out"), config, waiting)


def test_a_pruned_run_is_listed_as_such_and_not_resumed(tmp_path: Path) -> None:
    folder, config = tmp_path / "search", tiny_study(tmp_path)
    create_study_folder(folder, config)
    runs = {
        name: Run.create(folder / "runs" / name, Recipe.of({"task": "generate"}))
        for name in ("a-trial008", "a-trial009")
    }
    (folder / "trials").mkdir()
    statuses: tuple[Status, Status] = ("pruned", "stopped")
    for number, (name, status) in enumerate(zip(runs, statuses, strict=True)):
        trial = Trial(name, number, "a", {}, "tiny", 0, "search")
        write_state(folder, TrialState(trial, status, run=f"runs/{name}"))
    listed = list_runs(folder)
    assert [run["pruned"] for run in listed] == [True, False]
    console = Console(width=80, file=io.StringIO())
    console.print(build_runs_table(listed, width=80))
    assert isinstance(console.file, io.StringIO)
    table = console.file.getvalue()
    assert table.count("to resume") == 1
    assert "pruned: the search of its study ended it early (prune)." in table
    for changes in ((), ("--set", "train.steps=99")):
        code, output = invoke_command("resume", str(runs["a-trial008"].folder), *changes)
        assert code == 2
        assert "this run was pruned by the search of the study search" in output
    assert runs["a-trial009"].find_pruning_study() is None
    moved = tmp_path / "runs/a-trial008"  # no study counts a copy elsewhere
    shutil.copytree(runs["a-trial008"].folder, moved)
    assert Run(moved).find_pruning_study() is None


def test_an_empty_study_has_an_empty_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [])
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "trial\n"


@pytest.mark.slow
def test_the_command_goes_on_after_kill_9_of_its_processes(recipe: str, tmp_path: Path) -> None:
    """Real processes, the runner killed: the result is that of an unbroken command."""
    command = [sys.executable, "-m", "heed", "study", recipe, *VARY, "--seeds", "1"]
    command += ["--device", "cpu", "--jobs", "2", "--out"]
    environment = os.environ | {"PYTHONPATH": FOUND, "HEED_CACHE": str(tmp_path / "cache")}
    subprocess.run([*command, "whole"], env=environment, check=True, timeout=300)
    process = subprocess.Popen([*command, "broken"], env=environment)
    while not [*Path("broken/runs").glob("*/checkpoints/step-*")] and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    subprocess.run([*command, "broken"], env=environment, check=True, timeout=300)
    for name in ("layer-seed0", "rms-seed0"):
        weights = [Path(one) / "runs" / name / "model.safetensors" for one in ("whole", "broken")]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert read_study("whole") == read_study("broken")


PLUGIN = """
import heed
from heed.nn.positions import Position


@heed.register
class Nearness(Position):
    name = "nearness"

    def bias(self, q_bhnd, q_positions, k_positions):
        return -0.5 * (k_positions[:, None, :] - q_positions[:, :, None]).abs()[:, None]
"""


@pytest.mark.slow
def test_a_plugin_is_trained_with_the_same_bits_for_any_number_of_jobs(
    recipe: str, tmp_path: Path
) -> None:
    """Real processes of trials, each of which loads the plug-in."""
    Path("my_position.py").write_text(PLUGIN, encoding="utf-8")
    command = [sys.executable, "-m", "heed", "study", recipe, "--device", "cpu", "--seeds", "1"]
    command += ["--vary", "model.position=rope,nearness", "--plugin", "my_position.py"]
    environment = os.environ | {"PYTHONPATH": FOUND, "HEED_CACHE": str(tmp_path / "cache")}
    outcomes = []
    for jobs in ("1", "2"):
        arguments = [*command, "--jobs", jobs, "--out", f"jobs{jobs}"]
        subprocess.run(arguments, env=environment, check=True, timeout=300)
        outcomes.append(outcome_of(Path(f"jobs{jobs}"), read_trials(Path(f"jobs{jobs}"))))
    assert outcomes[0] == outcomes[1]
    assert [one[1] for one in outcomes[0].values()] == ["finished", "finished"]
    record = json.loads(Path("jobs2/records/nearness-seed0.record.json").read_bytes())
    assert [one["name"] for one in record["environment"]["plugins"]] == ["my_position.py"]


@pytest.mark.slow
def test_a_disk_that_is_really_full(recipe: str, tmp_path: Path) -> None:
    """A tmpfs of one mebibyte: the study says so, and its own files are whole."""
    mount = ["unshare", "-rm", "sh", "-c"]
    (tmp_path / "small").mkdir()
    prepare = "mount -t tmpfs -o size=700k tmpfs small && "
    try:
        subprocess.run([*mount, f"{prepare} true"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no tmpfs can be mounted here")
    study = f"{sys.executable} -m heed study {recipe} --vary model.norm=layer,rms --seeds 9"
    study += " --set train.keep_checkpoints=9 --device cpu --jobs 1 --out small/out"
    script = f"{prepare} {{ {study}; code=$?; cp -r small/out copy; exit $code; }}"
    environment = os.environ | {"PYTHONPATH": FOUND, "HEED_CACHE": str(tmp_path / "cache")}
    process = subprocess.run(
        [*mount, script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 2, process.stderr
    assert "the disk is full" in process.stderr
    assert "the same command goes on" in process.stderr
    assert "Traceback" not in process.stderr
    assert read_study("copy").seeds == [*range(9)]


def test_progress_is_the_last_line_of_the_metrics(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    line = {"step": 1200, "epoch": 3, "time": {"tokens_per_second": 4567.8}}
    text = json.dumps({"step": 1}) + "\n" + json.dumps(line) + "\n"
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert read_progress(tmp_path) == "step 1,200, epoch 3, 4,568 tokens/s"


@given(
    content=st.binary(max_size=60) | st.sampled_from([b"", b"\n", b"[]\n", b"{}", b'{"time": 1}'])
)
def test_progress_is_not_known_from_metrics_that_are_being_written(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The file of a run that has begun is empty at first."""
    run = tmp_path_factory.mktemp("run")
    (run / "metrics.jsonl").write_bytes(content)
    assert read_progress(run) is None
