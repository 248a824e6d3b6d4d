"""One kernel makes the steps of AdamW and Adam, which equal torch's: on a CPU, and on a GPU.

Without a GPU most tests of its kernel run, slowly, where Triton is and interprets its kernels
(TRITON_INTERPRET=1).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from gpu_marks import CUDA, needs_gpu, needs_kernels
from gpu_marks import DEVICE as KERNEL_DEVICE
from hypothesis import given
from hypothesis import strategies as st
from support import threads
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from heed.nn.kernels import adamw_cpu
from heed.train.optimizers import address_tables, build, fused_adamw
from heed.train.optimizers.address_tables import AddressTables
from heed.train.optimizers.build import OptimizerSettings, build_optimizer, set_lr, step_optimizer
from heed.train.optimizers.fused_adamw import FusedAdam, FusedAdamW

needs_compiler = pytest.mark.skipif(adamw_cpu.load_kernel() is None, reason="no C compiler")
CPU = pytest.param("cpu", marks=needs_compiler)
GPU = pytest.param("gpu", marks=[pytest.mark.gpu, needs_kernels])
on_a_cpu = pytest.mark.parametrize("_device", [CPU], indirect=True)
on_a_gpu = pytest.mark.parametrize("_device", [GPU], indirect=True)
DEVICE = torch.device("cpu")
"""Where a test has its tensors; set for each."""

SHAPES = [(1,), (3,), (1000,), (4097,), (64, 64), (5, 1641), ()]
"""Less than a chunk, whole chunks, one number more; a 0-d tensor."""
KINDS: dict[type[Any], type[Any]] = {FusedAdamW: AdamW, FusedAdam: Adam}


@pytest.fixture(autouse=True, params=[CPU, GPU])
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the kernel of a CPU, and with that of a GPU or its interpreter."""
    global DEVICE
    DEVICE = KERNEL_DEVICE if request.param == "gpu" else torch.device("cpu")
    if request.param == "gpu" and not CUDA:
        monkeypatch.setattr(fused_adamw, "on_gpu", lambda x: True)


def captures() -> bool:
    """Whether a CUDA graph could capture steps here."""
    return DEVICE.type == "cuda"


def parameters(seed: int = 0) -> list[nn.Parameter]:
    made = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=made).to(DEVICE)) for shape in SHAPES]


def set_gradients(params: list[nn.Parameter], step: int, scale: float = 1.0) -> None:
    made = torch.Generator().manual_seed(1000 + step)
    for parameter in params:
        grad = scale * torch.randn(parameter.shape, generator=made)
        parameter.grad = grad.to(parameter.device, parameter.dtype)


def groups(params: list[nn.Parameter], lr_tensor: bool = True) -> list[dict[str, Any]]:
    """Two groups with other rates and decays."""
    rates: list[Any] = [1e-2, 3e-3]
    if lr_tensor:
        rates = [torch.tensor(rate, device=params[0].device) for rate in rates]
    return [
        {"params": params[::2], "lr": rates[0], "weight_decay": 0.1},
        {"params": params[1::2], "lr": rates[1], "weight_decay": 0.0},
    ]


def fused(kind: type[Any], params: list[nn.Parameter], **options: Any) -> Any:
    lr_tensor = options.pop("lr_tensor", True)
    return kind(groups(params, lr_tensor), fused=True, capturable=captures(), **options)


def reference(kind: type[Any], params: list[nn.Parameter], **options: Any) -> tuple[Any, Any]:
    """Parameters in float64 and torch's plain optimizer for them."""
    exact = [nn.Parameter(parameter.detach().cpu().double()) for parameter in params]
    return exact, KINDS[kind](groups(exact, lr_tensor=False), foreach=False, **options)


def no_torch_step(*args: Any, **options: Any) -> None:
    raise AssertionError("this is torch's step")


def kernel_only(step: Callable[[], object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Adam, AdamW):
            patch.setattr(kind, "step", no_torch_step)
        step()


def moments(optimizer: Any, params: list[nn.Parameter], name: str) -> list[Tensor]:
    return [optimizer.state[parameter][name] for parameter in params]


def snapshot(params: list[nn.Parameter], optimizer: Any) -> list[Tensor]:
    """Copies of all parameters and of all state tensors."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    return [tensor.detach().clone() for tensor in (*params, *state)]


def assert_close(params: list[nn.Parameter], optimizer: Any, exact: Any, other: Any) -> None:
    def compare(ours: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(ours.detach().cpu().double(), theirs, rtol=4e-6, atol=2e-7)

    for parameter, expected in zip(params, exact, strict=True):
        compare(parameter, expected.detach())
        assert optimizer.state[parameter].keys() == other.state[expected].keys()
        for name, value in optimizer.state[parameter].items():
            compare(value, other.state[expected][name].double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lr_tensor", "divisor"), [(True, 7.5), (False, None)])
@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.0, 0.999)])
def test_steps_are_torchs(
    kind: type[Any], lr_tensor: bool, divisor: float | None, betas: tuple[float, float]
) -> None:
    params = parameters()
    optimizer = fused(kind, params, betas=betas, lr_tensor=lr_tensor)
    exact, other = reference(kind, params, betas=betas)
    for step in range(4):
        set_gradients(params, step, scale=divisor or 1.0)
        for parameter, expected in zip(params, exact, strict=True):
            assert parameter.grad is not None
            expected.grad = parameter.grad.cpu().double() / (divisor or 1.0)
        if divisor is not None:
            optimizer.grad_scale = torch.tensor(divisor, device=DEVICE)
            optimizer.found_inf = torch.tensor(0.0, device=DEVICE)
        before = [parameter.grad for parameter in params]
        kept = [grad.clone() for grad in before if grad is not None]
        kernel_only(optimizer.step)
        other.step()
        assert_close(params, optimizer, exact, other)
        for parameter, grad in zip(params, kept, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, grad)  # torch's fused kernel would divide it


def test_late_steps_are_torchs() -> None:
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    exact, other = reference(FusedAdamW, params)
    for step in range(2):
        set_gradients(params, step)
        for parameter, expected in zip(params, exact, strict=True):
            assert parameter.grad is not None
            expected.grad = parameter.grad.cpu().double()
        optimizer.step()
        other.step()
        for tensor in (*moments(optimizer, params, "step"), *moments(other, exact, "step")):
            tensor += 5000
    assert_close(params, optimizer, exact, other)


def test_gradients_may_be_views() -> None:
    """At addresses that are no multiple of 16 bytes."""
    params = parameters()
    other = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    ours, theirs = fused(FusedAdamW, params), fused(FusedAdamW, other)
    for step in range(2):
        set_gradients(params, step)
        for number, (parameter, copy) in enumerate(zip(params, other, strict=True)):
            assert parameter.grad is not None
            memory = torch.zeros(parameter.numel() + 4, device=DEVICE)
            view = memory[number % 4 :][: parameter.numel()].view(parameter.shape)
            copy.grad = view.copy_(parameter.grad)
        kernel_only(ours.step)
        kernel_only(theirs.step)
    for one, two in zip(snapshot(params, ours), snapshot(other, theirs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_parameters_without_a_gradient_stay() -> None:
    """Their steps then differ from those of others."""
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    exact, other = reference(FusedAdamW, params)
    for step in range(4):
        set_gradients(params, step)
        for number, (parameter, expected) in enumerate(zip(params, exact, strict=True)):
            assert parameter.grad is not None
            expected.grad = parameter.grad.cpu().double()
            if number and (number + step) % 3 == 0:
                parameter.grad = expected.grad = None
        kernel_only(optimizer.step)
        other.step()
    assert len({int(step) for step in moments(optimizer, params, "step")}) > 1
    assert_close(params, optimizer, exact, other)
    for parameter in params:
        parameter.grad = None
    before = snapshot(params, optimizer)
    optimizer.step()
    assert all(map(torch.equal, before, snapshot(params, optimizer)))


def test_a_group_may_be_empty() -> None:
    params = parameters()
    optimizer = FusedAdamW(
        [{"params": []}, *groups(params)], lr=torch.ones(()), fused=True, capturable=True
    )
    exact, other = reference(FusedAdamW, params)
    set_gradients(params, 0)
    for parameter, expected in zip(params, exact, strict=True):
        assert parameter.grad is not None
        expected.grad = parameter.grad.cpu().double()
    kernel_only(optimizer.step)
    other.step()
    assert_close(params, optimizer, exact, other)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("first", [True, False])
def test_a_skipped_step_changes_no_bit(bad: float, first: bool) -> None:
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    set_gradients(params, 0)
    optimizer.found_inf = torch.tensor(float(first), device=DEVICE)
    optimizer.step()
    before = snapshot(params, optimizer)
    if first:
        assert not any(state.any() for state in before[len(params) :])
    set_gradients(params, 1, scale=bad)
    optimizer.grad_scale = torch.tensor(bad, device=DEVICE)
    optimizer.found_inf = torch.tensor(1.0, device=DEVICE)
    kernel_only(optimizer.step)
    assert all(map(torch.equal, before, snapshot(params, optimizer)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_torchs_optimizer_loads(kind: type[Any]) -> None:
    """And the other way round; keys of both are the same."""
    params, others = parameters(), parameters()
    torchs = KINDS[kind](groups(others), fused=True, capturable=captures())
    ours = fused(kind, params)
    for step in range(2):
        set_gradients(others, step)
        torchs.step()
    for parameter, other in zip(params, others, strict=True):
        parameter.data.copy_(other.data)
    ours.load_state_dict(deepcopy(torchs.state_dict()))
    for step in range(2, 4):
        for one, both in ((ours, params), (torchs, others)):
            set_gradients(both, step)
            one.step()
    for one, two in zip(snapshot(params, ours), snapshot(others, torchs), strict=True):
        torch.testing.assert_close(one, two, rtol=4e-6, atol=2e-7)
    a, b = ours.state_dict(), torchs.state_dict()
    assert [group.keys() for group in a["param_groups"]] == [
        group.keys() for group in b["param_groups"]
    ]
    assert {i: s.keys() for i, s in a["state"].items()} == {
        i: s.keys() for i, s in b["state"].items()
    }
    torchs.load_state_dict(deepcopy(a))


def test_a_copy_steps_as_the_original() -> None:
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    set_gradients(params, 0)
    optimizer.step()
    copy = deepcopy(optimizer)
    both = [[p for group in one.param_groups for p in group["params"]] for one in (optimizer, copy)]
    for one, held in zip((optimizer, copy), both, strict=True):
        set_gradients(held, 1)
        kernel_only(one.step)
    assert all(map(torch.equal, *both))


@on_a_cpu
def test_a_state_that_changed_since_the_last_step_is_read_anew() -> None:
    params, others = parameters(), parameters()
    optimizer, plain = fused(FusedAdamW, params), fused(FusedAdamW, others)
    for step in range(3):
        for one, held in ((optimizer, params), (plain, others)):
            set_gradients(held, step)
            if step == 2:  # a tensor of the state that the kernel does not take
                one.state[held[4]]["exp_avg"] = one.state[held[4]]["exp_avg"].mT
                held[0].grad = None
        kernel_only(optimizer.step) if step < 2 else optimizer.step()
        plain._checked.clear()
        plain.step()
        assert all(map(torch.equal, snapshot(params, optimizer), snapshot(others, plain)))


@on_a_cpu
@given(
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=6), count=st.sampled_from([1, 2])
)
def test_the_norm_of_gradients_is_torchs(sizes: list[int], count: int) -> None:
    made = torch.Generator().manual_seed(0)
    gradients = [torch.randn(size, generator=made) for size in sizes]
    with threads(1):
        alone = adamw_cpu.norm(gradients)
    with threads(count):
        assert torch.equal(adamw_cpu.norm(gradients), alone)
    exact = nn.utils.get_total_norm([gradient.double() for gradient in gradients])
    assert alone.dtype == torch.float32
    torch.testing.assert_close(alone.double(), exact, rtol=3e-7, atol=0.0)


@on_a_cpu
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 1e30])
def test_the_norm_of_what_overflows_is_not_finite(bad: float) -> None:
    gradients = [torch.ones(5000), torch.ones(70)]
    gradients[0][4321] = bad
    assert not adamw_cpu.norm(gradients).isfinite()
    assert not nn.utils.get_total_norm(gradients).isfinite()


@on_a_cpu
def test_the_norm_has_the_type_of_gradients_whatever_the_default() -> None:
    """It is 80,000: no number of 16 bits."""
    gradients, default = [torch.full((10_000,), 800.0)], torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        found = adamw_cpu.norm(gradients)
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(found, nn.utils.get_total_norm(gradients))


def test_torchs_step_takes_what_the_kernel_does_not() -> None:
    plain = torch.ones(4, 6, device=DEVICE)
    assert fused_adamw.can_fuse([plain, nn.Parameter(plain)])
    for other in (
        torch.ones(6, 4, device=DEVICE).mT,
        torch.ones(4, 6, device=DEVICE, dtype=torch.bfloat16),
        torch.ones(4, 6, device=DEVICE, dtype=torch.float64),
    ):
        assert not fused_adamw.can_fuse([plain, other])
    if captures():
        assert not fused_adamw.can_fuse([plain, torch.ones(4, 6)])


def test_a_gradient_may_have_another_layout() -> None:
    pairs = []
    for transposed in (False, True):
        params = [nn.Parameter(torch.ones(6, 4, device=DEVICE)) for _ in range(2)]
        optimizer = fused(FusedAdamW, params)
        set_gradients(params, 0)
        if transposed:
            assert params[0].grad is not None
            params[0].grad = params[0].grad.mT.contiguous().mT
        kernel_only(optimizer.step)
        pairs.append(snapshot(params, optimizer))
    assert all(map(torch.equal, *pairs))


def test_a_parameter_of_another_layout_gets_torchs_step() -> None:
    params = [nn.Parameter(torch.ones(6, 4, device=DEVICE).mT), parameters()[2]]
    optimizer = fused(FusedAdamW, params)
    exact, other = reference(FusedAdamW, params)
    for parameter, expected in zip(params, exact, strict=True):
        parameter.grad = torch.full_like(parameter, 0.5)
        expected.grad = torch.full_like(expected, 0.5)
    optimizer.step()
    other.step()
    assert_close(params, optimizer, exact, other)
    assert optimizer.param_groups[0]["params"][0] is params[0]


@pytest.mark.parametrize(("name", "kind"), [("adamw", FusedAdamW), ("adam", FusedAdam)])
def test_the_kernel_is_chosen(name: str, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 5).to(DEVICE)
    settings = OptimizerSettings(name=name)
    assert type(build_optimizer(model, settings)) is kind
    wide = nn.Linear(3, 5).to(DEVICE, torch.bfloat16)
    assert type(build_optimizer(wide, settings)) is KINDS[kind]
    monkeypatch.setattr(build, "_fastest_kernels", lambda *args: {"foreach": True})
    assert type(build_optimizer(model, settings)) is KINDS[kind]


def test_a_closure_is_called_once_and_its_loss_comes_back() -> None:
    params = parameters()
    losses = iter([4.0])  # a second call would find no more
    optimizer = fused(FusedAdamW, params)
    assert optimizer.step(lambda: next(losses) if torch.is_grad_enabled() else 0.0) == 4.0


@on_a_cpu
@given(sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=4), number=st.integers(1, 5))
def test_the_number_of_threads_changes_no_bit(sizes: list[int], number: int) -> None:
    found = []
    for count in (1, number):
        made = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(size, generator=made)) for size in sizes]
        optimizer = FusedAdamW(params, lr=1e-2, fused=True)
        with threads(count):
            for step in range(2):
                set_gradients(params, step)
                kernel_only(optimizer.step)
        found.append(snapshot(params, optimizer))
    assert all(map(torch.equal, *found))


@on_a_cpu
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "step"])
def test_a_state_of_another_size_is_refused_before_it_is_read(name: str) -> None:
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    set_gradients(params, 0)
    optimizer.step()
    optimizer.state[params[2]][name] = torch.ones(2)
    before = snapshot(params, optimizer)
    with pytest.raises(ValueError, match="other sizes"):
        optimizer.step()
    assert all(map(torch.equal, before, snapshot(params, optimizer)))


@on_a_cpu
def test_without_a_compiler_torch_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_cpu, "load_kernel", lambda: None)
    optimizer = build_optimizer(nn.Linear(3, 5), OptimizerSettings(name="adamw"))
    assert type(optimizer) is AdamW


@on_a_cpu
@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_a_clipped_step_divides_no_gradient_in_place(name: str) -> None:
    """And equals the step with gradients that were divided before."""
    settings, steps = OptimizerSettings(name=name, lr=0.01, weight_decay=0.1), []
    for divisor in (4.0, 1.0):
        params = parameters()
        model = nn.ParameterList(params)
        optimizer = build_optimizer(model, settings)
        set_gradients(params, 0, scale=divisor)
        kept = [parameter.grad.clone() for parameter in params if parameter.grad is not None]
        step_optimizer(optimizer, torch.tensor(divisor), torch.tensor(True))
        assert all(map(torch.equal, kept, [p.grad for p in params if p.grad is not None]))
        steps.append(snapshot(params, optimizer))
    for one, two in zip(*steps, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


@on_a_gpu
def test_tables_are_found_again_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_tables, "CACHED_TABLES", 2)
    tables, tensors = AddressTables(), [torch.ones(2, device=DEVICE) for _ in range(3)]
    first, second, third = ([[tensor], [tensor]] for tensor in tensors)
    table = tables.find(first)
    assert table.tolist() == [[tensors[0].data_ptr()]] * 2
    tables.find(second)
    assert tables.find(first).data_ptr() == table.data_ptr()
    tables.find(third)  # in the place of the second
    assert len(tables._eager) == 2
    assert tables.find(first).data_ptr() == table.data_ptr()
    assert tables.find(second).tolist() == [[tensors[1].data_ptr()]] * 2


# ----------------------------------------------------------------------------------------- on a GPU


class Small(nn.Module):
    """Parameters of all shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList(parameters())


def capture(optimizer: Any, divisor: Tensor, finite: Tensor) -> torch.cuda.CUDAGraph:
    """A graph of a step, after a skipped step that allocates the state."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step_optimizer(optimizer, divisor, torch.tensor(False, device=DEVICE))
        with torch.cuda.graph(graph, stream=stream):
            step_optimizer(optimizer, divisor, finite)
    torch.cuda.synchronize()
    return graph


@needs_gpu
@on_a_gpu
@pytest.mark.parametrize("reserved", [256, 0])
@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_a_captured_step_is_the_eager_step(
    name: str, reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables survive garbage collection, and later steps that are eager."""
    monkeypatch.setattr(address_tables, "RESERVED_TABLES", reserved)
    eager, captured = Small(), Small()
    settings = OptimizerSettings(name=name, lr=0.01, weight_decay=0.1)
    optimizer, recorded = (build_optimizer(m, settings, lr_tensor=True) for m in (eager, captured))
    assert isinstance(recorded, FusedAdam)
    divisor, finite = torch.tensor(2.0, device=DEVICE), torch.tensor(True, device=DEVICE)
    set_gradients(list(captured.all), 0)
    graph = capture(recorded, divisor, finite)
    recorded_grads = [parameter.grad for parameter in captured.all]
    gc.collect()
    clutter = [torch.full((5 * len(SHAPES),), -1, device=DEVICE) for _ in range(50)]
    pinned = [torch.full((5 * len(SHAPES),), -1).pin_memory() for _ in range(50)]
    for step in range(6):
        finite.fill_(step != 2)
        set_gradients(list(eager.all), step)
        for one in (optimizer, recorded):
            set_lr(one, 0.01, 1 / (1 + step))
        step_optimizer(optimizer, divisor, finite)
        if step == 4:  # eagerly, with gradients elsewhere
            set_gradients(list(captured.all), step)
            step_optimizer(recorded, divisor, finite)
            continue
        for parameter, grad in zip(eager.all, recorded_grads, strict=True):
            assert grad is not None
            assert parameter.grad is not None
            grad.copy_(parameter.grad)
        graph.replay()
    ours, theirs = (
        snapshot(list(model.all), one) for model, one in ((eager, optimizer), (captured, recorded))
    )
    assert all(map(torch.equal, ours, theirs))
    del clutter, pinned


@needs_gpu
@on_a_gpu
@pytest.mark.parametrize("count", [1, 2, 7])
def test_reserved_tables_begin_where_kernels_are_compiled_for(count: int) -> None:
    """At multiples of 16 bytes, whatever the number of tensors."""
    tables, tensors = AddressTables(), [torch.ones(3, device=DEVICE) for _ in range(count)]
    tables.reserve(2, count, tensors[0])
    graph, found = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        found += [tables.find([tensors]) for _ in range(2)]
        work = tensors[0] + 1
    torch.cuda.synchronize()
    assert not any(table.data_ptr() % 16 for table in found)
    assert all(table.tolist() == [[x.data_ptr() for x in tensors]] for table in found)
    del work


@needs_gpu
@on_a_gpu
def test_each_captured_step_has_its_own_table() -> None:
    params = parameters()
    optimizer = fused(FusedAdamW, params)
    divisor, finite = torch.tensor(1.0, device=DEVICE), torch.tensor(True, device=DEVICE)
    graphs, grads = [], []
    for step in range(3):
        set_gradients(params, step)
        grads.append([parameter.grad for parameter in params])
        graphs.append(capture(optimizer, divisor, finite))
    others = parameters()
    plain = fused(FusedAdamW, others)
    for step in (2, 0, 1):
        graphs[step].replay()
        set_gradients(others, step)
        step_optimizer(plain, divisor, finite)
    assert all(map(torch.equal, snapshot(params, optimizer), snapshot(others, plain)))
