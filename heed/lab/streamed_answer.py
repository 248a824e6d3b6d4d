"""Answers that are streamed: JSON lines of progress while a thread computes, then the result.

The last line is `{"result": …}`, or the error. A client that leaves stops the computation: the next
report raises `ClientLeftError` inside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse

from heed.errors import HeedError
from heed.files import to_json
from heed.lab.error_responses import UNAVAILABLE, ClientLeftError, StatusError, describe_error
from heed.lab.lab_context import LabContext

Report = Callable[[dict[str, Any]], None]
"""Called by a computation with each line of progress."""
POLL_SECONDS = 0.2
"""How often a stream without news looks whether its client has left."""


_streams: set[asyncio.Task[None]] = set()
"""Computations that are streamed: the event loop itself holds no reference to them."""


async def stream_answer(
    compute: Callable[[Report], dict[str, Any]], lab: LabContext, request: Request
) -> StreamingResponse:
    """Compute in a thread; the answer is JSON lines. What fails before the first has its status."""
    loop, stop = asyncio.get_running_loop(), Event()
    news: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()

    def report(line: dict[str, Any]) -> None:
        if stop.is_set() or lab.closing.is_set():
            raise ClientLeftError
        loop.call_soon_threadsafe(news.put_nowait, line)

    def compute_or_stop() -> dict[str, Any] | None:
        try:
            return None if stop.is_set() else compute(report)
        except ClientLeftError:
            return None

    async def work() -> None:
        try:
            if (result := await lab.queue.run(compute_or_stop)) is not None:
                news.put_nowait({"result": result})
        except Exception as error:
            news.put_nowait(error)
        finally:
            stop.set()  # a computation that takes too long ends, too
            news.put_nowait(None)

    async def read_news() -> AsyncIterator[dict[str, Any] | Exception]:
        while not await request.is_disconnected():
            try:
                one = await asyncio.wait_for(news.get(), POLL_SECONDS)
            except TimeoutError:
                continue
            if one is None:
                return
            yield one

    async def write_lines(first: dict[str, Any]) -> AsyncIterator[str]:
        try:
            yield to_json(first) + "\n"
            async for one in lines:
                if isinstance(one, Exception) and not isinstance(one, HeedError):
                    raise one
                content = describe_error(one) if isinstance(one, HeedError) else one
                yield to_json(content) + "\n"
        finally:
            stop.set()

    task, lines = asyncio.create_task(work()), read_news()
    _streams.add(task)
    task.add_done_callback(_streams.discard)
    try:
        first = await anext(lines, None)
    except BaseException:
        stop.set()
        raise
    if not isinstance(first, dict):
        stop.set()
        raise first or StatusError("the computation was stopped.", status=UNAVAILABLE)
    return StreamingResponse(write_lines(first), media_type="application/x-ndjson")
