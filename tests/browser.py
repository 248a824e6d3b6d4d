"""Pages in a real browser: Debian's Chromium, driven by Playwright, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

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

    def contrasts(self) -> list[tuple[str, float]]:
        """Every visible text with its contrast."""
        return [(text, ratio) for text, ratio in self.page.evaluate(CONTRASTS)]


def watch_page(context: BrowserContext) -> Visit:
    """A new page whose messages on the console and whose requests are collected."""
    visit = Visit(context.new_page())

    def note_message(message: Any) -> None:
        if message.type in ("error", "warning"):
            visit.messages.append(message.text)

    visit.page.on("console", note_message)
    visit.page.on("pageerror", lambda error: visit.messages.append(str(error)))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    return visit


@contextmanager
def visit_file(
    browser: Browser, path: Path, *, width: int = 1280, height: int = 900, scheme: Scheme = "light"
) -> Iterator[Visit]:
    """Open a file without a network; afterwards, nothing but the file must have been asked for."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    context.set_default_timeout(10_000)
    visit = watch_page(context)
    visit.page.goto(path.as_uri())
    yield visit
    context.close()
    assert visit.messages == []
    assert visit.requests == [path.as_uri()]
