"""Limits of requests: size and time of a body, length of a text, and a queue for computation.

What is over a limit is refused at once: 413 for size, 408 for a body that comes too slowly, 503
with Retry-After for a full queue or an answer that takes too long.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Annotated, ParamSpec, TypeVar

from pydantic import Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.lab.error_responses import (
    REQUEST_TIMEOUT,
    TOO_LARGE,
    UNAVAILABLE,
    ClientLeftError,
    Respond,
    StatusError,
    respond_to,
)

MAX_BODY = 1024 * 1024
"""Bytes of a body."""
MAX_TEXT = 20_000
"""Characters of one text."""
MAX_DIGITS = 18
"""Digits of a Content-Length: more are never read as a number."""
BODY_SECONDS = 20.0
"""The time in which a body has to arrive."""
THREADS, MAX_WAITING, ANSWER_SECONDS = 2, 32, 120.0
SECONDS_A_JOB = 1.0
"""A guess of how long a computation takes, for Retry-After."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
"""A text of a request: a longer one is refused with 413."""
P = ParamSpec("P")
T = TypeVar("T")


class BodyLimit:
    """Read a request's body before anything else does: not too large, and not too slowly."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int = MAX_BODY,
        seconds: float = BODY_SECONDS,
        respond: Respond = respond_to,
    ) -> None:
        self.app, self.max_body, self.seconds = app, max_body, seconds
        self.respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except StatusError as error:
            response = self.respond(error, scope)
            response.headers["Connection"] = "close"  # the rest of the body is not read
            await response(scope, receive, send)
            return
        if body is None:  # the client has left
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None if the client left before its end."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > MAX_DIGITS or int(length) > self.max_body):
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.max_body:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            raise StatusError(
                f"the body did not arrive within {self.seconds:g} s.",
                status=REQUEST_TIMEOUT,
                todo="Send it again.",
            ) from None

    def _too_large(self) -> StatusError:
        return StatusError(
            f"the body is larger than {self.max_body:,} bytes.",
            status=TOO_LARGE,
            todo="Send less text, or several requests.",
        )


class ComputeQueue:
    """Threads for computation: a few at once, a bounded number waiting, each in bounded time."""

    def __init__(
        self,
        *,
        threads: int = THREADS,
        max_waiting: int = MAX_WAITING,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.capacity, self.threads, self.seconds = threads + max_waiting, threads, seconds
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="heed-compute")
        self._pending, self._lock = 0, Lock()

    @property
    def pending(self) -> int:
        """Computations that run or wait."""
        return self._pending

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread; 503 if too many wait, or if it takes too long.

        A computation that is too late goes on, and counts as pending until it ends. One that is
        cancelled before it begins never does.
        """
        return await self._wait(self._submit(function, *args, **kwargs))

    async def run_ahead(self, function: Callable[[Callable[[T], None]], object]) -> T:
        """Call a function in a thread, and return what it answers while it goes on computing.

        The function is called with `answer`, and passes the answer to it. An error before that is
        raised here; a later one belongs to the rest, and the function has to keep it. `answer`
        raises `ClientLeftError` where nothing waits for the answer any more.
        """
        answered: Future[T] = Future()

        def answer(value: T) -> None:
            if not answered.set_running_or_notify_cancel():
                raise ClientLeftError
            answered.set_result(value)

        def work() -> None:
            try:
                function(answer)
            except BaseException as error:
                if not answered.done():
                    answered.set_exception(error)

        working = self._submit(work)
        working.add_done_callback(lambda one: one.cancelled() and answered.cancel())
        try:
            return await self._wait(answered)
        finally:
            working.cancel()  # where it has not begun

    def _submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            if self._pending >= self.capacity:
                raise self._busy("too many computations are waiting.")
            self._pending += 1
        future = self._executor.submit(function, *args, **kwargs)
        future.add_done_callback(lambda _: self._finish())
        return future

    async def _wait(self, future: Future[T]) -> T:
        task = asyncio.wrap_future(future)
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        except TimeoutError:
            if not task.done():
                task.cancel()  # one that has not begun never does
                raise self._busy(f"this took longer than {self.seconds:g} s.") from None
            raise

    def _finish(self) -> None:
        with self._lock:
            self._pending -= 1

    def _busy(self, what: str) -> StatusError:
        wait = max(1, math.ceil(self._pending * SECONDS_A_JOB / self.threads))
        todo = f"Try again in {wait} s."
        return StatusError(what, status=UNAVAILABLE, todo=todo, retry_after=wait)

    def close(self) -> None:
        """Let running computations end; those that wait are dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
