"""On a GPU: every key for small corpora, in captured updates, exact and as on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from killing import dies_at
from rich.console import Console

from heed.config import Recipe
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.nn.rdrop import repeat_rows
from heed.runs.run import Run
from heed.train import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    # torch warns in a process that begins with a backward pass.
    pytest.mark.filterwarnings("default:Attempting to run cuBLAS"),
]
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Some four epochs of captured updates, with everything on."""
    draw = random.Random(0)
    words = ["".join(draw.choices(["ba", "du", "ki", "lo", "me"], k=3)) for _ in range(30)]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 20))) for _ in range(300)]
    (tmp_path / "a.en").write_text("\n".join(lines))
    (tmp_path / "a.fr").write_text("\n".join(line[::-1] for line in lines))
    train = {"steps": 60, "batch_tokens": 2048, "execution": "graphs", "deterministic": True}
    train |= {"rdrop": 5.0, "source_token_dropout": 0.1, "log_every": 10, "checkpoint_every": 20}
    files = [str(tmp_path / name) for name in ("a.en", "a.fr")]
    return Recipe.of(
        {
            "data": {"train": files, "bidirectional": True, "denoise": 0.3},
            "tokenizer": {"vocab_size": 300, "dropout": 0.2},
            "model": {"layers": 2, "width": 64, "heads": 4, "dropout": 0.2},
            "train": train,
        }
    )


def test_resumed_equals_unbroken(recipe: Recipe, tmp_path: Path) -> None:
    run.start(recipe, tmp_path / "whole", device="cuda", console=QUIET)
    with dies_at(33):
        run.start(recipe, tmp_path / "broken", device="cuda", console=QUIET)
    run.resume(tmp_path / "broken", device="cuda", console=QUIET)
    whole, broken = (Run(tmp_path / name).weights_path for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_logits", [None, 3000])
def test_the_loss_is_that_of_the_cpu(dtype: torch.dtype, max_logits: int | None) -> None:
    """Of the same numbers, where the CPU has them in float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((400, 64), (500, 64)))
    targets = torch.randint(500, (200,), generator=generator)
    targets[::5] = -100
    found = []
    for device, exact in (("cpu", torch.float64), ("cuda", dtype)):
        here = [part.to(dtype).to(device, exact).requires_grad_() for part in (x, weight / 8)]
        total, right = linear_cross_entropy(
            here[0],
            here[1],
            repeat_rows(targets).to(device),
            label_smoothing=0.1,
            rdrop=5.0,
            max_logits=max_logits,
        )
        gradients = torch.autograd.grad(total, here)
        found.append([total.detach(), *gradients])
        assert right.dtype == torch.int64
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for one, other in zip(*found, strict=True):
        assert (one - other.cpu().double()).norm() <= tolerance * one.norm()
