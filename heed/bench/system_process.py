"""The process of one system in a comparison (`heed.bench.like_for_like` starts it).

    python -m heed.bench.system_process

Requests (`heed.bench.system_worker`): a line of JSON with the system, then a line `go` for each
turn. Answers: first `ready` or `failed`, then `turn` or `failed`. It ends with its input. In a
process of its own, a peer's memory, its compiler and its caches are its own.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heed.bench.peer_step import build_peer_steps
from heed.bench.peers import build_peer
from heed.bench.standard_shapes import describe_execution, train_in_run
from heed.bench.system_worker import open_answers, send_answer
from heed.bench.timing import Product, seconds, synchronize
from heed.bench.workload import Workload
from heed.device import is_out_of_memory, peak_memory
from heed.errors import HeedError
from heed.plugins import load_plugins
from heed.train.execution.choose import cpp_compiler, keep_freed_memory

MATMUL = {"float32": "highest", "tf32": "high", "bf16": "high"}
"""torch's precision of float32 matrix products, by the precision of the step."""
PRODUCT_TURN = 0.02
"""Seconds in which the matrix product of the peak is repeated, where it is faster."""


@dataclass
class Trainable:
    """A system that is ready to train, step by step."""

    steps: list[Callable[[], object]]
    kind: str
    """Class of its model."""
    execution: str
    """How its steps are launched."""
    parameters: int

    def run(self) -> None:
        """All steps once."""
        for step in self.steps:
            step()


def main() -> None:
    """Build a system, then time a turn at every `go`."""
    answers = open_answers()
    line = sys.stdin.readline()
    if not line:
        return
    spec = json.loads(line)
    began = time.perf_counter()
    device = torch.device(spec["device"])
    stage = "its first step"
    try:
        load_plugins(spec["plugins"])
        torch.set_num_threads(spec["threads"])
        torch.set_float32_matmul_precision(MATMUL[spec["precision"]])
        system = build_system(spec, device)
        system.run()
        synchronize(device)
        ready = time.perf_counter() - began
        memory = peak_memory(device)
        bf16 = spec["precision"] == "bf16"
        product = Product.on(
            device, torch.bfloat16 if bf16 else torch.float32, size=spec["product_size"]
        )
        once = min(seconds(system.run, device) for _ in range(2))
        calls = max(1, round(spec["turn"] / once))
        products = max(1, round(PRODUCT_TURN / seconds(product.run, device)))
        answer = {"kind": system.kind, "execution": system.execution, "memory": memory}
        send_answer(answers, "ready", **answer, ready=ready, parameters=system.parameters)
        stage, clock = "a turn", spec["clock"]
        while sys.stdin.readline().strip() == "go":
            system.run()  # another system ran meanwhile: caches and clocks are cold
            taken = seconds(system.run, device, calls=calls, clock=clock)
            product_seconds = seconds(product.run, device, calls=products, clock=clock)
            peak = product.operations / product_seconds
            send_answer(answers, "turn", seconds=taken, calls=calls, peak=peak)
    except Exception as error:  # whatever a library raises is that system's result
        traceback.print_exc()  # HEED_DEBUG shows it
        reason = describe_failure(error, stage)
        send_answer(answers, "failed", reason=reason, out_of_memory=lacks_memory(error))


def build_system(spec: dict[str, Any], device: torch.device) -> Trainable:
    """The model of a system with its training steps, ready for the first one."""
    workload = Workload.load(Path(spec["workload"]), changes=spec["changes"])
    bf16, mode, recipe = spec["precision"] == "bf16", spec["mode"], workload.recipe
    steps = [[batch.to(device) for batch in step] for step in workload.steps]
    if "compile" in mode and device.type == "cpu" and cpp_compiler() is None:
        raise HeedError("there is no C++ compiler here.")
    if spec["library"] == "heed":
        model = workload.build_model(device)
        ours = train_in_run(model, recipe, workload.shapes, steps[0][0], device=device, bf16=bf16)
        execution = describe_execution(ours.messages, recipe)
        updates = [_later(ours.update, step) for step in steps]
        return Trainable(updates, type(model).__name__, execution, _count(model))
    if "captured" in mode and device.type != "cuda":
        raise HeedError("CUDA graphs need a GPU.")
    if spec["keep_memory"]:
        keep_freed_memory()
    peer = build_peer(
        spec["library"],
        recipe,
        vocab=workload.vocab,
        source_vocab=workload.source_vocab,
        length=workload.length,
    ).to(device)
    kind = getattr(peer.network, "model", peer.network)
    updates = build_peer_steps(peer, steps, mode=mode, bf16=bf16, clip=recipe.train.clip)
    return Trainable(updates, type(kind).__name__, mode, _count(peer))


def _later(update: Callable[[Any], object], step: Any) -> Callable[[], object]:
    return lambda: update(step)


def _count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def lacks_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch's allocator says so, or the CUDA driver or cuBLAS."""
    said = str(error)
    return is_out_of_memory(error) or "out of memory" in said or "ALLOC_FAILED" in said


def describe_failure(error: BaseException, stage: str) -> str:
    """Why a system failed, in one line: what its library said, at which stage."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    said = _sentences(lines)
    if lacks_memory(error):
        return f"out of memory in {stage}: {said}".rstrip(": ")
    if isinstance(error, HeedError):
        return said
    return f"{type(error).__name__} in {stage}: {said}".rstrip(": ")


def _sentences(lines: Sequence[str], most: int = 160) -> str:
    """The first lines of a message, as many as fit; a line that ends in a colon says too little."""
    said = ""
    for line in lines:
        said = f"{said} {line}".strip()
        if not line.endswith(":"):
            break
    return said if len(said) <= most else f"{said[: most - 1]}…"


if __name__ == "__main__":
    main()
