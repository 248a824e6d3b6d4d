"""Attention over HTTP: bytes and numbers are those of Python, and bad requests say why."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import lab_client, train_tiny
from serving import run_async, send_and_leave
from support import input_tokens, language_model, texts, translator

import heed
from heed.errors import RunError
from heed.lab import stored_maps, text_maps
from heed.lab.error_responses import CLIENT_LEFT, ClientLeftError, StatusError
from heed.lab.limits import ComputeQueue
from heed.lab.stored_maps import HIDDEN, LEVELS, LayerProgress, StoredMaps, draw_pictures
from heed.probe.attend import View
from heed.probe.attention_maps import AttentionMap, AttentionMaps, map_inputs
from heed.probe.attention_stages import row_stages
from heed.probe.map_comparison import compare_maps
from heed.probe.map_layers import fill_maps
from heed.probe.mask_audit import audit_map, change_future
from heed.probe.patch import Head

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

TEXT = "The old woman sees the cat."
BODY = {"run": "tiny-translate", "text": TEXT}
PATH = "/api/attention"
(READ, SOURCE) = (input_tokens(row) for row in texts([60, 7], seed=3))


@pytest.fixture(scope="module")
def client(tiny_runs: Path) -> Iterator[TestClient]:
    with lab_client(tiny_runs) as client:
        yield client


def post(client: TestClient, address: str = "", **body: Any) -> Any:
    answer = client.post(f"{PATH}{address}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ----------------------------------------------------------------------- what leaves is Python's


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_heads_leave_to_the_last_bit(client: TestClient, tiny_runs: Path, task: str) -> None:
    answer = post(client, run=f"tiny-{task}", text=TEXT)
    maps = heed.load(tiny_runs / f"tiny-{task}", device="cpu").attention(TEXT)
    assert [one["kind"] for one in answer["maps"]] == [one.kind for one in maps.maps]
    assert (answer["target"], answer["cut"]) == (maps.target, None)
    for sent, one in zip(answer["maps"], maps.maps, strict=True):
        assert [token["text"] for token in sent["key_tokens"]] == one.key_tokens
        shape = one.visible.shape
        bits = np.unpackbits(np.frombuffer(base64.b64decode(sent["visible"]), np.uint8))
        assert np.array_equal(bits[: one.visible.size].reshape(shape), one.visible)
        address = f"{PATH}/maps/{answer['key']}"
        for layer, weights_hnm in enumerate(one.weights):
            named = {str(head): weights for head, weights in enumerate(weights_hnm)}
            for head, weights_nm in (named | {"mean": weights_hnm.mean(axis=0)}).items():
                place: dict[str, Any] = {"kind": one.kind, "layer": layer, "head": head}
                got = client.get(f"{address}/head", params=place)
                assert got.content == weights_nm.astype("<f4").tobytes()
                assert "immutable" in got.headers["cache-control"]
        got = client.get(f"{address}/pictures", params={"kind": one.kind, "scale": "row"})
        pictures = draw_pictures(one, by_row=True)
        assert got.content == pictures.tobytes()
        assert got.headers["x-shape"] == ",".join(map(str, pictures.shape))


def test_stages_audit_and_future_are_pythons(client: TestClient, tiny_runs: Path) -> None:
    model = heed.load(tiny_runs / "tiny-translate", device="cpu")
    assert isinstance(model, heed.Translator)
    read, source = model.inputs(TEXT)
    place = {"kind": "cross", "layer": 1, "head": 1, "row": 2}
    stages = row_stages(model.model, read, source, Head("cross", 1, 1), 2).to_dict()
    assert post(client, "/row", **BODY, **place) == stages | {"position": "rope"}
    checks = post(client, "/checks", **BODY)
    assert checks["audits"] == [audit_map(one).to_dict() for one in model.attention(TEXT).maps]
    assert checks["is_causal"]
    assert all(one["passed"] for one in checks["checks"])
    change = change_future(model.model, read, source, 2, vocab=model.tokenizer.vocab_size)
    future = post(client, "/future", **BODY, place=2)
    assert {name: future[name] for name in change.to_dict()} == change.to_dict()
    assert future["tokens"]["before"] == read.labels.tokens
    assert future["tokens"]["after"][:2] == read.labels.tokens[:2]


def test_heads_are_paired_as_by_heed_attend_against(client: TestClient, tiny_runs: Path) -> None:
    runs = [heed.load(tiny_runs / "tiny-translate", device="cpu", weights=w) for w in ("3", "best")]
    pairs = compare_maps(runs[0], runs[1], [(TEXT,)], View(), names=("a", "b"))
    answer = post(client, "/compare", first=BODY | {"weights": "3"}, second=BODY)
    for one in pairs:
        sent = answer["kinds"][one.kind]
        assert sent["similarity"] == one.matching.similarity
        assert [pair["similarity"] for pair in sent["pairs"]] == [
            match.similarity for match in one.matching.matches
        ]
        first = one.matching.matches[0].first
        assert sent["pairs"][0]["first"] == [first.layer, first.head]
        content = client.get(
            f"{PATH}/maps/{answer['first']['key']}/head",
            params={"kind": one.kind, "layer": first.layer, "head": first.head},
        ).content
        assert content == one.first[0].weights[first.layer][first.head].astype("<f4").tobytes()
    other = post(client, "/compare", first=BODY, second=BODY | {"text": "The cat sleeps."})
    assert other["kinds"] == {}
    assert other["second"]["text"] == "The cat sleeps."


def test_the_same_text_is_computed_once(client: TestClient) -> None:
    assert post(client, **BODY)["key"] == post(client, **BODY)["key"]
    assert post(client, **BODY)["key"] != post(client, **BODY, target="Le chat.")["key"]


def test_a_head_leaves_while_later_layers_are_computed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens come before the pass, the first layer before the last one is computed."""
    text = "A text that was never read."
    may_go_on, computed = Event(), list[tuple[str, int]]()

    def pause(model: Any, maps: Any, read: Any, source: Any, on_layer: Any) -> None:
        if maps.text != text:  # the pass of an earlier test may still run
            fill_maps(model, maps, read, source, on_layer)
            return

        def note(kind: str, layer: int) -> None:
            computed.append((kind, layer))
            on_layer(kind, layer)
            if (kind, layer) == ("encoder", 0):
                assert may_go_on.wait(60)

        fill_maps(model, maps, read, source, note)

    monkeypatch.setattr(text_maps, "fill_maps", pause)
    answer = post(client, run="tiny-classify", text=text)
    assert answer["maps"][0]["heads"] == [2, 2]
    address = f"{PATH}/maps/{answer['key']}/head"
    place: dict[str, Any] = {"kind": "encoder", "layer": 0, "head": 0}
    weights = np.frombuffer(client.get(address, params=place).content, "<f4")
    assert np.isfinite(weights).all()
    assert len(computed) == 1
    may_go_on.set()
    place["layer"] = 1
    assert np.isfinite(np.frombuffer(client.get(address, params=place).content, "<f4")).all()


async def ask_and_leave(client: TestClient, path: str, body: Any = None, query: str = "") -> int:
    """Send a request, and leave before its answer; returns the status of what is sent anyway."""
    left = asyncio.Event()
    method, headers = "GET" if body is None else "POST", dict(client.headers)
    headers |= {"host": client.base_url.netloc.decode(), "content-type": "application/json"}
    options: dict[str, Any] = {"method": method, "query": query, "headers": headers}
    asking = asyncio.create_task(send_and_leave(client.app, path, body, left, **options))
    await asyncio.sleep(0.2)
    assert not asking.done()
    left.set()
    status: int = (await asking)[0]["status"]
    return status


@pytest.mark.parametrize("reader", ["head", "pictures"])
def test_a_pass_whose_readers_left_stops_after_its_layer(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """The maps of the text are computed as a whole when they are asked for again."""
    text, may_go_on, computed = f"A text that was left: {reader}.", Event(), list[int]()

    def pause(model: Any, maps: Any, read: Any, source: Any, on_layer: Any) -> None:
        def note(kind: str, layer: int) -> None:
            if maps.text == text:
                computed.append(layer)
                assert may_go_on.wait(60)
            on_layer(kind, layer)

        fill_maps(model, maps, read, source, note)

    monkeypatch.setattr(text_maps, "fill_maps", pause)
    monkeypatch.setattr(stored_maps, "RETURN_SECONDS", 0.0)
    body = {"run": "tiny-classify", "text": text}
    address = f"{PATH}/maps/{post(client, **body)['key']}"
    place: dict[str, Any] = {"kind": "encoder", "layer": 0, "head": 0}
    query = urlencode(place if reader == "head" else {"kind": "encoder"})

    async def leave() -> None:
        assert await ask_and_leave(client, f"{address}/{reader}", query=query) == CLIENT_LEFT

    try:
        run_async(leave())
    finally:
        may_go_on.set()
    wait_until_idle(client)
    assert computed == [0]
    lost = client.get(f"{address}/head", params=place | {"layer": 1})
    assert lost.status_code == 404
    assert f"{PATH}/maps/{post(client, **body)['key']}" == address
    assert client.get(f"{address}/head", params=place | {"layer": 1}).status_code == 200
    assert computed == [0, 0, 1]


def wait_until_idle(client: TestClient, *, seconds: float = 60) -> ComputeQueue:
    """The lab's queue, when nothing is computed any more."""
    queue: ComputeQueue = cast("FastAPI", client.app).state.lab.queue
    end = time.monotonic() + seconds
    while queue.pending:
        assert time.monotonic() < end, f"{queue.pending} computations do not end"
        time.sleep(0.01)
    return queue


@pytest.mark.parametrize("way", ["cancelled", "closed", "disconnected"])
def test_a_stream_is_one_reader_until_it_ends(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Between two layers it draws, and waits for none."""
    monkeypatch.setattr(stored_maps, "RETURN_SECONDS", 0.0)
    progress = LayerProgress([("encoder", layer) for layer in range(4)], can_stop=True)
    left = {"cancelled": asyncio.CancelledError, "closed": GeneratorExit}.get(way, ClientLeftError)

    def stream() -> Generator[None, None, None]:
        with progress.reading():
            yield

    reader, other = stream(), stream()
    next(reader)
    next(other)
    with pytest.raises(left):
        other.throw(left())
    progress.finish("encoder", 0)
    with pytest.raises(left):
        reader.throw(left())
    with pytest.raises(ClientLeftError):
        progress.finish("encoder", 1)


def test_a_reader_waits_for_the_pass_of_its_own_maps() -> None:
    """The same text may be computed again meanwhile, into other arrays."""
    store, layers = StoredMaps(), [("encoder", 0)]
    maps = [AttentionMaps("text", "classify") for _ in range(2)]
    stopped, again = LayerProgress(layers, can_stop=True), LayerProgress(layers)
    store.add("key", maps[0], stopped)
    found = store.require("key")
    stopped.fail(ClientLeftError())
    assert store.find("key") is None
    store.add("key", maps[1], again)
    again.finish("encoder", 0)
    assert found[0] is maps[0]
    with pytest.raises(StatusError, match="no longer in memory") as error:
        run_async(found[1].wait("encoder", 0))
    assert error.value.status == 404
    run_async(store.require("key")[1].wait("encoder", 0))


def test_a_reader_that_stays_keeps_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_maps, "RETURN_SECONDS", 0.0)
    layers = [("encoder", layer) for layer in range(3)]

    async def scenario() -> None:
        progress = LayerProgress(layers, can_stop=True)
        first, second = (asyncio.create_task(progress.wait("encoder", 2)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        progress.finish("encoder", 0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        with pytest.raises(ClientLeftError):
            progress.finish("encoder", 1)
        whole = LayerProgress(layers)  # of a caller that needs all layers itself
        left = asyncio.create_task(whole.wait("encoder", 2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        for layer in range(3):
            whole.finish("encoder", layer)
        await whole.wait("encoder", 2)

    run_async(scenario())


@pytest.mark.parametrize(
    ("address", "more"),
    [("", {}), ("/row", {"kind": "encoder", "layer": 0, "head": 0, "row": 0}), ("/checks", {})],
)
def test_what_waits_for_a_client_that_left_never_begins(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, address: str, more: dict[str, Any]
) -> None:
    begun, release = list[str](), Event()
    monkeypatch.setattr(text_maps, "read_inputs", lambda *_: begun.append("read"))
    queue = wait_until_idle(client)  # the rest of earlier tests

    async def scenario() -> None:
        busy = [asyncio.create_task(queue.run(release.wait)) for _ in range(queue.threads)]
        await asyncio.sleep(0)
        body = {"run": "tiny-classify", "text": f"Never read {address}.", **more}
        try:
            assert await ask_and_leave(client, f"{PATH}{address}", body) == CLIENT_LEFT
            async with asyncio.timeout(20):
                while queue.pending > queue.threads:
                    await asyncio.sleep(0.01)
        finally:
            release.set()
            await asyncio.gather(*busy)

    run_async(scenario())
    assert begun == []


def test_a_pass_that_fails_is_said_by_its_heads_and_can_be_tried_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RunError("the model's output is not a number.")

    body = {"run": "tiny-classify", "text": "A text whose pass fails."}
    with monkeypatch.context() as patch:
        patch.setattr(text_maps, "fill_maps", fail)
        address = f"{PATH}/maps/{post(client, **body)['key']}"
        for path, query in (("head", {"layer": 0, "head": 0}), ("pictures", {})):
            answer = client.get(f"{address}/{path}", params={"kind": "encoder", **query})
            assert answer.status_code == 400
            assert "not a number" in answer.json()["error"]["message"]
    assert f"{PATH}/maps/{post(client, **body)['key']}" == address
    place: dict[str, Any] = {"kind": "encoder", "layer": 0, "head": 0}
    assert client.get(f"{address}/head", params=place).status_code == 200


@pytest.mark.slow
def test_heads_are_followed_over_snapshots(tmp_path: Path) -> None:
    train_tiny(tmp_path / "runs" / "snapshots", "demo-generate", "train.snapshot_every=2")
    with lab_client(tmp_path / "runs") as client:
        weights = client.get(f"{PATH}/weights", params={"run": "snapshots"}).json()
        assert weights["snapshots"] == [0, 2, 4, 6]
        (history,) = post(client, "/history", run="snapshots", text=TEXT)
        assert history["steps"] == [0, 2, 4, 6]
        assert [one["similarity"][-1] for one in history["heads"]] == [pytest.approx(1)] * 4
        key = {post(client, run="snapshots", text=TEXT, weights=str(s))["key"] for s in (0, 2, 6)}
        assert len(key) == 3


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("address", "change", "status", "sentence"),
    [
        ("", {"text": "  "}, 400, "no text to look at"),
        ("", {"run": "../tiny-translate"}, 404, "no such run"),
        ("", {"run": "nothing"}, 404, "no such run"),
        ("", {"weights": "77"}, 400, "no weights '77'"),
        ("", {"text": "a" * 20_001}, 413, "text"),
        ("", {"layer": 1}, 422, "layer"),
        ("", {"run": "tiny-generate", "target": "x"}, 400, "translators"),
        ("/row", {"kind": "cross", "layer": 9, "head": 0, "row": 0}, 400, "layers 1 to 2"),
        ("/row", {"kind": "cross", "layer": 0, "head": 0, "row": 99}, 400, "row 100"),
        ("/row", {"kind": "cross", "layer": -1, "head": 0, "row": 0}, 422, "layer"),
        ("/future", {"place": 0}, 400, "future cannot begin"),
        ("/future", {"run": "tiny-classify", "place": 1}, 400, "both directions"),
        ("/history", {}, 400, "no snapshots"),
    ],
)
def test_bad_requests_say_what_is_wrong(
    client: TestClient, address: str, change: dict[str, Any], status: int, sentence: str
) -> None:
    answer = client.post(f"{PATH}{address}", json=BODY | change)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


def test_maps_that_are_not_kept_or_not_there(client: TestClient) -> None:
    key = post(client, **BODY)["key"]
    requests: list[tuple[str, dict[str, Any], int]] = [
        ("none/head", {"kind": "cross", "layer": 0, "head": 0}, 404),
        (f"{key}/head", {"kind": "cross", "layer": 7, "head": 0}, 400),
        (f"{key}/head", {"kind": "cross", "layer": 0, "head": 7}, 400),
        (f"{key}/head", {"kind": "cross", "layer": 0, "head": "x"}, 400),
        (f"{key}/head", {"kind": "all", "layer": 0, "head": 0}, 422),
        (f"{key}/pictures", {"kind": "cross", "scale": "two"}, 422),
    ]
    for address, query, status in requests:
        answer = client.get(f"{PATH}/maps/{address}", params=query)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    answer = client.post(f"{PATH}/compare", json={"first": BODY, "second": BODY | {"run": "x"}})
    assert answer.status_code == 404


def test_maps_that_are_too_large_are_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(text_maps, "MAX_CELLS", 100)
        answer = client.post(PATH, json=BODY)
    assert (answer.status_code, answer.json()["error"]["todo"]) == (413, "Give a shorter text.")
    monkeypatch.setattr(text_maps, "MAX_OVERLAPS", 100)
    answer = client.post(f"{PATH}/compare", json={"first": BODY, "second": BODY})
    assert answer.status_code == 413


@pytest.mark.filterwarnings("ignore:only the first")
def test_a_text_that_is_too_long_is_cut_and_it_is_said(client: TestClient) -> None:
    cut = post(client, run="tiny-translate", text=" ".join(["cat"] * 60))["cut"]
    assert cut == {"read": 47, "of": 60}


# ----------------------------------------------------------------------------- pictures and store


def decoder_map() -> AttentionMap:
    attention = map_inputs(language_model("rope-concat"), READ).decoder
    assert attention is not None
    return attention


def test_a_picture_loses_no_peak_and_hides_what_is_hidden() -> None:
    attention = decoder_map()
    pictures = draw_pictures(attention)
    heads = [*attention.weights[0], attention.mean_over_heads(0)]
    heads += [*attention.weights[1], attention.mean_over_heads(1)]
    assert pictures.shape == (10, 48, 48)
    for picture, weights_nm in zip(pictures, heads, strict=True):
        shown = picture[picture != HIDDEN]
        assert shown.max() == round(LEVELS * float(weights_nm.max()))
        assert picture[0, 0] != HIDDEN
        assert picture[0, -1] == HIDDEN
    (cross,) = (map_inputs(translator("rope-concat"), READ, SOURCE).cross,)
    assert cross is not None
    assert draw_pictures(cross).shape == (10, 48, 7)
    assert (draw_pictures(cross, by_row=True).max(axis=2) == LEVELS).any(axis=1).all()


@settings(max_examples=10)
@given(st.lists(st.sampled_from("abcd"), max_size=12), st.integers(1, 3))
def test_the_store_keeps_what_was_used_last(keys: list[str], room: int) -> None:
    maps = map_inputs(language_model("rope-concat"), replace(READ, ids=READ.ids[:2]))
    size = 4 * maps.maps[0].cells
    store, used = StoredMaps(max_bytes=room * size), list[str]()
    for key in keys:
        if store.find(key) is None:
            store.add(key, maps)
        used = [one for one in used if one != key] + [key]
    assert store.size() <= room * size
    for key in used[:-room]:
        with pytest.raises(StatusError, match="no longer in memory"):
            store.require(key)
    for key in used[-room:]:
        assert store.require(key)[0] is maps
