"""Counters count the same where the host reads numbers as where it does not."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.train.counters import Counters


@given(
    steps=st.lists(st.tuples(st.booleans(), st.floats(0, 9), st.integers(1, 9)), max_size=12),
    max_skipped=st.integers(0, 3),
)
def test_the_host_counts_as_a_device(
    steps: list[tuple[bool, float, int]], max_skipped: int
) -> None:
    host, device = (Counters(torch.device("cpu")) for _ in range(2))
    for finite, loss, targets in steps:
        for counters in (host, device):
            counters.start_step(targets)
            counters.add(torch.tensor(loss if finite else torch.nan), torch.tensor(targets // 2))
        host.finish_step(torch.tensor(finite), max_skipped)
        device._finish_on_device(torch.tensor(finite), max_skipped)
        assert torch.equal(host.sums, device.sums)
        assert torch.equal(host.counts, device.counts)
        assert host.failed_at == device.failed_at
