"""Host and Origin checks: against DNS rebinding, and against requests that other sites make.

A page of another site may send requests to the loopback address. It is recognized by its name in
the Host header (rebinding) or by its address in the Origin header.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from heed.lab.error_responses import FORBIDDEN, Respond, StatusError, respond_to

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (compared with, never a default)
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?", re.ASCII)
"""A Host header in lower case: a name or an address, and a port."""
MISDIRECTED = 421
"""The status for a request that was meant for another host."""


def is_loopback(host: str) -> bool:
    """Whether a host that is listened on can be reached from this machine only."""
    return host == "localhost" or (is_ip_address(host) and ip_address(host).is_loopback)


def is_ip_address(host: str) -> bool:
    """Whether this is an address, not a name that DNS could point anywhere."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def host_name(netloc: str) -> str:
    """The host of `host:port` or `[address]:port`, in lower case; empty if it is neither."""
    match = HOST.fullmatch(netloc.lower())
    return match[1].strip("[]") if match else ""


def origin_host(origin: str) -> str:
    """The `host:port` of an Origin header, in lower case; empty if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class Hosts:
    """The names under which this server may be called."""

    def __init__(self, host: str) -> None:
        self.accepts_addresses = host in WILDCARDS
        self.names = {*LOOPBACK_NAMES, host.lower()}
        if not is_loopback(host):
            machine = socket.gethostname().lower()
            self.names |= {machine, f"{machine}.local", socket.getfqdn().lower()}

    def accepts(self, netloc: str) -> bool:
        """Whether a Host header names this server. The port may be that of a tunnel."""
        name = host_name(netloc)
        return name in self.names or (self.accepts_addresses and is_ip_address(name))


class OriginCheck:
    """Refuse requests for another host (421), and those of another site's page (403).

    With `requires_origin`, a request that changes something and has no Origin needs a key in its
    header: browsers send an Origin, and a program that sends a key is no page of another site.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Hosts, requires_origin: bool, respond: Respond = respond_to
    ) -> None:
        self.app, self.hosts, self.requires_origin = app, hosts, requires_origin
        self.respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self._refusal(scope["method"], Headers(scope=scope))
            if error is not None:
                await self.respond(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> StatusError | None:
        """Why a request is refused; None if it is not."""
        host = headers.get("host", "")
        if not self.hosts.accepts(host):
            return StatusError(
                "this server is not called by this name.",
                status=MISDIRECTED,
                where=f"Host: {host}",
                todo="Use the address that it printed when it started.",
            )
        origin = headers.get("origin")
        if origin is not None and origin_host(origin) != host.lower():
            return _foreign(f"Origin: {origin}")
        if headers.get("sec-fetch-site") == "cross-site" and method not in SAFE_METHODS:
            return _foreign("Sec-Fetch-Site: cross-site")
        if (
            origin is None
            and self.requires_origin
            and method not in SAFE_METHODS
            and "authorization" not in headers
        ):
            return _foreign("Origin: none")
        return None


def _foreign(where: str) -> StatusError:
    return StatusError(
        "this request was not made by a page of this server.",
        status=FORBIDDEN,
        where=where,
        todo="Programs send the header `Authorization: Bearer KEY` and no Origin.",
    )
