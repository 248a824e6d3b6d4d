"""Requests of the server: their bodies, the key, the run that is meant, and the wait for results.

A body is JSON or a form. A request whose client has left is computed no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heed.errors import nearest
from heed.lab.access import Access, bearer_key
from heed.lab.disconnect import await_while_connected
from heed.lab.error_responses import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_FOUND,
    SEVERAL_TYPES,
    TOO_LARGE,
    UNAUTHORIZED,
    UNSUPPORTED,
    StatusError,
    describe_invalid_fields,
)
from heed.lab.server.dynamic_batching import Job
from heed.lab.server.prometheus_metrics import ServerMetrics
from heed.lab.server.served_runs import AnyRun, ServedRun, ServedRuns

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
JSON_TYPES = ("application/json", "")
OPENAI_PATHS = "/v1/"
B = TypeVar("B", bound="RequestBody")
R = TypeVar("R", bound=AnyRun)
T = TypeVar("T")
Result = TypeVar("Result")


class RequestBody(BaseModel):
    """What every body may have: the run, and a key."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    model: str | None = None
    """The name of a run; not needed where there is one that can answer."""
    api_key: str | None = None
    """The key of the server, if it has one; or as a header `Authorization: Bearer KEY`."""


Texts = Annotated[str | list[str], Field(description="A text, or a list of texts.")]


@dataclass
class ServerContext:
    """What the routes share: the runs, the access to them, and the metrics."""

    runs: ServedRuns
    access: Access | None
    metrics: ServerMetrics

    def check_key(self, request: Request, key: str | None) -> None:
        """Raise an error for a request without the key, where the server has one."""
        if self.access is None or self.access.accepts_key(bearer_key(request.headers) or key):
            return
        is_openai = request.url.path.startswith(OPENAI_PATHS)
        raise StatusError(
            "the key is missing or wrong.",
            status=UNAUTHORIZED if is_openai else FORBIDDEN,
            todo="Send it as api_key in the body, or as a header: Authorization: Bearer KEY.",
        )


def find_server(request: Request) -> ServerContext:
    """The server that a request is made to."""
    return cast(ServerContext, request.app.state.server)


Server = Annotated[ServerContext, Depends(find_server)]


async def read_body(request: Request, kind: type[B], server: ServerContext) -> B:
    """The body of a request, checked, from JSON or a form; then its key is checked, too."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media_type in FORMS:
            body = kind.model_validate(await _read_form(request))
        elif media_type in JSON_TYPES:
            body = kind.model_validate_json(await request.body() or b"{}")
        else:
            raise StatusError(
                f"a body of type {media_type} cannot be read.",
                status=UNSUPPORTED,
                todo="Send JSON (Content-Type: application/json) or a form.",
            )
    except ValidationError as error:
        server.check_key(request, None)  # without the key, an error says nothing about bodies
        raise _describe_fields(error, kind) from None
    server.check_key(request, body.api_key)
    return body


async def _read_form(request: Request) -> dict[str, Any]:
    """The fields of a form; one that is repeated is a list, and a file is none."""
    async with request.form(max_files=0) as form:
        fields: dict[str, Any] = {}
        for name in form:
            values = [value for value in form.getlist(name) if isinstance(value, str)]
            fields[name] = values[0] if len(values) == 1 else values
        return fields


def _describe_fields(error: ValidationError, kind: type[RequestBody]) -> StatusError:
    """The error for invalid fields. One of several types has one problem, its description.

    Pydantic has a problem for each of the types.
    """
    problems: dict[tuple[Any, ...], Any] = {}
    for problem in error.errors():
        place = problem["loc"]
        field = kind.model_fields.get(str(place[0])) if place[1:] else None
        if field is not None and field.description and _has_several_types(field.annotation):
            what = f"{field.description[0].lower()}{field.description[1:].rstrip('.')}"
            problems[place[:1]] = {"loc": ("body", place[0]), "type": SEVERAL_TYPES, "msg": what}
        else:
            problems[place] = problem | {"loc": ("body", *place)}
    described = describe_invalid_fields(list(problems.values()))
    status = TOO_LARGE if described.status == TOO_LARGE else BAD_REQUEST
    return StatusError(described.what, status=status, todo=described.todo)


def _has_several_types(annotation: Any) -> bool:
    types = [one for one in get_args(annotation) if one is not type(None)]
    return get_origin(annotation) in (Union, UnionType) and len(types) > 1


def check_texts(texts: Sequence[str], server: ServerContext, *, where: str = "q") -> None:
    """Raise an error for too many texts, or for one that is too long."""
    limits = server.runs.limits
    if len(texts) > limits.max_texts:
        raise StatusError(
            f"there are {len(texts):,} texts, and a request may have {limits.max_texts:,}.",
            status=TOO_LARGE,
            where=where,
            todo="Send several requests.",
        )
    longest = max(map(len, texts), default=0)
    if longest > limits.max_text:
        raise StatusError(
            f"a text has {longest:,} characters, and may have {limits.max_text:,}.",
            status=TOO_LARGE,
            where=where,
            todo="Split it.",
        )


def choose_run(runs: Sequence[R], name: str | None, what: str) -> R:
    """The run of this name; without one, the only run there is."""
    names = [run.name for run in runs]
    if name is None and len(runs) == 1:
        return runs[0]
    if not runs:
        raise StatusError(f"no run here can {what}.", status=NOT_FOUND)
    if name is None:
        raise StatusError(
            f"{len(runs)} runs here can {what}.",
            status=BAD_REQUEST,
            where="model",
            todo=f"Name one of them: {', '.join(names)}.",
        )
    for run in runs:
        if run.name == name:
            return run
    raise StatusError(
        f"no run here that can {what} has the name {name!r}.{nearest(name, names)}",
        status=NOT_FOUND,
        where="model",
        todo=f"There is {', '.join(names)}.",
    )


async def await_results(
    request: Request, run: ServedRun[Any, Any, Result], jobs: Sequence[Job[Any, Result]]
) -> list[Result]:
    """The results of a request's jobs, unless its client leaves or its time is over."""
    results = run.batcher.gather(jobs, seconds=run.limits.seconds)
    return await await_while_connected(request, results)


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a body, with its fields' docstrings and without references."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(one) for one in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(definitions[node["$ref"].rpartition("/")[2]])
        return {name: inline(one) for name, one in node.items()}

    return cast(dict[str, Any], inline(schema))


def describe_body(kind: type[BaseModel], *, forms: bool) -> dict[str, Any]:
    """The body of an operation for OpenAPI: JSON, and forms if they are read."""
    types = ["application/json", *(FORMS if forms else ())]
    content = {media_type: {"schema": schema_of(kind)} for media_type in types}
    return {"requestBody": {"required": True, "content": content}}
