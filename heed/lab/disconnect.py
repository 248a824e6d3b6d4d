"""Clients that leave before their answer: what was to be computed for them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from heed.lab.error_responses import ClientLeftError

T = TypeVar("T")


async def await_while_connected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns; it is cancelled when the client leaves, with `ClientLeftError`.

    The request ends when the coroutine has: its place in a queue is free then.
    """
    result = asyncio.ensure_future(answer)
    leaves = asyncio.ensure_future(await_disconnect(request))
    try:
        await asyncio.wait((result, leaves), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientLeftError
        return result.result()
    finally:
        leaves.cancel()
        result.cancel()
        await asyncio.wait((result,))


async def await_disconnect(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
