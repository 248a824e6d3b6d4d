"""Dynamic batching: every item gets its own result, whatever arrives, waits, fails or leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import run_async

from heed.lab.server.dynamic_batching import (
    ClosedError,
    DynamicBatcher,
    Job,
    QueueFullError,
    TimeLimitError,
)

Jobs = Sequence[Job[int, int]]
SECONDS = 20.0
"""More than any test takes."""


class Batches:
    """A computation that keeps its batches, waits while it is held, and fails for odd items."""

    def __init__(self, *, fails: Callable[[int], bool] = lambda item: False) -> None:
        self.fails, self.batches = fails, list[tuple[Hashable, list[int]]]()
        self.go, self.began = Event(), Event()
        self.go.set()

    def __call__(self, key: Hashable, jobs: Jobs) -> list[int]:
        self.began.set()
        assert self.go.wait(SECONDS)
        items = [job.item for job in jobs]
        self.batches.append((key, items))
        if any(map(self.fails, items)):
            raise ValueError(str([item for item in items if self.fails(item)]))
        return [10 * item for item in items]


def run(compute: Batches, use: Callable[[Any], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Use a batcher in an event loop, and close it."""

    async def main() -> None:
        batcher = DynamicBatcher[int, int](compute, **options)
        try:
            await use(batcher)
        finally:
            compute.go.set()
            await asyncio.to_thread(batcher.close)

    run_async(main())


async def answer(
    batcher: DynamicBatcher[int, int], key: Hashable, items: Sequence[int], *, seconds: float
) -> list[int]:
    """The results of one request's items, as a route of the server gets them."""
    jobs = batcher.submit([(key, item) for item in items])
    return await batcher.gather(jobs, seconds=seconds)


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 99), min_size=1, max_size=4)),
        min_size=1,
        max_size=12,
    ),
    pauses=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    max_batch=st.integers(1, 6),
    workers=st.integers(1, 3),
)
def test_every_arrival_order_gives_each_its_own_result(
    requests: list[tuple[int, list[int]]], pauses: list[int], max_batch: int, workers: int
) -> None:
    compute = Batches()

    async def use(batcher: DynamicBatcher[int, int]) -> None:
        async def send(i: int) -> None:
            for _ in range(pauses[i]):
                await asyncio.sleep(0)
            key, items = requests[i]
            assert await answer(batcher, key, items, seconds=SECONDS) == [
                10 * item for item in items
            ]

        await asyncio.gather(*map(send, range(len(requests))))
        assert batcher.waiting == 0

    run(compute, use, max_batch=max_batch, max_waiting=1000, workers=workers)
    for _, items in compute.batches:
        assert len(items) <= max_batch
    sent = sorted((key, item) for key, items in requests for item in items)
    assert sorted((key, item) for key, items in compute.batches for item in items) == sent


def test_what_waits_together_is_computed_together_by_key() -> None:
    compute = Batches()

    async def use(batcher: DynamicBatcher[int, int]) -> None:
        compute.go.clear()
        tasks = [asyncio.ensure_future(answer(batcher, "first", [0], seconds=SECONDS))]
        await asyncio.to_thread(compute.began.wait, SECONDS)
        for item in range(1, 7):
            key = "even" if item % 2 == 0 else "odd"
            tasks.append(asyncio.ensure_future(answer(batcher, key, [item], seconds=SECONDS)))
        await asyncio.sleep(0.01)
        compute.go.set()
        await asyncio.gather(*tasks)

    run(compute, use, max_batch=2)
    # The oldest item's key comes first, and a batch has at most two items.
    assert compute.batches[:4] == [
        ("first", [0]),
        ("odd", [1, 3]),
        ("even", [2, 4]),
        ("odd", [5]),
    ]


def test_an_item_that_fails_does_not_fail_its_neighbours() -> None:
    compute = Batches(fails=lambda item: item == 3)

    async def use(batcher: DynamicBatcher[int, int]) -> None:
        compute.go.clear()
        first = asyncio.ensure_future(answer(batcher, "key", [0], seconds=SECONDS))
        await asyncio.to_thread(compute.began.wait, SECONDS)
        others = [
            asyncio.ensure_future(answer(batcher, "key", [item], seconds=SECONDS))
            for item in (1, 2, 3, 4)
        ]
        await asyncio.sleep(0.01)
        compute.go.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
        assert isinstance(results[3], ValueError)
        assert [results[i] for i in (0, 1, 2, 4)] == [[0], [10], [20], [40]]
        with pytest.raises(ValueError, match="3"):
            await answer(batcher, "key", [5, 3, 6], seconds=SECONDS)

    run(compute, use)


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    compute = Batches()

    async def use(batcher: DynamicBatcher[int, int]) -> None:
        compute.go.clear()
        tasks = [asyncio.ensure_future(answer(batcher, "key", [0], seconds=SECONDS))]
        await asyncio.to_thread(compute.began.wait, SECONDS)
        tasks.append(asyncio.ensure_future(answer(batcher, "key", [1, 2, 3], seconds=SECONDS)))
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFullError) as refused:
            await answer(batcher, "key", [4, 5], seconds=SECONDS)
        assert (refused.value.retry_after or 0) >= 1
        assert batcher.waiting == 3
        compute.go.set()
        assert await asyncio.gather(*tasks) == [[0], [10, 20, 30]]
        # More items than may wait are taken where nothing waits.
        assert len(await answer(batcher, "key", range(9), seconds=SECONDS)) == 9

    run(compute, use, max_waiting=4)


def test_a_request_that_is_late_or_left_is_dropped() -> None:
    compute = Batches()

    async def use(batcher: DynamicBatcher[int, int]) -> None:
        compute.go.clear()
        first = asyncio.ensure_future(answer(batcher, "key", [0], seconds=SECONDS))
        await asyncio.to_thread(compute.began.wait, SECONDS)
        with pytest.raises(TimeLimitError) as late:
            await answer(batcher, "key", [1], seconds=0.01)
        assert (late.value.retry_after or 0) >= 1
        left = asyncio.ensure_future(answer(batcher, "key", [2], seconds=SECONDS))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.wait([left])
        assert left.cancelled()
        assert batcher.waiting == 0
        compute.go.set()
        assert await first == [0]

    run(compute, use)
    assert compute.batches == [("key", [0])]


def test_a_job_that_is_computed_can_see_that_it_was_cancelled() -> None:
    seen: list[bool] = []
    began, go = Event(), Event()

    def compute(_: Hashable, jobs: Jobs) -> list[int]:
        began.set()
        go.wait(SECONDS)
        seen.extend(job.is_cancelled for job in jobs)
        return [0 for _ in jobs]

    async def main() -> None:
        batcher = DynamicBatcher[int, int](compute)
        jobs = batcher.submit([("key", 1)])
        await asyncio.to_thread(began.wait, SECONDS)
        batcher.cancel(jobs)
        go.set()
        await asyncio.to_thread(batcher.close)

    run_async(main())
    assert seen == [True]


def test_closing_computes_what_waits_and_takes_no_more() -> None:
    compute = Batches()

    async def main() -> None:
        batcher = DynamicBatcher[int, int](compute, max_batch=1)
        compute.go.clear()
        tasks = [
            asyncio.ensure_future(answer(batcher, "key", [item], seconds=SECONDS))
            for item in range(4)
        ]
        await asyncio.to_thread(compute.began.wait, SECONDS)
        closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
        while not batcher.is_closed:
            await asyncio.sleep(0.001)
        with pytest.raises(ClosedError):
            await answer(batcher, "key", [9], seconds=SECONDS)
        compute.go.set()
        assert await asyncio.gather(*tasks) == [[0], [10], [20], [30]]
        await closing

    run_async(main())
