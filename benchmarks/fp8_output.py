"""Does a language model learn as well with its output layer in 8 bits (train.fp8_output)?

    python benchmarks/fp8_output.py --device cuda --text FILE...    GPT-2's 124M shape, real text
    python benchmarks/fp8_output.py --tiny                          seconds on a CPU, to try it

The same model is trained with and without 8-bit products from two seeds, on the same batches in
the same order. Tokens are the text's most frequent words and signs; others are unknown. The table
has mean losses over windows of steps: with 8 bits, how far from bfloat16 with the same seed, and
how far the two seeds are from each other in bfloat16. Without 8-bit products (a CPU, an older GPU)
both runs of a seed are the same run.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from common import ROOT, keep, table
from torch import Tensor

from heed.bench.standard_shapes import GPT2, Setting
from heed.data.batching.batch import Batch
from heed.data.tokenizers.special_tokens import MASK, UNK
from heed.train.counters import RECENT
from heed.train.execution.choose import PlannedWork, build_step
from heed.train.objective import Objective, find_fp8_obstacle
from heed.train.optimizers.build import OptimizerSettings, build_optimizer, set_lr
from heed.train.state import State

SHAPE = replace(GPT2, texts=16, length=256)
TINY = replace(SHAPE, layers=1, heads=2, width=32, vocab=300, texts=2, length=16)
SEEDS = (1, 2)
WINDOW = 20
"""Steps of one mean."""
WARMUP = 100
"""Steps over which the learning rate rises."""
LR, WEIGHT_DECAY = 6e-4, 0.1
"""As nanoGPT trains GPT-2."""
MAX_CHARACTERS = 50_000_000
Curves = dict[tuple[int, bool], list[float]]
"""Mean losses over windows, by seed and whether in 8 bits."""


def read_tokens(files: Sequence[Path], vocab: int) -> Tensor:
    """The ids of a text's words and signs, all below `vocab`."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)[:MAX_CHARACTERS]
    words = re.findall(r"\w+|[^\w\s]", text)
    ranked = Counter(words).most_common(vocab - MASK - 1)
    ids = {word: MASK + 1 + rank for rank, (word, _) in enumerate(ranked)}
    return torch.tensor([ids.get(word, UNK) for word in words])


def draw_batches(tokens: Tensor, setting: Setting, steps: int, device: torch.device) -> list[Batch]:
    """Random windows of the text, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    size, ends = (setting.texts, setting.length), len(tokens) - setting.length
    if ends < 1:
        raise SystemExit(f"The text has {len(tokens)} tokens: too few for {setting.length}.")
    everywhere = torch.ones(size, dtype=torch.bool, device=device)
    positions = torch.arange(setting.length, device=device)[None]
    batches = []
    for _ in range(steps):
        starts = torch.randint(ends, (setting.texts, 1), generator=generator)
        windows = tokens[starts + torch.arange(setting.length + 1)].to(device)
        ids, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        count, rows = setting.texts * setting.length, tuple(range(setting.texts))
        batches.append(Batch(ids, targets, everywhere, positions, count=count, rows=rows))
    return batches


def train(
    setting: Setting, batches: Sequence[Batch], seed: int, *, fp8_output: bool
) -> list[float]:
    """Mean losses over windows of a model trained from this seed."""
    changes = [f"seed={seed}", f"train.fp8_output={str(fp8_output).lower()}"]
    recipe, device = setting.recipe(changes), batches[0].ids.device
    model = setting.model(recipe, device)
    settings = OptimizerSettings(name="adamw", lr=LR, weight_decay=WEIGHT_DECAY)
    optimizer = build_optimizer(model, settings, lr_tensor=device.type == "cuda")
    state = State(model, optimizer, device)
    work = PlannedWork(len(batches), [setting.shape], batches[0])
    objective = Objective(model, fp8_output=fp8_output)
    step = build_step(recipe, objective, state, work, bf16=True, say=print)
    began, losses = time.perf_counter(), []
    for number, batch in enumerate(batches, start=1):
        set_lr(optimizer, LR, min(1.0, number / WARMUP))
        step([batch])
        if number % WINDOW == 0:
            loss = state.counters.take_means(RECENT)["loss"]
            losses.append(float("nan") if loss is None else loss)
    seconds, name = time.perf_counter() - began, "fp8" if fp8_output else "bf16"
    print(f"seed {seed}, {name}: loss {losses[-1]:.4f}, {seconds:.1f} s", flush=True)
    return losses


def report(curves: Curves, note: str) -> str:
    """One row per window, and the means over the last half."""
    first, second = SEEDS

    def differences(window: int) -> tuple[list[float], list[float], float]:
        fp8 = [curves[seed, True][window] for seed in SEEDS]
        bf16 = [curves[seed, False][window] for seed in SEEDS]
        return fp8, [a - b for a, b in zip(fp8, bf16, strict=True)], bf16[1] - bf16[0]

    rows, windows = [], range(len(curves[first, True]))
    for window in windows:
        fp8, apart, seeds = differences(window)
        steps = f"{window * WINDOW + 1} to {(window + 1) * WINDOW}"
        rows.append([steps, *(f"{x:.4f}" for x in fp8), *(f"{x:+.4f}" for x in (*apart, seeds))])
    late = [differences(window) for window in windows[len(windows) // 2 :]]
    between = fmean(abs(seeds) for _, _, seeds in late)
    within = fmean(abs(x) for _, apart, _ in late for x in apart)
    signed = fmean(x for _, apart, _ in late for x in apart)
    columns = ["steps", *(f"fp8, seed {seed}" for seed in SEEDS)]
    columns += [*(f"fp8 - bf16, seed {seed}" for seed in SEEDS), f"bf16, seed {second} - {first}"]
    summary = (
        f"Second half: fp8 - bf16 is {signed:+.4f} on average, {within:.4f} in size; two seeds "
        f"differ by {between:.4f}."
    )
    return "\n".join([table(f"Mean loss over {WINDOW} steps.{note}", columns, rows), "", summary])


def main() -> None:
    """Train, compare, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--text", type=Path, nargs="+", help="text files; default: heed's pages")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--out", type=Path, default=None, help="folder for results")
    options = parser.parse_args()
    device = torch.device(options.device)
    setting, steps = (TINY, 2 * WINDOW) if options.tiny else (SHAPE, options.steps)
    tokens = read_tokens(options.text or sorted((ROOT / "docs").glob("*.md")), setting.vocab)
    batches = draw_batches(tokens, setting, steps, device)
    model = setting.model(setting.recipe(), torch.device("cpu"))
    obstacle, note = find_fp8_obstacle(model, device, bf16=True), ""
    if obstacle is not None:
        note = f" Not in 8 bits, because {obstacle}."
    curves = {
        (seed, fp8_output): train(setting, batches, seed, fp8_output=fp8_output)
        for seed in SEEDS
        for fp8_output in (False, True)
    }
    figures = {
        "steps": steps,
        "window": WINDOW,
        "served": obstacle is None,
        "tokens": len(tokens),
        "losses": {
            f"{'fp8' if fp8_output else 'bf16'}, seed {seed}": losses
            for (seed, fp8_output), losses in curves.items()
        },
    }
    name = f"fp8-output-{options.device}"
    keep(name, report(curves, note), figures, device=options.device, folder=options.out)


if __name__ == "__main__":
    main()
