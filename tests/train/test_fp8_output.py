"""train.fp8_output: what a run says, what it passes on, and that elsewhere it changes no bit."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from rich.console import Console

from heed.bench.standard_shapes import Setting, build_trainee
from heed.config import Recipe
from heed.config.checks import find_conflicts
from heed.models import build
from heed.nn.kernels.fp8_cross_entropy import MIN_CAPABILITY
from heed.nn.kernels.linear_cross_entropy import linear_cross_entropy
from heed.runs.run import Run
from heed.train import objective
from heed.train import run as train_run
from heed.train.objective import Objective, find_fp8_obstacle

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALL = Setting("small", "generate", 1, 2, 32, 50, 4, 8)
FP8_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= MIN_CAPABILITY


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))


def recipe(model: dict[str, Any] | None = None, **train: Any) -> Recipe:
    shape = {"layers": 1, "width": 32, "heads": 2} | (model or {})
    data = {"synthetic": 300, "synthetic_test": 50, "max_length": 32, "unit": "document"}
    settings = {"steps": 4, "batch_tokens": 256, "evaluate_every": 4, "log_every": 1}
    return Recipe.of(
        {
            "task": "generate",
            "data": data,
            "tokenizer": {"kind": "word"},
            "model": shape,
            "train": settings | train,
        }
    )


def trained(settings: Recipe, folder: Path, device: str = "cpu") -> tuple[Run, str]:
    console = Console(file=io.StringIO(), width=200)
    run = train_run.start(settings, folder, device=device, console=console)
    assert isinstance(console.file, io.StringIO)
    return run, console.file.getvalue()


# ----------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    ("task", "train", "complaint"),
    [
        ("classify", {}, "which a classifier does not have: leave it out"),
        ("translate", {"rdrop": 5.0}, "fp8_output and rdrop cannot be combined"),
        ("generate", {"precision": "float32"}, "for precision 'bf16' or 'auto', not 'float32'"),
    ],
)
def test_a_recipe_without_8_bit_products_is_refused(
    task: str, train: dict[str, Any], complaint: str
) -> None:
    def conflicts(fp8_output: bool) -> str:
        tables = {"task": task, "data": {"synthetic": 100}, "model": {"dropout": 0.1}}
        settings = {"fp8_output": fp8_output} | train
        return " ".join(find_conflicts(Recipe.of(tables | {"train": settings})))

    assert complaint in conflicts(True)
    assert "fp8_output" not in conflicts(False)


def test_it_is_off_by_default_and_goes_with_translation_and_generation() -> None:
    assert not recipe().train.fp8_output
    for task in ("translate", "generate"):
        tables = {"task": task, "data": {"synthetic": 100}, "train": {"fp8_output": True}}
        assert find_conflicts(Recipe.of(tables)) == []


# ------------------------------------------------------------------------------------ on this CPU


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_a_run_on_a_cpu_says_so_and_changes_no_bit(tmp_path: Path, precision: str) -> None:
    runs = {}
    for fp8_output in (False, True):
        settings = recipe(fp8_output=fp8_output, precision=precision)
        run, said = trained(settings, tmp_path / f"{precision}-{fp8_output}")
        lines = [line for line in said.splitlines() if line.startswith("Output layer")]
        runs[fp8_output] = run.weights_path.read_bytes()
        assert len(lines) == fp8_output
    assert "in spite of fp8_output, because 8-bit products need a GPU" in lines[0]
    assert precision == "auto" or lines[0].startswith("Output layer: in bf16 ")
    assert runs[False] == runs[True]


def test_a_benchmark_keeps_the_message_apart() -> None:
    settings = SMALL.recipe(["train.fp8_output=true"])
    batch = SMALL.batch(CPU)
    trainee = build_trainee(SMALL, settings, batch, device=CPU, bf16=True)
    assert [line.split(":")[0] for line in trainee.messages] == ["Output layer", "Execution"]


@pytest.mark.parametrize("fp8_output", [False, True])
def test_training_asks_for_8_bits_and_validation_never(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fp8_output: bool
) -> None:
    asked = set()
    compute = linear_cross_entropy

    def recorded(*args: Any, fp8: bool, **settings: Any) -> Any:
        asked.add((torch.is_grad_enabled(), fp8))
        return compute(*args, fp8=fp8, **settings)

    monkeypatch.setattr(objective, "linear_cross_entropy", recorded)
    trained(recipe(fp8_output=fp8_output), tmp_path / "run")
    assert asked == {(True, fp8_output), (False, False)}


# -------------------------------------------------------------------------------------- obstacles


def obstacle(monkeypatch: pytest.MonkeyPatch, freeze: str = "", **model: Any) -> str | None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("heed.nn.kernels.fp8_cross_entropy.HAS_TRITON", True)
    made = build("generate", recipe(model).model, vocab=50)
    for name, parameter in made.named_parameters():
        if freeze and (name.startswith("head") == (freeze == "head")):
            parameter.requires_grad_(False)
    return find_fp8_obstacle(made, CUDA, bf16=True)


def test_a_model_that_fits_has_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(monkeypatch) is None
    assert obstacle(monkeypatch, tie_embeddings=False) is None


def test_obstacles_of_a_model_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert obstacle(monkeypatch, lm_head_bias=True) == "it has a bias"
    assert "width 40" in str(obstacle(monkeypatch, width=40))
    for part in ("head", "body"):
        frozen = obstacle(monkeypatch, freeze=part, tie_embeddings=False)
        assert frozen == "its inputs or its weights are frozen"


def test_a_classifier_has_no_output_layer_over_a_vocabulary() -> None:
    model = build("classify", recipe().model, vocab=50, classes=2)
    assert "has none over a vocabulary" in str(find_fp8_obstacle(model, CPU, bf16=True))
    assert not Objective(model).fp8_output


# --------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not FP8_GPU, reason="needs a GPU with 8-bit products")
@pytest.mark.parametrize("execution", ["eager", "graphs"])
def test_a_language_model_learns_as_well(tmp_path: Path, execution: str) -> None:
    """As far from bfloat16 as another seed is, or nearer; and it says nothing of an obstacle."""
    losses = {}
    for fp8_output in (False, True):
        settings = recipe(
            {"layers": 2, "width": 128, "heads": 4},
            **{"steps": 200, "batch_tokens": 1024, "lr": 2e-3, "execution": execution},
            evaluate_every=200,
            fp8_output=fp8_output,
        )
        run, said = trained(settings, tmp_path / f"{execution}-{fp8_output}", "cuda")
        assert "Output layer" not in said
        lines = [line for line in run.metrics() if line["event"] == "train"]
        losses[fp8_output] = [line["loss"] for line in lines]
    for stretch in (slice(80, 100), slice(180, 200)):
        ours, plain = (fmean(losses[fp8][stretch]) for fp8 in (True, False))
        assert ours == pytest.approx(plain, rel=0.05)
    assert fmean(losses[True][-20:]) < 0.7 * losses[True][0]


@pytest.mark.gpu
@pytest.mark.skipif(not FP8_GPU, reason="needs a GPU with 8-bit products")
def test_captured_steps_in_8_bits_repeat_their_bits(tmp_path: Path) -> None:
    weights = []
    for number in range(2):
        settings = recipe(fp8_output=True, deterministic=True, steps=40, execution="graphs")
        run, _ = trained(settings, tmp_path / str(number), "cuda")
        weights.append(run.weights_path.read_bytes())
    torch.use_deterministic_algorithms(False)
    assert weights[0] == weights[1]
