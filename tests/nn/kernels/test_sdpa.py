"""SDPA without cuDNN's kernel where no gradient is needed: when, and what is restored after."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from heed.nn.kernels import sdpa
from heed.nn.kernels.sdpa import CUDNN_PAYS, attend_sdpa


def uses_cudnn() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether cuDNN was allowed in each call of SDPA."""
    seen: list[bool] = []

    def note(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(uses_cudnn())
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    assert uses_cudnn()
    return seen


def attend(
    n: int,
    *,
    device: str = "cuda",
    groups: int = 4,
    masked: bool = False,
    transposed: bool = False,
) -> None:
    """On tensors that have shapes and a device, but no numbers."""
    with FakeTensorMode():
        q, k = (torch.empty(2, heads, n, 8, device=device) for heads in (4, groups))
        mask = torch.empty(2, 1, n, n, dtype=torch.bool, device=device) if masked else None
        bias = torch.empty(1, 4, n, n, device=device).mT if transposed else None
        attend_sdpa(q, k, k, mask=mask, bias=bias, scale=None, dropout=0.0)


def test_a_short_call_without_gradients_avoids_cudnn(allowed: list[bool]) -> None:
    with torch.no_grad():
        attend(20)
        attend(20, masked=True)
        attend(20, groups=2)
    with torch.inference_mode():
        attend(CUDNN_PAYS, masked=True)
    assert allowed == [False] * 4
    assert uses_cudnn()


def test_other_calls_may_use_cudnn(allowed: list[bool]) -> None:
    attend(20)
    with torch.no_grad():
        attend(CUDNN_PAYS + 1)
        attend(20, device="cpu")
        # Of these, cuDNN has the only kernel that does not hold all weights in memory.
        attend(20, groups=2, masked=True)
        attend(20, transposed=True)
    assert allowed == [True] * 5


def test_an_error_restores_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(F, "scaled_dot_product_attention", fail)
    with torch.no_grad(), pytest.raises(RuntimeError, match="out of memory"):
        attend(20)
    assert uses_cudnn()


def test_a_switch_that_was_off_stays_off(allowed: list[bool]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with torch.no_grad():
            attend(20)
        assert not uses_cudnn()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_threads_that_overlap_restore_the_switch() -> None:
    """The first one out leaves it off for the other."""
    both_in, one_out, seen = Barrier(2), Barrier(2), []

    def work(leaves_first: bool) -> None:
        with sdpa._WITHOUT_CUDNN:
            both_in.wait()
            if not leaves_first:
                one_out.wait()
                seen.append(uses_cudnn())
        if leaves_first:
            one_out.wait()

    threads = [Thread(target=work, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False]
    assert uses_cudnn()
