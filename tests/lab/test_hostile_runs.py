"""Hostile runs in a real browser: script in names, labels and texts is shown as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from labs import LabProcess, running_lab, train_run, visit_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

NAME = "<img src=x onerror=hacked=1> &amp; \u202eevil 'n\" %2e%2e #1"
"""A folder of a run: markup, an entity, a right-to-left override, quotes, an escape, a hash."""
LABELS = ("<script>hacked=1</script>", "\"><b onmouseover='hacked=1'>b</b>")
TEXT = "<img src=x onerror=hacked=1> </script><script>hacked=1</script> {{hacked}} ${hacked=1}"
ADDRESSES = (
    "/runs",
    "/run/{name}",
    "/train?run={name}",
    "/playground?run={name}&text={text}",
    "/attention?run={name}&text={text}",
    "/heads?run={name}",
    "/design?run={name}&text={text}",
    "/study/{name}",
    "/{name}",
)


@pytest.fixture(scope="module")
def hostile_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab of one classifier whose name, labels and texts are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [f"{label}\t{TEXT} {number}" for number in range(40) for label in LABELS]
    table = folder / "<b onmouseover=hacked=1>.tsv"
    table.write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    runs = folder / "<i>runs<"
    files = ("--train", str(table), "--dev", str(table))
    train_run(runs / NAME, "--task", "classify", *files)
    with running_lab(runs) as lab:
        yield lab


@pytest.mark.parametrize("address", ADDRESSES)
def test_hostile_names_labels_and_texts_are_text(
    chromium: Browser, hostile_lab: LabProcess, address: str
) -> None:
    place = address.format(name=quote(NAME, safe=""), text=quote(TEXT, safe=""))
    with visit_lab(chromium, hostile_lab, place) as visit:
        page = visit.page
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        visit.settle()  # what is shown late is text, too
        if address in ("/runs", "/run/{name}"):
            assert NAME in page.inner_text("main")
        assert page.evaluate("window.hacked === undefined")
        assert page.locator("main script, main img[src=x], main b[onmouseover]").count() == 0
        if address == "/{name}" or address.startswith("/study"):
            visit.messages.clear()  # the browser reports a page that there is not
