"""Hostile files in the folder of a lab: pipes, and whatever content, are no error inside heed."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from lab_runs import write_run
from labs import lab_client
from study_folders import write_study

from heed.config import Recipe
from heed.files import NO_FILE
from heed.runs.run import Run

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
            cast(
                FastAPI, client.app
            ).state.lab.watch._looked = -math.inf  # look at the files again at once
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
