"""Errors of the server as JSON: a sentence for LibreTranslate's clients, an object for OpenAI's."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from heed.errors import HeedError
from heed.lab.error_responses import BAD_REQUEST, INTERNAL, STATUS_SENTENCES, StatusError
from heed.lab.server.dynamic_batching import BusyError, QueueFullError
from heed.lab.server.request_body import (
    CLIENT_LEFT,
    OPENAI_PATHS,
    ClientLeftError,
    StrictJson,
)

TOO_MANY, UNAVAILABLE = 429, 503
OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""OpenAI's types of errors; any other status is an invalid request."""


class ErrorAnswer(BaseModel):
    """An error, as LibreTranslate describes it."""

    error: str
    """What is wrong, where, and what to do."""


class OpenAIError(BaseModel):
    """What is wrong, as OpenAI describes it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorAnswer(BaseModel):
    """An error, as OpenAI describes it."""

    error: OpenAIError


def respond_with(error: HeedError, scope: Scope) -> Response:
    """The response for an error, in the shape of the address that it is for."""
    status, headers = BAD_REQUEST, dict[str, str]()
    if isinstance(error, StatusError):
        status, retry_after = error.status, error.retry_after
    elif isinstance(error, BusyError):
        status = TOO_MANY if isinstance(error, QueueFullError) else UNAVAILABLE
        retry_after = error.retry_after
    else:
        retry_after = None
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    content: Any = str(error)
    if scope["path"].startswith(OPENAI_PATHS):
        kind = OPENAI_TYPES.get(status, "invalid_request_error")
        content = {"message": str(error), "type": kind, "param": error.where, "code": None}
    return StrictJson({"error": content}, status_code=status, headers=headers)


def install_handlers(app: FastAPI) -> None:
    """Answer every error with JSON; uvicorn prints the traceback of an unexpected one."""

    async def refuse(request: Request, error: Exception) -> Response:
        return respond_with(cast(HeedError, error), request.scope)

    async def refuse_address(request: Request, error: Exception) -> Response:
        refusal = cast(HTTPException, error)
        what = STATUS_SENTENCES.get(refusal.status_code, f"{refusal.detail}.")
        status = StatusError(what, status=refusal.status_code, where=request.url.path)
        response = respond_with(status, request.scope)
        response.headers.update(refusal.headers or {})
        return response

    async def close_quietly(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    async def apologize(request: Request, error: Exception) -> Response:
        what = f"an error inside heed: {type(error).__name__}."
        return respond_with(
            StatusError(what, status=INTERNAL, todo="The server's terminal shows where."),
            request.scope,
        )

    app.add_exception_handler(HeedError, refuse)
    app.add_exception_handler(HTTPException, refuse_address)
    app.add_exception_handler(ClientLeftError, close_quietly)
    app.add_exception_handler(Exception, apologize)


def describe_errors(*statuses: int, openai: bool = False) -> dict[int | str, dict[str, Any]]:
    """The errors of an operation, for OpenAPI."""
    sentences = {
        400: "The request is not valid.",
        401: "The key is missing or wrong.",
        403: "The key is missing or wrong.",
        404: "There is no such run.",
        413: "A text, a list or the body is too large.",
        415: "The body is neither JSON nor a form.",
        429: "Too many requests wait: try again after the seconds in Retry-After.",
        503: "It took too long, or the server is about to end: see Retry-After.",
    }
    model = OpenAIErrorAnswer if openai else ErrorAnswer
    return {status: {"model": model, "description": sentences[status]} for status in statuses}
