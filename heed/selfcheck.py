"""`heed selfcheck`: verify on this machine what the rest of heed relies on.

Fused attention equals plain, decoding with a cache equals decoding without, a run that was killed
and resumed has the same bits as an uninterrupted one, and training on two ranks equals training on
one. Each check reports what it ran and the largest deviation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text
from torch import Tensor

from heed.config import POSITIONS, ModelConfig, Recipe
from heed.device import wants_bf16
from heed.models import LanguageModel, build
from heed.nn.cache import Cache
from heed.runs.run import Run
from heed.terminal import Say, build_table
from heed.train.execution.choose import cpp_compiler

VOCAB, LENGTH, ROWS = 50, 24, 3
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Check:
    """One claim, what was run to test it, and the deviation measured."""

    claim: str
    ran: str
    deviation: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the deviation is within what is allowed."""
        return self.deviation <= self.allowed


def run_checks(say: Say) -> list[Check]:
    """Run every check on every available device."""
    for line in describe_machine():
        say(line)
    checks = []
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        dtypes = [torch.float32, *([torch.bfloat16] if device == "cuda" else [])]
        for dtype in dtypes:
            say(f"fused and plain, with and without a cache: {device}, {_dtype_name(dtype)}…")
            checks.append(_check_fused(device, dtype))
            checks.append(_check_cached(device, dtype))
    say("a run killed and resumed, compared with an uninterrupted one…")
    checks.append(_check_resumed())
    say("a run on two ranks, compared with one rank…")
    checks.append(_check_two_ranks())
    return checks


def describe_machine() -> Iterator[str]:
    """The machine's compilers and devices, and what heed does where one is missing."""
    yield f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads"
    if compiler := cpp_compiler():
        yield f"C++ compiler: {compiler}"
    else:
        yield "no C++ compiler: nothing is compiled; torch's kernels are used"
    if not torch.cuda.is_available():
        precision = "bfloat16" if wants_bf16("auto", torch.device("cpu")) else "float32"
        yield f"no GPU: everything runs on the CPU; the default training precision is {precision}"
        return
    from torch.utils._triton import has_triton

    yield f"GPU: {torch.cuda.get_device_name()}"
    if not has_triton():
        yield "no Triton: long biased attention runs on SDPA, with memory quadratic in length"


def _build_model(position: str, device: str, dtype: torch.dtype) -> LanguageModel:
    """A small language model with every parameter moved away from its initial value."""
    torch.manual_seed(0)
    config = ModelConfig(layers=2, width=64, heads=4, position=position, dropout=0.0)
    model = build("generate", config, vocab=VOCAB)
    if not isinstance(model, LanguageModel):
        raise TypeError("selfcheck needs a language model")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(device, dtype)


def _random_batch(device: str) -> tuple[Tensor, Tensor]:
    """Random ids and their mask; one row is padded on the left, one on the right."""
    ids = torch.randint(VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    mask[1, :5], mask[2, -7:] = False, False
    return ids.to(device), mask.to(device)


def _check_fused(device: str, dtype: torch.dtype) -> Check:
    worst, (ids, mask) = 0.0, _random_batch(device)
    for position in POSITIONS.names():
        model = _build_model(position, device, dtype)
        outputs = []
        for logits in (model(ids, mask=mask), model.trace(ids, mask=mask).logits):
            model.zero_grad()
            logits[mask].float().square().mean().backward()
            gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            outputs.append((logits[mask].detach(), torch.cat(gradients)))
        for fused, plain in zip(*outputs, strict=True):
            worst = max(worst, _relative_error(fused, plain))
    ran = f"{len(POSITIONS.names())} positions, logits and gradients, {device} {_dtype_name(dtype)}"
    return Check("fused = plain", ran, worst, TOLERANCE[dtype])


@torch.inference_mode()
def _check_cached(device: str, dtype: torch.dtype) -> Check:
    worst, (ids, mask) = 0.0, _random_batch(device)
    for position in POSITIONS.names():
        model, cache = _build_model(position, device, dtype).eval(), Cache()
        steps = [
            model(ids[:, i : i + 1], mask=mask[:, i : i + 1], cache=cache) for i in range(LENGTH)
        ]
        worst = max(
            worst, _relative_error(torch.cat(steps, dim=1)[mask], model(ids, mask=mask)[mask])
        )
    ran = f"{len(POSITIONS.names())} positions, {LENGTH} steps, {device} {_dtype_name(dtype)}"
    return Check("cached = uncached", ran, worst, TOLERANCE[dtype])


def _check_resumed() -> Check:
    """Kill `heed train` with SIGKILL after its first checkpoint, resume it, compare all bits."""
    recipe = Recipe.of(
        {
            "data": {"synthetic": 300, "synthetic_test": 50, "max_length": 48},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 32, "heads": 2},
            "train": {"steps": 60, "batch_size": 16, "checkpoint_every": 5, "evaluate_every": 20},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "recipe.toml").write_text(recipe.toml(), encoding="utf-8")
        train = ("train", str(path / "recipe.toml"), "--device", "cpu", "--run")
        _start_command(*train, str(path / "whole")).wait()
        process, saved = (
            _start_command(*train, str(path / "broken")),
            path / "broken" / "checkpoints",
        )
        while process.poll() is None and not any(saved.glob("step-*")):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _start_command("resume", str(path / "broken"), "--device", "cpu").wait()
        same = _read_outcome(path / "whole") == _read_outcome(path / "broken")
    ran = "60 steps, killed after a checkpoint; weights and metrics, byte for byte"
    return Check("resumed = unbroken", ran, 0.0 if same else float("inf"), 0.0)


def _check_two_ranks() -> Check:
    """Run `heed train` on two processes; compare the loss of every step and of the dev set."""
    recipe = Recipe.of(
        {
            "data": {"synthetic": 300, "synthetic_test": 50, "max_length": 48},
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 32, "heads": 2, "dropout": 0.0},
            "train": {"steps": 10, "batch_size": 15, "accumulate": 2, "log_every": 1}
            | {"precision": "float32"},
        }
    )
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "recipe.toml").write_text(recipe.toml(), encoding="utf-8")
        train = ("train", str(path / "recipe.toml"), "--device", "cpu", "--run")
        _start_command(*train, str(path / "one")).wait()
        _start_command(*train, str(path / "two"), launcher=launcher).wait()
        one, two = _read_losses(path / "one"), _read_losses(path / "two")
    complete = one.keys() == two.keys() and len(one) > 10
    errors = [abs(one[key] - two[key]) / one[key] for key in one] if complete else [float("inf")]
    ran = "10 steps of DDP on gloo, float32, no dropout; all losses, training and dev"
    return Check("two ranks = one", ran, max(errors), 1e-6)


def _read_losses(folder: Path) -> dict[tuple[str, int], float]:
    lines = Run(folder).metrics() if Run(folder).finished else []
    sets = {"train": lambda line: line, "evaluate": lambda line: line["dev"]}
    losses = {(line["event"], line["step"]): sets[line["event"]](line)["loss"] for line in lines}
    return {key: loss for key, loss in losses.items() if loss is not None}


def _start_command(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "heed", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _read_outcome(folder: Path) -> object:
    run = Run(folder)
    lines = [{k: v for k, v in line.items() if k != "time"} for line in run.metrics()]
    return run.weights_path.read_bytes() if run.finished else folder, lines


def _relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def build_checks_table(checks: list[Check]) -> Table:
    """A table of the checks for the terminal."""
    shown = build_table("claim", "what was run", "largest deviation", "allowed", "")
    for check in checks:
        verdict = Text("holds", "green") if check.holds else Text("FAILS", "bold red")
        shown.add_row(
            check.claim, check.ran, f"{check.deviation:.1e}", f"{check.allowed:.0e}", verdict
        )
    return shown
