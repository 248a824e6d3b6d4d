"""Batches side by side on the cores of a CPU, each on a thread of its own.

Two batches on one core each take less time than one after the other on both: between its products
a step has much to do that is too small to be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MOST = 4
"""Threads that write. Beyond, they would wait for one another: Python lets one speak at a time."""
Item = TypeVar("Item")
Done = TypeVar("Done")


def each(work: Callable[[Item], Done], items: Sequence[Item], *, crew: bool) -> Iterator[Done]:
    """What `work` makes of each item, in order; by a crew, if wanted. Nothing in it may learn."""
    threads = torch.get_num_threads()
    count = min(MOST, threads, len(items)) if crew else 1
    if count < 2 or torch.is_autocast_enabled("cpu"):  # what a thread sets, others don't have
        yield from map(work, items)
        return

    def alone(item: Item) -> Done:
        torch.set_num_threads(threads // count)  # of this thread, and of those that begin now
        with torch.inference_mode():
            return work(item)

    try:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(alone, items)
    finally:
        torch.set_num_threads(threads)
