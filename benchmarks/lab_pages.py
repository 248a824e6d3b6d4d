"""How quickly the pages of `heed lab` are there: 300 runs of 2,000 points, maps of 512 tokens.

    python benchmarks/lab_pages.py [--part runs|maps] [--tiny]

A folder of runs is made as training writes them, `heed lab` is started on it, and Debian's Chromium
opens the page. Times are taken in the browser, from the start of its navigation: cold, when the lab
has read nothing yet, and warm, when the page is opened again. Maps of 12 layers and 12 heads are
opened with a model that is not loaded, with a new text, and with the same text again; then the head
is switched 20 times. The time until the first map is divided into what the browser waited for the
server, and what it did itself. With --part, the other part stays as it was kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from common import RESULTS, environment, keep, set_options, table

from heed.checksums import BLANK, KEY, seal_text
from heed.config import Recipe
from heed.runs.run import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RUNS, ROWS, SEEDS = 300, 2000, 3
TOKENS, LAYERS, WIDTH = 512, 12, 192
"""Tokens of a text; layers, and heads in each; the model's width."""
WORDS = "old woman who sees the cat will read a newspaper . The brave queen will work ."
FIRST_MAP = """async () => {
  const drawn = () => performance.getEntriesByName("heed-map-drawn")[0];
  while (!drawn()) await new Promise((resolve) => setTimeout(resolve, 20));
  return drawn().duration / 1000;
}"""
STAGES = """() => {
  const entries = performance.getEntriesByType("resource");
  const isHead = ({ name }) => name.includes("/api/attention/maps/") && name.includes("/head?");
  const asked = entries.find(({ name }) => name.endsWith("/api/attention"));
  const head = entries.find(isHead);
  const drawn = performance.getEntriesByName("heed-map-drawn")[0].duration;
  const pictures = entries.find(({ name }) => name.includes("/pictures?"));
  return {
    "page": asked.startTime,
    "server: tokens": asked.responseEnd - asked.startTime,
    "server: first head": head.responseEnd - head.startTime,
    "all pictures": pictures.responseEnd,
    "drawn": drawn,
  };
}"""
"""Milliseconds of the parts of the time until the first map, and until all small ones are there."""
SWITCH = """async (key) => {
  const caption = () => document.querySelector("[data-testid=head]").textContent;
  const before = caption(), start = performance.now();
  const press = new KeyboardEvent("keydown", { key, shiftKey: true, bubbles: true });
  document.activeElement.dispatchEvent(press);
  while (caption() === before) await new Promise((resolve) => requestAnimationFrame(resolve));
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  return (performance.now() - start) / 1000;
}"""
"""Seconds from a key to the frame in which the other head is drawn."""
EVALUATE_EVERY = 40
"""Rows of training between two evaluations."""
BAR = 2.0
"""Seconds until the list of runs can be used."""
LINK = re.compile(r"(http://\S+)/open\?token=\S+")
CLOCK = """
window.heedTimes = {};
const conditions = {
  "table": () => document.querySelector("table.runs tr.group"),
  "curves": () => document.querySelector(".curves path.line"),
  "all curves": () => document.querySelector("table.runs tr.group") &&
    document.querySelector(".live")?.textContent.trim() === "Live" &&
    document.querySelectorAll(".curves path.line").length >= SYSTEMS,
};
function look() {
  for (const [name, isThere] of Object.entries(conditions)) {
    if (!(name in heedTimes) && isThere()) heedTimes[name] = performance.now() / 1000;
  }
  if (Object.keys(heedTimes).length < 3) requestAnimationFrame(look);
}
requestAnimationFrame(look);
"""
"""Notes, at every frame, the seconds since navigation at which each part of the page was there."""
WAIT = """async () => {
  while (Object.keys(heedTimes).length < 3) await new Promise((done) => setTimeout(done, 50));
  return heedTimes;
}"""
FILTER = """async (text) => {
  const input = document.querySelector("input[type=search]"), start = performance.now();
  input.value = text;
  input.dispatchEvent(new Event("input", {bubbles: true}));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return (performance.now() - start) / 1000;
}"""
"""Seconds from a key in the filter to the frame that shows its effect."""
HOVER = """async () => {
  const svg = document.querySelector(".plot [role=slider]"), box = svg.getBoundingClientRect();
  const start = performance.now();
  for (let i = 0; i < 10; i++) {
    const at = {clientX: box.left + 100 + 40 * i, clientY: box.top + 150, bubbles: true};
    svg.dispatchEvent(new PointerEvent("pointermove", {...at, pointerType: "mouse"}));
    await new Promise((done) => requestAnimationFrame(done));
  }
  return (performance.now() - start) / 10000;
}"""
"""Seconds of a frame while the pointer moves over the curves."""


def make_runs(folder: Path, *, runs: int = RUNS, rows: int = ROWS) -> None:
    """Run folders without weights: recipes that differ in two keys, three seeds each."""
    for number in range(runs):
        system, seed = divmod(number, SEEDS)
        recipe = Recipe.of(
            {
                "task": "translate",
                "seed": seed,
                "data": {"synthetic": 1000},
                "model": {"layers": 1 + system % 10},
                "train": {"steps": 10 * rows, "lr": 0.0001 * (1 + system // 10), "log_every": 10},
            }
        )
        run = Run.create(folder / f"system{system:02d}-seed{seed}", recipe)
        text = "".join(f"{line}\n" for line in make_lines(number, rows))
        run.metrics_path.write_text(text, encoding="utf-8")
        run.write_environment({"data": {"train": "a" * 64, "dev": "b" * 64}})


def make_lines(number: int, rows: int) -> list[str]:
    """Lines of metrics.jsonl: a noisy loss that falls."""
    random, lines, unix = Random(number), [], 1.7e9
    for row in range(1, rows + 1):
        step = 10 * row
        loss = 1 + 5 * math.exp(-row / 300) + random.gauss(0, 0.05) + number / 300
        place = {"step": step, "epoch": 1 + step // 5000, "tokens": 4096 * step}
        scores = {"loss": loss, "accuracy": 1 / loss, "lr": 0.001, "skipped": 0}
        lines.append(_seal({"event": "train", **place, **scores}, unix, row))
        if row % EVALUATE_EVERY == 0:
            dev = {"loss": loss + 0.1, "perplexity": math.exp(loss + 0.1), "accuracy": 0.9 / loss}
            lines.append(_seal({"event": "evaluate", **place, "dev": dev}, unix, row))
    return lines


def _seal(line: dict[str, object], unix: float, seconds: float) -> str:
    time = {"unix": unix + seconds, "seconds": seconds, "tokens_per_second": 40960.0, KEY: BLANK}
    return seal_text(json.dumps({**line, "time": time}))


# ------------------------------------------------------------------------------------ the browser


@contextmanager
def open_lab(folder: Path) -> Iterator[str]:
    """Start `heed lab` on a folder; yields its one-time link."""
    command = [sys.executable, "-m", "heed", "lab", str(folder), "--no-open", "--port", "0"]
    variables = environment(PYTHONUNBUFFERED="1")
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout or ()
        yield next(match[0] for line in lines if (match := LINK.search(line)))
        process.terminate()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def measure_runs(page: Page, address: str) -> dict[str, float]:
    """Seconds until each part of the list of runs is there."""
    page.goto(address)
    times: dict[str, float] = page.evaluate(WAIT)
    return times


def measure_list(browser: Browser, runs: int, rows: int) -> dict[str, Any]:
    """The list of runs, cold and warm, and how quickly it answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        make_runs(folder, runs=runs, rows=rows)
        os.sync()  # they were written long ago
        load = os.getloadavg()[0]
        with open_lab(folder) as link:
            page = browser.new_page()
            page.request.get(link)  # a cookie, without the page
            page.add_init_script(CLOCK.replace("SYSTEMS", str(math.ceil(runs / SEEDS))))
            root = link.partition("/open")[0]
            address = f"{root}/runs?metric=train/loss"
            cold = measure_runs(page, address)
            warm = [measure_runs(page, address) for _ in range(3)]
            filtering = page.evaluate(FILTER, "layers=3")
            page.evaluate(FILTER, "")
            hovering = page.evaluate(HOVER)
    figures = {"cold": cold, "warm": {key: sorted(w[key] for w in warm)[1] for key in cold}}
    return {
        "runs": runs,
        "rows": rows,
        "load": load,
        **figures,
        "filter": filtering,
        "hover": hovering,
    }


def describe_list(figures: dict[str, Any]) -> str:
    """The figures of the list of runs as a table."""
    parts = list(figures["cold"])
    rows = [[state, *(f"{figures[state][key]:.2f}" for key in parts)] for state in ("cold", "warm")]
    title = f"Runs page, {figures['runs']} runs with {figures['rows']:,} points each: seconds until"
    text = table(title, ["", *parts], rows)
    text += f"\n\nA key in the filter is answered after {figures['filter']:.3f} s, a move over the "
    text += f"curves after {figures['hover']:.3f} s."
    used = max(figures[state][key] for state in ("cold", "warm") for key in ("table", "curves"))
    text += f"\nTable and first curves: {used:.2f} s at most (bar {BAR:g} s), while other work "
    return f"{text}gave a load of {figures['load']:.1f}."


# ---------------------------------------------------------------------------- maps of a long text


def make_model(folder: Path, size: int, width: int) -> None:
    """A language model of so many layers and heads, after two steps of training."""
    changes = {
        "data.synthetic": 400,
        "data.synthetic_test": 40,
        "data.max_length": 640,
        "model.layers": size,
        "model.heads": size,
        "model.width": width,
        "train.steps": 2,
        "train.batch_size": 1,
    }
    command = [sys.executable, "-m", "heed", "train", "demo-generate", "--run", str(folder)]
    subprocess.run(
        [*command, "--device", "cpu", *set_options(changes)],
        env=environment(),
        check=True,
        capture_output=True,
    )


def make_text(folder: Path, tokens: int, first: str) -> str:
    """A text of so many tokens, the begin token included."""
    from heed.data.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    words = [first]
    for word in WORDS.split() * tokens:
        longer = [*words, word]
        if len(tokenizer.encode(" ".join(longer))) >= tokens:  # and the begin token
            break
        words = longer
    return " ".join(words)


def measure_maps(browser: Browser, tokens: int, size: int, width: int) -> dict[str, Any]:
    """The first map of a text, and how long another head takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs" / "model"
        make_model(folder, size, width)
        texts = [make_text(folder, tokens, first) for first in ("A", "The", "Some", "Our")]
        with open_lab(folder.parent) as link:
            page = browser.new_page()
            page.set_default_timeout(120_000)
            page.request.get(link)
            root = link.partition("/open")[0]

            def first_map(text: str) -> dict[str, float]:
                page.goto(f"{root}/attention?{urlencode({'run': 'model', 'text': text})}")
                page.get_by_test_id("heat-map").wait_for()
                page.evaluate(FIRST_MAP)
                page.wait_for_load_state("networkidle")  # pictures and neighbors are fetched
                stages = {part: ms / 1000 for part, ms in page.evaluate(STAGES).items()}
                served = stages["server: tokens"] + stages["server: first head"]
                return stages | {"browser": stages["drawn"] - stages["page"] - served}

            cold, *others = map(first_map, texts)
            again = [first_map(texts[-1]) for _ in range(3)]
            page.locator("[role=grid] [aria-selected=true]").first.focus()
            across, down = min(6, size - 1), min(8, size - 1)  # a key at the edge changes nothing
            keys = ["ArrowRight"] * across + ["ArrowDown"] * down + ["ArrowLeft"] * across
            switches = sorted(page.evaluate(SWITCH, key) for key in keys)
    return {
        "tokens": tokens,
        "size": size,
        "width": width,
        "model not loaded": cold,
        "new text": middle(others),
        "same text again": middle(again),
        "switches": len(switches),
        "switch median": switches[len(switches) // 2],
        "switch slowest": switches[-1],
        "load": os.getloadavg()[0],
    }


def middle(visits: list[dict[str, float]]) -> dict[str, float]:
    """The visit with the median time until the first map."""
    return sorted(visits, key=lambda visit: visit["drawn"])[len(visits) // 2]


def describe_maps(figures: dict[str, Any]) -> str:
    """The figures of the maps as a table."""
    size = f"{figures['tokens']} tokens, {figures['size']} layers, {figures['size']} heads"
    title = f"Attention, {size} (width {figures['width']}): seconds until the first map"
    states = ("model not loaded", "new text", "same text again")
    parts = ("page", "server: tokens", "server: first head", "browser", "drawn", "all pictures")
    rows = [[state, *(f"{figures[state][part]:.2f}" for part in parts)] for state in states]
    text = table(title, ["", *parts], rows)
    text += (
        "\n\nThe page is there, the server answers with the tokens and with the first head while"
    )
    text += "\nit computes on, and the browser lays out and paints: together, until it is drawn.\n"
    median, slowest = figures["switch median"], figures["switch slowest"]
    return (
        f"{text}\nAnother head is drawn after {median:.3f} s (median of {figures['switches']} "
        f"keys; slowest {slowest:.3f} s). Bars: 1 s and 0.1 s.\n"
        f"Load average of the machine: {figures['load']:.1f}."
    )


def main() -> None:
    """Measure the pages and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true", help="A trial in seconds; nothing is kept.")
    parser.add_argument("--part", choices=("runs", "maps"), help="Measure one part only.")
    options = parser.parse_args()
    kept = RESULTS / "lab-pages.json"
    figures = json.loads(kept.read_text("utf-8"))["figures"] if options.part else {}
    with open_browser() as browser:
        if options.part in (None, "runs"):
            size = (12, 50) if options.tiny else (RUNS, ROWS)
            figures["runs"] = measure_list(browser, *size)
        if options.part in (None, "maps"):
            shape = (64, 2, 32) if options.tiny else (TOKENS, LAYERS, WIDTH)
            figures["maps"] = measure_maps(browser, *shape)
    describe = {"runs": describe_list, "maps": describe_maps}
    text = "\n\n".join(describe[part](figures[part]) for part in describe if part in figures)
    if options.tiny:
        print(text)
    else:
        keep("lab-pages", text, figures, device="cpu")


if __name__ == "__main__":
    main()
