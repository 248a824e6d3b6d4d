"""Training from the browser: start, watch, stop and resume, and a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Scheme, wait_to_read
from killing import FOUND, outcome
from lab_runs import HOSTILE, append_rows, write_run
from labs import TINY, TINY_DATA, LabProcess, running_lab, serious_findings, visit_lab

from heed.config import Recipe
from heed.config.recipe import apply_overrides
from heed.files import lock_file
from heed.lab.lock_holder import find_holders
from heed.lab.run_folder import RunFolder
from heed.lab.training_queue import TrainingQueue
from heed.runs.run import LOCK, Run
from heed.train.progress import format_duration

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

KEY = "the key of this test"
STEPS = 250
RECIPE = [*TINY_DATA, *TINY, f"train.steps={STEPS}", "train.evaluate_every=20", "train.lr=0.002"]
WAIT = 300_000
"""Milliseconds that a training has, on a machine that does other things as well."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Every process computes with one thread: such small models wait for a second one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def unbroken(
    one_thread: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, list[dict[str, Any]]]:
    """The weights and metrics of the recipe, trained by one `heed train`."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    flags = [flag for change in RECIPE for flag in ("--set", change)]
    command = [sys.executable, "-m", "heed", "train", "--task", "translate", *flags]
    subprocess.run(
        [*command, "--run", str(folder)],
        env={**os.environ, "PYTHONPATH": FOUND},
        check=True,
        capture_output=True,
    )
    return outcome(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run that has the recipe, all but its learning rate."""
    changes = [change for change in RECIPE if not change.startswith("train.lr")]
    recipe = Recipe.of(apply_overrides({"task": "translate"}, changes))
    Run.create(tmp_path / "runs" / "base", recipe)
    return tmp_path / "runs"


def ask(lab: LabProcess, path: str, **body: Any) -> Any:
    """Send a request as a program does."""
    data = json.dumps(body).encode() if body else None
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{lab.address}{path}", data=data, headers=headers)  # noqa: S310 (loopback)
    with urllib.request.urlopen(request, timeout=WAIT / 1000) as answer:  # noqa: S310
        return json.load(answer)


def wait_for(condition: Callable[[], object], seconds: float = WAIT / 1000) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def frozen(folder: Path) -> Iterator[int]:
    """Freeze the process that trains a run after its first updates, so that it cannot end.

    Yields its id. What it is asked meanwhile it does afterwards.
    """
    run = Run(folder)
    wait_for(lambda: find_holders(folder / LOCK))
    (number,) = find_holders(folder / LOCK)
    wait_for(lambda: any("train/loss" in row for row in run.history))
    os.kill(number, signal.SIGSTOP)
    try:
        yield number
    finally:
        os.kill(number, signal.SIGCONT)


def is_asked_to_stop(number: int) -> bool:
    """Whether SIGTERM waits for a process that is frozen."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    (waiting,) = (int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
    return bool(waiting >> (signal.SIGTERM - 1) & 1)


def kill(lab: LabProcess) -> None:
    """End a lab as a power cut does."""
    lab.process.send_signal(signal.SIGKILL)
    lab.stop()


def test_a_run_is_started_stopped_and_resumed_in_the_browser(
    chromium: Browser, runs: Path, unbroken: tuple[bytes, list[dict[str, Any]]]
) -> None:
    with running_lab(runs) as lab, visit_lab(chromium, lab, "/train?run=base") as visit:
        page = visit.page
        page.get_by_text("accepts this recipe").wait_for()
        wait_to_read(page, page.get_by_label("Name of the run").input_value, "base-2")
        page.get_by_label("Name of the run").fill("mine")
        rate = page.get_by_label("train.lr", exact=True)
        rate.fill("-1")
        page.get_by_role("list").filter(has_text="lr cannot be -1").first.wait_for()
        wait_to_read(page, lambda: rate.get_attribute("aria-invalid"), "true")
        rate.fill("0.002")
        page.get_by_text("1 key changed. heed accepts this recipe.").wait_for()
        rate.press("Control+Enter")
        with frozen(runs / "mine") as number:  # it does not end before the page has asked it to
            job = page.get_by_test_id("job")
            job.get_by_role("link", name="mine").click(timeout=WAIT)
            page.get_by_role("heading", name="mine", level=1).wait_for()
            status = page.get_by_test_id("status")
            page.locator('[data-testid="status"]:text-is("training")').wait_for(timeout=WAIT)
            # The loss on the page is the one in the run's metrics.
            last = page.get_by_test_id("last").locator("data")
            last.wait_for(timeout=WAIT)
            value, text = page.evaluate(
                """() => {
                  const last = document.querySelector("[data-testid=last]");
                  return [last.querySelector("data").value, last.innerText];
                }"""
            )
            step = int(text.rpartition("step ")[2].replace(",", ""))
            metric = "dev/loss" if "dev/loss" in text else "train/loss"
            rows = {row["step"]: row[metric] for row in Run(runs / "mine").history if metric in row}
            assert float(value) == rows[step]
            stop = page.get_by_role("button", name="Stop")
            stop.focus()
            stop.press("Enter")
            wait_for(lambda: is_asked_to_stop(number))
        page.locator('[data-testid="status"]:text-is("stopped")').wait_for(timeout=WAIT)
        run = Run(runs / "mine")
        assert not run.finished
        assert list(run.checkpoints.glob("step-*"))
        resume = page.get_by_role("button", name="Resume")
        resume.wait_for(timeout=WAIT)
        page.wait_for_function("document.activeElement.innerText.trim() === 'Resume'")
        resume.press("Enter")
        page.locator('[data-testid="status"]:text-is("finished")').wait_for(timeout=WAIT)
        assert status.inner_text() == "finished"
    assert outcome(runs / "mine") == unbroken


@pytest.mark.parametrize("width", [1280, 400])
def test_the_queue_shows_the_step_of_all_steps_and_the_time_left(
    chromium: Browser, tmp_path: Path, width: int
) -> None:
    """The numbers are those of the run's metrics, and they change while the page is open."""
    run = write_run(tmp_path / "runs" / "mine", steps=5)
    queue = TrainingQueue(RunFolder(tmp_path / "runs"))
    job = queue.add_resume("mine")
    queue.add_training("later", run.recipe())

    def expected() -> str:
        last, total = run.metrics()[-1], run.recipe().train.steps or 0
        tokens_a_step = last["tokens"] / last["step"]
        left = (total - last["step"]) * tokens_a_step / last["time"]["tokens_per_second"]
        return f"Step {last['step']} of {total}, about {format_duration(left)} of training left."

    def buttons() -> list[Any]:
        found = page.get_by_test_id("job").get_by_role("button")
        return [one.bounding_box() for one in found.all()]

    with queue._changing() as jobs:
        jobs[0] = jobs[0].model_copy(update={"status": "training"})
    with (  # this process holds the locks in place of one that trains
        lock_file(queue.place / f"{job.id}.lock"),
        run.locked(),
        running_lab(tmp_path / "runs") as lab,
        visit_lab(chromium, lab, "/train", width=width) as visit,
    ):
        page = visit.page
        progress = page.get_by_test_id("progress")
        wait_to_read(page, progress.inner_text, expected())
        assert expected() == "Step 5 of 100, about 95 s of training left."
        page.get_by_text("accepts this recipe").wait_for()
        before = buttons()
        append_rows(run, [40])
        wait_to_read(page, progress.inner_text, expected())
        assert buttons() == before
        # A screen reader finds the text in the item of its run, and announces the status alone.
        assert progress.locator("xpath=ancestor::*[@role='status' or @aria-live]").count() == 0
        status = page.get_by_test_id("job").first.get_by_role("status")
        assert status.inner_text() == "trains"
        assert serious_findings(visit) == []


def test_a_server_that_is_killed_harms_nothing(
    runs: Path, unbroken: tuple[bytes, list[dict[str, Any]]]
) -> None:
    body: dict[str, Any] = {"run": "base", "changes": {"train.lr": "0.002"}}
    lab = LabProcess(runs, "--key", KEY)
    for name in ("one", "two", "three"):
        ask(lab, "/api/training/start", **body, name=name)
    with frozen(runs / "one"):  # else it might end, and the next one begin
        kill(lab)  # the first one trains, and goes on
    before = [job.run for job in TrainingQueue(RunFolder(runs)).read()]
    assert before == ["one", "two", "three"]
    wait_for(lambda: Run(runs / "one").finished)
    assert not (runs / "two").exists()  # no server, so no other was started
    lab = LabProcess(runs, "--key", KEY)
    with frozen(runs / "two"):
        ask(lab, "/api/training/stop", run="two")
    kill(lab)  # while the second saves its checkpoint
    lab = LabProcess(runs, "--key", KEY)
    try:

        def statuses() -> dict[str, str]:
            return {job["run"]: job["status"] for job in ask(lab, "/api/training")["jobs"]}

        wait_for(lambda: statuses()["two"] != "training")
        assert statuses()["one"] == "finished"
        if statuses()["two"] == "stopped":  # it may have been at its end
            ask(lab, "/api/training/resume", run="two")
        wait_for(lambda: [*statuses().values()].count("finished") >= 3)
    finally:
        lab.stop()
    for name in ("one", "two", "three"):
        assert outcome(runs / name) == unbroken


def test_a_training_of_a_terminal_is_stopped_by_its_lock(runs: Path) -> None:
    command = [sys.executable, "-m", "heed", "train", str(runs / "base" / "recipe.toml")]
    process = subprocess.Popen(
        [*command, "--run", str(runs / "mine"), "--set", "train.steps=100000"],
        env={**os.environ, "PYTHONPATH": FOUND},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with running_lab(runs, "--key", KEY) as lab:
        with frozen(runs / "mine"):  # it is there for both
            for _ in range(2):  # the second request sends no second signal
                ask(lab, "/api/training/stop", run="mine")
        _, error = process.communicate(timeout=WAIT / 1000)
    assert process.returncode == 128 + signal.SIGTERM
    assert error.decode().startswith("Stopped at step")


def test_a_start_that_fails_says_why_and_its_recipe_can_be_changed(
    chromium: Browser, runs: Path
) -> None:
    table = runs.parent / "one-class.tsv"
    table.write_text("label\ttext\n" + "good\tsome words\n" * 40, encoding="utf-8")
    with running_lab(runs) as lab, visit_lab(chromium, lab, "/train?empty=1") as visit:
        page = visit.page
        page.get_by_text("There is no training text").first.wait_for()
        page.get_by_role("button", name="Show data.train").click()
        page.wait_for_function("document.activeElement.id === 'key-data-train'")
        page.keyboard.type(str(table))
        page.get_by_label("task", exact=True).select_option("classify")
        page.get_by_label("Name of the run").fill("group/fails <b>")
        page.get_by_text("accepts this recipe").wait_for()
        page.get_by_role("button", name="Start").press("Enter")
        job = page.get_by_test_id("job")
        job.get_by_text("failed").wait_for(timeout=WAIT)
        said = job.locator(".message").inner_text()
        recipe = next((runs / ".heed-lab").glob("*.toml"))
        command = [sys.executable, "-m", "heed", "train", str(recipe), "--run", str(runs / "x")]
        environment = {**os.environ, "PYTHONPATH": FOUND}
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert f"heed: {said}" == answer.stderr.strip().splitlines()[-1]
        job.get_by_role("link", name="Change the recipe").click()
        page.get_by_label("data.train", exact=True).wait_for()
        page.wait_for_function(f"document.getElementById('key-data-train').value === '{table}'")
        page.get_by_role("button", name="Take group/fails").click()
        job.wait_for(state="detached")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_room_is_accessible_and_hostile_names_are_text(
    chromium: Browser, runs: Path, width: int, scheme: Scheme
) -> None:
    write_run(runs / HOSTILE)
    queue = TrainingQueue(RunFolder(runs))
    recipe = Recipe.of(apply_overrides({"task": "translate"}, RECIPE))
    for name in ("a", f"b {HOSTILE}", "c"):
        queue.add_training(name, recipe)
    with queue._changing() as jobs:
        jobs[0] = jobs[0].model_copy(update={"status": "failed", "message": HOSTILE})
    with running_lab(runs, "--read-only") as lab:
        with visit_lab(chromium, lab, "/train", width=width, scheme=scheme) as visit:
            visit.page.get_by_text("This lab is read-only").wait_for()
            visit.page.get_by_text("waits, place 2 of 2").wait_for()
            assert visit.page.get_by_role("button", name="Remove").count() == 0
            assert serious_findings(visit) == []
        with visit_lab(chromium, lab, f"/run/{HOSTILE}") as visit:
            visit.page.get_by_text("starts, stops and resumes nothing").wait_for()
            assert visit.page.get_by_role("button", name="Resume").count() == 0
    for job in queue.read()[1:]:
        queue.remove(job.id)
    with running_lab(runs) as lab:
        address = f"/train?run={HOSTILE}"
        with visit_lab(chromium, lab, address, width=width, scheme=scheme) as visit:
            page = visit.page
            page.get_by_text("accepts this recipe").wait_for()
            page.get_by_label("model.width", exact=True).fill("15")
            page.get_by_text("1 problem:").wait_for()
            page.get_by_label("Find a key").fill("dropout")
            page.get_by_label("model.attention_dropout", exact=True).wait_for()
            page.locator("bdi", has_text=HOSTILE).first.wait_for()
            assert page.locator("img").count() == 0
            assert serious_findings(visit) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            # The sections open by keyboard, and a field can be reset.
            page.get_by_label("Find a key").fill("")
            page.locator("summary").first.press("Enter")
            page.get_by_label("data.dev_share", exact=True).wait_for()
            page.get_by_role("button", name="Reset model.width").press("Enter")
            page.get_by_text("accepts this recipe").wait_for()
