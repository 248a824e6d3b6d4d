"""How long the evaluation of a run takes, from that of a few texts of the set."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from heed.config import DecodeConfig
from heed.device import choose_device
from heed.evaluate.evaluate_run import evaluate_run, parse_split
from heed.evaluate.held_out_set import find_set, find_training_text
from heed.evaluate.job import Options
from heed.runs.run import Run
from heed.train.estimate import count_timed_texts

OUTPUT_LENGTH = ("max_ratio", "max_extra")
"""Keys of `[decode]` that limit the length of an output."""


def estimate_evaluations(
    run: Run, evaluations: Sequence[Options], decode: DecodeConfig, *, device: str
) -> float:
    """Seconds that these evaluations of a run take.

    Outputs are as long as `decode` lets them be. The results of a few texts are saved in the run's
    folder, which is a temporary one.
    """
    if run.recipe().task == "translate":
        limits = decode.model_dump(include={*OUTPUT_LENGTH})
        evaluations = [replace(one, decode={**one.decode, **limits}) for one in evaluations]
    return sum(_estimate(run, one, device) for one in evaluations)


def _estimate(run: Run, options: Options, device: str) -> float:
    """Seconds of one evaluation: what it takes once, and what each of its texts takes.

    An evaluation of one text tells the first: the model is loaded, and train read for overlap.
    """
    recipe = run.recipe()
    split = parse_split(options).split
    held_out = find_set(recipe, find_training_text(run, recipe), split=split)
    total = len(held_out.records(Counter()))
    timed = min(total, count_timed_texts(choose_device(device)))
    once = _time(run, replace(options, sample=1), device)
    if timed < 2:
        return once
    seconds = _time(run, replace(options, sample=timed), device)
    return once + max(0.0, seconds - once) * (total - 1) / (timed - 1)


def _time(run: Run, options: Options, device: str) -> float:
    began = time.perf_counter()
    evaluate_run(run.folder, options, device=device, notify=lambda text: None)
    return time.perf_counter() - began
