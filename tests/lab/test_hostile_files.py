"""Hostile files in the folder of a lab: pipes, and whatever content, are no error inside heed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lab_runs import write_run
from labs import lab_client
from study_folders import write_study
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import Recipe
from heed.errors import RunError
from heed.files import NO_FILE
from heed.runs.run import Run, refuse_unsafe_entries

SECONDS = 60.0
"""More than all requests of a test take together."""
UNAVAILABLE = 503


Asked = tuple[str, str, Any]
"""The method, the address and the body of a request."""


def requests_about(run: str) -> list[Asked]:
    """A request for everything that the lab reads of a run without its model."""
    page, query = f"/api/run/{quote(run)}", f"run={quote(run)}"
    addresses = ["/api/runs", page, f"{page}/report", f"{page}/notes", f"/api/curves?{query}"]
    addresses += ["/api/curves?x=seconds&log=both&by=run", f"/api/attention/weights?{query}"]
    addresses += [f"/api/playground?{query}", f"/api/playground/examples?{query}"]
    compare = ("POST", "/api/compare", {"runs": [run, "good"]})
    return [*(("GET", address, None) for address in addresses), compare]


def requests_about_study(study: str) -> list[Asked]:
    """A request for everything that the lab reads of a study."""
    page = f"/api/study/{quote(study)}"
    addresses = [page, f"{page}/report", f"{page}/curves", f"{page}/curves?by=run&x=epoch"]
    compare = ("POST", "/api/compare", {"runs": [study]})
    return [*(("GET", address, None) for address in addresses), compare]


def ask_everything(client: Any, requests: list[Asked]) -> dict[str, Any]:
    """Every answer by its address; none may be an error inside heed."""
    answers = {}
    for method, address, body in requests:
        answer = client.request(method, address, json=body)
        assert answer.status_code < 500 or answer.status_code == UNAVAILABLE, answer.text
        answers[f"{address} {body or ''}"] = answer
    return answers


@contextmanager
def pipe_at(path: Path) -> Iterator[None]:
    """A named pipe in place of a file; a reader that waits for it goes on at the end."""
    content = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        path.unlink()
        if content is not None:
            path.write_bytes(content)


def look_again(client: Any) -> None:
    """Let the lab look at its files at once, as after a while."""
    client.app.state.lab.watch._looked = -math.inf


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_in_a_folder_never_blocks(tiny_runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(tiny_runs / "tiny-classify", root / "bad")
    (root / "bad" / "notes.txt").write_text("A note.", encoding="utf-8")
    write_run(root / "good")
    write_study(root / "study", {"base": 0.6, "wide": 0.8}, seeds=1)
    attention = ("POST", "/api/attention", {"run": "bad", "text": "The dog sleeps."})
    cases = [(path, [*requests_about("bad"), attention]) for path in files_below(root / "bad")]
    cases += [(path, requests_about_study("study")) for path in files_below(root / "study")]
    assert len(cases) > 15
    with lab_client(root) as client, ThreadPoolExecutor(1) as pool:
        for path, requests in cases:
            look_again(client)
            with pipe_at(path):
                answers = pool.submit(ask_everything, client, requests).result(SECONDS)
                runs = client.get("/api/runs").json()["runs"]
            status = {run["name"]: run["status"] for run in runs}
            assert status["good"] == "stopped"
            assert status.get("bad") in ("finished", "damaged", None)
            assert answers


@pytest.mark.parametrize("key", ["train", "dev"])
def test_a_recipe_that_names_a_pipe_as_its_text_never_blocks(tmp_path: Path, key: str) -> None:
    pipe, files = tmp_path / "pipe.tsv", tmp_path / "files.tsv"
    files.write_text("label\ttext\na\tb\n", encoding="utf-8")
    data = {"train": [str(files)], "dev": [str(files)]} | {key: [str(pipe)]}
    recipe = Recipe.of({"task": "classify", "data": data})
    Run.create(tmp_path / "runs" / "bad", recipe).write_environment({})
    with pipe_at(pipe), lab_client(tmp_path / "runs") as client, ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_everything, client, requests_about("bad")).result(SECONDS)
        assert answers["/api/run/bad/report "].json()["error"]["message"] == NO_FILE
        body = {"run": "bad", "limit": 2}
        cards = pool.submit(client.post, "/api/heads/cards", json=body).result(SECONDS)
        assert cards.status_code == 400


def test_a_pipe_is_named_in_the_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "bad")
    with lab_client(tmp_path / "runs") as client, pipe_at(run.metrics_path):
        (listed,) = client.get("/api/runs").json()["runs"]
        assert listed["status"] == "damaged"
        assert NO_FILE[:-1] in listed["problem"]
        assert "metrics.jsonl" in listed["problem"]


# ---------------------------------------------------------------------------------------- links

HIDDEN = "a text that is in no answer"
OUTSIDE = {
    "study.toml": f'question = "{HIDDEN}"\nrecipe = "demo-translate"\nsets = ["test"]\n',
    "text.tsv": f"source\treference\thypothesis\tscore\n{HIDDEN}\tb\tc\t1\n",
}
"""Files outside the lab that heed could read as its own."""
FOLDERS = ("records", "runs", "records/wide-seed0.record.json")
"""Parts of a study that can be compared alone."""


def put_hidden_text(content: Any) -> Any:
    """JSON with the hidden text in place of every text that is shown and checked for no form."""
    if isinstance(content, dict):
        shown = ("reason", "machine", "torch")
        return {k: HIDDEN if k in shown else put_hidden_text(v) for k, v in content.items()}
    return content


def move_outside(path: Path, outside: Path) -> None:
    """Put a file or folder elsewhere, with the hidden text in it, and a link in its place."""
    outside.mkdir()
    target = outside / path.name
    path.rename(target)
    for file in [target] if target.is_file() else files_below(target):
        if file.suffix == ".json":
            content = put_hidden_text(json.loads(file.read_bytes()))
            find_and_pop(content, "checksum")
            file.write_text(json.dumps(content), encoding="utf-8")
        elif file.name in OUTSIDE or file.suffix == ".tsv":
            file.write_text(OUTSIDE.get(file.name, OUTSIDE["text.tsv"]), encoding="utf-8")
    path.symlink_to(target)


def write_translations(study: Path) -> None:
    """Give every finished trial the table of its test texts, which the report shows."""
    for state in sorted((study / "trials").glob("*.json")):
        table = study / "runs" / state.stem / "translations" / "test.tsv"
        table.parent.mkdir(parents=True)
        rows = ["source\treference\thypothesis\tscore", f"s\tr\t{state.stem}\t{len(state.stem)}"]
        table.write_text("\n".join([*rows, ""]), encoding="utf-8")


@pytest.mark.parametrize(
    "place",
    [
        *("study.toml", "trials", "trials/base-seed0.json", "records"),
        *("records/wide-seed0.record.json", "runs", "runs/base-seed0", "recipes"),
        *("runs/base-seed0/translations", "runs/base-seed0/translations/test.tsv"),
    ],
)
def test_no_link_in_a_study_leads_out_of_it(tmp_path: Path, place: str) -> None:
    root = tmp_path / "runs"
    study = write_study(root / "study", {"base": 0.6, "wide": 0.8}, seeds=1)
    write_translations(study)
    write_run(root / "good")
    with lab_client(root) as client:
        before = ask_everything(client, requests_about_study("study"))
        assert all(answer.status_code == 200 for answer in before.values())
        assert "base-seed0" in before["/api/study/study/report "].text
        move_outside(study / place, tmp_path / "outside")
        requests = [*requests_about_study("study"), ("GET", "/api/runs", None)]
        requests += [("POST", "/api/compare", {"runs": [f"study/{at}"]}) for at in FOLDERS]
        requests += [("POST", "/api/compare", {"runs": ["good", "study"]})]
        look_again(client)
        answers = ask_everything(client, requests)
        assert not [at for at, answer in answers.items() if HIDDEN in answer.text]
        for answer in (answers["/api/study/study "], answers["/api/study/study/report "]):
            assert answer.status_code == 400
            assert "leads out of the study folder" in answer.json()["error"]["message"]


@pytest.mark.parametrize("run", ["{}", "../../outside", "runs/../../../outside"])
def test_no_trial_names_a_run_outside_its_study(tmp_path: Path, run: str) -> None:
    root, table = tmp_path / "runs", tmp_path / "outside" / "translations" / "test.tsv"
    study = write_study(root / "study", {"base": 0.6, "wide": 0.8}, seeds=1)
    table.parent.mkdir(parents=True)
    table.write_text(OUTSIDE["text.tsv"], encoding="utf-8")
    for path in (study / "trials").glob("*.json"):
        content = json.loads(path.read_bytes()) | {"run": run.format(table.parents[1])}
        find_and_pop(content, "checksum")
        path.write_text(json.dumps(content), encoding="utf-8")
    with lab_client(root) as client:
        answers = ask_everything(client, requests_about_study("study"))
        assert not [at for at, answer in answers.items() if HIDDEN in answer.text]


def test_no_set_of_a_study_is_a_path(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    study = write_study(root / "study", {"base": 0.6, "wide": 0.8}, seeds=1)
    write_translations(study)
    (tmp_path / "text.tsv").write_text(OUTSIDE["text.tsv"], encoding="utf-8")
    text = (study / "study.toml").read_text(encoding="utf-8").split("\n", 1)[1]
    assert '"test"' in text
    text = text.replace('"test"', '"../../../../../text"')
    (study / "study.toml").write_text(text, encoding="utf-8")
    with lab_client(root) as client:
        answers = ask_everything(client, requests_about_study("study"))
        assert not [at for at, answer in answers.items() if HIDDEN in answer.text]
        assert "which is no name of a set" in answers["/api/study/study "].text


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_to_itself_hides_no_other_entry(tmp_path: Path, kind: str) -> None:
    run = write_run(tmp_path / "runs" / "run")
    (run.folder / "a").symlink_to("a")  # is read before metrics.jsonl
    refuse_unsafe_entries(run.folder)
    run.metrics_path.rename(tmp_path / "metrics.jsonl")
    if kind == "link":
        run.metrics_path.symlink_to(tmp_path / "metrics.jsonl")
    else:
        os.mkfifo(run.metrics_path)
    with pytest.raises(RunError, match=r"leads out of the run folder|metrics\.jsonl"):
        refuse_unsafe_entries(run.folder)


def test_a_file_of_a_run_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "run")
    with lab_client(tmp_path / "runs") as client:
        (listed,) = client.get("/api/runs").json()["runs"]
        assert listed["status"] == "stopped"
        run.metrics_path.rename(tmp_path / "metrics.jsonl")
        run.metrics_path.symlink_to(tmp_path / "metrics.jsonl")
        with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write("\n")
        look_again(client)
        (listed,) = client.get("/api/runs").json()["runs"]
        assert listed["status"] == "damaged"
        assert "leads out of the run folder" in listed["problem"]


# -------------------------------------------------------------------------------------- content

deep: Any = 0
for _ in range(150):
    deep = [deep]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 0.5, 2**63, 10**400, -(10**400), 1e308, -1e308),
    *(math.nan, math.inf, -math.inf, "", "text", "1", "\ud800", "../..", [], [1], ["a"], {}),
    *({"a": 1}, {"a": "b"}, {"loss": "x"}, deep),
)
"""What stands in a file in place of what heed writes there."""
Place = tuple[str | int, ...]


def places_in(content: Any, above: Place = ()) -> Iterator[Place]:
    """The place of every value in JSON, as the keys and numbers that lead there."""
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content[:3])
    for key, value in items:
        yield (*above, key)
        yield from places_in(value, (*above, key))


def replaced(content: Any, place: Place, value: Any) -> Any:
    """A copy of JSON with another value at one place; a missing one for `...`."""
    if not place:
        return value
    copy: Any = content.copy()
    if len(place) == 1 and value is ...:
        del copy[place[0]]
    else:
        copy[place[0]] = replaced(content[place[0]], place[1:], value)
    return copy


def draw_content(draw: Any, path: Path) -> bytes:
    """Other content for a file: one value is another, or all of it is."""
    data = path.read_bytes()
    if path.suffix not in (".json", ".jsonl") or draw(st.integers(0, 9)) == 0:
        return draw_bytes(draw, data)
    lines = data.splitlines() if path.suffix == ".jsonl" else [data]
    number = draw(st.integers(0, len(lines) - 1))
    content = json.loads(lines[number])
    find_and_pop(content, "checksum")
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([(), *places_in(content)]))
        value = draw(st.sampled_from(VALUES if not place else (*VALUES, ...)))
        content = replaced(content, place, value)
        if not isinstance(content, dict | list):
            break
    lines[number] = json.dumps(content).encode()
    return b"\n".join([*lines, b""])


def find_and_pop(content: Any, key: str) -> None:
    """Take the checksum out of JSON: a stranger can compute one, too."""
    if isinstance(content, dict):
        content.pop(key, None)
        for value in content.values():
            find_and_pop(value, key)


def draw_bytes(draw: Any, data: bytes) -> bytes:
    """Any bytes, or the file with some of its bytes replaced."""
    other = draw(st.binary(max_size=20))
    if draw(st.booleans()):
        return other
    text = re.sub(rb'(#\s*)?"?checksum"?\s*[=:].*\n', b"\n", data, count=1)
    start = draw(st.integers(0, len(text)))
    return text[:start] + other + text[start + draw(st.integers(0, 9)) :]


@pytest.fixture(scope="module")
def hostile_root(tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with a good run, a classifier and a translator that were evaluated, and a study."""
    root = tmp_path_factory.mktemp("content") / "runs"
    for task in ("classify", "translate"):
        shutil.copytree(tiny_runs / f"tiny-{task}", root / task)
        answer = CliRunner().invoke(app, ["evaluate", str(root / task), "--device", "cpu"])
        assert answer.exit_code == 0, answer.output
    write_run(root / "good")
    write_study(root / "study", {"base": 0.6, "wide": 0.8}, seeds=2)
    return root


def read_list(client: Any) -> dict[str, Any]:
    """The list of runs once all of them were read."""
    while True:
        answer = client.get("/api/runs")
        assert answer.status_code == 200, answer.text
        listed: dict[str, Any] = answer.json()
        if not listed["waiting"]:
            return listed


@pytest.mark.parametrize(
    "hostile",
    [None, True, "x", [1], {"a": "b"}, 10**400, math.nan, 1e308],
    ids=["null", "true", "text", "list", "object", "huge", "nan", "large"],
)
def test_no_value_of_a_metric_hides_the_other_runs(tmp_path: Path, hostile: Any) -> None:
    """Every place of a line has the value in turn: the run is damaged, or the value is skipped."""
    root = tmp_path / "runs"
    good = write_run(root / "good")
    train, evaluate, *_ = map(json.loads, good.metrics_path.read_bytes().splitlines())
    for line, position in ((train, "none"), (evaluate, "alibi")):  # a group of runs each
        find_and_pop(line, "checksum")
        like = write_run(tmp_path / position, position=position)
        for place in places_in(line):
            name = "-".join(["bad", line["event"], *map(str, place)])
            shutil.copytree(like.folder, root / name)
            data = json.dumps(replaced(line, place, hostile))
            (root / name / "metrics.jsonl").write_text(f"{data}\n", encoding="utf-8")
    with lab_client(root) as client:
        listed = read_list(client)
        status = {run["name"]: run["status"] for run in listed["runs"]}
        assert status.pop("good") == "stopped"
        assert len(status) > 15
        assert set(status.values()) <= {"stopped", "damaged"}
        for run in listed["runs"]:
            assert (run["status"] == "damaged") == (run["problem"] is not None)
        ask_everything(client, [("GET", "/api/curves", None), ("GET", "/api/curves?by=run", None)])


@pytest.mark.parametrize("name", ["classify", "translate", "study"])
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_no_content_of_files_is_an_error_inside_heed(
    hostile_root: Path, name: str, data: st.DataObject
) -> None:
    paths = [path for path in files_below(hostile_root / name) if path.suffix != ".safetensors"]
    path = data.draw(st.sampled_from(paths))
    before = path.read_bytes()
    requests = requests_about_study(name) if name == "study" else requests_about(name)
    try:
        path.write_bytes(draw_content(data.draw, path))
        with lab_client(hostile_root) as client:
            runs = read_list(client)["runs"]
            assert "good" in {run["name"] for run in runs if run["status"] == "stopped"}
            ask_everything(client, requests)
    finally:
        path.write_bytes(before)
