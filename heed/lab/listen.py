"""Listening: an application on an address of this machine until Ctrl-C or SIGTERM.

SIGTERM stops new connections, lets requests in flight finish, and ends streams of events.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from heed.errors import HeedError
from heed.lab.origins import WILDCARDS, is_loopback

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 512
"""Connections and requests at once; more are answered by 503."""
GRACE_SECONDS = 30
"""The time that requests in flight have to finish after SIGTERM."""
HEADER_SECONDS = 10.0
"""The time in which a connection has to send the headers of a request."""
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set where a browser has a window."""
KEEP_ALIVE_SECONDS = 75
"""The time that a connection may be idle: longer than clients keep one, so that none sends a
request on a connection that is being closed."""
PORTS_TRIED = 20
"""Ports above the usual one that are tried when it is taken."""


class GracefulServer(uvicorn.Server):
    """A server that says when it is about to end, so that endless responses end first."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the end, on a signal."""
        self._on_exit()
        super().handle_exit(sig, frame)


class HeaderTimeout:
    """A mix-in of uvicorn's protocols: close a connection whose headers come too slowly.

    uvicorn has a time limit between two requests, but none within the headers of one.
    """

    header_seconds = HEADER_SECONDS
    cycle: Any
    transport: Any
    loop: asyncio.AbstractEventLoop
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the clock of the first request."""
        super().connection_made(transport)  # type: ignore[misc]  # of uvicorn's protocol
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Stop the clock when the headers are complete; start that of the next request."""
        super().data_received(data)  # type: ignore[misc]  # of uvicorn's protocol
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)  # type: ignore[misc]  # of uvicorn's protocol
        self._stop_timer()

    def _awaits_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch_headers(self) -> None:
        if not self._awaits_headers():
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._close_if_late)

    def _close_if_late(self) -> None:
        self._timer = None
        if self._awaits_headers():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with a time limit for headers."""
    parts = (HeaderTimeout, AutoHTTPProtocol)
    return cast(type[asyncio.Protocol], type("TimedProtocol", parts, {"header_seconds": seconds}))


def bind(host: str, port: int | None, usual_port: int) -> socket.socket:
    """A socket that listens; without a port, the usual one or the next that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = [*range(usual_port, usual_port + PORTS_TRIED), 0] if port is None else [port]
    for number in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, number))
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and number != ports[-1]:
                continue
            raise _describe_bind_error(error, host, number) from error
        listener.listen()
        return listener
    raise AssertionError("port 0 is always free")


def _describe_bind_error(error: OSError, host: str, port: int) -> HeedError:
    if error.errno == errno.EADDRINUSE:
        what, todo = "another program listens here.", "Name another port, or 0 for a free one."
    elif error.errno == errno.EACCES:
        what, todo = "you may not listen on this port.", "Name a port above 1023."
    else:
        what, todo = "this machine cannot listen here.", "Name an address of this machine."
    return HeedError(what, where=f"{host}:{port}", todo=todo)


def require_key_elsewhere(host: str, key: str | None, *, min_length: int) -> None:
    """Raise an error if other machines could connect and there is no key, or a short one."""
    if key is not None and len(key) < min_length:
        raise HeedError(f"the key is shorter than {min_length} characters.", where="--key")
    if key is None and not is_loopback(host):
        raise HeedError(
            "other machines could connect here, and there is no key.",
            where=f"--host {host}",
            todo="Choose one with --key, or leave out --host.",
        )


def address_of(listener: socket.socket) -> str:
    """The address to open in a browser: `http://127.0.0.1:PORT`."""
    host, port = listener.getsockname()[:2]
    if host in WILDCARDS:
        host = LOOPBACK
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    app: ASGIApp,
    *,
    closing: Event,
    grace: int = GRACE_SECONDS,
    header_seconds: float = HEADER_SECONDS,
) -> GracefulServer:
    """A server of an application. `closing` is set when its end begins."""
    config = uvicorn.Config(
        app,
        http=timed_protocol(header_seconds),
        log_level="warning",
        access_log=False,  # addresses may hold a token
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace,
    )
    return GracefulServer(config, closing.set)


def listen(app: ASGIApp, listener: socket.socket, *, closing: Event) -> None:
    """Serve an application until Ctrl-C or SIGTERM. `closing` is set when the end begins."""
    try:
        make_server(app, closing=closing).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again when it has ended
        closing.set()


def open_browser(address: str) -> None:
    """Open an address in the browser, without waiting for it, where there is a screen for one."""
    if sys.platform == "linux" and not any(map(os.environ.get, SCREENS)):
        return  # a browser in the terminal would take it over
    Thread(target=webbrowser.open, args=(address,), daemon=True).start()
