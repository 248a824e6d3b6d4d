"""Limits: size and time of bodies, a bounded queue, bounded time, and errors as JSON."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from labs import lab_client
from pydantic import BaseModel
from serving import run_async

from heed.config import Recipe
from heed.errors import ConfigError
from heed.lab.error_responses import StatusError, StrictJsonResponse, install_error_handlers
from heed.lab.lab_app import describe_work
from heed.lab.lab_context import LabContext
from heed.lab.limits import MAX_BODY, MAX_TEXT, BodyLimit, ComputeQueue, Text
from heed.lab.run_folder import RunFolder


class Body(BaseModel, extra="forbid"):
    text: Text


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A small application with the limits and the errors of the lab."""
    app = FastAPI(default_response_class=StrictJsonResponse)
    install_error_handlers(app)

    @app.post("/length")
    def length(body: Body) -> dict[str, float]:
        return {"length": len(body.text), "none": float("nan")}

    @app.get("/config")
    def config() -> None:
        raise ConfigError(["model.heads must divide model.width.", "lr is negative."], where="x")

    @app.get("/missing")
    def missing() -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "gone.json")

    @app.get("/bug")
    def bug() -> None:
        raise ZeroDivisionError

    app.add_middleware(BodyLimit)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_text_over_the_limit_is_refused(client: TestClient) -> None:
    answer = client.post("/length", json={"text": "x" * MAX_TEXT})
    assert answer.json() == {"length": MAX_TEXT, "none": None}
    answer = client.post("/length", json={"text": "x" * (MAX_TEXT + 1)})
    assert answer.status_code == 413
    assert answer.json()["error"]["message"].startswith("text: ")


def test_a_large_body_is_refused_before_it_is_read(client: TestClient) -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * (MAX_BODY // 4)

    assert client.post("/length", content=chunks()).status_code == 413
    assert client.post("/length", content=b" " * (MAX_BODY + 1)).status_code == 413
    many_digits = {"Content-Length": "9" * 5000}  # more than Python converts
    assert client.post("/length", content=b"", headers=many_digits).status_code == 413


def test_invalid_fields_are_named(client: TestClient) -> None:
    answer = client.post("/length", json={"text": 1, "txet": 2})
    assert answer.status_code == 422
    message = answer.json()["error"]["message"]
    assert "text: " in message
    assert "txet: " in message
    assert client.post("/length", content=b"{").status_code == 422


def test_errors_say_what_the_command_line_says(client: TestClient) -> None:
    answer = client.get("/config")
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "model.heads must divide model.width.\nlr is negative.",
        "where": "x",
        "todo": None,
    }
    answer = client.get("/missing")
    assert (answer.status_code, answer.json()["error"]["where"]) == (404, "gone.json")
    answer = client.get("/bug")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "an error inside heed: ZeroDivisionError."


def test_a_body_that_comes_too_slowly_is_refused() -> None:
    sent: list[dict[str, Any]] = []

    async def never_called(*_: Any) -> None:
        raise AssertionError

    async def receive() -> dict[str, Any]:
        if sent:
            return {"type": "http.disconnect"}
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    run_async(BodyLimit(never_called, seconds=0.1)(scope, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_full_queue_refuses_and_empties_again() -> None:
    async def scenario() -> None:
        queue, release = ComputeQueue(threads=1, max_waiting=1, seconds=10), Event()
        tasks = [asyncio.create_task(queue.run(release.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StatusError) as refusal:
            await queue.run(release.wait)
        assert refusal.value.status == 503
        assert refusal.value.retry_after is not None
        release.set()
        assert await asyncio.gather(*tasks) == [True, True]
        assert await queue.run(lambda: 3) == 3
        assert queue.pending == 0
        queue.close()

    run_async(scenario())


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    async def scenario() -> None:
        queue, release = ComputeQueue(threads=1, max_waiting=4, seconds=0.05), Event()
        with pytest.raises(StatusError, match="took longer"):
            await queue.run(release.wait)
        assert queue.pending == 1  # it still runs
        with pytest.raises(StatusError):
            await queue.run(release.wait)  # never began, so it is no longer pending
        release.set()
        while queue.pending:
            await asyncio.sleep(0.01)
        queue.close()

    start = time.monotonic()
    run_async(scenario())
    assert time.monotonic() - start < 5


def test_what_is_cancelled_before_it_begins_never_does() -> None:
    async def scenario() -> None:
        queue, release, begun = ComputeQueue(threads=1, max_waiting=4, seconds=10), Event(), []
        first = asyncio.create_task(queue.run(release.wait))
        waiting = [
            asyncio.create_task(queue.run(lambda: begun.append("run"))),
            asyncio.create_task(queue.run_ahead(lambda _: begun.append("ahead"))),
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        release.set()
        assert await first
        assert await queue.run(lambda: begun) == []
        queue.close()

    run_async(scenario())


def test_an_answer_that_never_begins_is_not_waited_for() -> None:
    async def scenario() -> None:
        queue, release = ComputeQueue(threads=1, max_waiting=4, seconds=60), Event()
        first = asyncio.create_task(queue.run(release.wait))
        ahead: asyncio.Task[str] = asyncio.create_task(queue.run_ahead(lambda answer: answer("")))
        await asyncio.sleep(0)
        queue.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(ahead, 30)
        release.set()
        assert await first

    run_async(scenario())


def test_an_answer_is_given_before_the_computation_ends() -> None:
    async def scenario() -> None:
        queue, release = ComputeQueue(threads=1, max_waiting=1, seconds=10), Event()

        def compute(answer: Callable[[str], None]) -> None:
            answer("early")
            release.wait(10)
            raise ValueError  # of the rest, which belongs to the computation

        assert await queue.run_ahead(compute) == "early"
        assert queue.pending == 1
        release.set()
        with pytest.raises(ZeroDivisionError):
            await queue.run_ahead(lambda _: 1 / 0)
        queue.close()

    run_async(scenario())


def test_a_read_only_lab_refuses_changes_and_computes(tmp_path: Path) -> None:
    with lab_client(tmp_path, is_read_only=True) as client:
        answer = client.put("/api/run/a/notes", json={})
        assert answer.status_code == 403
        assert "--read-only" in answer.json()["error"]["todo"]
        assert client.post("/api/playground/nothing", json={}).status_code == 404
    with lab_client(tmp_path) as client:
        assert client.put("/api/none/a", json={}).status_code == 404


def test_the_work_of_a_lab_is_counted(tmp_path: Path) -> None:
    """What a page that waits is told: computations that run or wait, and trainings."""
    lab, release = LabContext(RunFolder(tmp_path)), Event()
    with lab_client(tmp_path) as client:
        idle = client.get("/api/work").json()
    assert idle == {"computations": 0, "at_once": lab.queue.threads, "trainings": 0}
    lab.training.add_training("a", Recipe.of({"task": "translate"}))
    with lab.training._changing() as jobs:
        jobs[0] = jobs[0].model_copy(update={"status": "training"})

    async def scenario() -> None:
        tasks = [asyncio.create_task(lab.queue.run(release.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        assert describe_work(lab) == idle | {"computations": 5, "trainings": 1}
        release.set()
        await asyncio.gather(*tasks)

    run_async(scenario())
    lab.queue.close()
