"""Pages in a real browser: Debian's Chromium, driven by Playwright, without a network."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

PATIENCE = 180_000
"""Milliseconds that a page has for what it shows: a busy machine is slow, and no failure."""
Scheme = Literal["light", "dark"]

CONTRASTS = """() => {
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const contrasts = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest("script, style, .unseen")) continue;
    const a = luminance(rgba(getComputedStyle(element).color)), b = luminance(ground(element));
    contrasts.push([text.slice(0, 40), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
  }
  return contrasts;
}"""
"""The contrast of every visible text with what is behind it, as WCAG 2 defines it."""
REST = """() => new Promise((resolve) => setTimeout(
  () => requestAnimationFrame(() => setTimeout(() => resolve(document.body.innerHTML))), 800
))"""
"""What a page shows after a rest that is longer than its own timers, by the page's clock."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser for all tests; they are skipped where there is none, never in CI."""
    path = shutil.which("chromium")
    if path is None and os.environ.get("CI") != "true":
        pytest.skip("there is no Chromium: apt-get install chromium")
    assert path, "there is no Chromium: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox; these pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page that is open, and what went wrong in it."""

    page: Page
    messages: list[str] = field(default_factory=list)
    """Errors and warnings on the console."""
    requests: list[str] = field(default_factory=list)
    unanswered: set[Request] = field(default_factory=set)
    """Requests without their whole answer, but for streams of events, which do not end."""

    def settle(self) -> None:
        """Wait until every request is answered, and the page asks and changes nothing more."""
        end = time.monotonic() + PATIENCE / 1000
        before = None
        while True:
            content = self.page.evaluate(REST)
            now = (content, len(self.requests))
            if now == before and not self.unanswered:
                return
            urls = [request.url for request in self.unanswered]
            assert time.monotonic() < end, f"the page does not come to rest: {urls}"
            before = now

    def contrasts(self) -> list[tuple[str, float]]:
        """Every visible text with its contrast."""
        return [(text, ratio) for text, ratio in self.page.evaluate(CONTRASTS)]


def watch_page(context: BrowserContext) -> Visit:
    """A new page whose messages on the console and whose requests are collected."""
    visit = Visit(context.new_page())

    def note_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            visit.messages.append(f"{message.text} ({message.location['url']})")

    visit.page.on("console", note_message)
    visit.page.on("pageerror", lambda error: visit.messages.append(str(error)))

    def note_request(request: Request) -> None:
        visit.requests.append(request.url)
        if request.resource_type != "eventsource":
            visit.unanswered.add(request)

    def note_answer(request: Request) -> None:
        visit.unanswered.discard(request)

    visit.page.on("request", note_request)
    visit.page.on("requestfinished", note_answer)
    visit.page.on("requestfailed", note_answer)
    return visit


def wait_to_read(page: Page, read: Callable[[], object], expected: object) -> None:
    """Wait until what is read on a page is this: an answer may come later than its place."""
    end = time.monotonic() + PATIENCE / 1000
    while (found := read()) != expected:
        assert time.monotonic() < end, f"{found!r} is not {expected!r}"
        page.wait_for_timeout(50)


@contextmanager
def closing(context: BrowserContext, visit: Visit) -> Iterator[None]:
    """Close the context in the end; an error of the test gets what was on screen as a note."""
    try:
        yield
    except BaseException as error:
        page = visit.page
        with suppress(Exception):  # of a page that answers no more
            text = page.inner_text("body", timeout=5000)
            error.add_note(f"{page.url}\n{text[:4000]}")
        error.add_note(f"On the console: {visit.messages}")
        raise
    finally:
        context.close()


@contextmanager
def visit_file(
    browser: Browser, path: Path, *, width: int = 1280, height: int = 900, scheme: Scheme = "light"
) -> Iterator[Visit]:
    """Open a file without a network; afterwards, nothing but the file must have been asked for."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    context.set_default_timeout(PATIENCE)
    visit = watch_page(context)
    with closing(context, visit):
        visit.page.goto(path.as_uri())
        yield visit
    assert visit.messages == [], visit.messages
    assert visit.requests == [path.as_uri()]
