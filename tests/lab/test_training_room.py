"""Training by requests: the form, its complaints, names, access, and what a lab refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lab_runs import write_run
from labs import ADDRESS, TINY, TINY_DATA, lab_client
from study_folders import write_study
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import SECTIONS, Recipe
from heed.config.recipe import apply_overrides, toml_value
from heed.lab.access import Access
from heed.lab.lab_app import build_lab
from heed.lab.lab_context import LabContext
from heed.lab.run_folder import RunFolder
from heed.lab.training_queue import TrainingQueue

CHANGES = dict(change.split("=", 1) for change in (*TINY_DATA, *TINY))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def client(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A lab whose queue starts no process: what is added waits."""
    monkeypatch.setattr(TrainingQueue, "advance", lambda self: None)
    with lab_client(runs) as client:
        yield client


def start(client: TestClient, name: str, **body: Any) -> Any:
    whole = {"shipped": "demo-translate", "changes": CHANGES, "name": name, **body}
    return client.post("/api/training/start", json=whole)


def check(client: TestClient, **body: Any) -> dict[str, Any]:
    whole = {"shipped": "demo-translate", "name": "new", **body}
    answer: dict[str, Any] = client.post("/api/training/check", json=whole).json()
    return answer


def test_the_form_has_every_key_with_its_default_and_description(client: TestClient) -> None:
    form = client.get("/api/training/form").json()
    fields = {field["key"]: field for section in form["sections"] for field in section["keys"]}
    sections = {name: kind.keys() for name, kind in SECTIONS.items()}
    keys = [f"{name}.{key}" for name, keys in sections.items() for key in keys]
    assert list(fields) == ["task", "seed", *keys]
    assert set(form["common"]) <= set(fields)
    for name, kind in SECTIONS.items():
        for python_name, field in kind.model_fields.items():
            shown = fields[f"{name}.{field.alias or python_name}"]
            assert shown["default"] == field.get_default(call_default_factory=True)
            assert shown["description"] == " ".join((field.description or "").split())
    # What the form shows as the default is a value that the key takes.
    defaults = [
        f"{key}={one['default_text']}" for key, one in fields.items() if one["default_text"]
    ]
    assert Recipe.of(apply_overrides({}, defaults)) is not None
    assert {one["kind"] for one in fields.values()} == {
        *("boolean", "integer", "number", "text", "choice", "choices", "lines", "toml")
    }
    assert fields["model.width"]["at_least"] == 1
    assert fields["train.mask_share"]["less_than"] == 1.0
    assert "rope" in [one["value"] for one in fields["model.position"]["choices"]]


def test_a_form_starts_from_shipped_recipes_and_runs(client: TestClient, runs: Path) -> None:
    for one in client.get("/api/training/form").json()["shipped"]:
        answer = client.get("/api/training/recipe", params={"shipped": one["name"]}).json()
        assert answer["name"] == one["name"].rpartition("/")[2]
        assert answer["values"]["task"]["value"] in ("translate", "classify", "generate")
    run = write_run(runs / "first")
    answer = client.get("/api/training/recipe", params={"run": "first"}).json()
    assert answer["name"] == "first-2"
    tables = run.recipe().tables()
    assert answer["values"]["train.lr"] == {"value": 0.001, "text": "0.001"}
    flat = [f"{key}={one['text']}" for key, one in answer["values"].items()]
    assert Recipe.of(apply_overrides({}, flat)).tables() == tables
    for query in ({"run": "../first"}, {"run": "none"}, {"shipped": "../../secret"}):
        assert client.get("/api/training/recipe", params=query).status_code == 404


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"train.lr": "-1", "model.widht": "3", "seed": "x"}, ["train.lr"]),
        ({"model.width": "30", "model.heads": "4"}, ["model.width", "model.heads"]),
        ({"train.lr": "fast", "train.optimizer": '"adamm"'}, ["train.lr", "train.optimizer"]),
        ({"train.mask_share": "0.3", "train.best_metric": '"dev/blue"'}, ["train.mask_share"]),
        ({"data.synthetic": "10", "data.train": '["a.en"]'}, ["data.synthetic", "data.train"]),
        ({"model.position": '"decay"'}, ["model.position"]),
        ({"train.class_weights": "{ a = -1 }"}, ["train.class_weights"]),
    ],
)
def test_complaints_are_those_of_the_command(
    client: TestClient, tmp_path: Path, changes: dict[str, str], keys: list[str]
) -> None:
    flags = [flag for key, text in changes.items() for flag in ("--set", f"{key}={text}")]
    command = ["train", "demo-translate", "--run", str(tmp_path / "no"), *flags]
    error = CliRunner().invoke(app, command).exception
    answer = check(client, changes=changes)["complaints"]
    assert "\n".join(one["text"] for one in answer) == getattr(error, "what", None)
    assert set(keys) <= {key for one in answer for key in one["keys"]}
    refused = client.post(
        "/api/training/start",
        json={"shipped": "demo-translate", "name": "new", "changes": changes},
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == getattr(error, "what", None)


def test_a_missing_file_is_said_beside_its_key(client: TestClient, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one line\n" * 30, encoding="utf-8")
    changes = {"task": '"generate"', "data.train": toml_value([str(text)])}
    body = {"shipped": None, "changes": changes}
    assert check(client, **body)["complaints"] == []
    missing = toml_value([str(tmp_path / "b.txt")])
    (complaint,) = check(client, shipped=None, changes=changes | {"data.dev": missing})[
        "complaints"
    ]
    assert complaint["keys"] == ["data.dev"]
    assert str(tmp_path / "b.txt") in complaint["text"]


def test_a_key_that_is_unset_has_its_default_again(client: TestClient) -> None:
    body = {"changes": {"train.batch_size": "8"}, "unset": ["train.batch_tokens"]}
    assert check(client, **body) == {"complaints": [], "name_problem": None}
    no_text = check(client, unset=["data.synthetic"])["complaints"]
    assert "data.synthetic" in no_text[0]["keys"]


NAMES = {
    "": 422,
    " a": 422,
    "../x": 422,
    "a/../x": 422,
    "/x": 422,
    "a//b": 422,
    ".hidden": 422,
    "a/.b": 422,
    "a\\b": 422,
    "a\nb": 422,
    "x" * 121: 422,
    "taken": 409,
    "taken/inside": 409,
    "study/inside": 409,
    "file": 409,
    "file/x": 409,
    "outside": 409,
    "outside/x": 409,
    "dangling": 409,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_or_are_taken_are_refused(
    client: TestClient, runs: Path, tmp_path: Path, name: str
) -> None:
    write_run(runs / "taken")
    write_study(runs / "study", {"base": 0.6}, seeds=1)
    (runs / "file").write_text("", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    (runs / "outside").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (runs / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert check(client, name=name)["name_problem"] is not None
    assert start(client, name).status_code == NAMES[name]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_name_is_queued_once(client: TestClient, runs: Path) -> None:
    assert start(client, "group/one").json()["jobs"][0]["place"] == 1
    assert start(client, "group/one").status_code == 409
    assert start(client, "two <b>").json()["jobs"][1]["place"] == 2
    assert not (runs / "group").exists()  # until it trains
    name = client.get("/api/training/recipe", params={"shipped": "demo-translate"}).json()["name"]
    assert name == "demo-translate"


def test_a_queued_recipe_is_the_one_that_the_command_would_train(
    client: TestClient, runs: Path
) -> None:
    job = start(client, "one").json()["added"]
    from heed.train.resolve import resolve_recipe

    overrides = [f"{key}={text}" for key, text in CHANGES.items()]
    wanted, _ = resolve_recipe("demo-translate", None, None, None, overrides, None)
    written = Recipe.read(runs / ".heed-lab" / f"{job}.toml")
    assert written.tables() == wanted.tables()


def test_places_change_and_jobs_are_removed(client: TestClient, runs: Path) -> None:
    ids = [start(client, name).json()["added"] for name in ("a", "b", "c")]
    moved = client.post(f"/api/training/job/{ids[2]}/place", json={"place": 1}).json()
    assert [job["run"] for job in moved["jobs"]] == ["c", "a", "b"]
    left = client.delete(f"/api/training/job/{ids[0]}").json()
    assert [(job["run"], job["place"]) for job in left["jobs"]] == [("c", 1), ("b", 2)]
    assert client.delete(f"/api/training/job/{ids[0]}").status_code == 404
    assert client.delete("/api/training/job/..%2Fqueue").status_code == 404
    assert not (runs / ".heed-lab" / f"{ids[0]}.toml").exists()


def test_resume_and_stop_refuse_what_they_cannot_do(client: TestClient, runs: Path) -> None:
    run = write_run(runs / "stopped")
    write_study(runs / "study", {"base": 0.6}, seeds=1)
    write_run(runs / "study" / "runs" / "trial")

    def ask(what: str, name: str) -> int:
        return client.post(f"/api/training/{what}", json={"run": name}).status_code

    assert ask("stop", "stopped") == 409
    assert ask("stop", "none") == 404
    assert ask("resume", "none") == 404
    assert ask("resume", "../runs/stopped") == 404
    assert ask("resume", "study/runs/trial") == 409
    with run.locked():
        assert ask("resume", "stopped") == 409
        refusal = client.post("/api/training/stop", json={"run": "stopped"})
        assert refusal.status_code == 409  # a process of this name is not `heed train`
        assert "where it was started" in refusal.json()["error"]["todo"]
    assert ask("resume", "stopped") == 200
    assert ask("resume", "stopped") == 409  # it waits already


ROUTES = (
    ("POST", "/api/training/check"),
    ("POST", "/api/training/start"),
    ("POST", "/api/training/stop"),
    ("POST", "/api/training/resume"),
    ("DELETE", "/api/training/job/0123456789ab"),
    ("POST", "/api/training/job/0123456789ab/place"),
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_read_only_lab_and_strangers_are_refused(method: str, path: str, runs: Path) -> None:
    body = {"shipped": "demo-translate", "name": "new", "run": "new", "place": 1}
    with lab_client(runs, is_read_only=True) as client:
        assert client.request(method, path, json=body).status_code == 403
        assert client.get("/api/training").json()["jobs"] == []
    with TestClient(build_lab(runs, access=Access()), base_url=ADDRESS) as client:
        assert (
            client.request(method, path, json=body, headers={"Origin": ADDRESS}).status_code == 401
        )
        foreign = {"Origin": "http://evil.example", "Authorization": "Bearer x"}
        assert client.request(method, path, json=body, headers=foreign).status_code == 403
    assert list(runs.iterdir()) == []


def test_a_request_names_no_plugin_and_no_other_device(client: TestClient, tmp_path: Path) -> None:
    """Nothing in a request becomes code or a flag of the command."""
    plugin = tmp_path / "evil.py"
    plugin.write_text("raise SystemExit('executed')\n", encoding="utf-8")
    assert start(client, "a", plugin=str(plugin)).status_code == 422
    assert start(client, "a", device="cpu --plugin x").status_code == 422
    changed = start(client, "a", changes=CHANGES | {"plugin": toml_value([str(plugin)])})
    assert changed.status_code == 400
    assert start(client, "a", changes={"x" * 101: "1"}).status_code == 413
    assert start(client, "a", changes={f"train.x{n}": "1" for n in range(301)}).status_code == 413


def test_a_lab_of_one_run_starts_no_other(runs: Path) -> None:
    write_run(runs / "only")
    with lab_client(runs / "only") as client:
        assert start(client, "new").status_code == 409


def test_the_queue_is_in_no_link(client: TestClient, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (runs / ".heed-lab").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert start(client, "one").status_code == 409
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_change_of_the_queue_is_an_event(client: TestClient) -> None:
    lab: LabContext = client.app.state.lab  # type: ignore[attr-defined]  # of FastAPI
    before = lab.watch.log.last
    start(client, "one")
    assert "queue" in [event.kind for event in lab.watch.log.since(before)]


def test_a_job_that_trains_has_its_progress(client: TestClient, runs: Path) -> None:
    queue = TrainingQueue(RunFolder(runs))
    for name in ("made", "waits"):
        queue.add_training(name, Recipe.of({"task": "translate"}))
    with queue._changing() as jobs:
        jobs[0] = jobs[0].model_copy(update={"status": "training"})

    def progress() -> list[Any]:
        return [job["progress"] for job in client.get("/api/training").json()["jobs"]]

    assert progress() == [None, None]  # its process has not made the run yet
    run = write_run(runs / "made")
    with run.locked():
        assert progress() == [{"steps": 5, "total_steps": 100, "seconds_left": 95.0}, None]
    run.recipe_path.write_text("no recipe", encoding="utf-8")
    run.metrics_path.unlink()
    assert [job["run"] for job in client.get("/api/training").json()["jobs"]] == ["made", "waits"]
