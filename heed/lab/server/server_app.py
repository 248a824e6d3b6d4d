"""The server as an application: its routes, the checks that every request passes, its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response

from heed import __version__
from heed.lab.access import Access
from heed.lab.error_responses import install_error_handlers
from heed.lab.headers import SecurityHeaders
from heed.lab.limits import BodyLimit
from heed.lab.origins import Hosts, OriginCheck
from heed.lab.server import (
    classify_routes,
    completion_routes,
    service_routes,
    translate_routes,
)
from heed.lab.server.openapi_page import build_page
from heed.lab.server.prometheus_metrics import MetricsMiddleware, ServerMetrics
from heed.lab.server.request_body import ServerContext
from heed.lab.server.served_runs import ServedRuns
from heed.lab.server.server_errors import respond_with

DESCRIPTION = (
    "Trained runs over HTTP: translation in LibreTranslate's shape, completion in OpenAI's, and "
    "classification. Requests that arrive together are decoded together; each answer is the one "
    "that the request gets alone."
)


def build_server(runs: ServedRuns, *, key: str | None = None, host: str = "127.0.0.1") -> FastAPI:
    """The application for these runs and for requests to `host`; with a key, only for its holders.

    Its end answers what waits, and ends the runs' workers.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(runs.close)

    app = FastAPI(
        title="heed serve",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=lifespan,
    )
    metrics = ServerMetrics()
    app.state.server = ServerContext(runs, None if key is None else Access(key), metrics)
    for run in runs.runs.values():
        run.on_batch = metrics.watch_run(run.name, run.count_waiting)
    install_error_handlers(app, respond_with)
    for module in (translate_routes, completion_routes, classify_routes, service_routes):
        app.include_router(module.router)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(build_page(app.openapi()))

    # The middleware that is added last sees a request first.
    app.add_middleware(BodyLimit, max_body=runs.limits.max_body, respond=respond_with)
    app.add_middleware(OriginCheck, hosts=Hosts(host), requires_origin=False, respond=respond_with)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app
