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

BAD_REQUEST, FORBIDDEN, NOT_FOUND, TOO_LARGE, INVALID = 400, 403, 404, 413, 422
STORAGE_FULL, INTERNAL = 507, 500
TOO_LONG = ("string_too_long", "too_long")
"""Kinds of pydantic's errors that mean more text or more items than are allowed."""
MOST_NAMED = 5
"""Invalid fields of a body that are named in its error."""
STATUS_SENTENCES = {404: "there is nothing at this address.", 405: "this method is not allowed."}

Respond = Callable[["StatusError", Scope], Response]
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


def build_error(error: HeedError, status: int, headers: dict[str, str] | None = None) -> Response:
    """The response for an error that a user can fix."""
    return StrictJsonResponse(describe_error(error), status_code=status, headers=headers)


def respond_to(error: StatusError, scope: Scope | None = None) -> Response:
    """The response for an error that has a status of its own, whatever it was asked for."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
    return build_error(error, error.status, headers)


def describe_invalid_fields(problems: Sequence[Any]) -> StatusError:
    """The error for a body or a query that is not as the route declares it."""
    named = [
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'the body'}: {problem['msg']}"
        for problem in problems[:MOST_NAMED]
    ]
    more = len(problems) - MOST_NAMED
    what = "; ".join(named) + (f"; and {more} more." if more > 0 else ".")
    is_long = any(problem["type"] in TOO_LONG for problem in problems)
    todo = "Send less text." if is_long else None
    return StatusError(what, status=TOO_LARGE if is_long else INVALID, todo=todo)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of the application a JSON error; uvicorn logs one that was not expected."""

    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, StatusError):
            return respond_to(error)
        return build_error(cast(HeedError, error), BAD_REQUEST)

    async def refuse_fields(_: Request, error: Exception) -> Response:
        return respond_to(describe_invalid_fields(cast(RequestValidationError, error).errors()))

    async def refuse_address(request: Request, error: Exception) -> Response:
        refusal = cast(HTTPException, error)
        what = STATUS_SENTENCES.get(refusal.status_code, f"{refusal.detail}.")
        headers = dict(refusal.headers or {})
        return build_error(HeedError(what, where=request.url.path), refusal.status_code, headers)

    async def describe_file(request: Request, error: Exception) -> Response:
        problem = cast(OSError, error)
        message = describe_os_error(problem)
        if message is None:
            return await apologize(request, error)
        statuses = {errno.ENOENT: NOT_FOUND} | dict.fromkeys(DISK_FULL, STORAGE_FULL)
        return build_error(message, statuses.get(problem.errno or 0, FORBIDDEN))

    async def apologize(_: Request, error: Exception) -> Response:
        what = f"an error inside heed: {type(error).__name__}."
        todo = "The terminal of `heed` shows where."
        return build_error(HeedError(what, todo=todo), INTERNAL)

    app.add_exception_handler(HeedError, refuse)
    app.add_exception_handler(RequestValidationError, refuse_fields)
    app.add_exception_handler(HTTPException, refuse_address)
    app.add_exception_handler(OSError, describe_file)
    app.add_exception_handler(Exception, apologize)
