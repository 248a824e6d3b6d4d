"""On a GPU gradients of parameters on a stream of their own are those of autograd, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gpu_marks import DEVICE, needs_gpu
from support import perturb, tiny
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heed.data.batching.batch import Batch
from heed.models import build
from heed.nn.kernels.parameter_gradients import ParameterStream, parameter_stream
from heed.train.objective import Objective

pytestmark = [
    pytest.mark.gpu,
    needs_gpu,
    # Torch warns when a process starts with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
each_precision = pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "float32"])


def translator(**changes: Any) -> Any:
    """A model; untied, because outside a loss autograd adds the gradient of the output layer."""
    torch.manual_seed(0)
    settings = {"width": 256, "heads": 4, "layers": 3, "position": "t5"}
    settings |= {"tie_embeddings": False} | changes
    model = build("translate", tiny(**settings), vocab=60)
    perturb(model, by=0.05)
    return model.to(DEVICE).train()


def ids(seed: int) -> Tensor:
    return torch.randint(5, 60, (16, 32), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def differentiate(
    model: Any, stream: ParameterStream | None, *, bf16: bool, passes: int = 1
) -> Any:
    """The gradient of each parameter by name, after backward passes."""
    model.zero_grad(set_to_none=True)
    for seed in range(passes):
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            if stream is None:
                out = model(ids(seed), ids(seed + 9))
            else:
                with stream.active():
                    out = model(ids(seed), ids(seed + 9))
        out.float().square().mean().backward()
        if stream is not None:
            stream.join()
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(gradient, other[name]) for name, gradient in one.items())


@each_precision
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "swiglu"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_gradients_are_those_of_autograd(bf16: bool, activation: str, place: str) -> None:
    model = translator(activation=activation, norm_place=place)
    stream = ParameterStream(DEVICE)
    expected = differentiate(model, None, bf16=bf16)
    for _ in range(5):  # a race would not show every time
        assert same(differentiate(model, stream, bf16=bf16), expected)


@each_precision
def test_passes_add_up(bf16: bool) -> None:
    model, stream = translator(), ParameterStream(DEVICE)
    expected = differentiate(model, None, bf16=bf16, passes=3)
    assert same(differentiate(model, stream, bf16=bf16, passes=3), expected)


def test_frozen_parameters_get_no_gradient() -> None:
    model, stream = translator(), ParameterStream(DEVICE)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("feed_forward" not in name)
    found = differentiate(model, stream, bf16=True)
    assert all((gradient is None) == ("feed_forward" in name) for name, gradient in found.items())


def test_a_computed_weight_passes_its_gradient_on() -> None:
    model, stream = translator(), ParameterStream(DEVICE)
    layer = model.decoder.blocks[0].feed_forward.down
    parametrize.register_parametrization(layer, "weight", nn.Identity())
    expected = differentiate(model, None, bf16=True)
    assert same(differentiate(model, stream, bf16=True), expected)


@each_precision
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("vocab", [60, 64])
def test_gradients_of_a_loss_are_those_of_autograd(bf16: bool, tied: bool, vocab: int) -> None:
    """A tied table has three: of the output layer, of target tokens and of source tokens."""
    model = translator(tie_embeddings=tied)
    if vocab != 60:
        torch.manual_seed(0)
        changes = {"width": 256, "heads": 4, "layers": 3, "position": "sinusoidal"}
        model = build("translate", tiny(**changes, tie_embeddings=tied), vocab=vocab)
        model = model.to(DEVICE).train()
    real, positions = torch.ones(16, 32, dtype=torch.bool), torch.arange(32)[None]
    real, positions = real.to(DEVICE), positions.to(DEVICE)
    parts = {"source": ids(2), "source_mask": real, "source_positions": positions}
    batch = Batch(ids(0), ids(1), real, positions, 16 * 32, (), **parts)
    stream, objective = ParameterStream(DEVICE), Objective(model, label_smoothing=0.1)

    def run(stream: ParameterStream | None, scale: float) -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        with nullcontext() if stream is None else stream.joined():
            active = nullcontext() if stream is None else stream.active()
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16), active:
                total, _ = objective(batch)
            (total if scale == 1.0 else scale * total).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    for scale in (1.0, 0.25):
        expected = run(None, scale)
        for _ in range(5):  # a race would not show every time
            assert same(run(stream, scale), expected)


@each_precision
def test_a_captured_pass_is_the_eager_one(bf16: bool) -> None:
    model, stream = translator(), ParameterStream(DEVICE)
    expected = differentiate(model, None, bf16=bf16)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    source, target = ids(0), ids(9)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16), stream.active():
            out = model(source, target)
        out.float().square().mean().backward()
        stream.join()

    with torch.cuda.stream(aside):
        run()
        model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    for _ in range(5):
        torch._foreach_zero_([p.grad for p in model.parameters()])
        graph.replay()
        assert same({name: p.grad for name, p in model.named_parameters()}, expected)


def test_a_captured_pass_may_have_no_gradients_of_its_own() -> None:
    """As where all layers are frozen: the stream then has no part in the graph."""
    stream, x = ParameterStream(DEVICE), torch.ones(4, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with stream.active():
            y = x * 2
        stream.join()
    graph.replay()
    assert torch.equal(y, x * 2)


def test_it_is_active_in_its_context_alone() -> None:
    stream = ParameterStream(DEVICE)
    assert parameter_stream() is None
    with stream.active():
        assert parameter_stream() is stream
        assert parameter_stream(torch.ones(1, device=DEVICE, requires_grad=True) * 2) is None
    assert parameter_stream() is None
