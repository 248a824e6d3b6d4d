"""Batches in parallel on the cores of a CPU, one thread per batch.

Two batches on one core each take less time than one after the other on both cores: between its
matrix products a step has much work that is too small to be split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MAX_THREADS = 4
"""Threads that decode. More would wait for Python's global interpreter lock."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_batches(
    function: Callable[[Item], Result], items: Sequence[Item], *, parallel: bool
) -> Iterator[Result]:
    """The results of `function` in order, computed by several threads if `parallel`.

    Threads run in inference mode, so `function` must not train.
    """
    threads = torch.get_num_threads()
    count = min(MAX_THREADS, threads, len(items)) if parallel else 1
    if count < 2 or torch.is_autocast_enabled("cpu"):  # autocast is a setting of one thread only
        yield from map(function, items)
        return

    def run(item: Item) -> Result:
        torch.set_num_threads(threads // count)  # for this thread and the ones that torch starts
        with torch.inference_mode():
            return function(item)

    try:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(run, items)
    finally:
        torch.set_num_threads(threads)
