"""Routes for the operation of the server: /health, /ready and /metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from heed import __version__
from heed.lab.error_responses import StrictJsonResponse
from heed.lab.server.dynamic_batching import ClosedError
from heed.lab.server.prometheus_metrics import CONTENT_TYPE
from heed.lab.server.request_body import Server
from heed.lab.server.server_errors import describe_errors

router = APIRouter(tags=["Service"])


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class RunState(BaseModel):
    """A run that is served, and how busy it is."""

    name: str
    task: str
    waiting: int
    running: int


class Readiness(BaseModel):
    """All runs are loaded, and requests are taken."""

    status: Literal["ready"]
    version: str
    runs: list[RunState]


@router.get("/health", response_model=Health)
async def health() -> Response:
    """Whether the process answers; it needs no key."""
    return StrictJsonResponse({"status": "ok"})


@router.get("/ready", response_model=Readiness, responses=describe_errors(503))
async def ready(server: Server) -> Response:
    """Whether requests are taken, and by which runs; it needs no key."""
    if any(run.batcher.is_closed for run in server.runs.runs.values()):
        raise ClosedError("the server is about to end.", retry_after=1)
    runs = [
        {
            "name": run.name,
            "task": run.task,
            "waiting": run.batcher.waiting,
            "running": run.batcher.running,
        }
        for run in server.runs.runs.values()
    ]
    return StrictJsonResponse({"status": "ready", "version": __version__, "runs": runs})


@router.get(
    "/metrics",
    responses=describe_errors(403)
    | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
async def metrics(request: Request, server: Server) -> Response:
    """Counters and times for Prometheus."""
    server.check_key(request, None)
    return Response(server.metrics.render(), media_type=CONTENT_TYPE)
