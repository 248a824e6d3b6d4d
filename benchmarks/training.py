"""Full training steps compared with other libraries: forward, loss, backward, clip, optimizer.

    python benchmarks/training.py                    a small LM and a translator on this CPU
    python benchmarks/training.py --device cuda      GPT-2 124M, and four translators
    python benchmarks/training.py --tiny --only gpt2 sets few      seconds, to try the script

All contenders of a comparison are built in the same process and trained on the same random tokens,
none of them padding. They run in alternation, and the median of their turns counts. Each ratio
stands beside its target.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import keep, table
from peers import plain_gpt_step, torch_translator_step

from heed.bench.flops import Operations, count_operations
from heed.bench.peers import Update, peer_of, peer_step
from heed.bench.standard_shapes import (
    GPT2,
    SETS,
    SMALL_LM,
    SMALL_MT,
    Setting,
    build_trainee,
    with_peer_batch,
    with_small_batch,
)
from heed.bench.timing import Product, side_by_side
from heed.device import wants_bf16
from heed.errors import HeedError
from heed.train.execution.choose import find_obstacle

WORKS = ("gpt2", "sets", "few", "small")
NANOGPT = 521_000
"""Tokens per second of nanoGPT, compiled, batch 64, measured before on an H200 with torch 2.11. It
is quoted, not run. With attention counted in full it is 58% of the matrix peak."""
VOCABULARIES = (21_178, 30_437)
"""Source and target vocabularies of the comparison with nn.Transformer: words, not shared."""
TURN = 0.2
"""The shortest turn in seconds."""


@dataclass(frozen=True)
class Target:
    """What a contender should reach."""

    least: float
    over: str | None = None
    """The contender whose speed it is divided by; None: `of` is compared with the target."""
    of: str = "ratio"


@dataclass(frozen=True)
class Contender:
    """A model that trains, built when its comparison begins."""

    name: str
    make: Callable[[Setting], Update]
    setting: Setting
    targets: tuple[Target, ...] = ()
    tf32: bool = False
    """Whether its peak is that of float32 matrix products."""


@dataclass
class Row:
    """The result of one contender."""

    work: str
    contender: str
    tokens_per_second: float = 0.0
    updates_per_second: float = 0.0
    peak: float = 0.0
    """Operations per second of a large matrix product, measured in the same alternation."""
    of_peak: float = 0.0
    """The share of the peak, without the operations that a causal mask hides,"""
    of_peak_in_full: float = 0.0
    """and with them, as nanoGPT counts."""
    ready: float = 0.0
    """Seconds to build it and take the first step, capture and compilation included."""
    memory: int | None = None
    """Peak bytes that it added on the GPU."""
    verdicts: list[str] | None = None
    failed: str | None = None


class Bench:
    """A device and its matrix products."""

    def __init__(self, device: str, *, rounds: int) -> None:
        self.device, self.cuda, self.rounds = torch.device(device), device == "cuda", rounds
        self.fast = "graphs" if self.cuda else "eager"
        fast = Product.on(self.device, torch.bfloat16 if self.cuda else torch.float32)
        self.products = {False: fast, True: Product.on(self.device, torch.float32)}

    def ours(
        self, speed: str, *, precision: str = "auto", activation: str | None = None
    ) -> Callable[[Setting], Update]:
        """heed with this execution; the activation is the setting's unless another is named."""

        def make(setting: Setting) -> Update:
            changes = [f"train.execution={speed}", f"train.precision={precision}"]
            if activation is not None:
                changes.append(f"model.activation={activation}")
            recipe = setting.recipe(changes)
            bf16 = wants_bf16(precision, self.device)
            batch = setting.batch(self.device)
            return build_trainee(setting, recipe, batch, device=self.device, bf16=bf16).update

        return make

    def theirs(self, *, compiled: bool = False) -> Callable[[Setting], Update]:
        """The model of the same shape in transformers."""

        def make(setting: Setting) -> Update:
            peer: Any = peer_of(setting.model(setting.recipe(), self.device), length=setting.length)
            return peer_step(torch.compile(peer) if compiled else peer, bf16=self.cuda)

        return make

    def compiles(self) -> bool:
        """Whether torch.compile works on this machine."""
        return find_obstacle(GPT2.recipe(), "compile", self.device) is None

    def run(self, work: str, contenders: list[Contender]) -> list[Row]:
        """Build all contenders, run them in alternation, and return a row for each."""
        rows, runs = {c.name: Row(work, c.name) for c in contenders}, {}
        for contender in contenders:
            try:
                runs[contender.name] = self._build(contender, rows[contender.name])
            except (RuntimeError, HeedError) as error:
                rows[contender.name].failed = str(error).strip().splitlines()[0]
        limits = {tf32: f"matrix product, tf32 {tf32}" for tf32 in {c.tf32 for c in contenders}}
        runs |= {name: self.products[tf32].run for tf32, name in limits.items()}
        taken = side_by_side(runs, device=self.device, rounds=self.rounds, warmup=1, turn=TURN)
        for contender in contenders:
            if contender.name in taken:
                limit = taken[limits[contender.tf32]]
                self._rate(contender, rows[contender.name], taken[contender.name], limit)
        for contender in contenders:
            row = rows[contender.name]
            row.verdicts = [_verdict(target, row, rows) for target in contender.targets]
            print(_line(row), flush=True)
        runs.clear()
        self._clear()
        return list(rows.values())

    def _build(self, contender: Contender, row: Row) -> Callable[[], object]:
        before = self._held()
        began = time.perf_counter()
        update, batch = contender.make(contender.setting), contender.setting.batch(self.device)
        update([batch])
        if self.cuda:
            torch.cuda.synchronize()
            row.memory = torch.cuda.max_memory_allocated() - before
        row.ready = time.perf_counter() - began
        return lambda: update([batch])

    def _held(self) -> int:
        if not self.cuda:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _clear(self) -> None:
        """Free what one comparison used before the next."""
        gc.collect()
        torch.compiler.reset()
        if self.cuda:
            torch.cuda.empty_cache()

    def _rate(self, contender: Contender, row: Row, taken: float, limit: float) -> None:
        work = self._operations(contender.setting)
        row.peak = peak = self.products[contender.tf32].operations / limit
        row.updates_per_second = 1 / taken
        row.tokens_per_second = contender.setting.tokens / taken
        row.of_peak = work.needed / taken / peak
        row.of_peak_in_full = work.in_full / taken / peak

    def _operations(self, setting: Setting) -> Operations:
        """The operations of a step; the other models have the same matrices, so the same count."""
        with torch.device("meta"):
            model = setting.model(setting.recipe(), torch.device("meta"))
        return count_operations(model, setting.shape)


def _verdict(target: Target, row: Row, rows: dict[str, Row]) -> str:
    if target.over is not None:
        over = rows[target.over].tokens_per_second if target.over in rows else float(NANOGPT)
        value = row.tokens_per_second / over if over else 0.0
        line = f"{value:.2f} times {target.over} (target {target.least:g})"
    else:
        value = getattr(row, target.of)
        shown = f"{value:.1%}" if target.least <= 1 else f"{value:,.0f}"
        least = f"{target.least:.0%}" if target.least <= 1 else f"{target.least:,.0f}"
        line = f"{target.of.replace('_', ' ')} {shown} (target {least})"
    return f"{line}: {'reached' if value >= target.least else 'MISSED'}"


def gpt2(bench: Bench, options: argparse.Namespace) -> Iterator[list[Row]]:
    """GPT-2's 124M shape; that of transformers holds all logits, so it has half the sequences."""
    setting = options.size(GPT2)
    half = with_peer_batch(setting)
    rotary, double = replace(setting, position="rope"), replace(setting, texts=2 * setting.texts)
    targets = (
        Target(560_000, of="tokens_per_second"),
        Target(0.6, of="of_peak_in_full"),
        Target(1.0, over="nanoGPT compiled (quoted)"),
    )
    for speed, compiled in ((bench.fast, False), ("compile", True)):
        if compiled and not (options.compile and bench.compiles()):
            continue
        peer = f"transformers {'compiled' if compiled else 'eager'}, {half.texts} texts"
        yield bench.run(
            "GPT-2 124M",
            [
                Contender(f"heed {speed}", bench.ours(speed), setting, targets),
                Contender(
                    f"heed {speed}, {double.texts} texts", bench.ours(speed), double, targets
                ),
                Contender(f"heed {speed}, rope", bench.ours(speed), rotary),
                Contender(peer, bench.theirs(compiled=compiled), half),
            ],
        )


def sets(bench: Bench, options: argparse.Namespace) -> Iterator[list[Row]]:
    """The four translators at 512 sequences of 32 tokens, compared with Marian."""
    for number, whole in SETS.items():
        setting, least = options.size(whole), 2.0 if number < 3 else 1.8
        targets = (Target(least, over="Marian eager"),)
        contenders = [
            Contender("Marian eager", bench.theirs(), setting),
            Contender(f"heed {bench.fast}", bench.ours(bench.fast), setting, targets),
        ]
        if options.compile and number in options.compile_sets and bench.compiles():
            contenders.append(Contender("heed compile", bench.ours("compile"), setting, targets))
        yield bench.run(f"set {number}, {setting.texts}x{setting.length}", contenders)


def small_batches(bench: Bench, options: argparse.Namespace) -> Iterator[list[Row]]:
    """The four translators at 16 sequences of 32 tokens, compared with torch.nn.Transformer."""
    source, target = VOCABULARIES
    targets = (Target(4.0, over="nn.Transformer"),)
    for number, whole in SETS.items():
        apart = replace(with_small_batch(whole), source_vocab=source, vocab=target)
        setting = options.size(apart)
        yield bench.run(
            f"set {number}, {setting.texts}x{setting.length}",
            [
                Contender(
                    "nn.Transformer",
                    lambda setting: torch_translator_step(setting, bench.device),
                    setting,
                    tf32=True,
                ),
                Contender(f"heed {bench.fast}", bench.ours(bench.fast), setting, targets),
                Contender(
                    f"heed {bench.fast}, float32",
                    bench.ours(bench.fast, precision="float32"),
                    setting,
                    tf32=True,
                ),
            ],
        )


def small(bench: Bench, options: argparse.Namespace) -> Iterator[list[Row]]:
    """For a CPU: a small language model and a small translator."""
    compiles = options.compile and bench.compiles()
    lm, mt = options.size(SMALL_LM), options.size(SMALL_MT)
    # The plain GPT's GELU: GPT-2's tanh form takes twice as long on a CPU, and both must do the
    # same work.
    ours = partial(bench.ours, activation="gelu")
    exactly = "heed eager, float32"
    contenders = [
        Contender("plain eager", lambda setting: plain_gpt_step(setting, bench.device), lm),
        Contender("heed eager", ours("eager"), lm, (Target(1.0, over="plain eager"),)),
        Contender(exactly, ours("eager", precision="float32"), lm),
    ]
    if compiles:
        fast = Contender("heed compile", ours("compile"), lm, (Target(1.2, over="plain eager"),))
        contenders.append(fast)
    yield bench.run(f"small LM, {lm.texts}x{lm.length}", contenders)
    targets = (Target(1.0, over="Marian eager"), Target(0.6, of="of_peak"))
    contenders = [
        Contender("Marian eager", bench.theirs(), mt),
        Contender("heed eager", bench.ours("eager"), mt, targets),
        Contender(exactly, bench.ours("eager", precision="float32"), mt, targets),
    ]
    if compiles:
        contenders.append(Contender("heed compile", bench.ours("compile"), mt, targets))
    yield bench.run(f"small translator, {mt.texts}x{mt.length}", contenders)


MEASURES = {"gpt2": gpt2, "sets": sets, "few": small_batches, "small": small}


def _line(row: Row) -> str:
    if row.failed:
        return f"{row.work}, {row.contender}: FAILED: {row.failed}"
    return f"{row.work}, {row.contender}: {row.tokens_per_second:,.0f} tokens/s"


def report(rows: list[Row]) -> str:
    """The table with a row per contender, and below it every target."""
    cells = []
    for row in rows:
        memory = "" if row.memory is None else f"{row.memory / 2**30:.1f}"
        numbers = [
            f"{row.tokens_per_second:,.0f}",
            f"{row.updates_per_second:.2f}",
            f"{row.peak / 1e12:.4g}",
            f"{row.of_peak:.1%}",
            f"{row.of_peak_in_full:.1%}",
            memory,
            f"{row.ready:.1f}",
        ]
        name = f"{row.work}: {row.contender}"
        cells.append([name, *(["failed"] + [""] * 6 if row.failed else numbers)])
    columns = ["", "tokens/s", "steps/s", "peak", "of peak", "in full", "GiB", "ready, s"]
    title = (
        "Full training steps. Tokens of both sides are counted. Peak: TFLOP/s of a large matrix "
        "product (bfloat16 on a GPU,\ntf32 for models in float32 there; float32 on a CPU), in "
        "alternation.\nOf peak: causal attention counted by half; in full: as nanoGPT "
        "counts.\n"
    )
    verdicts = [f"{row.work}: {row.contender}: {v}" for row in rows for v in row.verdicts or ()]
    failed = [_line(row) for row in rows if row.failed]
    return "\n".join([table(title, columns, cells), "", *verdicts, *failed])


def _tiny(setting: Setting) -> Setting:
    shape: dict[str, Any] = {"layers": 1, "heads": 2, "width": 32, "texts": 4, "length": 16}
    source = None if setting.source_vocab is None else 90
    return replace(setting, **shape, vocab=100, source_vocab=source)


def main() -> None:
    """Measure, print the table and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", choices=WORKS, help="default: all for the device")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contender")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--compile-sets", nargs="*", type=int, choices=list(SETS), default=[])
    parser.add_argument("--tiny", action="store_true", help="seconds, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    options.size = _tiny if options.tiny else lambda setting: setting
    if cuda:
        torch.set_float32_matmul_precision("high")
    bench = Bench(options.device, rounds=2 if options.tiny else options.rounds)
    rows: list[Row] = []
    for name in options.only or (WORKS[:3] if cuda else WORKS[3:]):
        for measured in MEASURES[name](bench, options):
            rows += measured
    figures = {
        "quoted": {"nanoGPT compiled": NANOGPT},
        "rows": [asdict(row) for row in rows],
    }
    keep(
        f"training-{options.device}",
        report(rows),
        figures,
        device=options.device,
        folder=options.out,
    )


if __name__ == "__main__":
    main()
