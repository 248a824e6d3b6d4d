"""What every optimizer must do, and what makes each of them itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heed.config.train import OPTIMIZERS
from heed.errors import ConfigError, HeedError
from heed.train.optimizers.build import (
    CAPTURABLE,
    OptimizerSettings,
    build_optimizer,
    parameter_groups,
    set_lr,
)
from heed.train.optimizers.newton_schulz import orthogonalize
from heed.train.optimizers.schedules import schedule

RATES = {"sgd": 0.05, "adagrad": 0.5, "adafactor": 0.1}
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


class Small(nn.Module):
    """An embedding tied to a head, a hidden matrix, a norm, positions and a frozen layer."""

    def __init__(self, *, tied: bool = True, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(7, 6)
        self.hidden = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(6)
        self.positions = nn.Embedding(4, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 7, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions.weight[: ids.size(-1)]
        x = self.norm(self.hidden(x)).tanh()
        return torch.as_tensor(self.head(x) + self.wide(x)[..., :7])


class One(nn.Module):
    """One matrix and no more."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())


def names_in(model: nn.Module, group: dict[str, Any]) -> list[str]:
    called = {parameter: name for name, parameter in model.named_parameters()}
    return [called[parameter] for parameter in group["params"]]


def train(model: Small, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Steps `first` to `last` of a run whose batches and rates depend on the step alone."""
    factor = schedule("cosine", warmup=2, steps=12)
    device = model.embedding.weight.device
    for step in range(first, last):
        ids = torch.randint(0, 7, (3, 4), generator=torch.Generator().manual_seed(step))
        set_lr(optimizer, 0.01, factor(step))
        optimizer.zero_grad()
        model(ids.to(device)).square().mean().backward()
        optimizer.step()


def through_files(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps of a state: tensors, and plain numbers through JSON."""
    groups = [group | {"lr": float(group["lr"])} for group in state["param_groups"]]
    kept: dict[int, dict[str, Tensor]] = {}
    for index, values in state["state"].items():
        assert all(isinstance(value, Tensor) for value in values.values())
        kept[index] = {key: value.clone() for key, value in values.items()}
    return {"state": kept, "param_groups": json.loads(json.dumps(groups))}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lr_tensor", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_is_the_unbroken_one(name: str, lr_tensor: bool, device: str) -> None:
    wanted = OptimizerSettings(name=name, lr=0.01, weight_decay=0.1, muon_lr=0.02)
    unbroken, broken = Small().to(device), Small().to(device)
    train(unbroken, build_optimizer(unbroken, wanted, lr_tensor=lr_tensor), 0, 10)

    before = build_optimizer(broken, wanted, lr_tensor=lr_tensor)
    train(broken, before, 0, 5)
    resumed = Small(seed=1).to(device)
    resumed.load_state_dict(broken.state_dict())
    after = build_optimizer(resumed, wanted, lr_tensor=lr_tensor)
    after.load_state_dict(through_files(before.state_dict()))
    train(resumed, after, 5, 10)

    for ours, theirs in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert all(isinstance(group["lr"], Tensor) == lr_tensor for group in after.param_groups)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_quadratic_converges(name: str) -> None:
    torch.manual_seed(0)
    target, model = torch.randn(6, 5), One(torch.randn(6, 5))
    optimizer = build_optimizer(model, OptimizerSettings(name=name, lr=RATES.get(name, 0.1)))
    factor = schedule("linear", warmup=0, steps=200)
    losses = []
    for step in range(200):
        set_lr(optimizer, RATES.get(name, 0.1), factor(step))
        loss = (model.weight.detach() - target).square().sum()
        model.weight.grad = 2.0 * (model.weight.detach() - target)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.001 * losses[0]


def stepped(name: str, weight: Tensor, grad: Tensor, *, decay: float, lr: float = 0.1) -> Tensor:
    """A weight after one step against a given gradient."""
    model = One(weight)
    optimizer = build_optimizer(model, OptimizerSettings(name=name, lr=lr, weight_decay=decay))
    model.weight.grad = grad.clone()
    optimizer.step()
    return model.weight.detach()


@given(st.floats(0.001, 0.9), st.floats(1e-4, 0.5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_decoupled_decay_is_lr_times_decay_whatever_the_gradient(
    name: str, decay: float, lr: float, seed: int
) -> None:
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 4, generator=made, dtype=torch.float64)
    grad = torch.randn(5, 4, generator=made, dtype=torch.float64)
    still = stepped(name, weight, torch.zeros_like(grad), decay=decay, lr=lr)
    torch.testing.assert_close(still, weight - lr * decay * weight)
    for scale in (1.0, 100.0):
        moved = stepped(name, weight, scale * grad, decay=decay, lr=lr)
        free = stepped(name, weight, scale * grad, decay=0.0, lr=lr)
        torch.testing.assert_close(moved - free, -lr * decay * weight)


@given(st.floats(0.01, 0.9), st.floats(1e-4, 0.5))
@settings(max_examples=30, deadline=None)
def test_adam_decays_through_the_gradient(decay: float, lr: float) -> None:
    weight = torch.tensor([[1.0, -2.0], [3.0, -0.5]], dtype=torch.float64)
    moved = stepped("adam", weight, torch.zeros_like(weight), decay=decay, lr=lr)
    # Adam divides a gradient by its own size, so the first step is lr, not lr · decay · weight.
    torch.testing.assert_close(moved, weight - lr * weight.sign(), atol=1e-5 * lr, rtol=0.0)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_the_other_coupled_decays_are_a_gradient_too(name: str) -> None:
    weight, grad = torch.randn(3, 2).double(), torch.randn(3, 2).double()
    by_hand = stepped(name, weight, grad + 0.3 * weight, decay=0.0)
    torch.testing.assert_close(stepped(name, weight, grad, decay=0.3), by_hand)


def test_matrices_decay_and_nothing_else() -> None:
    model = Small()
    decay, no_decay = parameter_groups(model, weight_decay=0.1)
    assert names_in(model, decay) == ["hidden.weight", "wide.weight"]
    kept = "embedding.weight hidden.bias wide.bias norm.weight norm.bias positions.weight"
    assert names_in(model, no_decay) == kept.split()  # the first of these is the head's too
    assert (decay["name"], decay["weight_decay"], decay["lr_scale"]) == ("decay", 0.1, 1.0)
    assert (no_decay["name"], no_decay["weight_decay"]) == ("no_decay", 0.0)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tied", [False, True])
def test_every_trainable_parameter_is_there_once(name: str, tied: bool) -> None:
    model = Small(tied=tied)
    groups = build_optimizer(model, OptimizerSettings(name=name)).param_groups
    held = [parameter for group in groups for parameter in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {p for p in model.parameters() if p.requires_grad}


def test_a_frozen_model_cannot_be_trained() -> None:
    with pytest.raises(HeedError, match="no parameter to train"):
        build_optimizer(Small().requires_grad_(False), OptimizerSettings())


def test_lion_moves_every_weight_by_exactly_lr() -> None:
    grad = torch.randn(5, 4) * torch.logspace(-6, 6, 20).view(5, 4)
    moved = stepped("lion", torch.zeros(5, 4), grad, decay=0.0, lr=0.003)
    assert torch.equal(moved, -torch.tensor(0.003) * grad.sign())


def test_lion_looks_at_momentum_and_gradient_with_different_memories() -> None:
    model = One(torch.zeros(1, 1))
    optimizer = build_optimizer(model, OptimizerSettings(name="lion", lr=1.0, betas=(0.5, 0.9)))
    momentum, weight = 0.0, 0.0
    for gradient in (1.0, -0.05, -0.2, 0.1, -3.0):
        model.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        weight -= math.copysign(1.0, 0.5 * momentum + 0.5 * gradient)
        momentum = 0.9 * momentum + 0.1 * gradient
        assert model.weight.item() == weight


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000), st.floats(-8.0, 8.0))
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("device", DEVICES)
def test_orthogonalised_matrices_have_singular_values_near_one(
    device: str, rows: int, columns: int, seed: int, size: float
) -> None:
    made = torch.Generator().manual_seed(seed)
    u, _, vt = torch.linalg.svd(torch.randn(3, rows, columns, generator=made), full_matrices=False)
    spectrum = torch.rand(3, 1, min(rows, columns), generator=made) * 0.95 + 0.05
    matrices = ((u * spectrum) @ vt * 10.0**size).to(device)
    near_one = orthogonalize(list(matrices)).float().cpu()
    values = torch.linalg.svdvals(near_one)
    assert values.min() > 0.65
    assert values.max() < 1.25
    # The singular vectors stay: U and V turn the result back into a diagonal.
    turned = u.mT @ near_one @ vt.mT
    diagonal = torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1))
    precision = 1e-4 if device == "cpu" else 0.1  # bfloat16 on a GPU
    torch.testing.assert_close(turned, diagonal, atol=precision, rtol=0.0)


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_muon_takes_an_orthogonal_step_of_adamw_size(rows: int, columns: int, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    grad = torch.eye(rows, columns) + 0.2 * torch.rand(rows, columns, generator=made)
    moved = stepped("muon", torch.zeros(rows, columns), grad, decay=0.0, lr=0.1)
    expected = -0.1 * 0.2 * math.sqrt(max(rows, columns)) * orthogonalize([grad])[0]
    torch.testing.assert_close(moved, expected)
    assert 0.1 < moved.square().mean().sqrt() / 0.1 < 0.3


@pytest.mark.parametrize("tied", [False, True])
def test_muon_takes_hidden_matrices_only(tied: bool) -> None:
    model = Small(tied=tied)
    optimizer = build_optimizer(model, OptimizerSettings(name="muon", lr=0.01, muon_lr=0.03))
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert names_in(model, groups["muon"]) == ["hidden.weight", "wide.weight"]
    assert groups["muon"]["lr"] == pytest.approx(0.03)
    assert groups["no_decay"]["lr"] == pytest.approx(0.01)
    if not tied:
        assert names_in(model, groups["decay"]) == ["head.weight"]
    train(model, optimizer, 0, 2)
    for name, group in groups.items():
        wanted_state = {"momentum"} if name == "muon" else {"step", "exp_avg", "exp_avg_sq"}
        assert all(set(optimizer.state[p]) == wanted_state for p in group["params"])


def test_what_muon_leaves_to_adamw_moves_as_under_adamw() -> None:
    muon, adamw = Small(tied=False), Small(tied=False)
    wanted = OptimizerSettings(name="adamw", lr=0.01, weight_decay=0.1)
    train(muon, build_optimizer(muon, replace(wanted, name="muon")), 0, 1)
    train(adamw, build_optimizer(adamw, wanted), 0, 1)
    left = dict(adamw.named_parameters())
    for name, parameter in muon.named_parameters():
        orthogonal = name in ("hidden.weight", "wide.weight")
        assert torch.equal(parameter, left[name]) != orthogonal


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_a_closure_is_called_once_and_its_loss_comes_back(name: str) -> None:
    optimizer = build_optimizer(One(torch.ones(2, 2)), OptimizerSettings(name=name))
    losses = iter([4.0])  # a second call would find no more
    assert optimizer.step(lambda: next(losses) if torch.is_grad_enabled() else 0.0) == 4.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_gradient_stays(name: str) -> None:
    model = Small()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = build_optimizer(model, OptimizerSettings(name=name, weight_decay=0.1))
    model.norm.bias.grad = torch.ones(6)
    optimizer.step()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) == (key != "norm.bias")


@pytest.mark.parametrize("lr_tensor", [False, True])
def test_set_lr_honors_each_groups_scale(lr_tensor: bool) -> None:
    wanted = OptimizerSettings(name="muon", lr=0.5, muon_lr=1.0)
    optimizer = build_optimizer(Small(), wanted, lr_tensor=lr_tensor)
    rates = [group["lr"] for group in optimizer.param_groups]
    set_lr(optimizer, 0.25, 0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.25, 0.125]
    kept = [rate is group["lr"] for rate, group in zip(rates, optimizer.param_groups, strict=True)]
    assert kept == [lr_tensor, lr_tensor]  # a tensor is written in place: a graph may hold it


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_in_a_tensor_changes_no_step(name: str) -> None:
    number, tensor = Small(), Small()
    train(number, build_optimizer(number, OptimizerSettings(name=name)), 0, 3)
    train(tensor, build_optimizer(tensor, OptimizerSettings(name=name), lr_tensor=True), 0, 3)
    for ours, theirs in zip(number.parameters(), tensor.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
@pytest.mark.parametrize("device", DEVICES)
def test_fused_kernels_are_taken_where_torch_has_them(name: str, device: str) -> None:
    optimizer = build_optimizer(Small().to(device), OptimizerSettings(name=name))
    assert all(group["fused"] for group in optimizer.param_groups)


def test_a_state_from_another_machine_keeps_this_ones_kernels() -> None:
    model = Small()
    state = build_optimizer(model, OptimizerSettings(name="adamw")).state_dict()
    for group in state["param_groups"]:
        group |= {"fused": None, "foreach": True, "capturable": True}
    fresh = build_optimizer(model, OptimizerSettings(name="adamw"))
    fresh.load_state_dict(state)
    assert all(g["fused"] and not g["capturable"] for g in fresh.param_groups)
    train(model, fresh, 0, 1)


def test_a_state_of_another_model_is_refused() -> None:
    other = build_optimizer(One(torch.ones(2, 2)), OptimizerSettings())
    with pytest.raises(HeedError, match="The saved optimizer holds"):
        build_optimizer(Small(), OptimizerSettings()).load_state_dict(other.state_dict())


@pytest.mark.parametrize("name", sorted(CAPTURABLE))
@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_captured_step_follows_the_rate(name: str, device: str) -> None:
    wanted = OptimizerSettings(name=name, lr=0.01, weight_decay=0.1)
    plain, captured = Small().to(device), Small().to(device)
    ids = torch.arange(4, device=device)[None]
    for model in (plain, captured):
        model(ids).square().mean().backward()  # the same gradients at every step: rates differ
    eager = build_optimizer(plain, wanted, lr_tensor=True)
    optimizer = build_optimizer(captured, wanted, lr_tensor=True)
    for made in (eager, optimizer):
        made.step()  # makes the state: a graph may not hold its birth
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for factor in (0.5, 0.1, 0.0):
        set_lr(optimizer, 0.01, factor)
        graph.replay()
        set_lr(eager, 0.01, factor)
        eager.step()
    for ours, theirs in zip(plain.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'adamw'"):
        OptimizerSettings(name="adamww")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"lr": -1.0}, "lr must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"muon_lr": -1.0}, "muon_lr must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
        ({"betas": (0.9, 1.0)}, "betas must each be"),
        ({"momentum": 1.0}, "momentum must be"),
    ],
)
def test_each_bad_number_gets_one_sentence(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        OptimizerSettings(**wrong)
    assert len(caught.value.complaints) == 1
    with pytest.raises(ConfigError) as caught:
        OptimizerSettings(**{"name": "muoon"} | wrong)
    assert len(caught.value.complaints) == 2  # all of them, not only the first


@pytest.mark.parametrize("name", sorted(CAPTURABLE))
def test_an_optimizer_skips_and_scales_as_configured(name: str) -> None:
    """Without asking the host, as a captured update needs it (torch's contract for scaling)."""

    def after(*steps: tuple[float, float | None]) -> list[Tensor]:
        """Weights and what the rule keeps after steps of (gradient, found_inf), over 4."""
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        settings = OptimizerSettings(name=name, lr=1e-2, weight_decay=0.1)
        optimizer: Any = build_optimizer(model, settings)
        for size, found_inf in steps:
            for parameter in model.parameters():
                scale = 1.0 if found_inf is None else 4.0
                parameter.grad = torch.full_like(parameter, size * scale)
            optimizer.grad_scale = None if found_inf is None else torch.tensor(4.0)
            optimizer.found_inf = None if found_inf is None else torch.tensor(found_inf)
            optimizer.step()
        kept = [v for state in optimizer.state.values() for v in state.values()]
        return [p.detach().clone() for p in model.parameters()] + [torch.as_tensor(v) for v in kept]

    plain = after((0.3, None), (-0.2, None))
    for found in (
        after((0.3, 0.0), (-0.2, 0.0)),
        after((0.3, 0.0), (torch.nan, 1.0), (-0.2, 0.0)),
        after((torch.inf, 1.0), (0.3, 0.0), (-0.2, 0.0)),
    ):
        assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(plain, found, strict=True))
