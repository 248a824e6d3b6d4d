"""Published clients against a real `heed serve`, and its end by SIGTERM."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import ServerProcess, running_server, task_folders

import heed

pytestmark = pytest.mark.slow
KEY = "a key of this test"
SENTENCE = "The old woman sees the cat."


@pytest.fixture(scope="module")
def server(tiny_runs: Path) -> Iterator[ServerProcess]:
    with running_server(*map(str, task_folders(tiny_runs)), "--key", KEY) as server:
        yield server


def test_libretranslatepy_translates(server: ServerProcess, tiny_runs: Path) -> None:
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(server.address, api_key=KEY)
    model: Any = heed.load(tiny_runs / "tiny-translate", device="cpu")
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["fr"]}]
    assert client.translate(SENTENCE, "en", "fr") == model.translate([SENTENCE])[0]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        LibreTranslateAPI(server.address, api_key="other").translate(SENTENCE, "en", "fr")


def test_openai_completes_and_streams(server: ServerProcess, tiny_runs: Path) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny-generate"]
    assert client.models.retrieve("tiny-generate").owned_by == "heed"
    model: Any = heed.load(tiny_runs / "tiny-generate", device="cpu")
    expected = model.generate(["The old"], length=8, samples=2, seed=3)[0]
    options: dict[str, Any] = {"model": "tiny-generate", "prompt": "The old", "max_tokens": 8}
    options |= {"seed": 3, "n": 2, "echo": True}
    whole = client.completions.create(**options, logprobs=2)
    assert [choice.text for choice in whole.choices] == expected
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(
        len(choice.logprobs.tokens or ()) - 2 for choice in whole.choices if choice.logprobs
    )
    streamed = ["", ""]
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected
    with pytest.raises(openai.NotFoundError, match="no run here"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="only 0 is supported"):
        client.completions.create(model="tiny-generate", prompt="a", presence_penalty=1)
    wrong = openai.OpenAI(base_url=f"{server.address}/v1", api_key="other", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def test_curl_asks_everything(server: ServerProcess) -> None:
    def curl(path: str, *flags: str) -> Any:
        header = f"Authorization: Bearer {KEY}"
        command = ["curl", "-sS", "--fail-with-body", "-H", header, server.address + path, *flags]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    body = json.dumps({"q": [SENTENCE], "source": "en", "target": "fr"})
    by_json = json.loads(curl("/translate", "--json", body))
    form = ("-d", f"q={SENTENCE}", "-d", "source=en", "-d", "target=fr")
    assert json.loads(curl("/translate", *form))["translatedText"] in by_json["translatedText"]
    assert json.loads(curl("/classify", "-d", f"q={SENTENCE}"))["results"][0]["label"]
    events = curl("/v1/completions", "-N", "--json", '{"prompt": "The", "stream": true}')
    assert events.endswith("data: [DONE]\n\n")
    assert "heed_requests_total" in curl("/metrics")
    assert "<h1>heed serve" in curl("/docs")


def test_ctranslate2_is_the_engine_where_it_is_asked_for(tiny_runs: Path) -> None:
    import httpx

    pytest.importorskip("ctranslate2")
    folder = tiny_runs / "tiny-translate"
    model: Any = heed.Translator.load(folder, device="cpu", engine="ctranslate2")
    with running_server(str(folder), "--engine", "ctranslate2") as server:
        body = {"q": [SENTENCE, "The dog sleeps."], "target": "fr"}
        answer = httpx.post(f"{server.address}/translate", json=body, timeout=60).json()
    assert answer["translatedText"] == model.translate(body["q"])


def test_int8_answers_what_it_answers_alone(tiny_runs: Path) -> None:
    import httpx

    folder = tiny_runs / "tiny-translate"
    with running_server(str(folder), "--precision", "int8", "--device", "cpu") as server:
        texts = [SENTENCE, "The dog sleeps."]
        with httpx.Client(base_url=server.address, timeout=60) as client:
            together = client.post("/translate", json={"q": texts, "target": "fr"})
            alone = [client.post("/translate", json={"q": text, "target": "fr"}) for text in texts]
    answers = [answer.json()["translatedText"] for answer in alone]
    assert together.json()["translatedText"] == answers
    model: Any = heed.Translator.load(folder, device="cpu", precision="int8")
    model.batch_invariant = True
    assert answers == model.translate(texts)


def test_sigterm_finishes_what_is_in_flight(tiny_runs: Path) -> None:
    import openai

    server = ServerProcess(str(tiny_runs / "tiny-generate"))
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="any", max_retries=0)
    options: dict[str, Any] = {"model": "tiny-generate", "prompt": "The", "seed": 1}
    options |= {"max_tokens": 1024, "temperature": 2.0, "n": 8}
    stream = client.completions.create(**options, stream=True)
    first = next(stream)  # decoding has begun
    ended: list[tuple[int, str]] = []
    stopping = threading.Thread(target=lambda: ended.append(server.stop()))
    stopping.start()
    time.sleep(0.3)
    texts = dict.fromkeys(range(8), "")
    reasons: dict[int, str | None] = {}
    for chunk in [first, *stream]:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    stopping.join(180)
    assert all(reason in ("stop", "length") for reason in reasons.values())
    assert len(reasons) == 8
    [(status, output)] = ended
    assert status in (0, -15), output
    assert "Traceback" not in output
    model: Any = heed.load(tiny_runs / "tiny-generate", device="cpu")
    expected = model.generate(["The"], length=1024, samples=8, seed=1, temperature=2.0)[0]
    assert ["The" + texts[i] for i in range(8)] == expected


def test_a_client_that_leaves_frees_its_place(server: ServerProcess) -> None:
    import httpx

    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"prompt": "The", "max_tokens": 1024, "temperature": 2.0, "n": 16, "stream": True}
    address = f"{server.address}/v1/completions"
    with httpx.stream("POST", address, json=body, headers=headers, timeout=60) as answer:
        next(answer.iter_lines())
    end = time.monotonic() + 20
    while time.monotonic() < end:
        runs = httpx.get(f"{server.address}/ready", timeout=60).json()["runs"]
        if sum(run["running"] + run["waiting"] for run in runs) == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the request of a client that left is still computed")


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
"""No status 5xx, and answers as the description says."""


def test_schemathesis_finds_nothing(tiny_runs: Path, tmp_path: Path) -> None:
    limits = ("--max-tokens", "8", "--key", KEY)
    with running_server(*map(str, task_folders(tiny_runs)), *limits) as server:
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{server.address}/openapi.json",
        ]
        command += ["--checks", ",".join(CHECKS), "--max-examples", "20", "--seed", "1"]
        command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]
        command += ["--header", f"Authorization: Bearer {KEY}", "--no-color"]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
