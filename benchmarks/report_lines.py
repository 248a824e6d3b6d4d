"""A pytest plugin: a line of JSON for every test as it ends, so that a run cut short keeps them.

pytest -p report_lines --report-lines FILE
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import pytest

MESSAGE = 2000
"""Characters that are kept of a failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The file that the lines are written to."""
    parser.addoption("--report-lines", type=Path, metavar="FILE", help="a line for every test")


def pytest_configure(config: pytest.Config) -> None:
    """Write in the process that hears of all tests, not in pytest-xdist's workers."""
    path = config.getoption("report_lines")
    if path is not None and not hasattr(config, "workerinput"):
        writer = Writer(path.open("w", encoding="utf-8"))
        config.pluginmanager.register(writer)
        config.add_cleanup(writer.file.close)


class Writer:
    """Writes how many tests there are, then each outcome."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, **values: object) -> None:
        """One line."""
        print(json.dumps(values), file=self.file, flush=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without workers; with them no test is collected here."""
        if session.items:
            self.write(tests=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Every worker collects the same tests."""
        self.write(tests=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The outcome of a test: that of its call, or of what failed or skipped around it."""
        if report.when == "call" or report.outcome != "passed":
            message = report.longreprtext[-MESSAGE:] if report.failed else ""
            self.write(
                test=report.nodeid,
                outcome=report.outcome,
                seconds=report.duration,
                message=message,
            )
