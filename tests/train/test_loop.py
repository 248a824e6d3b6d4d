"""The training loop: steps that have nothing to predict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from heed.config import Recipe
from heed.runs.run import Run
from heed.train.build_loop import build_loop
from heed.train.counters import RECENT, STEPS, TARGETS
from heed.train.prepare.setup import prepare


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


def test_a_step_that_asks_nothing_changes_nothing(tmp_path: Path) -> None:
    """With BPE dropout a text may end before its last window, which a batch may hold alone."""
    draw, path = random.Random(0), tmp_path / "train.txt"
    lines = [" ".join(draw.choices(["captain", "light", "house"], k=9)) for _ in range(20)]
    path.write_text("\n".join(lines))
    recipe = Recipe.of(
        {
            "task": "generate",
            "data": {"train": [str(path)], "max_length": 8},
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "dropout": 0.5},
            "model": {"layers": 1, "width": 16, "heads": 2},
            "train": {"batch_size": 1, "epochs": 1, "ema": 0.9},
        }
    )
    run, device = Run.create(tmp_path / "run", recipe), torch.device("cpu")
    setup = prepare(recipe, run, device=device, say=lambda text: None)
    loop = build_loop(setup, run, say=lambda text: None)
    empty = 0
    for batches in loop.loader.iterate(0, loop.steps):
        asks = sum(batch.count for batch in batches)
        before, _ = loop.state.state_tensors()
        before = {name: tensor.clone() for name, tensor in before.items()}
        loop.update(batches)
        after, _ = loop.state.state_tensors()
        same = {n for n, tensor in before.items() if torch.equal(after[n], tensor)}
        changed = after.keys() - same
        if asks:
            assert any(name.startswith("model.") for name in changed)
        else:
            assert changed == {"counters.counts"}
            empty += 1
    assert 0 < empty < loop.steps
    assert loop.state.step == loop.steps == int(loop.state.counters.counts[STEPS])
    assert int(loop.state.counters.sums[RECENT, TARGETS]) == sum(
        batch.count for step in range(loop.steps) for batch in loop.loader.micro_batches(step)
    )
