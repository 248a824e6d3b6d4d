"""Changes of runs as server-sent events with a cursor, so that a page is live without asking.

    run     a run is new or has changed: its entry of the list, and whether its metrics are others
    rows    new rows of a run's metrics, and the number of the first, from 0
    gone    a run was deleted or moved
    study   a study is new, has changed or is gone
    queue   the queue of trainings has changed
    reset   the cursor is unknown here: read everything again, and go on from the new cursor

The id of every event is the cursor after it. A browser sends the last one when it reconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from heed.files import to_json
from heed.lab.event_log import Event, EventLog
from heed.lab.lab_context import Lab, LabContext

POLL_SECONDS = 1.0
"""Files are looked at so often while a page is open."""
READ_SECONDS = 0.3
"""The time for reading between two looks at what there is to send."""
CLOSING_SECONDS = 0.1
"""A stream notices so soon that the server is to end."""
QUIET_SECONDS = 15.0
"""After so long without an event a comment is sent, so that a lost connection is noticed."""
RETRY_MILLISECONDS = 1000

router = APIRouter(prefix="/api")


@router.get("/events")
async def stream_events(request: Request, lab: Lab, cursor: str | None = None) -> Response:
    """Every change after the cursor, as it happens, until the page is closed."""
    # A browser that reconnects asks for the old address, with the newest cursor in this header.
    cursor = request.headers.get("last-event-id") or cursor
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = follow(lab, cursor)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def follow(lab: LabContext, cursor: str | None) -> AsyncIterator[str]:
    """The text of the stream."""
    watch, log = lab.watch, lab.watch.log
    yield f"retry: {RETRY_MILLISECONDS}\n\n"
    number = log.find(cursor)
    spoke = time.monotonic()
    while not lab.closing.is_set():
        if number is not None and number < log.last - log.size:  # they came too fast for it
            number = None
        if number is None:
            number = log.last
            yield format_event(log, Event(number, "reset", {"cursor": log.cursor(number)}))
        for event in log.since(number):
            number = event.number
            spoke = time.monotonic()
            yield format_event(log, event)
        waiting = await run_in_threadpool(watch.refresh, READ_SECONDS)
        if time.monotonic() - spoke > QUIET_SECONDS:
            spoke = time.monotonic()
            yield ": nothing new\n\n"
        if waiting or log.last > number:
            continue
        end = time.monotonic() + POLL_SECONDS
        while time.monotonic() < end and not lab.closing.is_set():
            await asyncio.sleep(CLOSING_SECONDS)


def format_event(log: EventLog, event: Event) -> str:
    """An event as text: its cursor, its kind, and its data on one line."""
    return f"id: {log.cursor(event.number)}\nevent: {event.kind}\ndata: {to_json(event.data)}\n\n"
