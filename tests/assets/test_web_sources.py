"""The sources of the pages in `web/`: what every component keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "web" / "src" / "lab"
COMPONENTS = sorted(LAB.rglob("*.svelte"))
REQUESTS = {"get", "getBytes", "post", "put", "readBytes", "remove", "stream"}
"""The functions of `api.ts` that send a request."""
IMPORT = re.compile(r'import \{([^}]*)\} from "(?:\./|\.\./)+api";')
LASTING = {"Lab.svelte"}
"""The shell is never destroyed."""


def test_the_names_of_requests_are_those_of_the_api() -> None:
    source = (LAB / "api.ts").read_text(encoding="utf-8")
    assert set(re.findall(r"export (?:async )?function (\w+)", source)) >= REQUESTS
    assert len(COMPONENTS) > 20


@pytest.mark.parametrize("path", COMPONENTS, ids=lambda path: path.name)
def test_components_ask_by_requests_that_end_with_them(path: Path) -> None:
    """Answers after the end would read values that are no longer derived: see `requests.ts`."""
    if path.name in LASTING:
        return
    names = {
        name.split(" as ")[0].strip().removeprefix("type ")
        for imported in IMPORT.findall(path.read_text(encoding="utf-8"))
        for name in imported.split(",")
    }
    assert not names & REQUESTS, "take these from componentRequests()"
