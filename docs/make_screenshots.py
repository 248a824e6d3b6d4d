"""The pictures of the lab in docs/images, made anew: `python docs/make_screenshots.py RUNS`.

RUNS is a folder with two scored translators or more, and a study if its picture is to be made. It
needs Debian's Chromium and the packages of the extra `test`. `--out`, `--width` and `--scheme` make
the same pictures elsewhere, as on a phone or in the dark.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from lab_pages import open_browser, open_lab  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

TEXT = "The old woman who sees the cat will read a newspaper."
SECONDS = 120
"""The longest that a room may take."""
HEIGHTS = {
    "runs": 1000,
    "run": 1000,
    "study": 1150,
    "playground": 1700,
    "attention": 1130,
    "heads": 1400,
    "design": 1040,
}
"""Pixels of each picture."""


def list_addresses(entries: dict[str, Any]) -> dict[str, str]:
    """The address of each room, about runs of this folder."""
    runs = [run for run in entries["runs"] if run["task"] == "translate" and run["test"]]
    runs.sort(key=lambda run: ("/" in run["name"], -run["test"]["value"]))  # none of a study first
    own = [run["name"] for run in runs]
    first = {"run": own[0], "text": TEXT}
    seeds = [group["runs"] for group in entries["groups"] if len(group["runs"]) > 2]
    compared = [*seeds[0], *seeds[-1]] if len(seeds) > 1 else own[:2]
    chosen = ",".join(quote(name, safe="") for name in compared)
    addresses = {
        "runs": f"/runs?{urlencode({'metric': 'dev/loss', 'select': chosen})}",
        "run": f"/run/{quote(own[0])}",
        "playground": f"/playground?{urlencode(first | {'mode': 'beam', 'beam': 4})}",
        "attention": f"/attention?{urlencode(first)}",
        "heads": f"/heads?{urlencode({'run': own[0], 'text': TEXT})}",
        "design": "/design?preset=inside",
    }
    if entries["studies"]:
        addresses["study"] = f"/study/{quote(entries['studies'][0]['name'])}"
    return addresses


def prepare(page: Page, room: str) -> None:
    """Wait until a room shows all that its picture shows."""
    if room == "heads":
        page.locator("[data-head]").first.wait_for()
        page.get_by_role("button", name="Each head in turn").click()
        page.get_by_test_id("ablation").wait_for()
        page.locator("[data-head^='cross']").first.click()
    waited = {
        "runs": ".curves path.line",
        "run": ".curves path.line",
        "study": "[data-testid=coordinates] path",
        "playground": "[data-testid=beam], figure",
        "attention": "[data-testid=audit]",
        "design": "[data-weight]",
    }
    if room in waited:
        page.locator(waited[room]).first.wait_for(state="attached")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(1500)  # what follows the first numbers is drawn


def main() -> None:
    """Take a picture of every room."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, help="A folder of runs.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--room", choices=HEIGHTS, help="One room only.")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with open_browser() as browser, open_lab(options.runs) as link:
        context = browser.new_context(color_scheme=options.scheme)
        context.set_default_timeout(1000 * SECONDS)
        page = context.new_page()
        page.request.get(link)  # a cookie, without the page
        root = link.partition("/open")[0]
        while (entries := page.request.get(f"{root}/api/runs").json())["waiting"]:
            page.wait_for_timeout(200)  # runs are being read
        addresses = list_addresses(entries)
        for room, address in addresses.items():
            if options.room not in (None, room):
                continue
            page.set_viewport_size({"width": options.width, "height": HEIGHTS[room]})
            page.goto(root + address)
            prepare(page, room)
            page.screenshot(path=options.out / f"lab-{room}.png")
            print(f"lab-{room}.png: {address}")


if __name__ == "__main__":
    main()
