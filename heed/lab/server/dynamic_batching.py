"""Dynamic batching: items that wait at the same time are computed together by worker threads.

A free worker takes the oldest item and all others with its key, up to the size of a batch; nothing
waits for a batch to fill up. The queue is bounded, an item can be cancelled, and a batch that fails
is computed again item by item, so that none fails because of another.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import InvalidStateError
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

from heed.lab.error_responses import TOO_MANY, UNAVAILABLE, StatusError

MAX_BATCH, MAX_WAITING = 24, 24
"""Items of a batch, and items that wait for the next one."""
ANSWER_SECONDS = 60.0
"""The time in which a request is answered, unless another is given."""
SMOOTHING = 0.9
"""Weight of the past in the moving average of seconds per item."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class BusyError(StatusError):
    """A request that is not answered now; `retry_after` seconds later it may be."""

    def __init__(self, what: str, *, retry_after: int, status: int = UNAVAILABLE) -> None:
        todo = f"Try again in {retry_after} s."
        super().__init__(what, status=status, todo=todo, retry_after=retry_after)


class QueueFullError(BusyError):
    """As many items wait as may wait."""

    def __init__(self, what: str, *, retry_after: int) -> None:
        super().__init__(what, retry_after=retry_after, status=TOO_MANY)


class TimeLimitError(BusyError):
    """A request was not answered in time."""


class ClosedError(BusyError):
    """The batcher takes no more items."""


class Job(Generic[Item, Result]):
    """One item of a request: it waits, is computed in a batch, and has a result or an error."""

    def __init__(self, key: Hashable, item: Item, number: int) -> None:
        self.key, self.item, self.number = key, item, number
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.is_cancelled = self.is_waiting = False
        self.arrived = time.monotonic()

    def settle(self, result: Result | None, error: BaseException | None) -> None:
        """Set the result or the error, in the thread of the event loop."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)  # type: ignore[arg-type]  # there is one or the other


Compute = Callable[[Hashable, "Sequence[Job[Item, Result]]"], Sequence[Result]]
"""Computes the results of jobs that share a key, in their order."""


class DynamicBatcher(Generic[Item, Result]):
    """A bounded queue of items, and the threads that compute them in batches."""

    def __init__(
        self,
        compute: Compute[Item, Result],
        *,
        max_batch: int = MAX_BATCH,
        max_waiting: int = MAX_WAITING,
        workers: int = 1,
        initialize: Callable[[], None] | None = None,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        """`initialize` runs first in each worker; `on_batch` gets a batch's size and seconds."""
        self.compute, self.max_batch, self.max_waiting = compute, max_batch, max_waiting
        self.initialize, self.on_batch = initialize, on_batch
        self.waiting = self.running = 0
        self._queues: OrderedDict[Hashable, deque[Job[Item, Result]]] = OrderedDict()
        self._changed, self._number, self.is_closed = Condition(), 0, False
        self._seconds_per_item = 0.0
        self._workers = [Thread(target=self._work, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def submit(self, items: Sequence[tuple[Hashable, Item]]) -> list[Job[Item, Result]]:
        """Let the items of a request wait, all or none; each comes with its key.

        A request of more items than may wait is taken only when nothing else waits.
        """
        with self._changed:
            if self.is_closed:
                raise ClosedError("the server is about to end.", retry_after=self.retry_after())
            if self.waiting and self.waiting + len(items) > self.max_waiting:
                what = f"{self.waiting + self.running} requests are before this one."
                raise QueueFullError(what, retry_after=self.retry_after())
            jobs = []
            for key, item in items:
                self._number += 1
                job = Job[Item, Result](key, item, self._number)
                job.is_waiting = True
                self._queues.setdefault(key, deque()).append(job)
                jobs.append(job)
            self.waiting += len(jobs)
            self._changed.notify(len(jobs))
        return jobs

    async def gather(self, jobs: Sequence[Job[Item, Result]], *, seconds: float) -> list[Result]:
        """The results of jobs that were submitted, within so many seconds.

        If one fails or is late, or if the caller is cancelled, none is computed any further.
        """
        try:
            async with asyncio.timeout(seconds):
                return [await job.future for job in jobs]
        except TimeoutError:
            what = f"this took longer than {seconds:g} s."
            raise TimeLimitError(what, retry_after=self.retry_after()) from None
        finally:
            self.cancel(jobs)

    def cancel(self, jobs: Sequence[Job[Item, Result]]) -> None:
        """Drop jobs that wait; one that is computed can see that it is cancelled."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
                if job.is_waiting:
                    job.is_waiting = False
                    self.waiting -= 1
                    self._remove(job)
                if not job.future.done():
                    job.future.cancel()
                elif not job.future.cancelled():
                    job.future.exception()  # one that is never read would be a warning

    def retry_after(self) -> int:
        """The seconds until what waits now will have been computed, at least 1."""
        pending = (self.waiting + self.running) * self._seconds_per_item
        return max(1, math.ceil(pending / len(self._workers)))

    def close(self) -> None:
        """Take no more items, compute those that wait, and end the workers."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _remove(self, job: Job[Item, Result]) -> None:
        queue = self._queues[job.key]
        queue.remove(job)
        if not queue:
            del self._queues[job.key]

    def _work(self) -> None:
        if self.initialize is not None:
            self.initialize()
        while batch := self._take_batch():
            began = time.monotonic()
            self._compute(batch)
            seconds = time.monotonic() - began
            with self._changed:
                self.running -= len(batch)
                latest = seconds / len(batch)
                past = self._seconds_per_item or latest
                self._seconds_per_item = SMOOTHING * past + (1 - SMOOTHING) * latest
            if self.on_batch is not None:
                self.on_batch(len(batch), seconds)

    def _take_batch(self) -> list[Job[Item, Result]]:
        """The oldest item and those with its key; none once the batcher is closed."""
        with self._changed:
            while not self._queues:
                if self.is_closed:
                    return []
                self._changed.wait()
            key, queue = min(self._queues.items(), key=lambda entry: entry[1][0].number)
            batch = [queue.popleft() for _ in range(min(len(queue), self.max_batch))]
            if not queue:
                del self._queues[key]
            for job in batch:
                job.is_waiting = False
            self.waiting -= len(batch)
            self.running += len(batch)
            return batch

    def _compute(self, batch: Sequence[Job[Item, Result]]) -> None:
        """Compute a batch and settle its jobs; where it fails, each job by itself.

        A job that was cancelled is not computed again.
        """
        outcomes: list[tuple[Result | None, BaseException | None]]
        try:
            results = self.compute(batch[0].key, batch)
            outcomes = [(result, None) for result in results]
        except Exception as error:
            if len(batch) > 1:
                for job in batch:
                    if not job.is_cancelled:
                        self._compute([job])
                return
            outcomes = [(None, error)]
        _settle(batch, outcomes)


def _settle(batch: Sequence[Job[Any, Any]], outcomes: Sequence[tuple[Any, Any]]) -> None:
    """Hand results over to the event loops of the jobs, by one call each."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job[Any, Any], Any, Any]]] = {}
    for job, (result, error) in zip(batch, outcomes, strict=True):
        by_loop.setdefault(job.loop, []).append((job, result, error))

    def settle_all(entries: list[tuple[Job[Any, Any], Any, Any]]) -> None:
        for job, result, error in entries:
            job.settle(result, error)

    for loop, entries in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle_all, entries)
        except (RuntimeError, InvalidStateError):  # the loop has ended, and with it the request
            continue
