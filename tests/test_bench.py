"""What `heed bench` counts is what is computed, and what it says hangs together."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support import VOCAB, fresh
from torch.utils.flop_counter import FlopCounterMode

from heed.bench.flops import count_operations
from heed.bench.run_bench import run_bench
from heed.bench.standard_shapes import (
    SMALL_MT,
    Setting,
    build_trainee,
    measure,
    settings_for,
    with_small_batch,
)
from heed.bench.startup import STAGES
from heed.bench.throughput import fill_padding
from heed.bench.timing import LARGE, matrix_peak, process_age, seconds, side_by_side
from heed.config import Recipe, apply_overrides
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.length_buckets import BatchShape
from heed.device import peak_memory
from heed.errors import ConfigError
from heed.models import Model, Translator
from heed.runs.run import Run
from heed.train.build_loop import build_loop
from heed.train.prepare.setup import prepare

CPU = torch.device("cpu")
TINY = ["data.synthetic=300", "data.synthetic_test=20", "train.batch_tokens=512", "model.width=32"]
SPEEDY = Setting("tiny", "translate", 1, 2, 16, 40, 3, 7)


# ------------------------------------------------------------------------------------ arithmetic


def plain_pass(model: Model, shape: BatchShape) -> None:
    """Forward and backward by the plain formula, whose every product torch can count."""
    ids = torch.randint(VOCAB, (shape.batch_size, shape.length))
    if isinstance(model, Translator):
        source = torch.randint(VOCAB, (shape.batch_size, shape.source_length or 1))
        logits = model.trace(source, ids).logits
    else:
        logits = model.trace(ids).logits
    logits.float().logsumexp(dim=-1).sum().backward()


@given(
    task=st.sampled_from(["translate", "generate", "classify"]),
    variant=st.sampled_from(
        [
            {},
            {"tie_embeddings": False},
            {"activation": "swiglu", "kv_heads": 2},
            {"position": "learned", "head_width": 6},
        ]
    ),
    texts=st.integers(1, 3),
    length=st.integers(1, 9),
    source_length=st.integers(1, 9),
)
def test_the_count_is_torch_s_own(
    task: str, variant: dict[str, Any], texts: int, length: int, source_length: int
) -> None:
    model = fresh(task, **variant)
    shape = BatchShape(texts, length, source_length if task == "translate" else None)
    with FlopCounterMode(display=False) as counter:
        plain_pass(model, shape)
    found = count_operations(model, shape)
    assert found.in_full == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert found.needed == found.in_full - found.causal / 2
    assert (found.causal == 0) == (task == "classify")


def test_a_recurrent_model_is_counted_by_its_weights() -> None:
    model, shape = fresh("generate", family="lstm"), BatchShape(2, 5)
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)  # the table is the map, too
    assert count_operations(model, shape).needed == 6 * weights * 2 * 5


# ------------------------------------------------------------------------------------ timing


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) for name in "ab"}
    taken = side_by_side(contenders, device="cpu", rounds=3, warmup=1)
    assert calls[-6:] == list("ababab")
    assert set(taken) == {"a", "b"}
    assert min(taken.values()) > 0


def test_the_median_is_of_single_calls() -> None:
    def nap() -> None:
        time.sleep(0.005)

    taken = side_by_side({"nap": nap}, device="cpu", rounds=3, turn=0.02)
    assert 0.005 <= taken["nap"] < 0.05
    assert seconds(nap, "cpu", calls=3) >= 0.005


def test_the_machine_is_measured() -> None:
    assert matrix_peak(CPU, torch.float32, size=64) > 0
    assert (peak_memory(CPU) or 1) > 0
    before = process_age()
    time.sleep(0.02)
    assert process_age() >= before >= 0


def test_training_marks_every_stage_that_is_measured(tmp_path: Path) -> None:
    """In their order; the loader is a part of the store."""
    recipe, marked = Recipe.of(apply_overrides({}, TINY)), list[str]()

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        marked.append(name)
        yield

    run = Run.create(tmp_path / "run", recipe)
    setup = prepare(recipe, run, device=CPU, say=print, stage=stage)
    build_loop(setup, run, say=print, stage=stage)
    assert [*dict.fromkeys(marked)] == [*STAGES]
    assert marked.count("store") == 2


# ------------------------------------------------------------------------------------ batches


def test_a_full_batch_keeps_its_tokens_and_has_no_padding() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    ids = torch.tensor([[5, 6, 0], [7, 0, 0]])
    targets = torch.where(mask, ids + 1, IGNORE_INDEX)
    batch = Batch(ids, targets, mask, torch.arange(3)[None], count=3, rows=(0, 1))
    whole = fill_padding(batch, VOCAB)
    assert whole.mask.all()
    assert whole.count == ids.numel() == int((whole.targets != IGNORE_INDEX).sum())
    assert (whole.ids[mask] == ids[mask]).all()
    assert (whole.targets[mask] == targets[mask]).all()
    assert ((whole.ids >= 0) & (whole.ids < VOCAB)).all()


@pytest.mark.parametrize("setting", [*settings_for(CPU), with_small_batch(SMALL_MT), SPEEDY])
def test_a_standard_batch_is_real_through_and_through(setting: Setting) -> None:
    batch = setting.batch(CPU)
    assert batch.cells == setting.tokens
    assert batch.mask.all()
    assert batch.count == setting.shape.batch_size * setting.shape.length
    assert len(batch.ids.unique()) > 1
    assert int(batch.ids.max()) < setting.vocab


def test_a_standard_shape_learns() -> None:
    batch = SPEEDY.batch(CPU)
    recipe = SPEEDY.recipe(["train.execution=eager", "train.lr=0.01"])
    found = build_trainee(SPEEDY, recipe, batch, device=CPU, bf16=False)
    before = [p.detach().clone() for p in found.model.parameters()]
    found.update([batch])
    moved = [bool((p != q).any()) for p, q in zip(found.model.parameters(), before, strict=True)]
    assert any(moved)


def test_a_standard_shape_s_figures_hang_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LARGE, "cpu", 256)
    found = measure(SPEEDY, ["train.execution=eager"], device=CPU, rounds=2)
    assert found.tokens_per_second == pytest.approx(found.updates_per_second * SPEEDY.tokens)
    assert 2 * found.target_tokens_per_second == pytest.approx(found.tokens_per_second)
    assert found.share_of_peak == pytest.approx(found.tflops / found.peak_tflops)
    assert 0 < found.share_of_peak < 1.5


# ------------------------------------------------------------------------------------ the command


def measure_here(name: str | None, *changes: str, **options: Any) -> tuple[dict[str, Any], str]:
    """The command's figures, and its tables as a terminal of 80 columns shows them."""
    named = (name, None, None, None, list(changes), None)
    results, report = run_bench(named, device="cpu", console=Console(file=io.StringIO()), **options)
    shown = Console(file=io.StringIO(), width=80)
    shown.print(report)
    assert isinstance(shown.file, io.StringIO)
    return json.loads(json.dumps(results)), shown.file.getvalue()


@pytest.mark.parametrize("name", ["demo-translate", "demo-generate", "demo-classify"])
def test_a_recipe_s_figures_hang_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LARGE, "cpu", 256)
    found, shown = measure_here(name, *TINY, "train.execution=eager", updates=4)
    for pace in (found["real"], found["fixed"]):
        assert pace["updates"] == 4
        assert pace["real_tokens_per_second"] <= pace["padded_tokens_per_second"]
        assert pace["updates_per_second"] == pytest.approx(4 / pace["seconds"])
        assert 0 <= pace["padding"] < 1
        assert pace["tflops"] > 0
    assert 0 < found["share_of_peak"] < 1.5
    assert 0 < found["fixed_share_of_peak"] < 1.5
    assert found["fixed"]["padding"] <= found["real"]["padding"]
    real, fixed = (found[key]["padded_tokens_per_second"] for key in ("real", "fixed"))
    assert found["real_over_fixed"] == pytest.approx(real / fixed)
    assert found["memory"] > 0
    assert found["speed"].startswith("Execution")
    assert set(found["decoding"]) == ({"greedy", "beam 4"} if "translate" in name else set())
    parts = dict(found["startup"])
    total = parts.pop("total")
    assert {"imports", "tokenizer", "store", "model", "capture", "first update"} <= set(parts)
    assert sum(parts.values()) == pytest.approx(total, abs=0.1)
    assert "real over full" in shown
    assert "…" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"updates": 0}, "use 1 or more"),
        ({"threads": 0}, "use 1 to"),
    ],
)
def test_a_wrong_option_is_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        measure_here("demo-translate", **options)
