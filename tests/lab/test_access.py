"""Access to the lab: one-time links, cookies, keys, foreign hosts and origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labs import ADDRESS

from heed.lab.access import Access, local_address
from heed.lab.headers import HEADERS
from heed.lab.lab_app import build_lab
from heed.lab.origins import Hosts

ORIGIN = {"Origin": ADDRESS}


@pytest.fixture
def access() -> Access:
    return Access()


@pytest.fixture
def client(access: Access, tmp_path: Path) -> Iterator[TestClient]:
    """A client of an empty lab, without access so far."""
    with TestClient(build_lab(tmp_path, access=access), base_url=ADDRESS) as client:
        yield client


def test_without_access_the_api_refuses_and_pages_explain(client: TestClient) -> None:
    answer = client.get("/api/runs")
    assert answer.status_code == 401
    assert "printed" in answer.json()["error"]["todo"]
    page = client.get("/attention", params={"run": "a", "text": '"><script>alert(1)</script>'})
    assert page.status_code == 401
    assert "<script" not in page.text
    assert "/attention?run=a&amp;text=" in page.text


def test_a_link_works_once_and_leads_to_the_address_asked_for(
    client: TestClient, access: Access
) -> None:
    token = access.new_link()
    link = {"token": token, "to": "/attention?run=a/b&text=x%20y"}
    answer = client.get("/open", params=link, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/attention?run=a/b&text=x%20y"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    assert client.get("/api/runs").status_code == 200
    client.cookies.clear()
    spent = client.get("/open", params=link)
    assert spent.status_code == 401
    assert "This link was used already" in spent.text
    assert client.get("/api/runs").status_code == 401


def test_a_spent_link_leads_on_for_a_browser_with_the_cookie(
    client: TestClient, access: Access
) -> None:
    token = access.new_link()
    for _ in range(2):
        assert client.get(f"/open?token={token}", follow_redirects=False).status_code == 303


def test_a_program_sends_its_key(tmp_path: Path) -> None:
    application = build_lab(tmp_path, access=Access("correct horse"))
    with TestClient(application, base_url=ADDRESS) as client:
        for key, status in {"correct horse": 200, "wrong": 401, "": 401, "ß": 401}.items():
            headers = {b"Authorization": f"Bearer {key}".encode()}
            assert client.get("/api/runs", headers=headers).status_code == status


def test_a_chosen_key_is_entered_in_a_form(tmp_path: Path) -> None:
    application = build_lab(tmp_path, access=Access("correct horse"))
    with TestClient(application, base_url=ADDRESS, headers=ORIGIN) as client:
        assert 'type="password"' in client.get("/runs").text
        assert client.post("/open", data={"key": "wrong", "to": "/runs"}).status_code == 401
        answer = client.post(
            "/open", data={"key": "correct horse", "to": "/runs?x=1"}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs?x=1")
        assert client.get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", ""]
)
def test_another_host_is_refused(client: TestClient, access: Access, host: str) -> None:
    """A page of a name that DNS points here (rebinding) sends that name."""
    client.get(f"/open?token={access.new_link()}")
    assert client.get("/api/runs", headers={"Host": host}).status_code == 421
    assert client.get("/open", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),  # another program on this machine
        ({"Origin": "null"}, 403),
        ({}, 403),
        ({"Origin": ADDRESS, "Sec-Fetch-Site": "cross-site"}, 403),
        (ORIGIN, 404),
    ],
)
def test_posts_of_other_sites_are_refused(
    client: TestClient, access: Access, headers: dict[str, str], status: int
) -> None:
    client.get(f"/open?token={access.new_link()}")
    assert client.post("/api/nothing", headers=headers, json={}).status_code == status


MALFORMED = (
    "http://[",
    "[",
    "http://[::1",
    "[::1",
    "a@127.0.0.1",
    "127.0.0.1/x",
    "x\xff",
    "http://",
)
header_values = st.sampled_from(MALFORMED) | st.text(
    st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20
)


@pytest.mark.parametrize("name", ["Host", "Origin", "Cookie", "Authorization", "Content-Type"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(value=header_values)
def test_malformed_headers_are_refused(client: TestClient, name: str, value: str) -> None:
    """Without access, whatever a header holds is refused, and by no error inside heed."""
    for method in ("GET", "POST"):
        headers = {b"Origin": ADDRESS.encode(), name.encode(): value.encode("latin-1")}
        answer = client.request(method, "/api/runs", headers=headers)
        assert answer.status_code in (400, 401, 403, 421), answer.text


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_hosts_and_origins_are_refused(
    client: TestClient, access: Access, value: str
) -> None:
    client.get(f"/open?token={access.new_link()}")
    given = value.encode("latin-1")
    assert client.get("/api/runs", headers={b"Host": given}).status_code == 421
    assert client.get("/api/runs", headers={b"Origin": given}).status_code == 403


def test_hosts_by_what_is_listened_on() -> None:
    assert all(map(Hosts("127.0.0.1").accepts, ["localhost:1", "[::1]:8642", "127.0.0.1"]))
    assert not Hosts("127.0.0.1").accepts("192.168.1.5:8642")
    everywhere = Hosts("::")
    assert everywhere.accepts("192.168.1.5:8642")
    assert not everywhere.accepts("evil.example")


def test_every_response_has_the_security_headers(client: TestClient) -> None:
    for path in ("/", "/api/runs", "/static/lab.css", "/open", "/static/none"):
        answer = client.get(path)
        assert all(answer.headers.get(name) == value for name, value in HEADERS.items()), path
    assert client.get("/", headers={"Host": "evil"}).headers["x-frame-options"] == "DENY"
    script = HEADERS["Content-Security-Policy"].split("script-src ")[1].split(";")[0]
    assert script == "'self'"


@given(st.text(max_size=30))
def test_the_address_asked_for_is_of_this_server(address: str) -> None:
    local = local_address(address)
    assert local.startswith("/")
    assert not local.startswith(("//", "/\\"))
    assert local.isascii()
    assert local.isprintable()


@pytest.mark.parametrize(
    "address", ["//evil", "/\\evil", "http://evil/", "\\\\evil", "javascript:x", "//["]
)
def test_addresses_of_others_become_the_first_page(address: str) -> None:
    assert local_address(address) == "/"
