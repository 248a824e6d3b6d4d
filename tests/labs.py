"""The lab in tests: tiny runs, a client of the application, a real process, a page in a browser."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from browser import PATIENCE, Scheme, Visit, closing, watch_page
from typer.testing import CliRunner

from heed.cli.main import app

if TYPE_CHECKING:
    from fastapi.testclient import TestClient
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "http://127.0.0.1:8642"
"""Where a client without a process believes the lab to be."""
TINY_DATA = ("data.synthetic=120", "data.synthetic_test=20", "data.max_length=48")
TINY = (
    *("tokenizer.kind=word", "model.layers=2", "model.width=16", "model.heads=2"),
    *("train.batch_size=16", "train.steps=6", "train.warmup=2"),
    *("train.evaluate_every=3", "train.log_every=1"),
)
"""Settings of runs that train in a second."""
TASKS = ("translate", "classify", "generate")
LINK = re.compile(r"http://\S+/open\?token=\S+")


def train_tiny(folder: Path, recipe: str, *changes: str) -> Path:
    """Train a tiny run of a shipped recipe in this folder, through the real command."""
    return train_run(folder, recipe, changes=(*TINY_DATA, *changes))


def train_run(folder: Path, *source: str, changes: tuple[str, ...] = ()) -> Path:
    """Train a tiny run of what `heed train` takes as its source: a recipe, or files."""
    flags = [flag for change in (*TINY, *changes) for flag in ("--set", change)]
    command = ["train", *source, "--run", str(folder), "--device", "cpu", *flags]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 0, answer.exception or answer.output
    return folder


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one tiny run of each task: read it, and write to a copy."""
    folder = tmp_path_factory.mktemp("lab") / "runs"
    for task in TASKS:
        train_tiny(folder / f"tiny-{task}", f"demo-{task}")
    return folder


@contextmanager
def lab_client(root: Path, **options: Any) -> Iterator[TestClient]:
    """A client with access to the application of a lab, without a process."""
    from fastapi.testclient import TestClient

    from heed.lab.access import Access
    from heed.lab.lab_app import build_lab

    access = Access("the key of this test")
    application = build_lab(root, access=access, **options)
    headers = {"Authorization": "Bearer the key of this test", "Origin": ADDRESS}
    # A list of runs is answered after a quarter of a second, with the runs that are read by then.
    watch = application.state.lab.watch
    watch.refresh()
    watch._looked = watch._searched = -math.inf  # the first request looks again
    with TestClient(application, base_url=ADDRESS, headers=headers) as client:
        yield client


class LabProcess:
    """A real `heed lab`. `link` is its newest one-time link, `output` all that it printed."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "heed", "lab", str(folder), "--no-open", "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, *flags],
            cwd=folder.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.link().partition("/open")[0]

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def output(self) -> str:
        return "".join(list(self.lines))

    def link(self, *, number: int = 1, seconds: float = PATIENCE / 1000) -> str:
        """The link that was printed so and so many times; the last is the one that works."""
        end = time.monotonic() + seconds
        while len(links := LINK.findall(self.output)) < number:
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"the lab printed no link: {self.output}")
            time.sleep(0.05)
        return str(links[-1])

    def stop(self) -> int:
        """End the lab by SIGTERM; returns its exit status."""
        self.process.terminate()
        status = self.process.wait(timeout=PATIENCE / 1000)
        self._reader.join(timeout=PATIENCE / 1000)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


@contextmanager
def running_lab(folder: Path, *flags: str) -> Iterator[LabProcess]:
    """A real `heed lab` of a folder, ended afterwards."""
    lab = LabProcess(folder, *flags)
    try:
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="session")
def tiny_lab(tiny_runs: Path) -> Iterator[LabProcess]:
    """A real `heed lab` of the tiny runs, for tests that change none of them."""
    with running_lab(tiny_runs, "--read-only") as lab:
        yield lab


@contextmanager
def visit_lab(
    browser: Browser,
    lab: LabProcess,
    address: str = "/",
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Scheme = "light",
) -> Iterator[Visit]:
    """Open an address of the lab in a browser that has used the one-time link.

    Afterwards there must be no message on the console, and no request to anyone else.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
    )
    context.set_default_timeout(PATIENCE)
    visit = watch_page(context)
    count = len(LINK.findall(lab.output))
    with closing(context, visit):
        visit.page.goto(lab.link(number=count))
        lab.link(number=count + 1)  # for the next visit
        if address != "/":
            visit.page.goto(lab.address + address)
        visit.page.get_by_role("heading", level=1).first.wait_for()
        yield visit
    assert visit.messages == [], visit.messages
    own = (lab.address + "/", "data:", "blob:")
    assert [url for url in visit.requests if not url.startswith(own)] == []


def serious_findings(visit: Visit) -> list[str]:
    """What axe-core finds on a page at rest that is serious or critical, as `rule: element`."""
    from axe_playwright_python.sync_playwright import Axe

    visit.settle()
    violations = Axe().run(visit.page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
