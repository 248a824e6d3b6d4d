"""int8 linear layers: what oneDNN computes is the formula, exactly, for each row by itself."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from decode import ending_models
from hypothesis import given, settings
from hypothesis import strategies as st
from support import VARIANTS, new_translator, texts
from test_cli import ROOT
from torch import Tensor, nn

from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.decode.strategy import Strategy
from heed.errors import ConfigError
from heed.nn.kernels import quantized_linear
from heed.nn.kernels.int8_blocks import int8_library
from heed.nn.kernels.quantized_linear import (
    FEW_LEVELS,
    LEVELS,
    Int8Weights,
    check_int8,
    weight_levels,
)

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here"
)


@pytest.fixture(autouse=True, scope="module", params=["c", "torch"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every property holds for the kernel in C, where it can be compiled, and for torch's."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(quantized_linear, "int8_library", lambda: None)
        elif int8_library() is None:
            pytest.skip("needs a CPU with AVX-512 VNNI and a C compiler")
        yield request.param


def formula(weight: Tensor, bias: Tensor | None, x: Tensor, levels: int) -> Tensor:
    """Quantize the weight by output and the input by row, multiply integers, scale back."""
    scales = weight.double().abs().amax(dim=1) / levels
    integers = (weight / scales[:, None]).nan_to_num().round()
    largest = x.double().abs().amax(dim=-1, keepdim=True)
    rounded = (LEVELS * x / largest).nan_to_num().round()
    out = rounded.double() @ integers.double().T * scales * largest / LEVELS
    return (out if bias is None else out + bias).float()


def quantized(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.inference_mode(), Int8Weights([layer]).in_use():
        out: Tensor = layer(x)
        return out


def drawn(*shape: int, seed: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn_layer(w: int, f: int, seed: int, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(w, f, bias=bias)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(drawn(*weight.shape, seed=seed))
    return layer


@pytest.mark.parametrize("levels", [LEVELS, FEW_LEVELS])
@settings(max_examples=60, deadline=None)
@given(
    w=st.integers(2, 70),
    f=st.integers(1, 40),
    rows=st.integers(1, 9),
    bias=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_layer_is_the_formula(
    kernel: str, levels: int, w: int, f: int, rows: int, bias: bool, seed: int
) -> None:
    """Exact for inputs on the grid of integers: no product is saturated, and no sum."""
    layer = drawn_layer(w, f, seed, bias=bias)
    levels = LEVELS if kernel == "c" else min(levels, weight_levels())
    draw = torch.Generator().manual_seed(seed)
    integers = torch.randint(-LEVELS, LEVELS + 1, (rows, w), generator=draw)
    integers[:, 0] = LEVELS  # the largest of each row
    x = integers * drawn(rows, 1, seed=seed + 1).abs().clamp_min(1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_linear, "weight_levels", lambda: levels)
        found = quantized(layer, x)
    expected = formula(layer.weight.detach(), layer.bias, x, levels)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_a_layer_with_one_input_stays_as_it_is() -> None:
    """Torch's product of integers is wrong there."""
    layer, x = drawn_layer(1, 5, seed=0), drawn(3, 1, seed=1)
    assert torch.equal(quantized(layer, x), layer(x))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's names of x86")
@pytest.mark.slow  # a process for each, since oneDNN reads its limit once
@pytest.mark.parametrize("instructions", ["SSE41", "AVX2", "AVX512_CORE"])
def test_a_cpu_without_vnni_is_exact_too(instructions: str) -> None:
    """It adds products in 16 bits, which saturate: its weights have fewer levels."""
    script = (
        "import torch\n"
        "from heed.nn.kernels.quantized_linear import FEW_LEVELS, LEVELS, quantize, weight_levels\n"
        "assert weight_levels() == FEW_LEVELS\n"
        "row, weight = torch.full((2, 512), LEVELS).char(), quantize(torch.ones(8, 512), 63)[0]\n"
        "for sign in (1, -1):\n"
        "    found = torch._int_mm(sign * row, weight)\n"
        "    assert (found == sign * LEVELS * FEW_LEVELS * 512).all(), found\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_do_not_saturate(sign: int) -> None:
    """All inputs and all weights at their largest: 16 bits would not hold a sum of two."""
    layer = nn.Linear(512, 8, bias=False)
    with torch.no_grad():
        layer.weight.fill_(sign)
    torch.testing.assert_close(
        quantized(layer, torch.ones(3, 512)), torch.full((3, 8), 512.0 * sign)
    )


@settings(max_examples=40, deadline=None)
@given(w=st.integers(2, 200), f=st.integers(1, 30), seed=st.integers(0, 999))
def test_the_error_has_a_bound(w: int, f: int, seed: int) -> None:
    """Half a step of each weight and of each input, times the largest of the other."""
    layer, x = drawn_layer(w, f, seed), drawn(5, w, seed=seed + 1)
    error = (quantized(layer, x) - layer(x)).abs()
    step_w = layer.weight.detach().abs().amax(dim=1) / weight_levels() / 2
    step_x = x.abs().amax(dim=1, keepdim=True) / LEVELS / 2
    of_weights, of_inputs = x.abs().sum(dim=1, keepdim=True), layer.weight.detach().abs().sum(dim=1)
    bound = step_w * of_weights + step_x * of_inputs + w * step_w * step_x
    assert bool((error <= 1.01 * bound + 1e-5).all())


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 70), w=st.sampled_from([3, 16, 48, 64, 130]), seed=st.integers(0, 999))
def test_a_row_does_not_depend_on_the_others(rows: int, w: int, seed: int) -> None:
    """To the last bit, however large the other rows are, and in any shape."""
    layer = drawn_layer(w, 37, seed)
    x = drawn(rows, w, seed=seed) * torch.logspace(-3, 3, rows)[:, None]
    together = quantized(layer, x)
    assert torch.equal(quantized(layer, x[-1:]), together[-1:])
    assert torch.equal(quantized(layer, x[:1, None]), together[:1, None])
    assert torch.equal(quantized(layer, x[None].expand(2, -1, -1))[1], together)


def test_zeros_and_nan() -> None:
    """A row of zeros gives the bias, an output without weights too, and NaN stays NaN."""
    layer = drawn_layer(8, 4, seed=0)
    with torch.no_grad():
        layer.weight[2] = 0.0
    x = drawn(3, 8, seed=1)
    x[0], x[2, 5] = 0.0, torch.nan
    out = quantized(layer, x)
    assert torch.equal(out[0], layer.bias.detach())
    assert out[1, 2] == layer.bias[2]
    assert not out[1].isnan().any()
    assert bool(out[2].isnan().all())


@pytest.mark.parametrize("variant", ["rope-concat", "post", "grouped", "lstm"])
def test_a_model_is_near_its_own_and_nothing_is_left(variant: str) -> None:
    model = new_translator(**VARIANTS[variant]).eval()
    ids = torch.stack(texts([7, 7]))
    int8 = Int8Weights([model])
    with torch.inference_mode():
        expected = model(ids, ids)
        with int8.in_use(), int8.in_use():
            found = model(ids, ids)
            assert "project" in vars(model.head)
        assert torch.equal(model(ids, ids), expected)
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()
    assert not any({"forward", "project"} & vars(module).keys() for module in model.modules())
    copy.deepcopy(model)(ids, ids).sum().backward()


@pytest.mark.parametrize("how", [Greedy(), Beam(3, nbest=3)], ids=["greedy", "beam"])
def test_a_batch_invariant_search_stays_exact(how: Strategy) -> None:
    """With int8 weights an input has the same hypotheses and scores alone and beside others."""
    model = ending_models.ending_translator("post")
    search = Search([model], how, batch_invariant=True, int8=Int8Weights([model]))
    sources = [ids.tolist() for ids in texts([5, 1, 8, 3, 2, 6])]
    together = search.translate(sources, max_extra=3)
    assert together == [search.translate([source], max_extra=3)[0] for source in sources]
    assert together != Search([model], how, batch_invariant=True).translate(sources, max_extra=3)


def test_elsewhere_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="precision int8 is for a CPU, not for cuda"):
        check_int8(torch.device("cuda"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs torch with oneDNN: use float32 or bf16 here"):
        Int8Weights([nn.Linear(2, 2)])
