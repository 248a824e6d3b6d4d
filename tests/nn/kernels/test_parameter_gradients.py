"""What a stream for gradients of parameters keeps and adds, without a GPU: streams do nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heed.nn.kernels.parameter_gradients import ParameterStream


class NoStream:
    """A stream that is always done; it may refuse to be waited for."""

    fails = False

    def wait_stream(self, other: Any) -> None:
        if self.fails:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> NoStream:
    """The stream of the backward pass."""
    stream = NoStream()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return stream


def add(stream: ParameterStream, parameter: nn.Parameter) -> Tensor:
    """Add ones to the gradient; returns what the stream reads."""
    read = torch.ones(3)
    stream.add_gradients((parameter, None), lambda: (read.double(), None), (read,))
    return read


@pytest.mark.usefixtures("main")
def test_gradients_add_up_in_the_parameters_dtype() -> None:
    stream = ParameterStream(torch.device("cpu"))
    parameter, frozen = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3), False)
    for passes in (1.0, 2.0):
        with stream.joined():
            add(stream, parameter)
            add(stream, frozen)
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter.grad, torch.full((3,), passes))
    assert frozen.grad is None


@pytest.mark.parametrize("capture_fails", [False, True])
def test_a_pass_that_fails_leaves_no_memory_behind(main: NoStream, capture_fails: bool) -> None:
    """The batch is split and tried again: then its memory is needed."""
    stream = ParameterStream(torch.device("cpu"))

    def fail() -> None:
        add(stream, nn.Parameter(torch.zeros(3)))
        main.fails = capture_fails
        raise torch.OutOfMemoryError("no memory left")

    with pytest.raises(torch.OutOfMemoryError), stream.joined():
        fail()
    assert not stream._read
