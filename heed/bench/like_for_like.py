"""Compare training speed like for like: each system in its own process, in alternating turns.

Only one process computes at a time. Turns alternate between the systems (A B C A B C …), so that a
machine that is now fast, now slow affects all of them alike, and ratios are those of paired turns.
Where the memory of all systems together is not enough, each is measured alone: its process takes
all of its turns and exits before the next one starts.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heed.bench.peers import PEERS
from heed.bench.system_worker import Worker, worker_process
from heed.bench.timing import LARGE, WALL
from heed.bench.workload import Workload
from heed.plugins import used_plugins
from heed.terminal import Say

COMMAND = (sys.executable, "-P", "-m", "heed.bench.system_process")
"""The process of one system."""
TURNS = 5
"""Turns of each system, unless named otherwise."""
TURN = {"cuda": 0.2, "cpu": 0.5}
"""Seconds of a turn, by device; a turn has at least one pass over the workload."""
LONGEST_BUILD, LONGEST_TURN = 1200.0, 600.0
"""Seconds after which a process that does not answer is ended."""
LIKE_FOR_LIKE, SAME_PRECISION, OTHER_PRECISION = (
    "like for like",
    "same precision",
    "other precision",
)
"""What a row of the table is: both at their best in one precision, or the rest."""
UNLIKE = (
    *("train.optimizer=adamw", "train.weight_decay=0", "train.rdrop=0", "train.ema=0"),
    "train.fp8_output=false",
)
"""Overrides of heed's recipe in a comparison: what no peer does, heed does not do either."""


@dataclass(frozen=True, eq=False)
class System:
    """One implementation in one launch mode and precision, on a workload."""

    library: str
    """`heed`, or a library of `heed.bench.peers.PEERS`."""
    mode: str
    """How steps are launched: heed's `train.execution`, or one of `heed.bench.peer_step.MODES`."""
    precision: str
    """float32, tf32 (float32 with tf32 matrix products on a GPU) or bf16."""
    workload: Workload
    changes: tuple[str, ...] = ()
    """Overrides of the workload's recipe."""
    keep_memory: bool = False
    """Whether a peer on a CPU keeps freed memory in its process, as heed does."""
    label: str = ""
    """What distinguishes it from another of the same library, mode and precision."""

    @property
    def is_heed(self) -> bool:
        """Whether this is heed, not a peer."""
        return self.library == "heed"

    @property
    def name(self) -> str:
        """Library and mode, as tables have them."""
        model = self.library
        if not self.is_heed:
            model = PEERS[self.library][self.workload.recipe.task]
        mode = "" if self.is_heed and self.mode == "auto" else self.mode
        memory = "freed memory kept" if self.keep_memory else ""
        return ", ".join(filter(None, [model, mode, memory, self.label]))

    def specify(self, path: Path, options: Options) -> dict[str, Any]:
        """The first request to this system's process; `path` is its workload's file."""
        own = (*UNLIKE, f"train.execution={self.mode}") if self.is_heed else ()
        return {
            "library": self.library,
            "mode": self.mode,
            "precision": self.precision,
            "workload": str(path),
            "changes": [*own, *self.changes],
            "keep_memory": self.keep_memory,
            "plugins": [str(plugin.path) for plugin in used_plugins(self.workload.recipe.model)],
            "device": str(options.device),
            "threads": torch.get_num_threads(),
            "turn": options.turn,
            "product_size": options.product_size or LARGE[options.device.type],
            "clock": options.clock,
        }


@dataclass(frozen=True)
class Options:
    """How a comparison is measured."""

    device: torch.device
    turns: int = TURNS
    turn: float = 0.0
    """Seconds of a turn; at 0 it is one pass over the workload."""
    alone: bool = False
    """Whether each system takes all its turns alone, because the GPU has no room for all."""
    clock: str = WALL
    """One of `heed.bench.timing.CLOCKS`; processor time is for one thread on a CPU."""
    product_size: int | None = None
    """Rows of the matrices of the peak; None: `heed.bench.timing.LARGE`."""
    build_together: bool = False
    """Whether all systems are built at once: sooner on many cores, but `Result.ready` is longer."""


@dataclass(eq=False)
class Result:
    """What one system's process reported."""

    system: System
    pid: int | None = None
    kind: str | None = None
    """Class of its model."""
    execution: str | None = None
    parameters: int | None = None
    ready: float | None = None
    """Seconds to build it and take the first step, compilation and capture included."""
    memory: int | None = None
    """Peak bytes: of the GPU by torch, else of its process."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of one pass over the workload, by turn."""
    peaks: list[float] = field(default_factory=list)
    """FLOP/s of a large matrix product in the same precision, after each turn."""
    failed: str | None = None
    out_of_memory: bool = False

    @property
    def rates(self) -> list[float]:
        """Tokens per second, by turn; padding not counted."""
        return [self.system.workload.tokens / taken for taken in self.seconds]

    @property
    def rate(self) -> float:
        """The median of tokens per second; 0 where it failed."""
        return statistics.median(self.rates) if self.rates and not self.failed else 0.0

    def share_of_peak(self, *, in_full: bool = False) -> float:
        """The median share of the peak in the same precision; `in_full`: as nanoGPT counts."""
        operations = self.system.workload.operations
        work = operations.in_full if in_full else operations.needed
        pairs = zip(self.seconds, self.peaks, strict=True)
        return statistics.median(work / taken / peak for taken, peak in pairs)


@dataclass(frozen=True)
class Ratio:
    """heed's tokens/s over a peer's: the median of paired turns, and its range."""

    over: str
    """Name of the peer."""
    median: float
    lowest: float
    highest: float
    turns: list[float]

    @classmethod
    def of(cls, ours: Result, peer: Result) -> Ratio:
        """The ratio of two systems that both finished."""
        turns = [a / b for a, b in zip(ours.rates, peer.rates, strict=True)]
        return cls(peer.system.name, statistics.median(turns), min(turns), max(turns), turns)


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    kind: str
    result: Result
    ratio: Ratio | None
    """A peer's row: heed over it. A further row of heed's: it over the fastest peer."""


@dataclass(frozen=True)
class SpeedComparison:
    """The results of all systems on one kind of work."""

    name: str
    options: Options
    results: list[Result]
    """In the order in which they were named: the first of heed's is the one compared."""

    def rows(self) -> list[Row]:
        """All rows: for each precision heed and the fastest peer first, then the others."""
        finished = [result for result in self.results if not result.failed]
        pairs: dict[str, tuple[Result, Result]] = {}
        for precision in dict.fromkeys(result.system.precision for result in self.results):
            same = [r for r in finished if r.system.precision == precision]
            ours = [r for r in same if r.system.is_heed]
            # One with heed's memory setting is no peer as its users run it.
            peers = [r for r in same if not (r.system.is_heed or r.system.keep_memory)]
            if ours and peers:
                pairs[precision] = ours[0], max(peers, key=lambda result: result.rate)
        rows: list[Row] = []
        for precision, (heed, peer) in pairs.items():
            rows.append(Row(LIKE_FOR_LIKE, heed, None))
            rows.append(Row(LIKE_FOR_LIKE, peer, Ratio.of(heed, peer)))
            rows += [
                Row(SAME_PRECISION, result, _ratio(result, heed, peer))
                for result in self.results
                if result.system.precision == precision and result not in (heed, peer)
            ]
        first = next(iter(pairs.values()), (None, None))
        rows += [
            Row(OTHER_PRECISION, result, _ratio(result, *first))
            for result in self.results
            if result.system.precision not in pairs
        ]
        return rows

    def figures(self) -> dict[str, Any]:
        """This comparison for a program, rows in the order of the table."""
        return {
            "name": self.name,
            "turns": self.options.turns,
            "alternating": not self.options.alone,
            "clock": self.options.clock,
            "rows": [_row_figures(row) for row in self.rows()],
        }


def _ratio(result: Result, heed: Result | None, peer: Result | None) -> Ratio | None:
    """The ratio of a further row: it over the fastest peer, or heed over it."""
    if result.failed or heed is None or peer is None:
        return None
    return Ratio.of(result, peer) if result.system.is_heed else Ratio.of(heed, result)


def _row_figures(row: Row) -> dict[str, Any]:
    result, system, ratio = row.result, row.result.system, row.ratio
    done = not result.failed
    return {
        "row": row.kind,
        "name": system.name,
        "library": system.library,
        "mode": system.mode,
        "precision": system.precision,
        "batches": system.workload.describe(),
        "model": result.kind,
        "parameters": result.parameters,
        "execution": result.execution,
        "pid": result.pid,
        "failed": result.failed,
        "tokens_per_second": result.rate if done else None,
        "lowest": min(result.rates) if done else None,
        "highest": max(result.rates) if done else None,
        "tokens_per_second_by_turn": result.rates,
        "ratio": None if ratio is None else vars(ratio),
        "peak_tflops": statistics.median(result.peaks) / 1e12 if done else None,
        "share_of_peak": result.share_of_peak() if done else None,
        "share_of_peak_in_full": result.share_of_peak(in_full=True) if done else None,
        "memory": result.memory,
        "ready_seconds": result.ready,
    }


def compare(name: str, systems: Sequence[System], options: Options, *, say: Say) -> SpeedComparison:
    """Measure all systems; one that fails is reported as failed, and the others go on."""
    with tempfile.TemporaryDirectory() as folder:
        files = _save_workloads(systems, Path(folder))
        specs = [system.specify(files[id(system.workload)], options) for system in systems]
        if not options.alone:
            results = _alternate(systems, specs, options, say)
            crowded = [r.system.name for r in results if r.out_of_memory]
            if not (crowded and len(systems) > 1):
                return SpeedComparison(name, options, results)
            say(f"  {crowded[0]} had no room beside the others: each is measured alone.")
            options = replace(options, alone=True)
        results = []
        for system, spec in zip(systems, specs, strict=True):
            results += _alternate([system], [spec], options, say)
        return SpeedComparison(name, options, results)


def _save_workloads(systems: Sequence[System], folder: Path) -> dict[int, Path]:
    """Write each workload once; its file by the workload's id."""
    files: dict[int, Path] = {}
    for system in systems:
        if id(system.workload) not in files:
            path = files[id(system.workload)] = folder / f"{len(files)}.safetensors"
            system.workload.save(path)
    return files


def _alternate(
    systems: Sequence[System], specs: Sequence[dict[str, Any]], options: Options, say: Say
) -> list[Result]:
    """Start a process for each system, which builds it, then let them take turns."""
    results = [Result(system) for system in systems]
    with ExitStack() as stack:
        # Not all at once, unless asked for: imports of one would slow the build of another.
        build = partial(_build, stack, say)
        if options.build_together:
            threads = stack.enter_context(ThreadPoolExecutor(len(systems)))
            workers = list(threads.map(build, specs, results))
        else:
            workers = list(map(build, specs, results))
        if not options.alone and any(result.out_of_memory for result in results):
            return results  # each is measured alone, from the start
        for turn in range(1, options.turns + 1):
            ready = [(w, r) for w, r in zip(workers, results, strict=True) if not r.failed]
            for worker, result in ready:
                _record_turn(result, worker.ask("go", LONGEST_TURN))
                if result.failed:
                    worker.close()  # one that hangs must not compute beside the others
            rates = (f"{r.rates[-1]:,.0f}" for _, r in ready if not r.failed)
            say(f"  turn {turn} of {options.turns}: {' '.join(rates)} tokens/s")
    return results


def _build(stack: ExitStack, say: Say, spec: dict[str, Any], result: Result) -> Worker:
    """Start a process and let it build its system; one that fails is ended."""
    worker, system = stack.enter_context(worker_process(COMMAND)), result.system
    result.pid = worker.pid
    say(f"  {system.name}, {system.precision}: preparing…")
    _record_build(result, worker.ask(json.dumps(spec), LONGEST_BUILD))
    if result.failed:
        say(f"  {system.name}, {system.precision}: {result.failed}")
        worker.close()
    return worker


def _record_build(result: Result, answer: dict[str, Any]) -> None:
    if not _has_failed(result, answer):
        result.kind, result.execution = answer["kind"], answer["execution"]
        result.ready, result.memory = answer["ready"], answer["memory"]
        result.parameters = answer["parameters"]


def _record_turn(result: Result, answer: dict[str, Any]) -> None:
    if not _has_failed(result, answer):
        result.seconds.append(answer["seconds"])
        result.peaks.append(answer["peak"])


def _has_failed(result: Result, answer: dict[str, Any]) -> bool:
    if answer["event"] != "failed":
        return False
    result.failed, result.out_of_memory = answer["reason"], answer["out_of_memory"]
    return True
