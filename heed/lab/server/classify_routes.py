"""Classification: POST /classify."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from heed.lab.error_responses import StrictJsonResponse
from heed.lab.server.request_body import (
    RequestBody,
    Server,
    await_results,
    check_texts,
    choose_run,
    describe_body,
    read_body,
)
from heed.lab.server.server_errors import describe_errors
from heed.pipelines.classify import text_parts

router = APIRouter(tags=["Classification"])


class ClassifyBody(RequestBody):
    """A request for labels."""

    q: Annotated[
        str | list[str | tuple[str, str]],
        Field(description="A text, or a list of texts; a list of pairs for a run of pairs."),
    ]


class LabelAnswer(BaseModel):
    """The label of one text; null for a blank one."""

    label: str | None
    probability: float | None
    probabilities: dict[str, float]


class ClassifyAnswer(BaseModel):
    """The labels of all texts, in order."""

    model: str
    results: list[LabelAnswer]


@router.post(
    "/classify",
    response_model=ClassifyAnswer,
    responses=describe_errors(400, 403, 404, 413, 415, 429, 503),
    openapi_extra=describe_body(ClassifyBody, forms=True),
)
async def classify(request: Request, server: Server) -> Response:
    """Classify a text or a list of texts."""
    body = await read_body(request, ClassifyBody, server)
    texts = [body.q] if isinstance(body.q, str) else body.q
    check_texts([part for text in texts for part in text_parts(text)], server)
    run = choose_run(server.runs.classifiers, body.model, "classify")
    jobs = await run.submit(texts)
    labels = await await_results(request, run, jobs) if jobs else []
    results = [
        {
            "label": label.name,
            "probability": label.probability,
            "probabilities": label.probabilities,
        }
        for label in labels
    ]
    return StrictJsonResponse({"model": run.name, "results": results})
