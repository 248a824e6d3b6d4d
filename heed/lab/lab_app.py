"""The lab as an application: the checks that every request passes, the rooms, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from heed import __version__, assets
from heed.lab.access import Access, AccessCheck
from heed.lab.error_responses import (
    FORBIDDEN,
    StatusError,
    StrictJsonResponse,
    install_error_handlers,
    respond_to,
)
from heed.lab.headers import SecurityHeaders
from heed.lab.lab_context import Lab, LabContext
from heed.lab.limits import BodyLimit
from heed.lab.origins import SAFE_METHODS, Hosts, OriginCheck
from heed.lab.run_folder import RunFolder

ROOMS = (
    *("run_list", "run_curves", "events", "compare_room"),
    *("run_notes", "run_page", "study_room"),
    *("playground", "attention_room", "heads_room", "design_room", "training_room"),
)
"""Modules of `heed.lab.rooms`, whose `router` is part of the lab."""
COMPUTES_ONLY = (
    "/api/attention",
    "/api/compare",
    "/api/design",
    "/api/heads/",
    "/api/playground/",
)
"""Addresses whose requests change nothing on disk, so that a read-only lab answers them, too."""
PAGES = Path(assets.__file__).parent / "lab"
"""The built page: index.html, its scripts and its style."""

router = APIRouter(prefix="/api")


@router.get("/lab")
def describe_lab(lab: Lab) -> dict[str, Any]:
    """What the page shows of the lab itself."""
    return {
        "folder": lab.folder.title,
        "is_read_only": lab.is_read_only,
        "version": __version__,
    }


@router.get("/work")
def describe_work(lab: Lab) -> dict[str, int]:
    """What this lab does now: a page that waits for an answer says why."""
    trainings = sum(job.status == "training" for job in lab.training.read())
    return {
        "computations": lab.queue.pending,
        "at_once": lab.queue.threads,
        "trainings": trainings,
    }


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
def refuse_unknown(path: str) -> None:
    """Refuse an address of the API that there is not: it is no page."""
    raise StatusError("there is nothing at this address.", status=404, where=f"/api/{path}")


class ReadOnly:
    """Refuse what would change a run, or start one, in a lab that only shows them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in SAFE_METHODS
            and not scope["path"].startswith(COMPUTES_ONLY)
        ):
            error = StatusError(
                "this lab is read-only.",
                status=FORBIDDEN,
                where=scope["path"],
                todo="Start it without --read-only.",
            )
            await respond_to(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def build_lab(
    root: str | Path,
    *,
    access: Access | None = None,
    host: str = "127.0.0.1",
    is_read_only: bool = False,
    jobs: int = 1,
) -> FastAPI:
    """The lab of a folder of runs, for requests to `host`. Without `access`, all are refused."""
    lab = LabContext(RunFolder(root), is_read_only=is_read_only, jobs=jobs)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not is_read_only:
            lab.training.follow(lab.closing, lambda: lab.watch.log.add("queue", {}))
        yield
        lab.closing.set()
        lab.queue.close()

    app = FastAPI(
        title="heed lab",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=StrictJsonResponse,
        lifespan=lifespan,
    )
    app.state.lab = lab
    install_error_handlers(app)
    for name in ROOMS:
        app.include_router(import_module(f"heed.lab.rooms.{name}").router)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=PAGES), name="static")
    app.add_api_route("/{path:path}", show_page, include_in_schema=False)
    # The middleware that is added last sees a request first.
    if is_read_only:
        app.add_middleware(ReadOnly)
    app.add_middleware(AccessCheck, access=access or Access())
    app.add_middleware(BodyLimit)
    app.add_middleware(OriginCheck, hosts=Hosts(host), requires_origin=True)
    app.add_middleware(SecurityHeaders)
    return app


def show_page() -> Response:
    """The page of the lab, whatever the room: its script reads the address."""
    return FileResponse(PAGES / "index.html", media_type="text/html")
