"""The server's routes: LibreTranslate's and OpenAI's shapes, classification, limits and errors."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, partialmethod
from html.parser import HTMLParser
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import run_async, send_and_leave, server_client, task_folders

import heed
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.search import CHECK_EVERY, Search
from heed.errors import HeedError
from heed.lab.listen import require_key_elsewhere
from heed.lab.server import served_runs, translate_routes
from heed.lab.server.dynamic_batching import DynamicBatcher
from heed.lab.server.invariance_check import has_invariant_batches
from heed.lab.server.translate_routes import find_markup, split_text

pytest.importorskip("fastapi")
TEXTS = [
    "The old woman sees the cat.",
    "The dog sleeps.",
    "I like the red house and the small garden that the king sees.",
    "The princess will not find the good poem because the queen takes the book.",
    "",
    "xyz !",
]


@pytest.fixture(scope="module")
def client(tiny_runs: Path) -> Iterator[Any]:
    with server_client(task_folders(tiny_runs), max_waiting=512) as client:
        yield client


def served(client: Any) -> list[Any]:
    return list(client.app.state.server.runs.runs.values())


def translated(client: Any, **body: Any) -> Any:
    answer = client.post("/translate", json={"source": "en", "target": "fr"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ------------------------------------------------------------------------------ LibreTranslate


def test_translations_are_those_of_the_pipeline(client: Any, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-translate", device="cpu")
    expected = model.translate(TEXTS)  # type: ignore[union-attr]
    assert translated(client, q=TEXTS)["translatedText"] == expected
    for text, translation in zip(TEXTS, expected, strict=True):
        assert translated(client, q=text) == {"translatedText": translation}


def test_a_form_is_read_as_json_is(client: Any) -> None:
    fields = {"q": TEXTS[0], "source": "auto", "target": "fr", "alternatives": "2"}
    by_form = client.post("/translate", data=fields).json()
    assert by_form == translated(client, **{**fields, "alternatives": 2})
    assert by_form["detectedLanguage"] == {"language": "en", "confidence": 0.0}
    assert len(by_form["alternatives"]) == 2
    several = client.post("/translate", data={"q": TEXTS[:2], "target": "fr"}).json()
    assert several["translatedText"] == translated(client, q=TEXTS[:2])["translatedText"]


def test_lines_and_tags_stay_where_they_are(client: Any) -> None:
    first, second = (translated(client, q=text)["translatedText"] for text in TEXTS[:2])
    text = f"{TEXTS[0]}\n\n{TEXTS[1]}\r\n"
    assert translated(client, q=text)["translatedText"] == f"{first}\n\n{second}\r\n"
    html = f"<p title='a'> {TEXTS[0]}</p><script>x < 1</script>\n<b>{TEXTS[1]}</b>"
    answer = translated(client, q=html, format="html")["translatedText"]
    assert answer == f"<p title='a'> {first}</p><script>x < 1</script>\n<b>{second}</b>"


MARKUP = re.compile(
    r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE | re.ASCII
)
"""What `find_markup` finds, as one pattern, which takes quadratic time."""
PARTS = (
    "<",
    ">",
    "<!--",
    "-->",
    "<script",
    "</SCRIPT",
    "<Style>",
    "</style >",
    " ",
    "\n",
    "-",
    "a",
)


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_markup_is_found_as_one_pattern_finds_it(text: str) -> None:
    assert list(find_markup(text)) == [match.span() for match in MARKUP.finditer(text)]
    assert "".join(part for part, _ in split_text(text, is_html=True)) == text


@pytest.mark.parametrize("part", PARTS)
def test_markup_is_found_in_linear_time(part: str) -> None:
    """A pattern would take hours for 1 MiB of what begins a tag and never ends."""
    text = (part * (1 << 20))[: 1 << 20]
    began = time.monotonic()
    split_text(text, is_html=True)
    assert time.monotonic() - began < 20


def test_references_to_characters_that_are_not(client: Any) -> None:
    reference = f"&#{'9' * 5000};"
    assert translated(client, q=f"<b>{reference}</b>", format="html")["translatedText"]
    assert split_text(f"a&#{'9' * 5000};b", is_html=True)[1][0] == "a\ufffdb"


def test_languages_name_every_direction(client: Any) -> None:
    assert client.get("/languages").json() == [{"code": "en", "name": "English", "targets": ["fr"]}]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"source": "en", "target": "fr"}, 400, "q: "),
        ({"q": "a"}, 400, "target"),
        ({"q": 3, "target": "fr"}, 400, "q"),
        ({"q": "a", "target": "de"}, 400, "There is en to fr"),
        ({"q": "a", "target": "fr", "model": "tiny-translat"}, 404, "Did you mean"),
        ({"q": "a", "target": "fr", "alternatives": 99}, 400, "at most 15"),
        ({"q": "a" * 10_001, "target": "fr"}, 413, "10,001 characters"),
        ({"q": ["a"] * 65, "target": "fr"}, 413, "65 texts"),
        ({"q": "a\n" * 600, "target": "fr"}, 413, "600 lines"),
    ],
)
def test_bad_requests_get_a_sentence(
    client: Any, body: dict[str, Any], status: int, says: str
) -> None:
    answer = client.post("/translate", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/translate", {"q": 5, "target": "fr"}, "q: it must be a text, or a list of texts."),
        (
            "/translate",
            {"q": ["a", 5], "target": "fr"},
            "q: it must be a text, or a list of texts.",
        ),
        ("/translate", {"q": "a", "target": 5}, "target: it must be a text."),
        (
            "/classify",
            {"q": 5},
            "q: it must be a text, or a list of texts; a list of pairs for a run of pairs.",
        ),
        (
            "/v1/completions",
            {"prompt": 5},
            "prompt: it must be a text to continue, or a list of texts",
        ),
        ("/v1/completions", {"prompt": "a", "stop": 5}, "stop: it must be a string before which"),
        ("/v1/completions", {"prompt": "a", "n": "x"}, "n: it must be a whole number"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"a": "x"}}, "logit_bias.a: it must be"),
    ],
)
def test_a_field_of_another_type_is_told_what_it_must_be(
    client: Any, path: str, body: dict[str, Any], says: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert says in str(answer.json()["error"])
    assert "Input" not in answer.text


def test_bodies_that_are_no_json_and_addresses_that_are_not(client: Any) -> None:
    answer = client.post("/translate", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    answer = client.post("/translate", content=b"<a/>", headers={"content-type": "text/xml"})
    assert answer.status_code == 415
    assert client.get("/nothing").json()["error"].startswith("/nothing: ")
    assert client.get("/translate").status_code == 405


# -------------------------------------------------------------------------------------- OpenAI


def completed(client: Any, **body: Any) -> Any:
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts_of(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def events_of(client: Any, **body: Any) -> list[Any]:
    answer = client.post("/v1/completions", json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = [line for line in answer.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_completions_are_those_of_the_pipeline(client: Any, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-generate", device="cpu")
    prompts = ["The old", "A dog"]
    expected = model.generate(  # type: ignore[union-attr]
        prompts, length=9, samples=2, seed=5, temperature=0.7, top_p=0.8
    )
    settings = {"max_tokens": 9, "n": 2, "seed": 5, "temperature": 0.7, "top_p": 0.8}
    answer = completed(client, prompt=prompts, echo=True, **settings)
    assert texts_of(answer) == [text for texts in expected for text in texts]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4
    greedy = completed(client, prompt="The old", temperature=0, n=2, max_tokens=5)
    one = model.generate(["The old"], length=5, sample=False)[0][0]  # type: ignore[union-attr]
    assert texts_of(greedy) == [one.removeprefix("The old")] * 2


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_joins_to_the_whole_answer(client: Any, logprobs: int | None) -> None:
    body = {"prompt": ["The old", "A"], "max_tokens": 8, "seed": 2, "n": 2, "echo": True}
    body |= {} if logprobs is None else {"logprobs": logprobs}
    whole = completed(client, **body)
    *events, last = events_of(client, **body, stream_options={"include_usage": True})
    joined = dict.fromkeys(range(4), "")
    for event in events:
        [choice] = event["choices"]
        joined[choice["index"]] += choice["text"]
    assert list(joined.values()) == texts_of(whole)
    finished = [
        e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]
    ]
    assert finished == [choice["finish_reason"] for choice in whole["choices"]]
    assert last["usage"] == whole["usage"]


def test_stop_strings_end_a_text_and_its_tokens(client: Any) -> None:
    body = {"prompt": "The", "max_tokens": 20, "seed": 3, "logprobs": 0}
    text = texts_of(completed(client, **body))[0]
    stop = text.split()[4]
    answer = completed(client, **body, stop=stop)["choices"][0]
    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish_reason"] == "stop"
    assert "".join(answer["logprobs"]["tokens"]).startswith(answer["text"].rstrip())


def test_logprobs_are_those_of_the_model(client: Any, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-generate", device="cpu")
    known = texts_of(completed(client, prompt="The", max_tokens=9, seed=1, echo=True))[0]
    body = {"prompt": known, "max_tokens": 0, "echo": True, "logprobs": 3}
    [choice] = completed(client, **body)["choices"]
    scores = choice["logprobs"]
    [losses] = model.token_losses([known])  # type: ignore[union-attr]
    assert scores["token_logprobs"] == pytest.approx(
        [-loss for loss in losses.losses[: len(scores["tokens"])]], abs=1e-4
    )
    assert "".join(scores["tokens"]) == choice["text"] == known
    for offset, token in zip(scores["text_offset"], scores["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for value, token, top in zip(
        scores["token_logprobs"], scores["tokens"], scores["top_logprobs"], strict=True
    ):
        assert top[token] == value
        assert 3 <= len(top) <= 4
        assert value <= max(top.values()) <= 0


def test_models_are_listed_and_named(client: Any) -> None:
    [card] = client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny-generate"
    assert client.get("/v1/models/tiny-generate").json() == card
    answer = client.get("/v1/models/tiny-translate")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 2000}, "max_tokens"),
        ({"n": 99}, "n"),
        ({"best_of": 5}, "best_of"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"stop": ["a", ""]}, "stop"),
        ({"suffix": "x"}, "suffix"),
        ({"temperature": 3}, None),
        ({"unknown": 1}, None),
    ],
)
def test_what_is_not_supported_is_refused(
    client: Any, body: dict[str, Any], field: str | None
) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a"} | body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    if field is not None:
        assert error["param"] == field


# ------------------------------------------------------------------------------ classification


def test_labels_are_those_of_the_pipeline(client: Any, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-classify", device="cpu")
    answer = client.post("/classify", json={"q": TEXTS}).json()
    assert answer["model"] == "tiny-classify"
    labels = [result["label"] or "" for result in answer["results"]]
    assert labels == model.classify(TEXTS)  # type: ignore[union-attr]
    for result, expected in zip(
        answer["results"],
        model.probabilities(TEXTS),  # type: ignore[union-attr]
        strict=True,
    ):
        assert result["probabilities"] == pytest.approx(expected, abs=1e-5)
    pair = client.post("/classify", json={"q": [["a", "b"]]})
    assert pair.status_code == 400
    assert "single texts" in pair.json()["error"]


# ------------------------------------------------------------------------- together and alone


def ask(client: Any, request: tuple[str, dict[str, Any]]) -> Any:
    path, body = request
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return {key: value for key, value in answer.json().items() if key not in ("id", "created")}


requests = st.one_of(
    st.tuples(
        st.just("/translate"),
        st.fixed_dictionaries(
            {
                "q": st.one_of(
                    st.sampled_from(TEXTS), st.lists(st.sampled_from(TEXTS), max_size=3)
                ),
                "target": st.just("fr"),
                "alternatives": st.sampled_from([0, 0, 2]),
            }
        ),
    ),
    st.tuples(st.just("/classify"), st.fixed_dictionaries({"q": st.sampled_from(TEXTS)})),
    st.tuples(
        st.just("/v1/completions"),
        st.fixed_dictionaries(
            {
                "prompt": st.sampled_from([text for text in TEXTS if text]),
                "max_tokens": st.integers(1, 9),
                "temperature": st.sampled_from([0, 0.8]),
                "seed": st.integers(0, 3),
                "n": st.integers(1, 2),
                "logprobs": st.sampled_from([None, 2]),
                "stop": st.sampled_from([None, "the", "."]),
            }
        ),
    ),
)


@settings(max_examples=5)
@given(asked=st.lists(requests, min_size=2, max_size=10))
def test_answers_are_the_same_bits_together_and_alone(client: Any, asked: list[Any]) -> None:
    alone = [ask(client, request) for request in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda request: ask(client, request), asked))
    assert together == alone


def test_a_model_whose_batches_are_not_invariant_is_decoded_one_by_one(
    tiny_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = heed.load(tiny_runs / "tiny-translate", device="cpu")
    assert has_invariant_batches(model)
    monkeypatch.setattr(served_runs, "has_invariant_batches", lambda model: False)
    with server_client([tiny_runs / "tiny-translate"]) as client:
        [run] = served(client)
        assert run.batcher.max_batch == 1
        assert len(translated(client, q=TEXTS)["translatedText"]) == len(TEXTS)


# -------------------------------------------------------------------------- access and limits


def test_a_key_is_asked_for_in_the_body_or_the_header(tiny_runs: Path) -> None:
    with server_client(task_folders(tiny_runs), key="a secret key") as client:
        body = {"q": "The dog sleeps.", "target": "fr"}
        assert client.post("/translate", json=body).status_code == 403
        assert client.post("/translate", json=body | {"api_key": "other"}).status_code == 403
        assert client.post("/translate", json={"q": 3}).status_code == 403
        assert client.post("/translate", json=body | {"api_key": "a secret key"}).status_code == 200
        assert client.post("/translate", data=body | {"api_key": "a secret key"}).status_code == 200
        refused = client.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        for path in ("/languages", "/metrics", "/v1/models"):
            assert client.get(path).status_code in (401, 403)
        bearer = {"Authorization": "Bearer a secret key"}
        for path in ("/languages", "/metrics", "/v1/models"):
            assert client.get(path, headers=bearer).status_code == 200
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json()["status"] == "ready"


def test_other_hosts_and_pages_of_other_sites_are_refused(client: Any) -> None:
    body = {"q": "The dog sleeps.", "target": "fr"}
    foreign = client.post("/translate", json=body, headers={"Origin": "http://evil.example"})
    assert foreign.status_code == 403
    rebound = client.post("/translate", json=body, headers={"Host": "evil.example"})
    assert rebound.status_code == 421
    assert isinstance(rebound.json()["error"], str)


def test_listening_elsewhere_needs_a_key() -> None:
    with pytest.raises(HeedError, match="there is no key"):
        require_key_elsewhere("0.0.0.0", None, min_length=8)  # noqa: S104


def test_limits_of_body_queue_and_time(tiny_runs: Path) -> None:
    folders = [tiny_runs / "tiny-translate"]
    with server_client(folders, max_body=5000, max_waiting=1, seconds=1.0) as client:
        large = client.post("/translate", json={"q": "a" * 6000, "target": "fr"})
        assert large.status_code == 413
        assert isinstance(large.json()["error"], str)
        [run] = served(client)
        began, go = Event(), Event()
        compute = run.batcher.compute

        def hold(key: Any, jobs: Any) -> Any:
            began.set()
            go.wait(20)
            return compute(key, jobs)

        run.batcher.compute = hold
        body = {"q": "The dog sleeps.", "target": "fr"}
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client.post, "/translate", json=body)
            began.wait(20)
            second = pool.submit(client.post, "/translate", json=body)
            while run.batcher.waiting == 0:
                pass
            full = client.post("/translate", json=body)
            assert full.status_code == 429
            assert int(full.headers["Retry-After"]) >= 1
            for late in (first.result(), second.result()):
                assert late.status_code == 503
                assert int(late.headers["Retry-After"]) >= 1
                assert "longer than 1 s" in late.json()["error"]
            go.set()
        run.batcher.compute = compute
        assert run.batcher.waiting == 0


REQUESTS: dict[str, dict[str, Any]] = {
    "/translate": {"q": [TEXTS[3]], "target": "fr", "alternatives": 4},
    "/classify": {"q": [TEXTS[3]]},
    "/v1/completions": {"prompt": "The old", "max_tokens": 1000, "n": 2, "temperature": 2.0},
}
SECONDS = 20.0
"""More than any request here takes."""


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/translate", "/v1/completions"])
def test_a_client_that_leaves_stops_the_decoding(
    client: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, began, cancelled = list[int](), Event(), Event()
    step, cancel = Search._step, DynamicBatcher.cancel

    def count_step(self: Any, state: Any) -> None:
        steps.append(1)
        began.set()
        assert cancelled.wait(SECONDS)  # the first step waits until the client has left
        step(self, state)

    def set_cancelled(self: Any, jobs: Any) -> None:
        cancel(self, jobs)
        cancelled.set()

    monkeypatch.setattr(Search, "_step", count_step)
    monkeypatch.setattr(DynamicBatcher, "cancel", set_cancelled)

    async def main() -> None:
        left = asyncio.Event()
        request = asyncio.ensure_future(send_and_leave(client.app, path, REQUESTS[path], left))
        await until(began.is_set)
        left.set()
        await request
        await until(lambda: not any(run.batcher.running for run in served(client)))

    run_async(main())
    assert len(steps) <= CHECK_EVERY + 1


@pytest.mark.parametrize("path", REQUESTS)
def test_a_client_that_leaves_while_it_waits_frees_its_place(client: Any, path: str) -> None:
    runs, go = served(client), Event()
    computes = {run.name: run.batcher.compute for run in runs}
    for run in runs:
        run.batcher.compute = lambda key, jobs: go.wait(SECONDS) and [None for _ in jobs]

    async def main() -> None:
        stays, left = asyncio.Event(), asyncio.Event()
        app, body = client.app, REQUESTS[path]
        first = asyncio.ensure_future(send_and_leave(app, path, body, stays))
        await until(lambda: any(run.batcher.running for run in runs))
        second = asyncio.ensure_future(send_and_leave(app, path, body, left))
        await until(lambda: any(run.batcher.waiting for run in runs))
        left.set()
        await second
        assert not any(run.batcher.waiting for run in runs)
        stays.set()
        await first

    try:
        run_async(main())
    finally:
        go.set()
        for run in runs:
            run.batcher.compute = computes[run.name]


@pytest.mark.parametrize("path", REQUESTS)
def test_texts_are_not_encoded_in_the_event_loop(
    client: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of text takes a while: other requests are answered meanwhile."""
    encode, split = Tokenizer.encode, translate_routes.split_texts
    in_loop: list[bool] = []

    def note(function: Any, *args: Any, **options: Any) -> Any:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            in_loop.append(True)
        in_loop.append(False)
        return function(*args, **options)

    monkeypatch.setattr(Tokenizer, "encode", partialmethod(lambda *args: note(encode, *args)))
    monkeypatch.setattr(translate_routes, "split_texts", partial(note, split))
    body = REQUESTS[path] | ({"max_tokens": 2} if path == "/v1/completions" else {})
    assert client.post(path, json=body).status_code == 200
    assert in_loop
    assert not any(in_loop)


# ------------------------------------------------------------------------------------- service


def test_metrics_count_requests_and_batches(client: Any) -> None:
    translated(client, q=TEXTS[0])
    text = client.get("/metrics").text
    assert 'heed_requests_total{path="/translate",status="200"}' in text
    assert 'heed_batch_size_count{run="tiny-translate"}' in text
    assert 'heed_waiting{run="tiny-translate"} 0.0' in text


class References(HTMLParser):
    """Everything a page would load, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"script", "img", "iframe", "link"}
        self.loads += [f"{tag} {dict(attrs)}"] if tag in loads else []


def test_the_page_describes_every_operation_and_loads_nothing(client: Any) -> None:
    page, schema = client.get("/docs").text, client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in page
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for field, about in content["schema"]["properties"].items():
                    assert f"<code>{field}</code>" in page
                    assert about["description"]
    references = References()
    references.feed(page)
    assert references.loads == ["link {'rel': 'icon', 'href': 'data:,'}"]


def test_two_runs_of_one_name_or_kind(tiny_runs: Path) -> None:
    folder = tiny_runs / "tiny-translate"
    with pytest.raises(HeedError, match="two runs have the name"):
        served_runs.load_runs([str(folder), str(folder)], served_runs.ServerSettings())
    with server_client([f"a={folder}", f"b={folder}"]) as client:
        body = {"q": "The dog sleeps.", "target": "fr"}
        answer = client.post("/translate", json=body)
        assert answer.status_code == 400
        assert "a, b" in answer.json()["error"]
        assert translated(client, model="b", q="The dog sleeps.")
