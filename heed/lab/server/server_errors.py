"""Errors of the server as JSON: a sentence for LibreTranslate's clients, an object for OpenAI's."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Scope

from heed.errors import HeedError
from heed.lab.error_responses import StrictJsonResponse, headers_of, status_of
from heed.lab.server.request_body import OPENAI_PATHS

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
    status, content = status_of(error), cast(Any, str(error))
    if scope["path"].startswith(OPENAI_PATHS):
        kind = OPENAI_TYPES.get(status, "invalid_request_error")
        content = {"message": str(error), "type": kind, "param": error.where, "code": None}
    return StrictJsonResponse({"error": content}, status_code=status, headers=headers_of(error))


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
