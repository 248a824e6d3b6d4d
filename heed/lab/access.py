"""Access to the lab: a one-time link sets a cookie; programs send the key in a header.

Event streams of a browser send no headers, so the browser has a cookie (HttpOnly, SameSite=Strict).
The key itself is in no address, no cookie and no log; the token of a link is spent when it is used.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from html import escape
from threading import Lock
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from heed.lab.error_responses import UNAUTHORIZED, StatusError, respond_to

OPEN = "/open"
"""The address of the one-time link."""
OPEN_ASSETS = ("/static/lab.css",)
"""Files that the page for those without access may load."""
COOKIE_DAYS = 30
MIN_KEY = 8
"""Characters of a key that a user chooses."""
PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="/static/lab.css">
  <title>Open the lab</title>
</head>
<body class="access">
  <main>
    <h1>This browser has not opened the lab yet</h1>
    {problem}
    {message}
    {form}
    <p><a href="{address}">Open this address again</a></p>
  </main>
</body>
</html>
"""
LINK_MESSAGE = """<p>Open the link that <code>heed lab</code> printed in its terminal, in this
    browser. Then this address works, too. The link works once; after each use the terminal shows
    the next one.</p>"""
WRONG_LINK = '<p role="alert">This link was used already, or it is of another lab.</p>'
WRONG_KEY = '<p role="alert">This is not the key.</p>'
KEY_MESSAGE = "<p>Enter the key that <code>heed lab</code> was started with.</p>"
KEY_FORM = """<form method="post" action="/open">
      <input type="hidden" name="to" value="{address}">
      <label>Key <input type="password" name="key" required autocomplete="current-password"></label>
      <button type="submit">Open the lab</button>
    </form>"""


def make_token() -> str:
    """A random token that can stand in an address."""
    return secrets.token_urlsafe(32)


def is_same_secret(given: str, secret: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing about either."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode("utf-8", "replace"))


def bearer_key(headers: Headers) -> str | None:
    """The key of `Authorization: Bearer KEY`, if there is one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


class Access:
    """Access to the lab by a one-time link, by its cookie, or by the key.

    `key` is the key that a user chose; without one it is random and only links give access.
    """

    def __init__(self, key: str | None = None) -> None:
        self.has_chosen_key = key is not None
        self._key = key if key is not None else make_token()
        self._link, self._lock = "", Lock()
        self.on_spent: Callable[[str], None] | None = None
        """Called with the token of the next link when one was spent."""

    def new_link(self) -> str:
        """Make the token of the next one-time link; the one before it is void."""
        self._link = make_token()
        return self._link

    def spend_link(self, token: str) -> bool:
        """Whether this is the token of the link, which is spent by that."""
        with self._lock:
            is_valid = bool(self._link) and is_same_secret(token, self._link)
            if is_valid:
                self.new_link()
        if is_valid and self.on_spent is not None:
            self.on_spent(self._link)
        return is_valid

    def accepts_key(self, key: str | None) -> bool:
        """Whether this is the key."""
        return key is not None and is_same_secret(key, self._key)

    def accepts_request(self, headers: Headers) -> bool:
        """Whether a request has the cookie, or the key in its header."""
        cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie_name(headers))
        if cookie is not None and is_same_secret(cookie, self.cookie_value()):
            return True
        return self.accepts_key(bearer_key(headers))

    def cookie_value(self) -> str:
        """The cookie, from which the key cannot be computed."""
        return hmac.new(self._key.encode(), b"heed lab cookie", hashlib.sha256).hexdigest()

    def cookie_name(self, headers: Headers) -> str:
        """A name for each port: browsers share the cookies of a host among its ports."""
        port = headers.get("host", "").rpartition(":")[2]
        return f"heed-lab-{port if port.isdecimal() else 'http'}"


class AccessCheck:
    """Refuse requests without access: an API call with 401, a page with how to get access."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, path = Request(scope, receive), scope["path"]
        if path == OPEN:
            response = await self._open(request)
        elif path in OPEN_ASSETS or self.access.accepts_request(request.headers):
            await self.app(scope, receive, send)
            return
        elif path.startswith("/api/"):
            response = respond_to(
                StatusError(
                    "this request has no access to the lab.",
                    status=UNAUTHORIZED,
                    todo="Open the link that `heed lab` printed, in this browser.",
                )
            )
            response.headers["WWW-Authenticate"] = "Bearer"
        else:
            query = scope["query_string"].decode("latin-1")
            response = self._explain(quote(path) + (f"?{query}" if query else ""))
        await response(scope, receive, send)

    async def _open(self, request: Request) -> Response:
        """The answer to the one-time link, or to the form with the key."""
        problem = WRONG_KEY if request.method == "POST" else WRONG_LINK
        if request.method == "POST":
            fields = parse_qs((await request.body()).decode("utf-8", "replace"))
            address = local_address(fields.get("to", ["/"])[0])
            is_valid = self.access.accepts_key(fields.get("key", [None])[0])
        else:
            address = local_address(request.query_params.get("to", "/"))
            is_valid = self.access.spend_link(request.query_params.get("token", ""))
            # The link may be reloaded: a browser with the cookie needs no second one.
            is_valid = is_valid or self.access.accepts_request(request.headers)
        if not is_valid:
            return self._explain(address, problem)
        response = RedirectResponse(address, status_code=303)
        response.set_cookie(
            self.access.cookie_name(request.headers),
            self.access.cookie_value(),
            max_age=COOKIE_DAYS * 24 * 3600,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    def _explain(self, address: str, problem: str = "") -> Response:
        """The page that says how to get access to this address, and what went wrong."""
        has_key = self.access.has_chosen_key
        text = escape(address, quote=True)
        page = PAGE.format(
            problem=problem,
            message=KEY_MESSAGE if has_key else LINK_MESSAGE,
            form=KEY_FORM.format(address=text) if has_key else "",
            address=text,
        )
        return HTMLResponse(page, status_code=UNAUTHORIZED)


def local_address(address: str) -> str:
    """An address of this server as path and query; `/` for any other."""
    try:
        parts = urlsplit(address.replace("\\", "/"))
    except ValueError:  # a bracket that is not closed
        return "/"
    path = parts.path
    if parts.scheme or parts.netloc or not path.startswith("/") or path.startswith("//"):
        return "/"
    return quote(path, safe="/%") + (f"?{quote(parts.query, safe='=&%+/')}" if parts.query else "")
