"""Errors as JSON: the sentence that the command line would print, with its HTTP status.

The body is `{"error": {"message": …, "where": …, "todo": …}}`, whatever refused the request.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from heed.errors import HeedError, make_printable
from heed.files import DISK_FULL, describe_os_error, to_json

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
REQUEST_TIMEOUT, CONFLICT, TOO_LARGE, UNSUPPORTED, INVALID = 408, 409, 413, 415, 422
TOO_MANY, CLIENT_LEFT, INTERNAL, UNAVAILABLE, STORAGE_FULL = 429, 499, 500, 503, 507
TOO_LONG = ("string_too_long", "too_long")
"""Kinds of pydantic's errors that mean more text or more items than are allowed."""
KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
}
"""What a field must be, by the kind of pydantic's error."""
SEVERAL_TYPES = "several_types"
"""The kind of error of a field of several types; its message is what the field must be."""
MOST_NAMED = 5
"""Invalid fields of a body that are named in its error."""
STATUS_SENTENCES = {404: "there is nothing at this address.", 405: "this method is not allowed."}

Respond = Callable[[HeedError, Scope], Response]
"""Makes the response for an error, in the shape that its address has."""


class StatusError(HeedError):
    """An error with an HTTP status of its own, and the seconds after which to try again."""

    def __init__(
        self,
        what: str,
        *,
        status: int,
        where: str | None = None,
        todo: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(what, where=where, todo=todo)
        self.status, self.retry_after = status, retry_after


class ClientLeftError(Exception):
    """The client closed its connection before the answer."""


class StrictJsonResponse(JSONResponse):
    """JSON without NaN or infinity: a number that is not finite becomes null."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


def describe_error(error: HeedError) -> dict[str, Any]:
    """An error that a user can fix, as JSON has it."""
    content = {
        "message": make_printable(error.what, multiline=True),
        "where": make_printable(error.where) if error.where else None,
        "todo": error.todo,
    }
    return {"error": content}


def status_of(error: HeedError) -> int:
    """The HTTP status of an error: its own, or that of a bad request."""
    return error.status if isinstance(error, StatusError) else BAD_REQUEST


def headers_of(error: HeedError) -> dict[str, str]:
    """The headers of an error's response: when to try again, if that is known."""
    retry_after = error.retry_after if isinstance(error, StatusError) else None
    return {} if retry_after is None else {"Retry-After": str(retry_after)}


def respond_to(error: HeedError, scope: Scope | None = None) -> Response:
    """The response for an error, the same at every address."""
    content, status = describe_error(error), status_of(error)
    return StrictJsonResponse(content, status_code=status, headers=headers_of(error))


def describe_invalid_fields(problems: Sequence[Any]) -> StatusError:
    """The error for a body or a query that is not as the route declares it."""
    named = [_describe_field(problem) for problem in problems[:MOST_NAMED]]
    more = len(problems) - MOST_NAMED
    what = "; ".join(named) + (f"; and {more} more." if more > 0 else ".")
    is_long = any(problem["type"] in TOO_LONG for problem in problems)
    todo = "Send less text." if is_long else None
    return StatusError(what, status=TOO_LARGE if is_long else INVALID, todo=todo)


def _describe_field(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"][1:]) or "the body"
    kind = problem["msg"] if problem["type"] == SEVERAL_TYPES else KINDS.get(problem["type"])
    what = f"it must be {kind}" if kind else problem["msg"]
    return f"{name}: {what}"


def install_error_handlers(app: FastAPI, respond: Respond = respond_to) -> None:
    """Make every error of the application a JSON error; uvicorn logs one that was not expected."""

    async def refuse(request: Request, error: Exception) -> Response:
        return respond(cast(HeedError, error), request.scope)

    async def refuse_fields(request: Request, error: Exception) -> Response:
        problems = cast(RequestValidationError, error).errors()
        return respond(describe_invalid_fields(problems), request.scope)

    async def refuse_address(request: Request, error: Exception) -> Response:
        refusal = cast(HTTPException, error)
        what = STATUS_SENTENCES.get(refusal.status_code, f"{refusal.detail}.")
        refused = StatusError(what, status=refusal.status_code, where=request.scope["path"])
        response = respond(refused, request.scope)
        response.headers.update(refusal.headers or {})
        return response

    async def describe_file(request: Request, error: Exception) -> Response:
        problem = cast(OSError, error)
        message = describe_os_error(problem)
        if message is None:
            return await apologize(request, error)
        statuses = {errno.ENOENT: NOT_FOUND} | dict.fromkeys(DISK_FULL, STORAGE_FULL)
        status = statuses.get(problem.errno or 0, FORBIDDEN)
        described = StatusError(message.what, status=status, where=message.where, todo=message.todo)
        return respond(described, request.scope)

    async def close_quietly(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    async def apologize(request: Request, error: Exception) -> Response:
        what = f"an error inside heed: {type(error).__name__}."
        todo = "The terminal of `heed` shows where."
        return respond(StatusError(what, status=INTERNAL, todo=todo), request.scope)

    app.add_exception_handler(HeedError, refuse)
    app.add_exception_handler(RequestValidationError, refuse_fields)
    app.add_exception_handler(HTTPException, refuse_address)
    app.add_exception_handler(OSError, describe_file)
    app.add_exception_handler(ClientLeftError, close_quietly)
    app.add_exception_handler(Exception, apologize)
