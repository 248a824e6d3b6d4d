"""Listening: free ports, keys for other addresses, slow clients, and the end by SIGTERM."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
from labs import ROOT, LabProcess, running_lab
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import HeedError
from heed.lab.access import Access
from heed.lab.lab_app import build_lab
from heed.lab.listen import address_of, bind, make_server

KEY = "correct horse"


@contextmanager
def server_thread(root: Path, *, header_seconds: float) -> Iterator[tuple[str, int]]:
    """A lab that listens in a thread of this process; yields its host and port."""
    listener = bind("127.0.0.1", 0, 0)
    application, closing = build_lab(root, access=Access(KEY)), Event()
    server = make_server(application, closing=closing, header_seconds=header_seconds)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    place = listener.getsockname()
    thread.start()
    try:
        yield place
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def answer_of(connection: socket.socket) -> bytes:
    """Everything that the server sends until it closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_headers_that_come_too_slowly_end_the_connection(tmp_path: Path) -> None:
    request = b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer correct horse"
    with server_thread(tmp_path, header_seconds=0.3) as place:
        with socket.create_connection(place, timeout=10) as slow:
            slow.sendall(request)
            assert answer_of(slow) == b""
        with socket.create_connection(place, timeout=10) as idle:
            assert answer_of(idle) == b""
        with socket.create_connection(place, timeout=10) as twice:
            twice.sendall(request + b"\r\n\r\n")
            assert twice.recv(100).startswith(b"HTTP/1.1 200")
            twice.sendall(b"GET /api")  # the second request of a connection
            assert b"HTTP/1.1" not in answer_of(twice)


def test_a_taken_port_is_refused_or_passed_over() -> None:
    first = bind("127.0.0.1", 0, 0)
    port = first.getsockname()[1]
    try:
        with pytest.raises(HeedError, match="another program listens here"):
            bind("127.0.0.1", port, 0)
        second = bind("127.0.0.1", None, port)
        assert second.getsockname()[1] != port
        assert address_of(second) == f"http://127.0.0.1:{second.getsockname()[1]}"
        second.close()
    finally:
        first.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "192.0.2.1"], "there is no key"),
        (["--host", "::", "--key", "short"], "shorter than 8"),
        (["--host", "192.0.2.1", "--key", KEY], "cannot listen here"),
        (["none"], "no such folder"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path: Path, flags: list[str], message: str) -> None:
    arguments = flags if flags == ["none"] else [str(tmp_path), *flags]
    answer = CliRunner().invoke(app, ["lab", *arguments])
    assert isinstance(answer.exception, HeedError)
    assert message in str(answer.exception)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    answer = CliRunner().invoke(app, ["lab", str(tmp_path)])
    assert str(answer.exception) == (
        "fastapi cannot be imported. "
        "Install it with: pip install '.[lab]' (in the folder of heed's source)."
    )
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = CliRunner().invoke(app, ["lab", str(tmp_path)])
    assert "fastapi and uvicorn cannot be imported. Install them with: " in str(answer.exception)


def test_starting_the_lab_loads_no_torch() -> None:
    script = (
        "import sys, heed.lab.lab_app as a, heed.lab.listen\n"
        "from pathlib import Path\n"
        "a.build_lab(Path('.'))\n"
        "assert not {'torch', 'matplotlib', 'scipy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


def test_help_loads_no_fastapi() -> None:
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom heed.cli.main import app\n"
        "assert 'read-only' in CliRunner().invoke(app, ['lab', '--help']).output\n"
        "assert not {'torch', 'fastapi', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


# --------------------------------------------------------------------------------- a real process


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabProcess]:
    """A real lab of an empty folder, with a key."""
    with running_lab(tmp_path, "--key", KEY) as process:
        yield process


def place_of(lab: LabProcess) -> tuple[str, int]:
    return "127.0.0.1", int(lab.address.rpartition(":")[2])


def is_refused(place: tuple[str, int]) -> bool:
    """Whether nothing listens any more."""
    try:
        socket.create_connection(place, timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def post_headers(lab: LabProcess, length: int, *more: str) -> bytes:
    """The headers of a request with access and a body of so many bytes."""
    lines = [
        "POST /api/design HTTP/1.1",
        f"Host: {lab.address.removeprefix('http://')}",
        f"Origin: {lab.address}",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.slow
def test_sigterm_finishes_what_is_in_flight(lab: LabProcess) -> None:
    """A request whose body is still on its way is answered; a new connection is not."""
    with socket.create_connection(place_of(lab), timeout=30) as connection:
        connection.sendall(post_headers(lab, 2, "Expect: 100-continue"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # it waits for the body
        connection.sendall(b"{")
        lab.process.terminate()
        while not is_refused(place_of(lab)):
            time.sleep(0.05)
        assert lab.process.poll() is None
        connection.sendall(b"}")
        answer = answer_of(connection)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 422"))
    assert b'{"error"' in answer
    lab.process.wait(timeout=60)


@pytest.mark.slow
def test_a_body_of_100_megabytes_is_refused_at_once(lab: LabProcess) -> None:
    size = 100_000_000
    with socket.create_connection(place_of(lab), timeout=30) as connection:
        connection.sendall(post_headers(lab, size))
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    memory = Path(f"/proc/{lab.process.pid}/statm")
    if memory.exists():
        before = int(memory.read_text().split()[1])
        chunks = (b"x" * 100_000 for _ in range(1000))
        headers = {"Authorization": f"Bearer {KEY}", "Origin": lab.address}
        with pytest.raises(httpx.HTTPError):  # chunked: closed while it is sent, or answered by 413
            httpx.post(f"{lab.address}/api/x", content=chunks, headers=headers).raise_for_status()
        assert (int(memory.read_text().split()[1]) - before) * 4096 < 20_000_000


@pytest.mark.slow
def test_many_slow_clients_do_not_stop_the_others(lab: LabProcess) -> None:
    slow = [socket.create_connection(place_of(lab)) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nHos")
    headers = {"Authorization": f"Bearer {KEY}"}
    start = time.monotonic()
    assert httpx.get(f"{lab.address}/api/runs", headers=headers).status_code == 200
    assert time.monotonic() - start < 5
    for connection in slow:
        connection.close()


@pytest.mark.slow
def test_neither_key_nor_spent_token_is_in_what_it_prints(lab: LabProcess) -> None:
    link = lab.link()
    token = link.partition("token=")[2]
    with httpx.Client(base_url=lab.address, timeout=60) as client:
        assert client.get(link, follow_redirects=False).status_code == 303
        client.get(f"/open?token={token}&to=/x")
        client.get("/api/none", params={"token": token, "api_key": KEY})
        client.get("/", headers={"Authorization": f"Bearer {KEY}", "Host": "evil"})
        client.post("/open", content=b"\xff" * 10, headers={"Origin": lab.address})
    lab.stop()
    assert lab.output.count(token) == 1  # the link itself
    assert KEY not in lab.output
    assert "Traceback" not in lab.output
