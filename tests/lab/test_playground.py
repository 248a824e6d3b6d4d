"""The playground over HTTP and in a browser: its numbers are those of Python."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest
from browser import Scheme
from labs import LabProcess, lab_client, serious_findings, visit_lab
from serving import run_async

import heed
from heed.lab.lab_context import LabContext
from heed.lab.run_folder import RunFolder
from heed.lab.streamed_answer import Report, stream_answer

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.testclient import TestClient
    from playwright.sync_api import Browser, Page

    from heed.api import Classifier, LanguageModel, Translator

pytestmark = pytest.mark.slow
TEXT = "The cat sees the dog."
ROOM = "/api/playground"
LINES = 6
HOLD = """(lines) => {
  const send = window.fetch;
  window.fetch = async (path, options) => {
    const answer = await send(path, options);
    if (!JSON.parse(options?.body ?? "{}").stream) return answer;
    let rest = lines;
    const hold = new TransformStream({
      transform(part, controller) {
        let end = 0;
        while (end < part.length && rest) rest -= part[end++] === 10;
        controller.enqueue(part.slice(0, end));
        return rest ? undefined : new Promise(() => {});
      },
    });
    return new Response(answer.body.pipeThrough(hold, { signal: options.signal }), answer);
  };
}"""
"""Pass on so many lines of a stream, and hold the others back until it is aborted."""


@pytest.fixture(scope="module")
def client(tiny_runs: Path) -> Iterator[TestClient]:
    with lab_client(tiny_runs, is_read_only=True) as client:
        yield client


@pytest.fixture(scope="module")
def translator(tiny_runs: Path) -> Translator:
    return cast("Translator", heed.load(tiny_runs / "tiny-translate", device="cpu"))


def decode(client: TestClient, task: str = "translate", **fields: Any) -> dict[str, Any]:
    body = {"run": f"tiny-{task}", "text": TEXT} | fields
    answer = client.post(f"{ROOM}/{task}", json=body)
    assert answer.status_code == 200, answer.text
    return cast("dict[str, Any]", answer.json())


# ----------------------------------------------------------------------------------- over HTTP


@pytest.mark.parametrize("settings", [{}, {"beam": 3}, {"sample": True, "seed": 4}])
def test_a_translation_is_that_of_the_api(
    client: TestClient, translator: Translator, settings: dict[str, Any]
) -> None:
    answer = decode(client, settings=settings)
    assert answer["text"] == translator.translate([TEXT], **settings)[0]
    assert answer == translator.trace_decoding(TEXT, **settings).to_dict()


def test_a_continuation_is_that_of_the_api(client: TestClient, tiny_runs: Path) -> None:
    model = cast("LanguageModel", heed.load(tiny_runs / "tiny-generate", device="cpu"))
    settings: dict[str, Any] = {"seed": 3, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    answer = decode(client, "generate", text="The", max_tokens=9, settings=settings)
    assert "The" + answer["text"] == model.generate(["The"], length=9, **settings)[0][0]
    for token in answer["tokens"]:
        drawn = [one["drawn"] for one in token["alternatives"]]
        assert sum(drawn) == pytest.approx(1.0, abs=1e-5)  # at most five can be drawn
        assert token["drawn"] > 0


def test_the_lines_of_a_stream_grow_into_the_result(client: TestClient) -> None:
    """Also with a beam: the tree of the result is the nodes of all steps."""
    for settings in ({}, {"beam": 3}):
        whole = decode(client, settings=settings)
        body = {"run": "tiny-translate", "text": TEXT, "stream": True, "settings": settings}
        answer = client.post(f"{ROOM}/translate", json=body)
        assert answer.headers["content-type"] == "application/x-ndjson"
        *steps, last = (json.loads(line) for line in answer.text.splitlines())
        assert last == {"result": whole}
        nodes = [node for step in steps for node in step["nodes"]]
        assert [(node["id"], node["parent"], node["total"]) for node in nodes] == [
            (node["id"], node["parent"], node["total"]) for node in whole["nodes"]
        ]
        assert [" ".join(step["text"].split()) for step in steps][-1] == whole["text"]


def test_an_alternative_is_continued(client: TestClient, translator: Translator) -> None:
    free = decode(client)
    prefix = [free["tokens"][0]["id"], free["tokens"][1]["alternatives"][3]["id"]]
    forced = decode(client, prefix=prefix)
    assert [token["id"] for token in forced["tokens"][:2]] == prefix
    assert forced == translator.trace_decoding(TEXT, prefix=prefix).to_dict()


def test_probabilities_of_all_classes(client: TestClient, tiny_runs: Path) -> None:
    model = cast("Classifier", heed.load(tiny_runs / "tiny-classify", device="cpu"))
    answer = client.post(f"{ROOM}/classify", json={"run": "tiny-classify", "text": TEXT}).json()
    by_label = {one["label"]: one["probability"] for one in answer["probabilities"]}
    assert by_label == model.probabilities([TEXT])[0]
    assert sum(by_label.values()) == pytest.approx(1.0)
    assert answer["label"] == model.classify([TEXT])[0]


def test_a_run_of_pairs_takes_two_texts(tmp_path: Path) -> None:
    """Its labels may be markup: they are text."""
    rows = [f"cat {i % 7}\tdog {i % 5}\t{'<b>yes</b>' if i % 2 else 'no'}" for i in range(40)]
    table = tmp_path / "pairs.tsv"
    table.write_text("\n".join(["question1\tquestion2\tlabel", *rows]), encoding="utf-8")
    settings: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "steps": 2}
    model = heed.Classifier.train(
        train=str(table), run=tmp_path / "runs/pairs", device="cpu", **settings
    )
    with lab_client(tmp_path / "runs") as client:
        assert client.get(f"{ROOM}?run=pairs").json()["labels"] == ["<b>yes</b>", "no"]
        body = {"run": "pairs", "text": "cat 1"}
        answer = client.post(f"{ROOM}/classify", json=body | {"second": "dog 2"}).json()
        alone = client.post(f"{ROOM}/classify", json=body)
    by_label = {one["label"]: one["probability"] for one in answer["probabilities"]}
    assert by_label == model.probabilities([("cat 1", "dog 2")])[0]
    assert alone.status_code == 400
    assert "trained on pairs of texts" in alone.json()["error"]["message"]


def test_a_room_knows_the_task_and_texts_to_try(client: TestClient) -> None:
    about = {task: client.get(f"{ROOM}?run=tiny-{task}").json() for task in TASKS}
    assert [one["task"] for one in about.values()] == [*TASKS]
    assert about["classify"]["pairs"] is False
    assert about["translate"]["decode"]["beam"] == 1
    for task in TASKS:
        (first, *_) = client.get(f"{ROOM}/examples?run=tiny-{task}").json()["texts"]
        assert len(first) == 1
        assert first[0].strip()


TASKS = ("translate", "classify", "generate")
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("translate", {"run": "tiny-classify"}, 400, "was trained to classify, not to translate"),
    ("generate", {"run": "tiny-translate"}, 400, "was trained to translate, not to generate"),
    ("translate", {"run": "../tiny-translate"}, 404, "no such run"),
    ("translate", {"text": " \n"}, 400, "no text to translate"),
    ("translate", {"text": "cat " * 60}, 400, "tokens, and this model reads"),
    ("translate", {"text": "x" * 20_001}, 413, "at most 20000 characters"),
    ("translate", {"settings": {"temperature": 0}}, 400, "temperature cannot be 0"),
    ("translate", {"settings": {"beam": 17}}, 422, "settings.beam"),
    ("translate", {"settings": {"beam": 2, "sample": True}}, 400, "two ways"),
    ("translate", {"settings": {"min_q": 1}}, 422, "min_q"),
    ("translate", {"prefix": [123_456]}, 400, "no token 123456"),
    ("translate", {"prefix": [-1]}, 400, "no token -1"),
    ("translate", {"prefix": [3, 9]}, 400, "nothing is written after"),
    ("translate", {"weights": "nine"}, 400, "weights 'nine'"),
    ("translate", {"reverse": True}, 400, "one way only"),
    ("generate", {"max_tokens": 0}, 422, "max_tokens"),
    ("generate", {"text": "cat " * 9000}, 413, "at most 20000 characters"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("task", "fields", "status", "message"), BAD)
def test_what_cannot_be_decoded_is_refused_in_a_sentence(
    client: TestClient, task: str, fields: dict[str, Any], status: int, message: str, stream: bool
) -> None:
    body = {"run": f"tiny-{task}", "text": TEXT, "stream": stream} | fields
    answer = client.post(f"{ROOM}/{task}", json=body)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), (
        answer.text
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": ""}, "no text to classify"),
        ({"second": "another"}, "trained on single texts"),
        ({"run": "tiny-translate"}, "not to classify"),
    ],
)
def test_what_cannot_be_classified_is_refused(
    client: TestClient, fields: dict[str, Any], message: str
) -> None:
    body = {"run": "tiny-classify", "text": TEXT} | fields
    answer = client.post(f"{ROOM}/classify", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_leaving_stops_the_decoding(tiny_runs: Path) -> None:
    """The search is ended from inside, a step after the client has left."""
    steps: list[int] = []

    def decode(report: Report) -> dict[str, Any]:
        for step in range(100_000):
            steps.append(step)
            report({"nodes": [], "text": ""})
            time.sleep(0.001)
        return {}

    class Leaving:
        """A client that leaves after its third line."""

        lines = 0

        async def is_disconnected(self) -> bool:
            return self.lines >= 3

    async def read() -> None:
        request, lab = Leaving(), LabContext(RunFolder(tiny_runs))
        answer = await stream_answer(decode, lab, cast("Request", request))
        async for _ in answer.body_iterator:
            request.lines += 1
        while lab.queue.pending:
            await asyncio.sleep(0.01)
        lab.queue.close()

    run_async(asyncio.wait_for(read(), 60))
    assert 3 <= len(steps) < 100_000


def test_the_stop_button_leaves_what_was_written(tiny_lab: LabProcess, chromium: Browser) -> None:
    with visit_lab(chromium, tiny_lab, "/playground?run=tiny-generate") as visit:
        page = visit.page
        page.get_by_label("Prompt").fill("The")
        page.get_by_label("Tokens at most").fill("1000")
        page.get_by_role("radio", name="Beam").check()
        page.get_by_label("Beam size").fill("16")
        # However slow the browser is, the end of the search does not come before the button.
        page.evaluate(HOLD, LINES)
        page.get_by_role("button", name="Generate").click()
        page.locator("[data-token]").nth(LINES - 1).wait_for()
        assert page.locator(".output").get_attribute("aria-busy") == "true"
        page.get_by_role("button", name="Stop").click()
        page.get_by_text(f"Stopped after {LINES} tokens").wait_for()
        page.get_by_text(re.compile(rf"Log-probability .* in {LINES} tokens, score")).wait_for()
        assert page.locator("[data-token]").count() == LINES


# ----------------------------------------------------------------------------------- in a browser


DONE = '.output[aria-busy="false"]'


def room(**query: str | int) -> str:
    return "/playground?" + "&".join(f"{key}={quote(str(value))}" for key, value in query.items())


def shown(page: Page, selector: str) -> list[float]:
    """The exact numbers of these elements."""
    values = page.eval_on_selector_all(selector, "all => all.map((one) => one.value)")
    return [float(value) for value in values]


def test_probabilities_and_alternatives_on_screen_are_pythons(
    chromium: Browser, tiny_lab: LabProcess, translator: Translator
) -> None:
    decoded = translator.trace_decoding(TEXT)
    with visit_lab(chromium, tiny_lab, room(run="tiny-translate", text=TEXT)) as visit:
        page = visit.page
        page.locator(DONE).wait_for()
        assert page.locator(".output").inner_text().strip() == decoded.text.strip()
        expected = [math.exp(one.logprob) for one in decoded.tokens]
        assert shown(page, "[data-token] data") == pytest.approx(expected, rel=1e-5)
        page.locator("[data-token='1']").focus()
        listed = [math.exp(one.logprob) for one in decoded.tokens[1].alternatives]
        assert shown(page, "td:has([data-alternative]) + td data")[:10] == pytest.approx(
            listed, rel=1e-5
        )
        # Cross-attention of the token under the focus: that of `heed attend`, the last layer.
        cross = translator.attention(TEXT).cross
        assert cross is not None
        weights = cross.mean_over_heads(len(cross.weights) - 1)
        assert shown(page, "[data-source] data") == pytest.approx(weights[1].tolist(), abs=1e-6)
        page.keyboard.press("ArrowRight")
        assert shown(page, "[data-source] data") == pytest.approx(weights[2].tolist(), abs=1e-6)
        page.locator("[data-token='0']").hover()
        assert shown(page, "[data-source] data") == pytest.approx(weights[0].tolist(), abs=1e-6)


def test_an_alternative_by_keyboard_is_continued(
    chromium: Browser, tiny_lab: LabProcess, translator: Translator
) -> None:
    free = translator.trace_decoding(TEXT)
    prefix = [free.tokens[0].id, free.tokens[1].alternatives[2].id]
    forced = translator.trace_decoding(TEXT, prefix=prefix)
    with visit_lab(chromium, tiny_lab, room(run="tiny-translate", text=TEXT)) as visit:
        page = visit.page
        page.locator(DONE).wait_for()
        page.locator("[data-token='0']").focus()
        page.keyboard.press("ArrowRight")
        page.locator(f"[data-alternative='{prefix[1]}']").focus()
        page.keyboard.press("Enter")
        page.get_by_text("tokens were forced").wait_for()
        page.locator(DONE).wait_for()
        assert page.locator(".output").inner_text().strip() == forced.text.strip()
        expected = [math.exp(one.logprob) for one in forced.tokens]
        assert shown(page, "[data-token] data") == pytest.approx(expected, rel=1e-5)
        assert f"prefix={prefix[0]}%2C{prefix[1]}" in page.url
        page.reload()  # a bookmark shows the same
        page.get_by_text("tokens were forced").wait_for()
        page.locator(DONE).wait_for()
        assert shown(page, "[data-token] data") == pytest.approx(expected, rel=1e-5)


def test_the_beam_is_drawn_with_its_sums(
    chromium: Browser, tiny_lab: LabProcess, translator: Translator
) -> None:
    decoded = translator.trace_decoding(TEXT, beam=3)
    address = room(run="tiny-translate", text=TEXT, mode="beam", beam=3)
    with visit_lab(chromium, tiny_lab, address) as visit:
        page = visit.page
        page.locator("svg .rank").first.wait_for()
        page.locator(DONE).wait_for()
        assert page.locator("[data-node]").count() == len(decoded.trace.nodes)
        totals = page.eval_on_selector_all("[data-node]", "all => all.map((n) => n.dataset.total)")
        expected = [node.logprob for node in decoded.trace.nodes]
        assert [float(total) for total in totals] == pytest.approx(expected, rel=1e-5)
        leaf = decoded.trace.leaves[0]
        page.locator(f"[data-node='{leaf}']").focus()
        total, score = shown(page, ".detail data")
        best = decoded.trace.hypotheses[0]
        assert (total, score) == pytest.approx((best.logprob, best.score), rel=1e-5)
        page.keyboard.press("ArrowLeft")
        parent = decoded.trace.nodes[leaf].parent
        assert parent is not None
        assert shown(page, ".detail data")[0] == pytest.approx(
            decoded.trace.nodes[parent].logprob, rel=1e-5
        )


def test_class_probabilities_on_screen_are_pythons(
    chromium: Browser, tiny_lab: LabProcess, tiny_runs: Path
) -> None:
    model = cast("Classifier", heed.load(tiny_runs / "tiny-classify", device="cpu"))
    with visit_lab(chromium, tiny_lab, room(run="tiny-classify", text=TEXT)) as visit:
        visit.page.locator("[data-label]").first.wait_for()
        expected = sorted(model.probabilities([TEXT])[0].values(), reverse=True)
        assert shown(visit.page, "[data-label] data") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 400)], ids=["desk", "phone"]
)
def test_the_playground_is_accessible(
    chromium: Browser, tiny_lab: LabProcess, scheme: Scheme, width: int
) -> None:
    address = room(run="tiny-translate", text=TEXT, mode="beam", beam=3)
    with visit_lab(chromium, tiny_lab, address, scheme=scheme, width=width) as visit:
        visit.page.locator("svg .rank").first.wait_for()
        assert serious_findings(visit) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert min(ratio for _, ratio in visit.contrasts()) >= 4.5


def test_an_error_is_shown_as_the_server_says_it(chromium: Browser, tiny_lab: LabProcess) -> None:
    address = room(run="tiny-translate", text="cat " * 60)
    with visit_lab(chromium, tiny_lab, address) as visit:
        visit.page.get_by_role("alert").wait_for()
        assert "tokens, and this model reads" in visit.page.get_by_role("alert").inner_text()
        visit.messages.clear()  # the browser itself reports the status 400
