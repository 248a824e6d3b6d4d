"""The server in tests: the tiny runs as an application without a process, and as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labs import ROOT, TASKS

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

ADDRESS = "http://127.0.0.1:8650"
"""Where a client without a process believes the server to be."""


@contextmanager
def server_client(
    folders: Sequence[Path | str], *, key: str | None = None, **limits: Any
) -> Iterator[TestClient]:
    """A client of the application that serves these runs; the queues are its `app.state`."""
    from fastapi.testclient import TestClient

    from heed.lab.server.served_runs import ServerLimits, ServerSettings, load_runs
    from heed.lab.server.server_app import build_server

    settings = ServerSettings(device="cpu", limits=ServerLimits(**limits))
    app = build_server(load_runs([str(folder) for folder in folders], settings), key=key)
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: a browser test has a loop in this one."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, work).result()


async def send_and_leave(
    app: Any,
    path: str,
    body: Any,
    left: asyncio.Event,
    *,
    method: str = "POST",
    query: str = "",
    headers: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Send a request to an application, and close the connection when `left` is set.

    Returns the messages of the answer.
    """
    content = b"" if body is None else json.dumps(body).encode()
    messages = [{"type": "http.request", "body": content, "more_body": False}]
    answer: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        answer.append(message)

    lines = {"host": "127.0.0.1:8650", "content-type": "application/json"} | dict(headers or {})
    encoded = [(name.lower().encode(), value.encode()) for name, value in lines.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"headers": encoded, "query_string": query.encode(), "scheme": "http"}
    await app(scope | {"root_path": ""}, receive, send)
    return answer


def task_folders(tiny_runs: Path) -> list[Path]:
    """One tiny run of each task."""
    return [tiny_runs / f"tiny-{task}" for task in TASKS]


class ServerProcess:
    """A real `heed serve`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "heed", "serve", *arguments, "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, "--device", "cpu"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.address = self._read_address()

    def _read_address(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if match := re.search(r"at (http://\S+?)\. ", line):
                return match[1]
        raise AssertionError(f"the server did not start: {''.join(lines)}")

    def stop(self) -> tuple[int, str]:
        """End the server by SIGTERM; returns its exit status and what it printed since."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=180)
        return self.process.returncode, output


@contextmanager
def running_server(*arguments: str) -> Iterator[ServerProcess]:
    """A real `heed serve`, ended afterwards."""
    server = ServerProcess(*arguments)
    try:
        yield server
    finally:
        server.stop()
