"""The rooms of runs over HTTP: the list, curves, verdicts, notes, a run, a study, live events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab_runs import HOSTILE, append_rows, write_run, write_seeds
from labs import lab_client
from study_folders import write_study
from typer.testing import CliRunner

from heed.cli.main import app
from heed.lab import run_watch
from heed.lab.lab_context import LabContext
from heed.lab.rooms import events
from heed.lab.run_folder import RunFolder
from heed.runs.metric_plot import PlotOptions, RunHistory, build_curve
from heed.runs.run import Run
from heed.study.study_results import StudyResults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes with three seeds, a study, and a run with a hostile name: only read."""
    folder = tmp_path_factory.mktemp("rooms")
    write_seeds(folder)
    write_study(folder / "study", {"base": 0.6, "wide": 0.8}, seeds=3, baseline="base")
    write_run(folder / HOSTILE, position="alibi")
    return folder


def test_the_list_groups_seeds_of_one_recipe(folder: Path) -> None:
    with lab_client(folder) as client:
        listed = client.get("/api/runs").json()
    assert [study["name"] for study in listed["studies"]] == ["study"]
    groups = {group["name"]: group for group in listed["groups"]}
    assert groups.keys() == {"position=rope", "position=none", "position=alibi"}
    rope = groups["position=rope"]
    assert rope["runs"] == ["rope-0", "rope-1", "rope-2"]
    assert rope["seeds"] == [0, 1, 2]
    assert rope["differing"] == {"model.position": "rope"}
    best = [run["best"]["value"] for run in listed["runs"] if run["name"] in rope["runs"]]
    assert rope["best"]["low"] == min(best)
    assert rope["best"]["high"] == max(best)
    assert rope["best"]["mean"] == pytest.approx(sum(best) / 3)
    assert listed["waiting"] == 0
    assert listed["metrics"]["dev/loss"] == 7


@pytest.mark.parametrize(("x", "smooth"), [("step", 1), ("epoch", 3), ("seconds", 1)])
def test_curves_are_those_of_heed_plot(folder: Path, x: str, smooth: int) -> None:
    query: dict[str, Any] = {"metric": "train/loss", "x": x, "smooth": smooth}
    with lab_client(folder) as client:
        curves = client.get("/api/curves", params=query).json()["curves"]
    [curve] = [one for one in curves if one["name"] == "position=rope"]
    runs = [RunHistory(str(i), Run(folder / f"rope-{i}").history) for i in range(3)]
    plain = build_curve(None, runs, "train/loss", PlotOptions(x=x, smooth=smooth))  # type: ignore[arg-type]
    assert plain is not None
    assert list(zip(curve["x"], curve["y"], strict=True)) == plain.points
    assert list(zip(curve["low"], curve["high"], strict=True)) == plain.band
    with lab_client(folder) as client:
        query |= {"by": "run", "run": ["none-0", "none-1"]}
        curves = client.get("/api/curves", params=query).json()["curves"]
    assert [(one["name"], "low" in one) for one in curves] == [("none-0", False), ("none-1", False)]


@pytest.mark.parametrize("names", [["rope-0", "rope-1", "rope-2", "none-0", "none-1"], ["study"]])
def test_the_verdict_is_what_the_command_prints(
    folder: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab_client(folder) as client:
        verdict = client.post("/api/compare", json={"runs": names}).json()
    monkeypatch.chdir(folder)
    printed = CliRunner().invoke(app, ["compare", *names]).output
    flat = " ".join(printed.split())
    assert verdict["sentences"]
    for sentence in verdict["sentences"]:
        assert sentence in flat
    for row in verdict["tables"][0]["rows"]:
        assert " ".join(row) in flat
    machine = json.loads(CliRunner().invoke(app, ["compare", *names, "--json"]).output)
    assert verdict["sentences"] == machine["verdicts"]


@pytest.mark.parametrize(
    ("method", "address", "body", "status", "message"),
    [
        ("GET", "/api/run/nothing", None, 404, "there is no such run or study"),
        ("GET", "/api/run/..%2f..%2fetc", None, 404, "there is no such run or study"),
        ("GET", "/api/study/rope-0", None, 404, "there is no such run or study"),
        ("GET", "/api/curves?metric=dev/los", None, 400, "Did you mean 'dev/loss'?"),
        ("GET", "/api/curves?points=1", None, 422, "points"),
        ("GET", "/api/curves?run=../x", None, 404, "there is no such run or study"),
        ("POST", "/api/compare", {"runs": ["rope-0"]}, 400, "needs two runs or more"),
        ("POST", "/api/compare", {"runs": ["rope-0", "/etc"]}, 404, "no such run or study"),
        ("POST", "/api/compare", {"runs": ["rope-0"], "x": 1}, 422, "x"),
        ("PUT", "/api/run/rope-0/notes", {"text": "x" * 20_001}, 413, "text"),
    ],
)
def test_bad_requests_are_sentences(
    folder: Path, method: str, address: str, body: Any, status: int, message: str
) -> None:
    with lab_client(folder) as client:
        answer = client.request(method, address, json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_page_has_the_report_of_its_run(folder: Path) -> None:
    with lab_client(folder) as client:
        page = client.get(f"/api/run/{HOSTILE}").json()
    assert page["run"]["status"] == "stopped"
    report = {section["id"]: section["html"] for section in page["report"]["sections"]}
    assert report.keys() == {"summary", "recipe", "training", "scores", "timing", "reproduce"}
    assert "position encoding alibi" in report["summary"]
    assert not any("<img" in html for html in report.values())


def test_a_study_has_its_declared_verdict_and_its_trials(folder: Path) -> None:
    with lab_client(folder) as client:
        page = client.get("/api/study/study").json()
        curves = client.get("/api/study/study/curves?by=recipe&metric=dev/loss").json()["curves"]
        report = client.get("/api/study/study/report").json()
    results = StudyResults.read(folder / "study")
    assert results.comparison is not None
    assert page["verdict"]["sentences"] == results.comparison.sentences
    assert [trial["dev"] for trial in page["trials"]] == [one.dev for one in results.trials]
    lines = page["coordinates"]["lines"]
    assert [line["values"][page["coordinates"]["score"]] for line in lines] == [
        one.dev for one in results.trials
    ]
    plain = {curve.group.name: curve.points for curve in results.curves("dev/loss")}
    drawn = {one["name"]: list(zip(one["x"], one["y"], strict=True)) for one in curves}
    assert drawn == plain
    assert report["sections"][0]["id"] == "answer"


# ---------------------------------------------------------------------------------------- notes


def test_notes_are_a_text_file_in_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    path = run.folder / "notes.txt"
    with lab_client(tmp_path) as client:
        assert client.get("/api/run/a/notes").json() == {"text": "", "version": None}
        text = f"warm-up was too short – {HOSTILE}\n"
        saved = client.put("/api/run/a/notes", json={"text": text, "version": None}).json()
        assert path.read_text(encoding="utf-8") == text == saved["text"]
        assert client.get("/api/run/a").json()["notes"] == saved
        assert client.get("/api/runs").json()["runs"][0]["has_notes"]
        path.write_text("from an editor", encoding="utf-8")
        answer = client.put("/api/run/a/notes", json={"text": "mine", "version": saved["version"]})
        assert answer.status_code == 409
        assert "changed elsewhere" in answer.json()["error"]["message"]
        assert path.read_text(encoding="utf-8") == "from an editor"
        version = client.get("/api/run/a/notes").json()["version"]
        client.put("/api/run/a/notes", json={"text": "", "version": version})
        assert not path.exists()
    with lab_client(tmp_path, is_read_only=True) as client:
        answer = client.put("/api/run/a/notes", json={"text": "x"})
        assert answer.status_code == 403
        assert not path.exists()


def test_notes_follow_no_link_out_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    (run.folder / "notes.txt").symlink_to(secret)
    with lab_client(tmp_path / "runs") as client:
        assert "secret" not in client.get("/api/run/a/notes").text.replace("secret.txt", "")
        assert "secret" not in client.get("/api/run/a").json()["notes"]["text"]
        client.put("/api/run/a/notes", json={"text": "x"})
    assert secret.read_text(encoding="utf-8") == "secret"


# --------------------------------------------------------------------------------------- events


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread: this one may have the event loop of a browser."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asyncio.wait_for(coroutine, 30)).result()


async def take(stream: AsyncIterator[str], count: int) -> list[tuple[str, str, Any]]:
    """The next events of a stream: cursor, kind and data."""
    taken: list[tuple[str, str, Any]] = []
    async for text in stream:
        lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        if "event" in lines:
            taken.append((lines["id"], lines["event"], json.loads(lines["data"])))
        if len(taken) == count:
            return taken
    return taken


def test_events_go_on_from_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "SEARCH_SECONDS"):
        monkeypatch.setattr(run_watch, name, 0)
    monkeypatch.setattr(events, "POLL_SECONDS", 0.01)
    run = write_run(tmp_path / "a", steps=2)
    lab = LabContext(RunFolder(tmp_path))
    lab.watch.refresh()
    cursor = lab.watch.log.cursor()
    steps: list[int] = []

    async def visit(cursor: str, wanted: int) -> str:
        """Follow the events until so many rows have come, then lose the connection."""
        stream = events.follow(lab, cursor)
        while len(steps) < wanted:
            for here, kind, data in await take(stream, 1):
                cursor = here
                if kind == "rows":
                    assert data["first"] == 4 + len(steps)
                    steps.extend(row["step"] for row in data["rows"])
        await stream.aclose()  # type: ignore[attr-defined]
        return cursor

    async def lose_the_connection_often() -> str:
        at = cursor
        for step in range(3, 9):
            append_rows(run, [step])
            if step % 2:  # or the page is away while rows come
                at = await visit(at, 2 * (step - 2))
        return await visit(at, 12)

    run_async(lose_the_connection_often())
    assert steps == [step for step in range(3, 9) for _ in range(2)]  # nothing lost, nothing twice

    async def come_after_a_restart() -> list[tuple[str, str, Any]]:
        return await take(events.follow(LabContext(RunFolder(tmp_path)), cursor), 2)

    reset, first = run_async(come_after_a_restart())
    assert reset[1] == "reset"
    assert first[1:] == ("run", first[2])
    lab.closing.set()
    assert run_async(take(events.follow(lab, cursor), 1)) == []  # the server ends
