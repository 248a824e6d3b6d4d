"""Full training steps like for like with other libraries: the same precision, the peer at its best.

    python benchmarks/training.py                    a small LM and a translator on this CPU
    python benchmarks/training.py --device cuda      GPT-2 124M, and four translators
    python benchmarks/training.py --device cuda --only sets --sets 1 2 --add     a part at a time
    python benchmarks/training.py --only small-lm --precisions float32         a part, of a CPU's
    python benchmarks/training.py --threads 1 --clock processor     on a CPU that others use, too
    python benchmarks/training.py --tiny             seconds, to try the script

A step is forward, loss, backward, clipping and AdamW, on random tokens without padding. Every
system has a process of its own, and turns alternate between them (`heed.bench.like_for_like`).
Of GPT-2 two batch sizes at once fill a GPU, so there each system takes all its turns alone and
exits, but with `--texts 64` they alternate, too. nanoGPT is
measured as a plain GPT of its shape (`heed.bench.peers.PlainGPT`), compiled as nanoGPT compiles,
with bfloat16 autocast, torch's flash attention and fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine

from heed.bench.against import peer_modes, standard_workload
from heed.bench.like_for_like import TURN, TURNS, Options, Row, SpeedComparison, System, compare
from heed.bench.peer_step import MODES
from heed.bench.speed_table import comparison_notes, comparison_text
from heed.bench.standard_shapes import (
    GPT2,
    SETS,
    SMALL_LM,
    SMALL_MT,
    Setting,
    with_small_batch,
)
from heed.bench.timing import CLOCKS, PROCESSOR, WALL
from heed.bench.workload import Workload
from heed.train.resolve import set_threads

VOCABULARIES = (21_178, 30_437)
"""Source and target vocabularies of the comparison with nn.Transformer: words, not shared."""
FASTEST = "the fastest peer"
PRODUCT = 256
"""Rows of the peak's matrices with `--tiny`."""


@dataclass(frozen=True)
class Target:
    """What heed should reach: a ratio over the fastest peer or over one mode, or another value."""

    least: float
    over: str = FASTEST
    precision: str = "bf16"

    def describe(self, rows: Sequence[Row]) -> str:
        """Whether it is reached."""
        same = [r for r in rows if r.result.system.precision == self.precision]
        peers = [r for r in same if r.ratio is not None and not r.result.system.is_heed]
        if self.over != FASTEST:
            peers = [r for r in peers if r.result.system.mode == self.over]
        ratio = peers[0].ratio if peers else None
        where = f"{self.precision}, over {self.over}"
        if ratio is None:
            return f"Target {self.least:g} ({where}): not measured"
        reached = "reached" if ratio.median >= self.least else "MISSED"
        return f"Target {self.least:g} ({where}, {ratio.over}): {ratio.median:.2f}, {reached}"


@dataclass(frozen=True)
class SpeedTarget:
    """What heed should reach by itself: tokens per second."""

    least: float

    def describe(self, rows: Sequence[Row]) -> str:
        """Whether its fastest row reaches it."""
        own = [r.result for r in rows if r.result.system.is_heed and r.result.seconds]
        if not own:
            return f"Target {self.least:,.0f} tokens/s: not measured"
        fastest = max(own, key=lambda result: statistics.median(result.rates))
        rate = statistics.median(fastest.rates)
        reached = "reached" if rate >= self.least else "MISSED"
        name = fastest.system.name
        return f"Target {self.least:,.0f} tokens/s: {rate:,.0f} ({name}), {reached}"


@dataclass(frozen=True)
class Work:
    """One comparison to measure."""

    name: str
    systems: list[System]
    targets: tuple[Target | SpeedTarget, ...] = ()
    alone: bool = False


def gpt2(options: argparse.Namespace) -> Iterator[Work]:
    """GPT-2's 124M shape beside a plain GPT of nanoGPT's shape; large batches alone on the GPU."""
    systems, fp8 = [], ("train.fp8_output=true",)
    for texts in options.texts:
        workload, label = _workload(options, replace(GPT2, texts=texts)), f"{texts} texts"
        heed = partial(System, "heed", options.execution, "bf16", workload)
        systems += [heed(label=label), heed(changes=fp8, label=f"{label}, fp8 output layer")]
        modes = options.modes if texts == GPT2.texts else {"compiled"} & set(options.modes)
        systems += [System("plain", mode, "bf16", workload, label=label) for mode in modes]
    yield Work(
        "GPT-2 124M, 1,024 tokens",
        systems,
        (SpeedTarget(620_000), Target(1.0), Target(1.0, "compiled")),
        alone=max(options.texts) > GPT2.texts,
    )


def gpt2_transformers(options: argparse.Namespace) -> Iterator[Work]:
    """GPT-2's 124M shape beside GPT2LMHeadModel, which holds all logits: also at half the batch."""
    workload = _workload(options, GPT2)
    half = _workload(options, replace(GPT2, texts=GPT2.texts // 2))
    labels = ((workload, "64 texts"), (half, "32 texts"))
    yield Work(
        "GPT-2 124M, 1,024 tokens, transformers",
        [
            System("heed", options.execution, "bf16", workload, label="64 texts"),
            *(
                System("transformers", mode, "bf16", some, label=label)
                for some, label in labels
                for mode in options.modes
                if "captured" not in mode
            ),
        ],
        alone=True,
    )


def sets(options: argparse.Namespace) -> Iterator[Work]:
    """The four translators at 512 sequences of 32 tokens beside Marian."""
    for number in options.sets:
        workload = _workload(options, SETS[number])
        peers = [System("transformers", mode, "bf16", workload) for mode in options.modes]
        heed = partial(System, "heed", options.execution, "bf16", workload)
        rope = heed(changes=("model.position=rope",), label="rope")
        # heed's two take their turns one after the other: the second finds the lower clock that the
        # first leaves behind, and the first finds that of a peer.
        yield Work(f"set {number}, 512x32", [heed(), rope, *peers], (Target(1.5),))


def few(options: argparse.Namespace) -> Iterator[Work]:
    """The four translators at 16 sequences of 32 tokens beside torch.nn.Transformer, in tf32."""
    source, target = VOCABULARIES
    precision = "tf32" if options.cuda else "float32"
    for number in options.sets:
        setting = replace(with_small_batch(SETS[number]), source_vocab=source, vocab=target)
        workload = _workload(options, setting)
        peers = [System("nn.Transformer", mode, precision, workload) for mode in options.modes]
        heed = System("heed", options.execution, precision, workload)
        other = System("heed", options.execution, "bf16", workload)
        targets = (Target(6.0, "eager", precision),)
        yield Work(f"set {number}, 16x32", [heed, *peers, other], targets)


def small_lm(options: argparse.Namespace) -> Iterator[Work]:
    """For a CPU: a small language model beside a plain GPT."""
    # The plain GPT's GELU: GPT-2's tanh form takes twice as long on a CPU.
    workload = _workload(options, SMALL_LM, ["model.activation=gelu"])
    yield _small(options, workload, "plain")


def small_mt(options: argparse.Namespace) -> Iterator[Work]:
    """For a CPU: a small translator beside Marian."""
    yield _small(options, _workload(options, SMALL_MT), "transformers")


def _small(options: argparse.Namespace, workload: Workload, library: str) -> Work:
    """In float32 and in bfloat16.

    heed keeps memory that a step frees in its process, and peers are run as their users run them.
    One more row shows what a peer gains by that.
    """
    systems = []
    for precision in options.precisions:
        systems.append(System("heed", options.execution, precision, workload))
        if options.compile:
            systems.append(System("heed", "compile", precision, workload))
        systems += [System(library, mode, precision, workload) for mode in options.modes]
    if "float32" in options.precisions:
        systems.append(System(library, "eager", "float32", workload, keep_memory=True))
    return Work(workload.name, systems, (Target(1.1, precision="float32"),))


WORKS: dict[str, Callable[[argparse.Namespace], Iterator[Work]]] = {
    "gpt2": gpt2,
    "gpt2-transformers": gpt2_transformers,
    "sets": sets,
    "few": few,
    "small-lm": small_lm,
    "small-mt": small_mt,
}
DEFAULT = {"cuda": ("gpt2", "sets", "few"), "cpu": ("small-lm", "small-mt")}


def _workload(
    options: argparse.Namespace, setting: Setting, changes: Sequence[str] = ()
) -> Workload:
    """The batch of a setting, which `--tiny` replaces."""
    return standard_workload(_tiny(setting) if options.tiny else setting, changes)


def _tiny(setting: Setting) -> Setting:
    shape: dict[str, Any] = {"layers": 1, "heads": 2, "width": 32, "length": 16}
    source = None if setting.source_vocab is None else 90
    texts = max(2, setting.texts // 32)
    return replace(setting, **shape, texts=texts, vocab=100, source_vocab=source)


def measure(work: Work, options: argparse.Namespace) -> tuple[SpeedComparison, dict[str, Any]]:
    """One comparison, and its figures with the table as text."""
    print(f"{work.name}:", flush=True)
    settings = Options(
        torch.device(options.device),
        options.turns,
        0.0 if options.tiny else TURN[options.device],
        alone=work.alone and options.cuda,
        clock=options.clock,
        product_size=PRODUCT if options.tiny else None,
        build_together=options.together,
    )
    say = partial(print, flush=True)
    comparison = compare(work.name, work.systems, settings, say=say)
    rows = comparison.rows()
    targets = [target.describe(rows) for target in work.targets]
    text = [*comparison_text(comparison).splitlines(), "", *targets]
    print("\n".join([*text, ""]), flush=True)
    figures = {"machine": machine(options.device), **comparison.figures()}
    return comparison, {**figures, "targets": targets, "text": text}


def _earlier(folder: Path, name: str, measured: Sequence[str]) -> list[dict[str, Any]]:
    """Comparisons of the results file that were not measured again."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return [each for each in found.get("comparisons", []) if each["name"] not in measured]


def main() -> None:
    """Measure, print the tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", choices=WORKS, help="default: all for the device")
    parser.add_argument("--sets", nargs="+", type=int, choices=list(SETS), default=list(SETS))
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=["float32", "bf16"],
        default=["float32", "bf16"],
        help="of the small models of a CPU",
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each system")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    parser.add_argument("--clock", choices=CLOCKS, default=WALL)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="peers' modes; default: all")
    parser.add_argument("--texts", nargs="+", type=int, default=[64, 128], help="of GPT-2")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    parser.add_argument(
        "--together", action="store_true", help="build all systems at once: sooner on many cores"
    )
    parser.add_argument("--add", action="store_true", help="keep other comparisons in the results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    options = parser.parse_args()
    options.cuda = options.device == "cuda"
    if options.clock == PROCESSOR and (options.cuda or options.threads != 1):
        parser.error("--clock processor is for a CPU with --threads 1")
    set_threads(options.threads)
    options.execution = "graphs" if options.cuda else "eager"
    modes = peer_modes(torch.device(options.device), compiled=options.compile)
    options.modes = [mode for mode in modes if mode in (options.modes or modes)]
    name = f"training-{options.device}"
    comparisons, figures = [], []
    for key in options.only or DEFAULT[options.device]:
        for work in WORKS[key](options):
            comparison, found = measure(work, options)
            comparisons.append(comparison)
            figures.append(found)
            save(name, comparisons, figures, options, show=False)  # nothing measured is lost
    save(name, comparisons, figures, options, show=True)


def save(
    name: str,
    comparisons: Sequence[SpeedComparison],
    figures: Sequence[dict[str, Any]],
    options: argparse.Namespace,
    *,
    show: bool,
) -> None:
    """Save what was measured so far; `--add` keeps the other comparisons of the results file."""
    figures = list(figures)
    if options.add:
        figures = _earlier(options.out, name, [each["name"] for each in figures]) + figures
    text = "\n\n".join("\n".join(each["text"]) for each in figures)
    text = "\n".join([text, "", *comparison_notes(comparisons)])
    kept = {"comparisons": figures}
    keep(name, text, kept, device=options.device, folder=options.out, show=show)


if __name__ == "__main__":
    main()
